//! `draftfast merge`.

use std::path::PathBuf;

use clap::Args;

/// Add up the counts of disjoint shards
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  draftfast merge shard-*.counts -o all.counts
  draftfast merge part-00000 part-00001 --tokenizer model/ --domain web -o web.counts")]
pub struct Merge {
    /// Counts files, or `id<TAB>count` lines (then `--tokenizer` says of what)
    #[arg(value_name = "FILE", required = true)]
    pub inputs: Vec<PathBuf>,
    /// The counts file to write; .zst compresses it
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Replace an existing output
    #[arg(short, long)]
    pub force: bool,
    /// The tokenizer that counted the lines; counts files are checked against it
    #[arg(long, value_name = "TOKENIZER_OR_MODEL")]
    pub tokenizer: Option<PathBuf>,
    /// The domain of the lines
    #[arg(long, value_name = "NAME", default_value = "text")]
    pub domain: String,
}
