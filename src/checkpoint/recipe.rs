//! What draftfast does with a checkpoint: which linears it quantizes, which tensors it keeps, and why.
//!
//! [`recipe`] finds the head, collects the MTP tensors, gives each the role that the family's table says, and decides.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, bail, ensure};
use safetensors::Dtype;
use serde::Serialize;
use serde_json::Value;

use super::{
    Checkpoint, TensorEntry,
    decide::{Decision, K_MULTIPLE, Rules, scale_of},
    family::{Role, detect},
    module::{Found, find_module},
    names::{WRAPPERS, fused_name},
    sizes::config_value,
};
use crate::error::{Hint, advise};

/// What draftfast does with a checkpoint.
#[derive(Debug, Clone, Serialize)]
pub struct Recipe {
    /// The family, `unknown` when no table fits.
    pub family: &'static str,
    /// Width of the residual stream, K of the head.
    pub hidden_size: usize,
    /// Rows of the target's head, V.
    pub target_rows: usize,
    /// Where the head's rows come from.
    pub head: HeadTensor,
    /// Linears that become NVFP4, by name.
    pub linears: Vec<Linear>,
    /// Every other tensor of the MTP module, copied bit by bit, by name.
    pub kept: Vec<Kept>,
    /// Copies of the head or the embedding inside the MTP module: not written, the draft head replaces them.
    pub replaced: Vec<Kept>,
    /// Routed experts, if the module has any.
    pub experts: Option<Experts>,
    /// What a person should know about how this was decided.
    pub notes: Vec<String>,
}

/// The tensor that the draft head's rows are taken from. It is always the target's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeadTensor {
    /// Full name.
    pub name: String,
    /// Whether it is the embedding, which the head shares.
    pub tied: bool,
    /// Its dtype in the file.
    pub dtype: Dtype,
    /// The tensor of its scales, when it is FP8.
    pub scale: Option<String>,
    /// Its scales, when it is NVFP4 already: then rows are sliced, not quantized anew.
    pub packed: Option<PackedScales>,
}

/// The scales of a head that is NVFP4 already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PackedScales {
    /// E4M3 `[V, H/16]`.
    pub block_scale: String,
    /// F32, one number: ModelOpt's multiplies (`weight_scale_2`), compressed-tensors' divides (`weight_global_scale`).
    pub global_scale: String,
    /// Which of the two.
    pub divides: bool,
}

/// A linear that becomes NVFP4.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Linear {
    /// Full name, ending in `.weight`.
    pub name: String,
    /// Output rows.
    pub n: usize,
    /// Input columns.
    pub k: usize,
    /// What it does.
    pub role: Role,
    /// The MTP layer, where the family counts them: a step runs one.
    pub layer: Option<usize>,
    /// The fused module it belongs to: parts with the same value share one global scale.
    pub fused: Option<String>,
    /// Its dtype in the file: BF16, F16, F32, or F8_E4M3 with a scale.
    pub dtype: Dtype,
    /// The tensor of its scales, when it is FP8.
    pub scale: Option<String>,
    /// The checkpoint that holds it.
    pub source: Source,
}

/// A tensor that is not quantized.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// Full name.
    pub name: String,
    /// What it does.
    pub role: Role,
    /// The MTP layer, where the family counts them: a step runs one.
    pub layer: Option<usize>,
    /// Why it is kept.
    pub reason: String,
    /// Its dtype in the file.
    pub dtype: Dtype,
    /// Its shape in the file.
    pub shape: Vec<usize>,
    /// Its size in the file.
    pub bytes: u64,
    /// Whether every draft step reads it (of routed experts: a share, see [`Experts`]).
    pub read_each_step: bool,
    /// Bytes that a step reads, more than `bytes` where the runtime pads; 0 when it is not read.
    pub read_bytes: u64,
    /// The checkpoint that holds it.
    pub source: Source,
}

/// Which of the two checkpoints holds a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The model itself.
    Target,
    /// The folder given with `--mtp-from`.
    MtpFrom,
}

/// A token uses `active` of `total` experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Experts {
    /// Experts per token.
    pub active: usize,
    /// Experts in the module.
    pub total: usize,
}

