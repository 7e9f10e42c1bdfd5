//! `draftfast inspect`.

use std::path::PathBuf;

use clap::Args;

use crate::checkpoint::ledger::DEFAULT_ROWS;

/// Say what a model folder, sidecar, safetensors file or vocabulary is, and what draftfast would do with it
#[derive(Debug, Args)]
pub struct Inspect {
    /// A model folder, a sidecar directory, a safetensors file or a vocabulary file
    pub path: PathBuf,
    /// Rows of the draft head in the byte ledger
    #[arg(long, value_name = "N", default_value_t = DEFAULT_ROWS)]
    pub rows: usize,
    /// Which linears to quantize
    #[command(flatten)]
    pub recipe: RecipeFlags,
    /// Rows of the target's head, for vocabulary files that do not say it
    #[arg(long, value_name = "V")]
    pub target_rows: Option<usize>,
}

/// Flags that correct a recipe: shared by every command that reads a model.
#[derive(Debug, Clone, Default, Args)]
pub struct RecipeFlags {
    /// Quantize tensors that match, whatever the family's table says
    #[arg(long = "quantize", value_name = "GLOB")]
    pub quantize: Vec<String>,
    /// Keep tensors that match, whatever the family's table says
    #[arg(long = "keep", value_name = "GLOB")]
    pub keep: Vec<String>,
    /// Take the MTP tensors from another folder: the upstream release of the same model
    #[arg(long, value_name = "OTHER_MODEL_FOLDER")]
    pub mtp_from: Option<PathBuf>,
}
