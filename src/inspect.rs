//! What lies at a path: a model folder, a sidecar, a safetensors file or a vocabulary, described from headers alone.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use serde_json::Value;

use crate::{
    checkpoint::{Checkpoint, Dtype, Overrides, Recipe, TensorEntry, config_value, ledger, ledger::Ledger, recipe},
    input::read_text,
    vocab::forms,
};

/// What to assume.
#[derive(Debug, Clone)]
pub struct InspectConfig {
    /// Rows of the draft head in the ledger of a model.
    pub n_rows: usize,
    /// V, for vocabulary files that do not say it.
    pub target_rows: Option<usize>,
    /// Corrections to the recipe of a model.
    pub overrides: Overrides,
}

/// What was found.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Inspection {
    /// A Hugging Face model folder.
    Model(Box<ModelInspection>),
    /// A directory that draftfast wrote.
    Sidecar(SidecarInspection),
    /// A safetensors file that is none of these.
    Safetensors(Contents),
    /// A draft vocabulary.
    Vocabulary(VocabularyInspection),
}

/// Tensors and their size.
#[derive(Debug, Serialize)]
pub struct Contents {
    /// Shards.
    pub n_files: usize,
    /// Tensors in all shards.
    pub n_tensors: usize,
    /// Size of all shards.
    pub n_bytes: u64,
    /// Tensors by dtype, counted.
    pub dtypes: BTreeMap<String, usize>,
}

/// A model: what draftfast would do with it.
#[derive(Debug, Serialize)]
pub struct ModelInspection {
    /// `model_type` of the config.
    pub model_type: Option<String>,
    /// What the folder holds.
    pub contents: Contents,
    /// Which tensors are quantized, which are kept, and why.
    pub recipe: Recipe,
    /// Bytes of one draft step.
    pub ledger: Ledger,
}

/// A sidecar, from its headers and its manifest.
#[derive(Debug, Serialize)]
pub struct SidecarInspection {
    /// What the folder holds.
    pub contents: Contents,
    /// Rows of the draft head.
    pub n_rows: usize,
    /// Rows of the target's head.
    pub target_rows: Option<u64>,
    /// Width of the draft head.
    pub hidden_size: usize,
    /// Linears in NVFP4, the draft head included: name, N, K.
    pub nvfp4: Vec<(String, usize, usize)>,
    /// Tensors copied from the target.
    pub kept: Vec<String>,
    /// The manifest, as it is.
    pub manifest: Value,
}

/// A vocabulary file.
#[derive(Debug, Serialize)]
pub struct VocabularyInspection {
    /// Its form, by file name.
    pub form: &'static str,
    /// What its numbers mean.
    pub semantics: String,
    /// The arrays in it.
    pub arrays: Vec<String>,
    /// Rows of the target's head.
    pub target_rows: usize,
    /// Distinct ids that are kept.
    pub n_kept: usize,
    /// Rows that repeat the first one.
    pub n_repeated: usize,
    /// Smallest and largest kept id.
    pub id_range: Option<(u32, u32)>,
    /// The vocabulary's identity, whatever its form.
    pub sha256: String,
    /// The tokenizer it was made for.
    pub tokenizer_sha256: Option<String>,
    /// Things to know.
    pub notes: Vec<String>,
}

/// Describes what is at `path`; `mtp_from` gives the MTP module of a model that lost it.
///
/// # Errors
/// Nothing that draftfast knows, or it is damaged: names file and tensor.
pub fn inspect(path: &Path, mtp_from: Option<&Path>, config: &InspectConfig) -> Result<Inspection> {
    if path.join("manifest.json").is_file() {
        return sidecar(path).map(Inspection::Sidecar);
    }
    if path.join("config.json").is_file() {
        return model(path, mtp_from, config).map(|model| Inspection::Model(Box::new(model)));
    }
    if !path.exists() {
        bail!("`{}` does not exist", path.display());
    }
    if path.extension().is_some_and(|extension| extension == "safetensors") {
        let file = Checkpoint::open_file(path)?;
        if !is_vocabulary(&file) {
            return Ok(Inspection::Safetensors(contents(&file)));
        }
    }
    vocabulary(path, config.target_rows).map(Inspection::Vocabulary)
}