/// A person's corrections, as globs over tensor names.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// Quantize these, whatever the table says.
    pub quantize: Vec<String>,
    /// Keep these, whatever the table says.
    pub keep: Vec<String>,
}

/// Decides what to do with every tensor of the draft path.
///
/// `mtp_from` is the checkpoint to take the MTP module from when the target lost it.
///
/// # Errors
/// No MTP tensors, a tensor is missing or has another dtype or shape than the config says, or an override matches
/// nothing.
pub fn recipe(target: &Checkpoint, mtp_from: Option<&Checkpoint>, overrides: &Overrides) -> Result<Recipe> {
    let holder = mtp_from.unwrap_or(target);
    let source = if mtp_from.is_some() { Source::MtpFrom } else { Source::Target };
    let (head, target_rows, hidden_size) = find_head(target)?;
    if mtp_from.is_some() {
        check_same_model(target, holder)?;
    }
    let module = find_module(holder, detect(target.config()), mtp_from.is_some())?;
    let rules = Rules::new(overrides, module.tensors.keys().map(String::as_str))?;
    let mut recipe = Recipe {
        family: module.family,
        hidden_size,
        target_rows,
        head,
        linears: Vec::new(),
        kept: Vec::new(),
        replaced: Vec::new(),
        experts: module.experts,
        notes: module.notes,
    };
    let mut decisions = BTreeMap::new();
    for (name, found) in &module.tensors {
        decisions.insert(name.as_str(), rules.decide(holder, name, found)?);
    }
    rules.keep_fused_parts_together(&module.tensors, &mut decisions)?;
    for (name, decision) in decisions {
        recipe.place(name, &module.tensors[name], holder, decision, source);
    }
    Ok(recipe)
}

impl Recipe {
    fn place(&mut self, name: &str, found: &Found, holder: &Checkpoint, decision: Decision, source: Source) {
        let entry = &holder.entries()[name];
        match decision {
            Decision::Quantize { scale } => self.linears.push(Linear {
                name: name.to_owned(),
                n: entry.shape[0],
                k: entry.shape[1],
                role: found.role,
                layer: found.layer,
                fused: found.fused.map(|module| fused_name(name, module)),
                dtype: entry.dtype,
                scale,
                source,
            }),
            // The scales of a quantized linear go into it; the file that we write has new ones.
            Decision::Dissolve => {}
            Decision::Keep(reason) => {
                let is_read = found.role != Role::SharedCopy;
                let read_bytes = found.read_bytes.unwrap_or(entry.n_bytes());
                let kept = Kept {
                    name: name.to_owned(),
                    role: found.role,
                    layer: found.layer,
                    reason,
                    dtype: entry.dtype,
                    shape: entry.shape.clone(),
                    bytes: entry.n_bytes(),
                    read_each_step: is_read,
                    read_bytes: if is_read { read_bytes } else { 0 },
                    source,
                };
                if found.role == Role::SharedCopy { self.replaced.push(kept) } else { self.kept.push(kept) }
            }
        }
    }
}

/// The head's tensor, V and H.
fn find_head(target: &Checkpoint) -> Result<(HeadTensor, usize, usize)> {
    let find = |last: &str| {
        let names = WRAPPERS.iter().map(|wrapper| format!("{wrapper}{last}"));
        names.into_iter().find(|name| target.entries().contains_key(name))
    };
    let says_tied = config_value(target.config(), "tie_word_embeddings").and_then(Value::as_bool);
    let own = || find("lm_head.weight").or_else(|| find("lm_head.weight_packed"));
    let own = if says_tied == Some(true) { None } else { own() };
    let (name, tied) = match own {
        Some(name) => (name, false),
        None if says_tied == Some(false) => return Err(no_head(target)),
        None => match EMBEDDINGS.iter().find_map(|last| find(last)) {
            Some(name) => (name, true),
            None => return Err(no_head(target)),
        },
    };
    let entry = &target.entries()[&name];
    let packed = packed_scales(target, &name, entry);
    let (n_rows, hidden) = head_shape(target, &name, entry, packed.is_some())?;
    let scale = if packed.is_some() { None } else { scale_of(target, &name, entry)? };
    let head = HeadTensor { name, tied, dtype: entry.dtype, scale, packed };
    check_packed(target, &head, n_rows, hidden)?;
    Ok((head, n_rows, hidden))
}

