//! Flags of `export`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Write a sidecar in the layout of another runtime
///
/// The same codes and scales under other names (compressed-tensors), in a kernel's own order (marlin), or in ggml's blocks
/// (gguf). Nothing is quantized again, and the sidecar is not changed.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  draftfast export artifacts/drafter --layout compressed-tensors -o artifacts/drafter-ct"
)]
pub struct Export {
    /// The sidecar directory
    #[arg(value_name = "SIDECAR")]
    pub sidecar: PathBuf,
    /// The layout to write
    #[arg(long, value_name = "LAYOUT")]
    pub layout: LayoutName,
    /// The element type of the model's activations, which Marlin's scales depend on (default: the config's)
    #[arg(long, value_name = "DTYPE")]
    pub activations: Option<ActivationName>,
    /// Where to write
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// Replace an existing output
    #[arg(short, long)]
    pub force: bool,
}

/// Layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LayoutName {
    /// nvfp4-pack-quantized: weight_packed, weight_scale, weight_global_scale (a divisor)
    CompressedTensors,
    /// vLLM's Marlin kernel, as vLLM 0.32 prepares it when it loads a weight; private to the kernel
    Marlin,
    /// One GGUF file: ggml's NVFP4 blocks, X.weight and X.scale, d2t with absolute ids
    Gguf,
}

/// Element types of activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ActivationName {
    /// bfloat16
    Bf16,
    /// float16
    Fp16,
}
