//! `draftfast merge`: the counts of shards to one counts file.

use anyhow::{Context, Result};

use super::count;
use crate::{
    cli::merge::Merge,
    counts::{Counts, Tokenizer},
    output::prepare_file,
    report::Terminal,
};

/// # Errors
/// Counts of different tokenizers, damaged files, or an output that cannot be written.
pub fn run(args: &Merge, terminal: &Terminal) -> Result<()> {
    prepare_file(&args.output, args.force)?;
    let tokenizer = args.tokenizer.as_deref().map(Tokenizer::open).transpose()?;
    let mut sum: Option<Counts> = None;
    for path in &args.inputs {
        let counts = Counts::read_any(path, tokenizer.as_ref(), &args.domain)?;
        let Some(sum) = &mut sum else {
            sum = Some(counts);
            continue;
        };
        let repeated = sum.merge(counts).with_context(|| format!("`{}`", path.display()))?;
        for name in repeated {
            terminal.warn(format!("`{}`: its file `{name}` was counted before, and now counts twice", path.display()));
        }
    }
    let sum = sum.context("no counts were given")?;
    sum.write(&args.output, args.force)?;
    for domain in &sum.domains {
        terminal.say(format!("{}: {} tokens, {} files", domain.domain, domain.n_tokens()?, domain.files.len()));
    }
    if terminal.is_json() {
        return terminal.json(&count::summary(Some(&args.output), &sum)?);
    }
    terminal.data(args.output.display().to_string())
}
