//! Flags of `bench`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::gpu::DeviceRequest;

/// Time a draft step's matrix-vector products on the GPU, before and after
///
/// Times the BF16 head, the kept rows in BF16 and in NVFP4 (with and without argmax) and every MTP linear before and
/// after, as replays of CUDA graphs that rotate through copies of the weights, each against a plain read of as many bytes
/// in the same run.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  draftfast bench --model model/\n  draftfast bench --shape 64128x2560 --m 1,4,8 --dry-run"
)]
pub struct Bench {
    /// The model folder: its head and MTP linears
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["sidecar", "shape"])]
    pub model: Option<PathBuf>,
    /// Rows of the draft head, with `--model`
    #[arg(long, value_name = "N", requires = "model")]
    pub rows: Option<usize>,
    /// A sidecar: its draft head and linears
    #[arg(long, value_name = "DIR", conflicts_with = "shape")]
    pub sidecar: Option<PathBuf>,
    /// Shapes, rows x columns
    #[arg(long, value_name = "NxK", value_delimiter = ',', value_parser = shape, required_unless_present_any = ["model", "sidecar"])]
    pub shape: Vec<(u32, u32)>,
    /// Numbers of vectors, 1 to 8
    #[arg(long, value_name = "M", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=8))]
    pub m: Vec<u32>,
    /// The GPU: `cuda` or `cuda:N`
    #[arg(long, value_name = "DEVICE", default_value = "cuda")]
    pub device: DeviceRequest,
    /// Replays for each figure
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = replays)]
    pub replays: usize,
    /// Print what would be timed, and its bytes; needs no GPU
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Write the result to a file too: the form and the path
    #[arg(long, num_args = 2, value_names = ["md|csv|json", "FILE"])]
    pub export: Vec<String>,
    /// Overwrite the exported file
    #[arg(short, long)]
    pub force: bool,
}

/// A form of `--export`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Export {
    /// Markdown.
    Md,
    /// Comma-separated values.
    Csv,
    /// Everything, samples included.
    Json,
}

fn replays(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=100_000).contains(n)).ok_or_else(|| "expected 1 to 100000".to_owned())
}

fn shape(text: &str) -> Result<(u32, u32), String> {
    let parse = |text: &str| text.parse::<u32>().ok().filter(|&n| n > 0);
    let sizes = text.split_once(['x', 'X']).and_then(|(n, k)| Some((parse(n)?, parse(k)?)));
    sizes.ok_or_else(|| "expected rows x columns, as in `64128x2560`".to_owned())
}
