//! `manifest.json`: where every byte of a sidecar comes from, and how far quantization moved it.
//!
//! No time, no host, no absolute path, keys sorted: the same inputs give the same bytes. Shards of the target are pinned
//! by size and by the digest of their header, and each tensor that was read by the digest of its bytes: hashing a
//! terabyte of weights that nobody reads would pin nothing more about the drafter.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::{checkpoint::Ledger, output::sha256_hex};

/// The version of the sidecar format; a reader refuses a later one.
pub const FORMAT_VERSION: u32 = 1;

/// The name of the file in a sidecar directory.
pub const MANIFEST_NAME: &str = "manifest.json";

/// The whole provenance of a sidecar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT_VERSION`].
    pub format: u32,
    /// `draftfast` and its version.
    pub tool: String,
    /// The model that the drafter serves.
    pub target: TargetRecord,
    /// The kept ids.
    pub vocabulary: VocabularyRecord,
    /// How weights were quantized.
    pub recipe: RecipeRecord,
    /// Bytes of one draft step.
    pub ledger: Ledger,
    /// Every source tensor that went into the sidecar, by its name there (without `.weight` for quantized ones).
    pub tensors: BTreeMap<String, TensorRecord>,
}

impl Manifest {
    /// sha256 of this manifest, as JSON in one line, with every error figure 0: of all that is known before the first
    /// weight is rounded, and that the drafter's bytes follow from. The drafter's header names it, so that the files of two
    /// builds are not taken for one.
    ///
    /// # Errors
    /// There is a value that has no JSON.
    pub fn provenance_sha256(&self) -> Result<String> {
        let mut provenance = self.clone();
        for error in provenance.tensors.values_mut().filter_map(|record| record.error.as_mut()) {
            *error = ErrorRecord::unmeasured(&error.scale, error.global_scale);
        }
        Ok(sha256_hex(&serde_json::to_vec(&provenance).context("cannot encode the manifest")?))
    }
}

/// The model that the drafter serves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TargetRecord {
    /// The family of the recipe.
    pub family: String,
    /// Rows of the lm_head: V.
    pub target_rows: usize,
    /// Columns of the lm_head: H.
    pub hidden_size: usize,
    /// The tensor whose rows the draft head has.
    pub head_tensor: String,
    /// Whether that is the embedding (tied weights).
    pub tied: bool,
    /// [`tree_sha256`](crate::checksum::tree_sha256) of the whole tensor.
    pub head_tree_sha256: String,
    /// Files of the model folder, by name.
    pub files: BTreeMap<String, FileRecord>,
    /// Files of the second model folder that the MTP tensors were taken from, when there is one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mtp_files: BTreeMap<String, FileRecord>,
}

/// A file of the target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Size in bytes.
    pub n_bytes: u64,
    /// sha256 of the whole file; for shards of weights, of the length field and the header.
    pub sha256: String,
    /// `file` or `header`.
    pub covers: String,
}

/// The kept ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VocabularyRecord {
    /// sha256 of V and the ids, each as 8 bytes little-endian.
    pub sha256: String,
    /// Distinct kept ids.
    pub n_real_rows: usize,
    /// Rows of the draft head: real rows and repeats of the first.
    pub n_rows: usize,
    /// How the ids were chosen, when this tool chose them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<serde_json::Value>,
}

/// How weights were quantized.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecipeRecord {
    /// `nearest` or `gptq`.
    pub rounding: String,
    /// sha256 of the importance file, or the name of a rule that needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub importance: Option<String>,
    /// Whether `draft_head.row_shift` was taken off every row of the draft head.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub row_shift: bool,
}

/// A tensor of scales of a quantized source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaleSource {
    /// The tensor, in the same checkpoint.
    pub source: String,
    /// [`tree_sha256`](crate::checksum::tree_sha256) of its bytes.
    pub source_tree_sha256: String,
}

/// One tensor's way into the sidecar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TensorRecord {
    /// The source tensor.
    pub source: String,
    /// The shard that holds it.
    pub source_file: String,
    /// [`tree_sha256`](crate::checksum::tree_sha256) of the source tensor's bytes.
    pub source_tree_sha256: String,
    /// Its multipliers when it is FP8; block scales and global scale when it is NVFP4 already.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scales: Vec<ScaleSource>,
    /// Whether the source is the second model folder, of `mtp_files`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mtp_from: bool,
    /// Source dtype.
    pub from: String,
    /// `NVFP4`, or the source dtype when the tensor is copied.
    pub to: String,
    /// Shape of the decoded tensor in the sidecar.
    pub shape: Vec<usize>,
    /// The fused module whose parts share the global scale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fused: Option<String>,
    /// Why a tensor is kept as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_because: Option<String>,
    /// What quantization did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorRecord>,
}

/// Error figures of a quantized tensor, all recomputed by `verify`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ErrorRecord {
    /// The rule that chose the block scales.
    pub scale: String,
    /// F32, the multiplier `weight_scale_2`.
    pub global_scale: f32,
    /// ||decoded - source|| / ||source||.
    pub relative_error: f64,
    /// Sum of squared errors.
    pub sum_sq_error: f64,
    /// Sum of squared weights.
    pub sum_sq_weight: f64,
    /// [`ErrorRecord::relative_error`] with each column weighted by its importance, where one was given; `verify`, which
    /// does not have the importance, does not recompute it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weighted_relative_error: Option<f64>,
    /// Largest |decoded - source|.
    pub max_abs_error: f32,
    /// The row with the largest relative error, and that error.
    pub worst_row: usize,
    /// ||decoded - source|| / ||source|| of that row.
    pub worst_row_relative_error: f64,
    /// Blocks whose scale is subnormal (E4M3 codes 1 to 7): Marlin kernels read them as zero.
    pub n_flushed_blocks: u64,
    /// Weights at the largest magnitude that their block can hold.
    pub n_saturated: u64,
}

impl ErrorRecord {
    /// Figures that are still to be taken.
    pub(super) fn unmeasured(scale: &str, global_scale: f32) -> Self {
        Self {
            scale: scale.to_owned(),
            global_scale,
            relative_error: 0.0,
            sum_sq_error: 0.0,
            sum_sq_weight: 0.0,
            weighted_relative_error: None,
            max_abs_error: 0.0,
            worst_row: 0,
            worst_row_relative_error: 0.0,
            n_flushed_blocks: 0,
            n_saturated: 0,
        }
    }
}
