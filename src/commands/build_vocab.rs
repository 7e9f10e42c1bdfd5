//! `draftfast build-vocab`: text or counts to a directory with a draft vocabulary.

use anyhow::Result;
use serde_json::json;

use crate::{
    cli::build_vocab::{BuildVocab, ChoiceFlags},
    counts::{CountOptions, Tokenizer},
    output::{StagedDir, refuse_existing},
    report::{Terminal, Unit},
    vocab::{
        build::Built,
        evidence::Evidence,
        make::{Request, make},
        select::{DEFAULT_SIZE, SelectConfig},
        summary,
        target::target_rows,
    },
};

/// # Errors
/// Bad input, or an output that cannot be written.
pub fn run(args: &BuildVocab, n_threads: Option<usize>, terminal: &Terminal) -> Result<()> {
    refuse_existing(&args.output, args.force)?;
    let tokenizer = Tokenizer::open(&args.tokenizer)?;
    let rows = target_rows(tokenizer.path(), args.target_rows)?;
    let (built, evidence) = choose(&args.choice, &tokenizer, rows, n_threads, terminal)?;
    let dir = StagedDir::create(&args.output, args.force)?;
    let files = built.write(&tokenizer, &evidence, &args.choice.forms, &dir)?;
    dir.commit()?;
    show(args, &built, &files, terminal)
}

/// Counts and selects.
///
/// # Errors
/// Bad input, or a size that the tokenizer does not have.
pub fn choose(
    args: &ChoiceFlags,
    tokenizer: &Tokenizer,
    target_rows: usize,
    n_threads: Option<usize>,
    terminal: &Terminal,
) -> Result<(Built, Evidence)> {
    let request = request(args, target_rows, n_threads);
    let progress = terminal.progress("counting", None, Unit::Bytes);
    let made = make(tokenizer, &request, &progress)?;
    progress.finish();
    made.evidence.counts.warnings.iter().for_each(|warning| terminal.warn(warning));
    made.notes.iter().for_each(|note| terminal.say(note));
    summary::lines(&made.built).iter().for_each(|line| terminal.say(line));
    Ok((made.built, made.evidence))
}

fn request(args: &ChoiceFlags, target_rows: usize, n_threads: Option<usize>) -> Request {
    let mut options = CountOptions::default();
    options.n_threads = n_threads.unwrap_or(options.n_threads);
    let size = args.size.unwrap_or(DEFAULT_SIZE);
    Request {
        sources: args.corpus.clone(),
        heldout: args.heldout.clone(),
        mixture: args.mixture.clone(),
        counts: args.counts.clone(),
        weights: args.weight.clone(),
        floors: args.floor.clone(),
        select: SelectConfig { size, target_rows, pad_to: args.pad_to, pad_mode: args.pad_mode.into() },
        options,
    }
}

fn show(args: &BuildVocab, built: &Built, files: &[String], terminal: &Terminal) -> Result<()> {
    if !terminal.is_json() {
        return terminal.data(args.output.display().to_string());
    }
    terminal.json(&json!({
        "output": args.output.to_string_lossy(), "files": files, "vocab_sha256": built.vocab().sha256(),
        "n_rows": built.vocab().n_rows(), "n_kept": built.vocab().token_ids.len(),
        "n_retained_on_top": built.selection.n_retained_on_top, "n_padding_ids": built.selection.n_padding_ids,
        "n_repeated": built.vocab().n_repeated, "n_never_seen": built.selection.n_never_seen,
        "size": built.config.size, "weights": built.weights, "coverage": built.figures,
    }))
}
