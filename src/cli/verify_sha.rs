//! Flags of `verify-sha`.

use std::path::PathBuf;

use clap::Args;

/// Check a directory against its sha256sums.txt, or git-lfs pointers against the real files
///
/// Reads what `sha256sum` writes and prints what it prints: `NAME: OK` or `NAME: FAILED`, keeps going, and ends with
/// exit code 1 if a file failed. Files are hashed in parallel. A list may name only files below its own folder.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  draftfast verify-sha artifacts/demo\n  draftfast verify-sha --write artifacts/demo\n  draftfast verify-sha pointers/ --against model/"
)]
pub struct VerifySha {
    /// A directory with a sha256sums.txt or git-lfs pointers, or a checksum list
    #[arg(value_name = "DIR_OR_FILE")]
    pub path: PathBuf,
    /// Write DIR/sha256sums.txt instead of checking it
    #[arg(long, conflicts_with_all = ["against", "ignore_missing"])]
    pub write: bool,
    /// Replace an existing sha256sums.txt
    #[arg(short, long, requires = "write")]
    pub force: bool,
    /// Do not fail for files that are not there
    #[arg(long)]
    pub ignore_missing: bool,
    /// The folder with the real files of git-lfs pointers; it mirrors the pointers' folder
    #[arg(long, value_name = "DIR")]
    pub against: Option<PathBuf>,
}
