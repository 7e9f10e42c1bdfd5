//! The command line: clap structs only, one file a verb. Nothing else knows clap.

pub mod bench;
pub mod build;
pub mod build_vocab;
pub mod convert;
pub mod count;
pub mod diff;
pub mod export;
pub mod inspect;
pub mod merge;
pub mod plan;
pub mod quantize;
pub mod report;
pub mod synth;
pub mod verify;
pub mod verify_sha;
pub mod version;
pub mod vocab;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed or found wrong, 2 bad usage";

/// A cheaper, lossless drafter from a model checkpoint.
#[derive(Debug, Parser)]
#[command(name = "draftfast", version, long_version = version::long(), about, max_term_width = 100, propagate_version = true, after_help = EXIT_CODES)]
pub struct Cli {
    /// Flags that every command takes.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// A multiple that rows are filled up to.
fn rows_of_a_tile(text: &str) -> Result<usize, String> {
    const MOST: usize = crate::vocab::MAX_REPEATED_ROWS;
    text.parse().ok().filter(|rows| (1..=MOST).contains(rows)).ok_or_else(|| format!("expected 1 to {MOST}"))
}

/// No machine has more processors, and a process with a hundred thousand threads ends in none of its own words.
fn threads(text: &str) -> Result<usize, String> {
    const MOST: usize = 4096;
    text.parse().ok().filter(|n| (1..=MOST).contains(n)).ok_or_else(|| format!("expected 1 to {MOST}"))
}

/// Flags that every command takes.
#[derive(Debug, Clone, Default, Args)]
pub struct Global {
    /// Print the result as one JSON object on stdout
    #[arg(long, global = true)]
    pub json: bool,
    /// Say nothing but errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Say more: per-tensor lines, choices and their reasons
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// No progress bars
    #[arg(long, global = true)]
    pub no_progress: bool,
    /// Threads to use (default: all cores); the output does not depend on it
    #[arg(short = 'j', long, global = true, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a drafter from a model and text: the whole job, from counting to a verified sidecar
    Build(build::Build),
    /// Say what a model, sidecar or vocabulary is, and what draftfast would do with it
    Inspect(inspect::Inspect),
    /// Write a checkpoint of a family's exact structure with random weights
    Synth(synth::Synth),
    /// Count how often each token occurs in text, exactly as Hugging Face tokenizers would
    Count(count::Count),
    /// Add up the counts of disjoint shards
    Merge(merge::Merge),
    /// Choose the token ids that a draft head keeps, from text or from counts
    BuildVocab(build_vocab::BuildVocab),
    /// Rewrite a draft vocabulary in the form that another runtime reads
    Convert(convert::Convert),
    /// Look at draft vocabularies: what they keep, what they miss, how they differ
    #[command(subcommand)]
    Vocab(vocab::Vocab),
    /// Quantize the kept rows of the head and the MTP linears to NVFP4 and write a sidecar directory
    Quantize(quantize::Quantize),
    /// Write a sidecar in the layout of another runtime
    Export(export::Export),
    /// Compare a sidecar with the model it was made from, row by row
    Verify(verify::Verify),
    /// Time a draft step's matrix-vector products on the GPU, before and after
    Bench(bench::Bench),
    /// Predict how many rows and draft tokens serve best, and what they earn
    Plan(plan::Plan),
    /// Compare two sidecars or two vocabularies: rows, mass, coverage, bytes, errors, plan
    Diff(diff::Diff),
    /// Make the report of a sidecar again: REPORT.md and pictures, or one HTML page
    Report(report::Report),
    /// Check a directory against its sha256sums.txt, or git-lfs pointers against the real files
    VerifySha(verify_sha::VerifySha),
    /// Print the completions of a shell
    #[command(hide = true)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the man page, or write that of every command
    #[command(hide = true)]
    Man {
        /// The folder for the pages of all commands
        dir: Option<PathBuf>,
    },
}
