//! `draftfast diff`.

use std::path::PathBuf;

use clap::Args;

use super::convert::Reading;

/// Compare two sidecars or two vocabularies: rows, mass, coverage, bytes, errors, plan
///
/// What only one of them has is not compared. Recorded coverage is each side's own: measured on the same text only if
/// both were built with the same held-out text; `--counts` weighs both by the same.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  draftfast diff artifacts/old artifacts/new --counts own.counts")]
pub struct Diff {
    /// A sidecar, a folder of build-vocab, or a vocabulary in any form
    pub a: PathBuf,
    /// Another
    pub b: PathBuf,
    /// Counts to weigh the ids of both by; repeatable, they add up
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub counts: Vec<PathBuf>,
    /// How to read vocabulary files
    #[command(flatten)]
    pub reading: Reading,
}
