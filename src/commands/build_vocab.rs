//! `draftfast build-vocab`: text or counts to a directory with a draft vocabulary.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde_json::json;

use crate::{
    cli::build_vocab::{BuildVocab, ChoiceFlags},
    corpus::Source,
    counts::{CountOptions, Counts, Tokenizer},
    error::Hint,
    output::{StagedDir, refuse_existing},
    report::{Terminal, Unit},
    vocab::{
        build::{Built, build},
        evidence::Evidence,
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
    let size = args.size.unwrap_or(DEFAULT_SIZE);
    let config = SelectConfig { size, target_rows, pad_to: args.pad_to, pad_mode: args.pad_mode.into() };
    let evidence = evidence(args, tokenizer, n_threads, terminal)?;
    evidence.counts.warnings.iter().for_each(|warning| terminal.warn(warning));
    let built = build(tokenizer, &evidence, &weights(args)?, &config)?;
    summary::lines(&built).iter().for_each(|line| terminal.say(line));
    Ok((built, evidence))
}

fn evidence(
    args: &ChoiceFlags,
    tokenizer: &Tokenizer,
    n_threads: Option<usize>,
    terminal: &Terminal,
) -> Result<Evidence> {
    let nothing = || {
        ensure!(!args.corpus.is_empty() || !args.counts.is_empty(), "nothing to count was given");
        Ok(())
    };
    nothing().hint("give text with `--corpus PATH`, or counts with `--counts FILE`")?;
    let mut options = CountOptions::default();
    options.n_threads = n_threads.unwrap_or(options.n_threads);
    let progress = terminal.progress("counting", None, Unit::Bytes);
    let counted = |sources: &[Source]| crate::counts::count(tokenizer, sources, &options, &progress);
    let mut evidence = match args.corpus.is_empty() {
        false => Some(Evidence::count(tokenizer, &args.corpus, &args.heldout, &options, &progress)?),
        true => None,
    };
    for path in &args.counts {
        let counts = Counts::read_for(path, tokenizer)?;
        match &mut evidence {
            Some(evidence) => evidence.add(counts)?,
            None => {
                let heldout = if args.heldout.is_empty() { None } else { Some(counted(&args.heldout)?) };
                evidence = Some(Evidence::from_counts(counts, heldout));
            }
        }
    }
    progress.finish();
    evidence.ok_or_else(|| anyhow::anyhow!("nothing to count was given"))
}

/// `--weight` before the weights in `--corpus DOMAIN:WEIGHT=PATH`.
fn weights(args: &ChoiceFlags) -> Result<BTreeMap<String, f64>> {
    let mut weights = BTreeMap::new();
    for source in &args.corpus {
        let given = weights.insert(source.domain.clone(), source.weight);
        ensure!(
            given.is_none_or(|given| given == source.weight),
            "the corpora of domain `{}` are given different weights",
            source.domain
        );
    }
    weights.extend(args.weight.iter().map(|weight| (weight.domain.clone(), weight.value)));
    Ok(weights)
}

fn show(args: &BuildVocab, built: &Built, files: &[String], terminal: &Terminal) -> Result<()> {
    if !terminal.is_json() {
        return terminal.data(args.output.display().to_string());
    }
    terminal.json(&json!({
        "output": args.output, "files": files, "vocab_sha256": built.vocab().sha256(),
        "n_rows": built.vocab().n_rows(), "n_kept": built.vocab().token_ids.len(),
        "n_retained_on_top": built.selection.n_retained_on_top, "n_padding_ids": built.selection.n_padding_ids,
        "n_repeated": built.vocab().n_repeated, "n_never_seen": built.selection.n_never_seen,
        "weights": built.weights, "coverage": built.figures,
    }))
}
