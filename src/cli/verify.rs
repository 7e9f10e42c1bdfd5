//! Flags of `verify`.

use std::path::PathBuf;

use clap::Args;

use crate::gpu::DeviceRequest;

/// Compare a sidecar with the model it was made from, row by row
///
/// Decodes every kept row and every MTP linear and sets it against its source; recomputes all error figures, which must
/// equal the manifest's; compares unquantized tensors bit for bit; and checks that the target is the same. Exit code 1
/// and one line for each tensor that does not pass.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  draftfast verify artifacts/drafter --model model/")]
pub struct Verify {
    /// The sidecar directory
    #[arg(value_name = "DIR")]
    pub sidecar: PathBuf,
    /// The model folder
    #[arg(long, value_name = "MODEL")]
    pub model: PathBuf,
    /// Judge what the head drafts on hidden states: a safetensors file with one BF16 tensor [states, H]
    #[arg(long, value_name = "FILE")]
    pub hidden_states: Option<PathBuf>,
    /// The folder that the MTP tensors came from, when it is another
    #[arg(long, value_name = "MODEL")]
    pub mtp_from: Option<PathBuf>,
    /// Where rows are compared and hidden states multiplied: auto, cpu, cuda or cuda:N; the figures are the same
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: DeviceRequest,
}
