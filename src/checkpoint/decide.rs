//! Quantize or keep: a person's globs first, then the role, then whether dtype and shape allow it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, anyhow, bail};
use glob::Pattern;
use safetensors::Dtype;

use super::{
    Checkpoint, TensorEntry,
    family::Role,
    module::Found,
    names::{fused_name, owner},
    recipe::Overrides,
};
use crate::error::{Hint, advise};

/// vLLM's Marlin path pads N to a multiple of this on every forward.
const N_MULTIPLE: usize = 64;
/// Elements of an NVFP4 block.
pub(super) const K_MULTIPLE: usize = 16;

/// What becomes of one tensor.
pub(super) enum Decision {
    /// To NVFP4; an FP8 source has a tensor of scales.
    Quantize { scale: Option<String> },
    /// A scale of a linear that is quantized anew.
    Dissolve,
    /// Copied, for this reason.
    Keep(String),
}

/// The overrides, compiled.
pub(super) struct Rules {
    quantize: BTreeSet<String>,
    keep: BTreeMap<String, String>,
}

impl Rules {
    /// Applies each glob to the names of the module.
    pub fn new<'n>(overrides: &Overrides, names: impl Iterator<Item = &'n str> + Clone) -> Result<Self> {
        let mut rules = Self { quantize: BTreeSet::new(), keep: BTreeMap::new() };
        for text in &overrides.quantize {
            // Scales follow their weight; a glob such as `*q_proj*` means the weight.
            let is_weight = |name: &&str| owner(name).is_none();
            let matched = matching("--quantize", text, names.clone().filter(is_weight))?;
            rules.quantize.extend(matched.into_iter().map(str::to_owned));
        }
        for text in &overrides.keep {
            for name in matching("--keep", text, names.clone())? {
                if rules.quantize.contains(name) {
                    bail!("tensor `{name}` is named by both `--quantize` and `--keep`");
                }
                rules.keep.insert(name.to_owned(), format!("`--keep {text}`"));
            }
        }
        Ok(rules)
    }

    /// What becomes of tensor `name`.
    pub fn decide(&self, holder: &Checkpoint, name: &str, found: &Found) -> Result<Decision> {
        let entry = &holder.entries()[name];
        if let Some(reason) = self.keep.get(name) {
            return Ok(Decision::Keep(reason.clone()));
        }
        let is_forced = self.quantize.contains(name);
        if let Some(weight) = owner(name).filter(|_| found.is_scale) {
            return Ok(Decision::Keep(format!("scale of `{weight}`")));
        }
        if !is_forced && !found.role.is_quantized() {
            return Ok(Decision::Keep(keep_reason(holder, name, entry, found.role)));
        }
        if is_nvfp4(holder, name, entry) {
            if is_forced {
                return Err(anyhow!("`{}`: tensor `{name}` is NVFP4 already", holder.file_of(entry)))
                    .hint("quantizing it again would only lose accuracy: leave it out of `--quantize`");
            }
            return Ok(Decision::Keep("already NVFP4".to_owned()));
        }
        match obstacle(entry, found.role) {
            Some(obstacle) if is_forced => {
                Err(anyhow!("`{}`: tensor `{name}` cannot be quantized: {obstacle}", holder.file_of(entry)))
            }
            Some(obstacle) => Ok(Decision::Keep(obstacle)),
            None => Ok(Decision::Quantize { scale: scale_of(holder, name, entry)? }),
        }
    }

    /// Runtimes load a fused module in one format: if one part is kept, all are. Then drops the scales of what is
    /// quantized.
    pub fn keep_fused_parts_together(
        &self,
        tensors: &BTreeMap<String, Found>,
        decisions: &mut BTreeMap<&str, Decision>,
    ) -> Result<()> {
        let module_of = |name: &str| tensors[name].fused.map(|fused| fused_name(name, fused));
        let mut kept = BTreeMap::new();
        for (name, decision) in decisions.iter() {
            if matches!(decision, Decision::Keep(_))
                && let Some(module) = module_of(name)
            {
                kept.entry(module).or_insert_with(|| (*name).to_owned());
            }
        }
        for (name, decision) in decisions.iter_mut() {
            let because = module_of(name).and_then(|module| kept.get(&module));
            if let (Decision::Quantize { .. }, Some(part)) = (&*decision, because) {
                if self.quantize.contains(*name) {
                    return Err(anyhow!(
                        "tensor `{name}` cannot be quantized: runtimes fuse it with `{part}`, which is kept"
                    ))
                    .hint("name all parts of the fused module with `--quantize`");
                }
                *decision = Decision::Keep(format!("fused with `{part}`, which is kept"));
            }
        }
        let quantized: BTreeSet<String> = decisions
            .iter()
            .filter(|(_, d)| matches!(d, Decision::Quantize { .. }))
            .map(|(n, _)| (*n).to_owned())
            .collect();
        for (name, decision) in decisions.iter_mut() {
            if owner(name).is_some_and(|weight| quantized.contains(&weight)) {
                *decision = Decision::Dissolve;
            }
        }
        Ok(())
    }
}

