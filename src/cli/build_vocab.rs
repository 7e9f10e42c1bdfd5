//! `draftfast build-vocab`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::{count::TextFlags, plan::ServingFlags};
use crate::{
    corpus::Source,
    vocab::{forms::Form, named::DomainValue, select::PadMode},
};

/// Choose the token ids that a draft head keeps, from text or from counts.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  draftfast build-vocab model/ --corpus zh=chats.jsonl --corpus code:2=src/ --size 64000 -o vocab/
  draftfast build-vocab model/ --corpus logs.jsonl --only assistant -o vocab/")]
pub struct BuildVocab {
    /// A model folder, or a tokenizer.json (then V comes from `--target-rows`)
    #[arg(value_name = "TOKENIZER_OR_MODEL")]
    pub tokenizer: PathBuf,
    /// The directory to write
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// Replace an existing output
    #[arg(short, long)]
    pub force: bool,
    /// V, the rows of lm_head (default: vocab_size of the config.json beside the tokenizer)
    #[arg(long, value_name = "V")]
    pub target_rows: Option<usize>,
    /// From what, and how many
    #[command(flatten)]
    pub choice: ChoiceFlags,
}

/// What ids are ranked by, and what coverage is measured on: shared by `build-vocab`, `build` and `plan`.
#[derive(Debug, Clone, Args)]
pub struct EvidenceFlags {
    /// Text to count: a file, a folder, a glob; repeatable
    #[arg(long, value_name = "[DOMAIN[:WEIGHT]=]PATH")]
    pub corpus: Vec<Source>,
    /// Counts made by `draftfast count`; repeatable, they add up
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub counts: Vec<PathBuf>,
    /// A mixture file: domains with weights, paths and held-out paths
    #[arg(long, value_name = "FILE.toml")]
    pub mixture: Option<PathBuf>,
    /// The weight of a domain (default 1); repeatable
    #[arg(long, value_name = "DOMAIN=WEIGHT")]
    pub weight: Vec<DomainValue>,
    /// Text to measure coverage on (default: a tenth of the corpus is held out); repeatable
    #[arg(long, value_name = "DOMAIN=PATH")]
    pub heldout: Vec<Source>,
    /// What to take from the records of the text
    #[command(flatten)]
    pub text: TextFlags,
}

impl EvidenceFlags {
    /// The files and folders that are read.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let texts = self.corpus.iter().chain(&self.heldout).map(|source| source.path.as_path());
        texts.chain(self.counts.iter().chain(&self.mixture).map(PathBuf::as_path))
    }
}

/// How many ids to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// So many.
    Rows(usize),
    /// As many as serve fastest on the machine.
    Auto,
}

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse().map(Self::Rows).map_err(|_| format!("`{text}` is neither a number nor `auto`"))
    }
}

/// What a vocabulary is chosen from, and how: shared by `build-vocab` and `build`.
#[derive(Debug, Clone, Args)]
pub struct ChoiceFlags {
    /// From what
    #[command(flatten)]
    pub evidence: EvidenceFlags,
    /// How many of the most useful ids to keep, always-kept ids on top; `auto`: what serves fastest on `--hardware`
    /// [default: 64000]
    #[arg(long, value_name = "N")]
    pub size: Option<Size>,
    /// The forms to write, by file name
    #[arg(long, value_name = "FORM", value_delimiter = ',', default_values_t = Form::DEFAULT)]
    pub forms: Vec<Form>,
    /// Make the number of rows a multiple of this
    #[arg(long, value_name = "ROWS", default_value_t = 128, value_parser = super::rows_of_a_tile)]
    pub pad_to: usize,
    /// Fill up with the next-ranked ids, or with copies of the first kept row
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Padding::Next)]
    pub pad_mode: Padding,
    /// The least coverage of a domain: weights are moved, then the size is raised, until it is met; repeatable
    #[arg(long, value_name = "DOMAIN=SHARE")]
    pub floor: Vec<DomainValue>,
    /// For which machine: writes a plan, and decides `--size auto`
    #[command(flatten)]
    pub serving: ServingFlags,
}

/// How the last tile is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Padding {
    /// With the next-ranked ids
    Next,
    /// With copies of the first kept row
    Repeat,
}

impl From<Padding> for PadMode {
    fn from(padding: Padding) -> Self {
        match padding {
            Padding::Next => Self::Next,
            Padding::Repeat => Self::Repeat,
        }
    }
}