fn model(path: &Path, mtp_from: Option<&Path>, config: &InspectConfig) -> Result<ModelInspection> {
    let target = Checkpoint::open(path)?;
    let other = mtp_from.map(Checkpoint::open).transpose()?;
    let recipe = recipe(&target, other.as_ref(), &config.overrides)?;
    Ok(ModelInspection {
        model_type: config_value(target.config(), "model_type").and_then(Value::as_str).map(str::to_owned),
        contents: contents(&target),
        ledger: ledger::ledger(&recipe, config.n_rows),
        recipe,
    })
}

fn contents(checkpoint: &Checkpoint) -> Contents {
    let mut dtypes = BTreeMap::<String, usize>::new();
    for entry in checkpoint.entries().values() {
        *dtypes.entry(entry.dtype.to_string()).or_default() += 1;
    }
    for dtype in checkpoint.unknown().values() {
        *dtypes.entry(dtype.clone()).or_default() += 1;
    }
    Contents {
        n_files: checkpoint.shard_files().count(),
        n_tensors: checkpoint.entries().len() + checkpoint.unknown().len(),
        n_bytes: checkpoint.n_bytes(),
        dtypes,
    }
}

fn sidecar(path: &Path) -> Result<SidecarInspection> {
    let drafter = Checkpoint::open_file(&path.join("drafter.safetensors"))?;
    let text = read_text(&path.join("manifest.json")).context("`manifest.json`")?;
    let manifest: Value =
        serde_json::from_str(&text).map_err(|error| anyhow!("`manifest.json`: not valid JSON: {error}"))?;
    let config = read_text(&path.join("config.json")).ok().and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let target_rows = config.as_ref().and_then(|config| config_value(config, "vocab_size")).and_then(Value::as_u64);
    let mut nvfp4 = Vec::new();
    let mut kept = Vec::new();
    for (name, entry) in drafter.entries() {
        match shape_of_nvfp4(&drafter, name, entry) {
            Some((n, k)) => nvfp4.push((name.clone(), n, k)),
            None if is_scale_of_nvfp4(&drafter, name) || name == "draft_head.token_ids" => {}
            None => kept.push(name.clone()),
        }
    }
    let head = nvfp4.iter().find(|(name, ..)| name == "draft_head.weight");
    let &(_, n_rows, hidden_size) = head.context("`drafter.safetensors`: there is no NVFP4 `draft_head.weight`")?;
    Ok(SidecarInspection { contents: contents(&drafter), n_rows, target_rows, hidden_size, nvfp4, kept, manifest })
}

/// N and K of an NVFP4 weight in ModelOpt's layout.
fn shape_of_nvfp4(file: &Checkpoint, name: &str, entry: &TensorEntry) -> Option<(usize, usize)> {
    let beside = |last: &str| file.entries().contains_key(&format!("{name}{last}"));
    match entry.shape.as_slice() {
        &[n, half_k] if entry.dtype == Dtype::U8 && beside("_scale") && beside("_scale_2") => Some((n, 2 * half_k)),
        _ => None,
    }
}

fn is_scale_of_nvfp4(file: &Checkpoint, name: &str) -> bool {
    let weight = name.strip_suffix("_scale_2").or_else(|| name.strip_suffix("_scale"));
    weight.is_some_and(|weight| {
        file.entries().get(weight).is_some_and(|entry| shape_of_nvfp4(file, weight, entry).is_some())
    })
}

/// A vocabulary has a map of ids and no weights.
fn is_vocabulary(file: &Checkpoint) -> bool {
    let has = |name: &str| file.entries().contains_key(name);
    (has("d2t") || has("t2d")) && file.entries().values().all(|entry| entry.shape.len() < 2)
}

fn vocabulary(path: &Path, target_rows: Option<usize>) -> Result<VocabularyInspection> {
    let (vocab, detected) = forms::read(path, target_rows)?;
    let ids = &vocab.token_ids;
    Ok(VocabularyInspection {
        form: detected.form.file_name(),
        semantics: detected.semantics.to_string(),
        arrays: detected.arrays,
        target_rows: vocab.target_rows,
        n_kept: ids.len(),
        n_repeated: vocab.n_repeated,
        id_range: ids.first().copied().zip(ids.last().copied()),
        sha256: vocab.sha256(),
        tokenizer_sha256: detected.tokenizer_sha256,
        notes: detected.notes,
    })
}
