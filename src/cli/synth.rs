//! `draftfast synth`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::checkpoint::synth::Scale;

/// Write a checkpoint of a family's exact structure with random weights
#[derive(Debug, Args)]
pub struct Synth {
    /// The family, e.g. qwen3.5-dense or qwen3.8-flash-next
    pub family: String,
    /// How large
    #[arg(long, value_enum, default_value_t = SynthScale::Tiny)]
    pub scale: SynthScale,
    /// The folder to write
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// Seed of the weights
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Replace an existing output
    #[arg(long)]
    pub force: bool,
}

/// Sizes of synthetic checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SynthScale {
    /// A whole small model, a few megabytes
    Tiny,
    /// The head and every MTP tensor at the real size
    Full,
}

impl From<SynthScale> for Scale {
    fn from(scale: SynthScale) -> Self {
        match scale {
            SynthScale::Tiny => Self::Tiny,
            SynthScale::Full => Self::Full,
        }
    }
}
