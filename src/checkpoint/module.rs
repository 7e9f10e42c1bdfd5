//! Finds the MTP module in a checkpoint and gives every tensor of it the row of the family's table that describes it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, ensure};
use safetensors::Dtype;

use super::{
    Checkpoint, TensorEntry,
    family::{Family, Role, Row},
    heuristic,
    names::{WRAPPERS, fill, match_start, matches, owner},
    recipe::Experts,
    sizes::Sizes,
};
use crate::error::advise;

/// The MTP tensors of a checkpoint.
pub(super) struct Module {
    pub family: &'static str,
    /// By full name.
    pub tensors: BTreeMap<String, Found>,
    pub experts: Option<Experts>,
    pub notes: Vec<String>,
}

/// What the table says about one tensor.
pub(super) struct Found {
    pub role: Role,
    /// The MTP layer, where the name counts them.
    pub layer: Option<usize>,
    pub fused: Option<&'static str>,
    /// Bytes that a step reads, if not the whole tensor.
    pub read_bytes: Option<u64>,
    /// Whether it is a scale, or another companion, of a weight of that role.
    pub is_scale: bool,
}

/// Collects the module of `holder`; `is_other` says that it was given with `--mtp-from`.
pub(super) fn find_module(holder: &Checkpoint, family: Option<&'static Family>, is_other: bool) -> Result<Module> {
    let Some(family) = family else {
        return heuristic::find_module(holder);
    };
    let sizes = Sizes::read(holder.config(), family.sizes)?;
    let counts_layers = family.module.iter().any(|pattern| pattern.contains("{L}"));
    let n_layers = if counts_layers { sizes.get("layers")? } else { 0 };
    let Some((wrapper, names)) = collect(holder, family, n_layers) else {
        return Err(no_mtp(holder, family, is_other));
    };
    let mut module = Module { family: family.name, tensors: BTreeMap::new(), experts: None, notes: Vec::new() };
    for name in names {
        let entry = &holder.entries()[name];
        let found = describe(family, &sizes, &name[wrapper.len()..], n_layers, entry)
            .with_context(|| format!("`{}`: tensor `{name}`", holder.file_of(entry)))?;
        module.tensors.insert(name.to_owned(), found);
    }
    check_complete(holder, family, &sizes, wrapper, n_layers)?;
    if module.tensors.values().any(|found| found.role == Role::RoutedExpert) {
        module.experts = Some(Experts { active: sizes.get("topk")?, total: sizes.get("E")? });
    }
    Ok(module)
}

/// The wrapper and the full names of the module's tensors.
fn collect<'c>(holder: &'c Checkpoint, family: &Family, n_layers: usize) -> Option<(&'static str, Vec<&'c str>)> {
    let in_module = |name: &str| family.module.iter().any(|pattern| match_start(pattern, name, n_layers).is_some());
    WRAPPERS.iter().find_map(|&wrapper| {
        let wrapped = holder.entries().keys().map(String::as_str);
        let names: Vec<&str> = wrapped.filter(|name| name.strip_prefix(wrapper).is_some_and(in_module)).collect();
        (!names.is_empty()).then_some((wrapper, names))
    })
}

/// The row of a tensor; `name` is without the wrapper. Checks the shape.
fn describe(family: &Family, sizes: &Sizes, name: &str, n_layers: usize, entry: &TensorEntry) -> Result<Found> {
    let find = |name: &str| {
        let matched = |row: &'static Row| matches(row.name, name, n_layers).map(|indices| (row, indices.layer));
        family.rows.iter().find_map(matched)
    };
    if let Some((row, layer)) = find(name) {
        check_shape(row, sizes, entry)?;
        let fused = (!row.fused.is_empty()).then_some(row.fused);
        let read_bytes = match row.reads {
            "" => None,
            reads => Some(sizes.shape(reads)?.iter().product::<usize>() as u64 * entry.dtype.bitsize() as u64 / 8),
        };
        return Ok(Found { role: row.role, layer, fused, read_bytes, is_scale: false });
    }
    let weight = owner(name).and_then(|weight| find(&weight));
    // A scalar is no traffic; counting it would only blur the ledger.
    let read_bytes = (entry.shape.iter().product::<usize>() <= 1).then_some(0);
    Ok(match weight {
        Some((row, layer)) => Found { role: row.role, layer, fused: None, read_bytes, is_scale: true },
        None => Found { role: Role::Other, layer: None, fused: None, read_bytes, is_scale: false },
    })
}

fn check_shape(row: &Row, sizes: &Sizes, entry: &TensorEntry) -> Result<()> {
    if row.shape.is_empty() {
        return Ok(());
    }
    let expected = sizes.shape(row.shape)?;
    let mut found = entry.shape.clone();
    if entry.dtype == Dtype::U8
        && let Some(last) = found.last_mut()
    {
        // Packed NVFP4: two codes a byte.
        *last = last.saturating_mul(2);
    }
    ensure!(
        found == expected,
        "shape is {found:?}, expected {expected:?} (`{}` with the numbers of `config.json`)",
        row.shape
    );
    Ok(())
}

/// Every required tensor must be there.
fn check_complete(holder: &Checkpoint, family: &Family, sizes: &Sizes, wrapper: &str, n_layers: usize) -> Result<()> {
    let n_mtp_layers = sizes.get("mtp").unwrap_or(1).clamp(1, 64);
    for row in family.rows.iter().filter(|row| !row.optional) {
        for layer in 0..n_mtp_layers {
            let name = format!("{wrapper}{}", fill(row.name, layer, n_layers, 0));
            if holder.entries().contains_key(&name) {
                continue;
            }
            return Err(missing(holder, &name));
        }
    }
    Ok(())
}

fn missing(holder: &Checkpoint, name: &str) -> anyhow::Error {
    let dir = holder.dir().display();
    if let Some(dtype) = holder.unknown().get(name) {
        return anyhow!("`{dir}`: tensor `{name}` has dtype `{dtype}`, expected BF16");
    }
    let stem = name.strip_suffix("weight").unwrap_or(name);
    let packed = ["weight_packed", "qweight"].map(|last| format!("{stem}{last}"));
    if let Some(packed) = packed.iter().find(|packed| holder.entries().contains_key(*packed)) {
        return advise(
            anyhow!("`{dir}`: tensor `{name}` is missing: this checkpoint holds `{packed}`, already quantized"),
            "give the unquantized upstream release with `--mtp-from OTHER_MODEL_FOLDER`",
        );
    }
    advise(
        anyhow!("`{dir}`: tensor `{name}` of the MTP module is missing"),
        "the MTP module is incomplete: fetch the folder again, or give `--mtp-from OTHER_MODEL_FOLDER`",
    )
}

fn no_mtp(holder: &Checkpoint, family: &Family, is_other: bool) -> anyhow::Error {
    let sentence = format!(
        "`{}`: this {} checkpoint has no MTP tensors (`{}*`)",
        holder.dir().display(),
        family.name,
        family.module.join("*`, `")
    );
    let hint = if is_other {
        "`--mtp-from` needs the upstream release, which has them"
    } else {
        "quantizers drop them at export because the model class ignores them: take them from the upstream BF16 \
         release with `--mtp-from OTHER_MODEL_FOLDER`"
    };
    advise(anyhow!(sentence), hint)
}
