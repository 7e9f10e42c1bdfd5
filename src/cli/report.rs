//! `draftfast report`.

use std::path::PathBuf;

use clap::Args;

/// Make the report of a sidecar again: REPORT.md and its pictures, and their lines in sha256sums.txt
///
/// The figures are the sidecar's own (manifest.json, vocabulary.json, plan.json); nothing is measured again. The lines of
/// other files in sha256sums.txt stay as they are, so a damaged file stays detectable.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  draftfast report artifacts/demo\n  draftfast report artifacts/demo --html demo.html"
)]
pub struct Report {
    /// A sidecar
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Write one self-contained page instead, and leave DIR as it is
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Replace an existing page
    #[arg(short, long, requires = "html")]
    pub force: bool,
}
