//! The sidecar directory: what `build` and `quantize` write, what `verify` and the runtimes read.
//!
//! ```text
//! drafter.safetensors        draft head, quantized MTP linears, every other MTP tensor as it was
//! config.json                the target's, with a quantization_config that says what is NVFP4
//! draft_vocab.safetensors    the kept ids
//! manifest.json              provenance and error figures
//! REPORT.md                  for people
//! sha256sums.txt             `sha256sum -c` reads it
//! ```

mod config;
mod drafter;
mod manifest;
mod quality;
mod read;
mod target;
mod verify;
mod write;

pub use config::drafter_config;
pub use drafter::{DRAFTER_NAME, DrafterFile, OutputTensor};
pub use manifest::{
    ErrorRecord, FORMAT_VERSION, FileRecord, MANIFEST_NAME, Manifest, RecipeRecord, ScaleSource, TargetRecord,
    TensorRecord, VocabularyRecord,
};
pub use quality::{DraftQuality, draft_quality};
pub use read::Sidecar;
pub use verify::{Verification, verify, verify_bytes};
pub use write::{SidecarParts, write};

/// `to` of a quantized tensor in the manifest.
pub const NVFP4: &str = "NVFP4";

/// Keys of `__metadata__` in `drafter.safetensors`.
pub mod metadata {
    /// `pt`: some readers refuse a file without it.
    pub const FORMAT: &str = "format";
    /// [`super::FORMAT_VERSION`].
    pub const DRAFTFAST_FORMAT: &str = "draftfast.format";
    /// [`tree_sha256`](crate::checksum::tree_sha256) of the target's head tensor.
    pub const HEAD_TREE_SHA256: &str = "draftfast.lm_head_tree_sha256";
    /// sha256 of the kept ids.
    pub const VOCABULARY_SHA256: &str = "draftfast.vocabulary_sha256";
    /// `true` when the logits of the draft head are shifted (see [`crate::quantize::ROW_SHIFT`]); absent otherwise.
    pub const ROW_SHIFT: &str = "draftfast.row_shift";
    /// [`super::Manifest::provenance_sha256`].
    pub const PROVENANCE_SHA256: &str = "draftfast.provenance_sha256";
}