fn matching<'n>(flag: &str, text: &str, names: impl Iterator<Item = &'n str>) -> Result<Vec<&'n str>> {
    let pattern = Pattern::new(text).with_context(|| format!("`{flag} {text}` is not a valid glob"))?;
    let matched: Vec<&str> = names.filter(|name| pattern.matches(name)).collect();
    if matched.is_empty() {
        return Err(advise(
            anyhow!("`{flag} {text}` matches no tensor of the MTP module"),
            "`draftfast inspect MODEL` lists them",
        ));
    }
    Ok(matched)
}

/// Why a tensor cannot become an NVFP4 linear.
fn obstacle(entry: &TensorEntry, role: Role) -> Option<String> {
    if role == Role::SharedCopy {
        return Some(role.keep_reason().to_owned());
    }
    let &[n, k] = entry.shape.as_slice() else {
        return Some(format!("shape {:?} is not that of a linear", entry.shape));
    };
    let fits = n % N_MULTIPLE == 0 && k % K_MULTIPLE == 0;
    (!fits).then(|| format!("shape [{n}, {k}]: NVFP4 needs N % {N_MULTIPLE} == 0 and K % {K_MULTIPLE} == 0"))
}

fn keep_reason(holder: &Checkpoint, name: &str, entry: &TensorEntry, role: Role) -> String {
    match (role, entry.dtype) {
        (Role::RoutedExpert, _) if is_nvfp4(holder, name, entry) => "routed expert, already NVFP4".to_owned(),
        _ => role.keep_reason().to_owned(),
    }
}

/// ModelOpt's layout: packed codes, block scales and a global scale beside each other.
fn is_nvfp4(holder: &Checkpoint, name: &str, entry: &TensorEntry) -> bool {
    let beside = |last: &str| holder.entries().contains_key(&format!("{name}{last}"));
    entry.dtype == Dtype::U8 && beside("_scale") && beside("_scale_2")
}

/// Checks that the dtype can be read; FP8 needs its scales.
pub(super) fn scale_of(holder: &Checkpoint, name: &str, entry: &TensorEntry) -> Result<Option<String>> {
    let file = holder.file_of(entry);
    match entry.dtype {
        Dtype::BF16 | Dtype::F16 | Dtype::F32 => Ok(None),
        Dtype::F8_E4M3 => {
            let names = ["_scale_inv", "_scale"].map(|last| format!("{name}{last}"));
            let found = names.iter().find(|scale| holder.entries().contains_key(*scale)).cloned();
            let scale = found.with_context(|| {
                format!("`{file}`: tensor `{name}` is FP8, but there is no `{}`", names.join("` or `"))
            })?;
            Ok(Some(scale))
        }
        other => Err(anyhow!("`{file}`: tensor `{name}` has dtype {other}, expected BF16")).hint(
            "give the unquantized upstream release with `--mtp-from OTHER_MODEL_FOLDER`, or keep it with `--keep`",
        ),
    }
}
