//! `draftfast convert`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::vocab::forms::{Form, Semantics};

/// Rewrite a draft vocabulary in the form that another runtime reads.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  draftfast convert draft_vocab_64k.pt ids.txt -o out/")]
pub struct Convert {
    /// A vocabulary in any of the forms, or a folder with a draft_vocab.safetensors
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The form to write: mask.pt, ids.pt, d2t.npy, vocab_mapping.pt, d2t.pt, draft_vocab.safetensors, ids.txt, ids.json, d2t.gguf
    #[arg(value_name = "OUT-FORM")]
    pub form: Form,
    /// The folder to write into
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    pub output: PathBuf,
    /// Replace an existing file
    #[arg(short, long)]
    pub force: bool,
    /// How to read the input
    #[command(flatten)]
    pub reading: Reading,
}

/// What a vocabulary file does not say by itself.
#[derive(Debug, Clone, Args)]
pub struct Reading {
    /// V, the rows of lm_head: needed by ids and bare offsets, checked against the rest
    #[arg(long, value_name = "V")]
    pub target_rows: Option<usize>,
    /// What the integers of a bare array mean, where it cannot be told
    #[arg(long = "as", value_name = "MEANING", value_enum)]
    pub meaning: Option<Meaning>,
}

/// What integers mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Meaning {
    /// Target ids
    Absolute,
    /// Target id minus draft id
    Offset,
}

impl From<Meaning> for Semantics {
    fn from(meaning: Meaning) -> Self {
        match meaning {
            Meaning::Absolute => Self::Absolute,
            Meaning::Offset => Self::Offset,
        }
    }
}
