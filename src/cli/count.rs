//! `draftfast count`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::corpus::Source;

/// Count how often each token occurs in text, exactly as Hugging Face tokenizers would
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  draftfast count model/ --corpus zh=chats/ --corpus code=src/ -o mine.counts
  draftfast count model/ --corpus logs.jsonl --only assistant -o own.counts
  zcat shard.txt.gz | draftfast count model/ --stdin --emit tsv")]
pub struct Count {
    /// A model folder, a tokenizer.json or a tokenizer.json.gz
    #[arg(value_name = "TOKENIZER_OR_MODEL")]
    pub tokenizer: PathBuf,
    /// Text: a file, a folder, a glob or `-`; .txt, .md, source files, .jsonl, .parquet, each also as .gz or .zst
    #[arg(long, value_name = "[DOMAIN=]PATH", required_unless_present = "stdin")]
    pub corpus: Vec<Source>,
    /// Read stdin
    #[arg(long, conflicts_with = "corpus")]
    pub stdin: bool,
    /// How stdin is laid out
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = StdinFormat::Text)]
    pub format: StdinFormat,
    /// The counts file to write; .zst compresses it
    #[arg(short, long, value_name = "FILE", required_unless_present = "emit")]
    pub output: Option<PathBuf>,
    /// Replace an existing output
    #[arg(short, long)]
    pub force: bool,
    /// Print the counts of all domains together on stdout, `id<TAB>count` a line
    #[arg(long, value_name = "FORM", value_enum)]
    pub emit: Option<Emit>,
    /// What to take from the records
    #[command(flatten)]
    pub text: TextFlags,
    /// The corpus holds token ids: .jsonl lists, .npy, .bin
    #[arg(long, conflicts_with_all = ["only", "render", "stdin", "check"])]
    pub token_ids: bool,
    /// The width of the ids in .bin files
    #[arg(long, value_name = "TYPE", value_enum, requires = "token_ids")]
    pub ids: Option<Width>,
    /// Recount this share of the documents with the tokenizers crate, and record that the counts are equal
    #[arg(long, value_name = "FRACTION", conflicts_with = "stdin")]
    pub check: Option<f64>,
    /// Which engine counts
    #[arg(long, value_name = "ENGINE", value_enum, default_value_t = Engine::Auto)]
    pub engine: Engine,
    /// Seconds between two saves of the state from which a killed run goes on; 0 saves nothing
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub save_every: u64,
}

/// What is taken from the records of a corpus: shared by all commands that count text.
#[derive(Debug, Clone, Args)]
pub struct TextFlags {
    /// The member or column that holds the text [default: text, content, choices, messages or conversations]
    #[arg(long, value_name = "NAME")]
    pub field: Option<String>,
    /// Of chats, count only what this side wrote; rendered by the model's chat template where there is one
    #[arg(long, value_name = "ROLE", value_enum)]
    pub only: Option<Role>,
    /// Render whole chats through the model's chat template instead of counting each message by itself
    #[arg(long, conflicts_with = "only")]
    pub render: bool,
    /// Leave out reasoning: `<think>...</think>` and `reasoning_content`
    #[arg(long)]
    pub no_thinking: bool,
    /// Stop at the first record that cannot be read, instead of skipping and counting it
    #[arg(long)]
    pub strict: bool,
}

/// The layout of stdin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StdinFormat {
    /// One text
    Text,
    /// A JSON object a line
    Jsonl,
}

/// What is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Emit {
    /// `id<TAB>count` lines
    Tsv,
}

/// A side of a chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// The model
    Assistant,
}

/// The width of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Width {
    /// Two bytes
    U16,
    /// Four bytes
    U32,
}

/// Which engine counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// The fast one where it knows the tokenizer
    Auto,
    /// The tokenizers crate
    Reference,
}