/// The scales beside packed codes, by either naming.
fn packed_scales(target: &Checkpoint, name: &str, entry: &TensorEntry) -> Option<PackedScales> {
    let (module, divides) = match name.strip_suffix(".weight_packed") {
        Some(module) => (module, true),
        None => (name.strip_suffix(".weight")?, false),
    };
    let block_scale = format!("{module}.weight_scale");
    let global_scale = format!("{module}.{}", if divides { "weight_global_scale" } else { "weight_scale_2" });
    let there = [&block_scale, &global_scale].iter().all(|scale| target.entries().contains_key(*scale));
    (entry.dtype == Dtype::U8 && there).then_some(PackedScales { block_scale, global_scale, divides })
}

/// # Errors
/// The scales of a packed head do not fit its codes.
fn check_packed(target: &Checkpoint, head: &HeadTensor, n_rows: usize, hidden: usize) -> Result<()> {
    let Some(packed) = &head.packed else { return Ok(()) };
    let check = |name: &str, dtype: Dtype, fits: &dyn Fn(&[usize]) -> bool, expected: &str| {
        let entry = &target.entries()[name];
        let file = target.file_of(entry);
        ensure!(
            entry.dtype == dtype && fits(&entry.shape),
            "`{file}`: tensor `{name}` is {} {:?}, expected {dtype} {expected}",
            entry.dtype,
            entry.shape
        );
        Ok(())
    };
    let block_shape = [n_rows, hidden / K_MULTIPLE];
    check(&packed.block_scale, Dtype::F8_E4M3, &|shape| shape == block_shape, &format!("{block_shape:?}"))?;
    check(&packed.global_scale, Dtype::F32, &|shape| shape.iter().product::<usize>() == 1, "of one element")
}

/// Names of the token embedding, after the wrapper.
const EMBEDDINGS: &[&str] = &["embed_tokens.weight", "embeddings.weight", "backbone.embeddings.weight"];

fn no_head(target: &Checkpoint) -> anyhow::Error {
    advise(
        anyhow!("`{}`: found neither `lm_head.weight` nor a tied `embed_tokens.weight`", target.dir().display()),
        "draftfast takes the draft head's rows from the target's head; a quantized head has other names",
    )
}

fn head_shape(target: &Checkpoint, name: &str, entry: &TensorEntry, is_packed: bool) -> Result<(usize, usize)> {
    let file = target.file_of(entry);
    let &[n_rows, n_columns] = entry.shape.as_slice() else {
        bail!("`{file}`: tensor `{name}` has shape {:?}, expected [vocab_size, hidden_size]", entry.shape);
    };
    // A byte of a packed head holds two columns.
    let hidden = if is_packed { 2 * n_columns } else { n_columns };
    if !is_packed && !matches!(entry.dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32 | Dtype::F8_E4M3) {
        return Err(anyhow!("`{file}`: tensor `{name}` has dtype {}, expected BF16", entry.dtype))
            .hint("take the unquantized release of the model");
    }
    for (key, found) in [("vocab_size", n_rows), ("hidden_size", hidden)] {
        if let Some(expected) = config_value(target.config(), key).and_then(Value::as_u64) {
            ensure!(
                found as u64 == expected,
                "`{file}`: tensor `{name}` has shape {:?}, but `config.json` says that `{key}` is {expected}",
                entry.shape
            );
        }
    }
    ensure!(
        hidden > 0 && hidden % K_MULTIPLE == 0,
        "`{file}`: tensor `{name}` has {hidden} columns, expected a multiple of 16"
    );
    Ok((n_rows, hidden))
}

fn check_same_model(target: &Checkpoint, other: &Checkpoint) -> Result<()> {
    for key in ["model_type", "hidden_size", "num_hidden_layers", "vocab_size"] {
        let (ours, theirs) = (config_value(target.config(), key), config_value(other.config(), key));
        if let (Some(ours), Some(theirs)) = (ours, theirs)
            && ours != theirs
        {
            return Err(anyhow!(
                "`{}`: `{key}` is {theirs}, but the target `{}` has {ours}",
                other.dir().display(),
                target.dir().display()
            ))
            .hint("`--mtp-from` takes the upstream release of the same model");
        }
    }
    Ok(())
}
