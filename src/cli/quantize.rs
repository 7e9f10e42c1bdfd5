//! Flags of `quantize`, and those that it shares with `build`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::gpu::DeviceRequest;

/// Quantize the kept rows of the head and the MTP linears to NVFP4 and write a sidecar directory
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  draftfast quantize model/ --vocab draft_vocab.safetensors -o artifacts/drafter\n  draftfast quantize model/ --vocab mask.pt --scale max -o out --dry-run"
)]
pub struct Quantize {
    /// A model folder: config.json, model*.safetensors
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// The draft vocabulary, in any form that `build-vocab` or `convert` writes
    #[arg(long, value_name = "FILE")]
    pub vocab: PathBuf,
    /// Repeat the first row up to a multiple of this [default: 128, unless the rows are a multiple of 64 already]
    #[arg(long, value_name = "ROWS", value_parser = super::rows_of_a_tile)]
    pub pad_to: Option<usize>,
    /// Where to write the sidecar
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// How and from what
    #[command(flatten)]
    pub weights: WeightFlags,
    /// Where and whether to write
    #[command(flatten)]
    pub writing: WritingFlags,
}

/// How weights are quantized, and which.
#[derive(Debug, Clone, Args)]
pub struct WeightFlags {
    /// How block scales are chosen [default: four-six; mse where `--importance` says which columns matter]
    #[arg(long, value_name = "RULE")]
    pub scale: Option<Scale>,
    /// How block scales of the MTP linears are chosen, when they differ from the head's
    #[arg(long, value_name = "RULE")]
    pub linear_scale: Option<Scale>,
    /// What the linears' inputs look like: a safetensors file of second moments or raw states, one tensor a linear;
    /// or `columns`, the energy of the head's own columns
    #[arg(long, value_name = "FILE|columns")]
    pub importance: Option<PathBuf>,
    /// How weights are rounded; gptq needs states or second-moment matrices in the importance file
    #[arg(long, value_name = "HOW", value_enum, default_value_t = RoundingChoice::Nearest)]
    pub rounding: RoundingChoice,
    /// Take a vector common to all rows off the draft head before it is quantized; needs hidden states in the importance
    /// file, and a head whose logits are not capped
    #[arg(long)]
    pub row_shift: bool,
    /// Quantize tensors that match, whatever the family's table says (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub quantize: Vec<String>,
    /// Keep tensors that match as they are (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub keep: Vec<String>,
    /// Take the MTP tensors from another folder of the same model: some exports drop them
    #[arg(long, value_name = "MODEL")]
    pub mtp_from: Option<PathBuf>,
    /// auto, cpu, cuda or cuda:N; the bytes are the same
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: DeviceRequest,
}

impl WeightFlags {
    /// The files and folders that these flags name.
    pub fn inputs(&self) -> impl Iterator<Item = &Path> {
        self.mtp_from.iter().chain(&self.importance).map(PathBuf::as_path)
    }
}

/// Whether to write, and over what.
#[derive(Debug, Clone, Args)]
pub struct WritingFlags {
    /// Check everything, print the plan, write nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Replace an existing output
    #[arg(short, long)]
    pub force: bool,
}

/// Rules for block scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scale {
    /// The largest magnitude of a block becomes 6; the bytes of NVIDIA ModelOpt 0.47
    Max,
    /// The largest magnitude becomes 6 or 4, whichever errs less
    FourSix,
    /// The same with the global scale amax/1536
    #[value(name = "four-six-1536")]
    FourSix1536,
    /// The scale with the least squared error
    Mse,
}

/// Ways to round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RoundingChoice {
    /// Each weight to its nearest code
    Nearest,
    /// Errors carried on to later columns
    Gptq,
}
