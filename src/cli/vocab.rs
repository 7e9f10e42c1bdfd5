//! `draftfast vocab audit` and `draftfast vocab diff`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::convert::Reading;

/// Look at draft vocabularies.
#[derive(Debug, Subcommand)]
pub enum Vocab {
    /// Which always-kept ids a vocabulary has and lacks, each with its reasons; exit code 1 when it lacks one
    Audit(Audit),
    /// What two vocabularies share, and what each covers of counted text
    Diff(Diff),
}

/// `vocab audit`.
#[derive(Debug, Args)]
pub struct Audit {
    /// A vocabulary in any of the forms, or a folder with a draft_vocab.safetensors
    pub vocab: PathBuf,
    /// The model folder or tokenizer.json that it is for
    #[arg(value_name = "TOKENIZER_OR_MODEL")]
    pub tokenizer: PathBuf,
    /// How to read it
    #[command(flatten)]
    pub reading: Reading,
}

/// `vocab diff`.
#[derive(Debug, Args)]
pub struct Diff {
    /// The first vocabulary
    pub a: PathBuf,
    /// The second vocabulary
    pub b: PathBuf,
    /// Counts to weigh the difference by; repeatable
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub counts: Vec<PathBuf>,
    /// Spells the tokens that differ
    #[arg(long, value_name = "TOKENIZER_OR_MODEL")]
    pub tokenizer: Option<PathBuf>,
    /// How to read both
    #[command(flatten)]
    pub reading: Reading,
}
