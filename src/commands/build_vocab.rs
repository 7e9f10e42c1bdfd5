//! `draftfast build-vocab`: text or counts to a directory with a draft vocabulary.

use anyhow::Result;
use serde_json::json;

use super::{
    count::{self, extract},
    plan::{PlannedModel, answer},
};
use crate::{
    checkpoint::{Checkpoint, Overrides, recipe},
    cli::build_vocab::{BuildVocab, ChoiceFlags, EvidenceFlags, Padding, Size},
    counts::{CountOptions, Tokenizer},
    error::Hint,
    output::{StagedDir, refuse_inputs},
    plan::{PLAN_NAME, PlanRecord, measured},
    report::{self, Terminal, Unit},
    vocab::{
        build::Built,
        evidence::Evidence,
        make::{Gathered, Request, gather, make},
        retain::retain,
        select::{DEFAULT_SIZE, SelectConfig},
        summary,
        target::target_rows,
    },
};

/// # Errors
/// Bad input, or an output that cannot be written.
pub fn run(args: &BuildVocab, n_threads: Option<usize>, terminal: &Terminal) -> Result<()> {
    refuse_inputs(&args.output, args.choice.evidence.paths().chain([args.tokenizer.as_path()]))?;
    let dir = StagedDir::create(&args.output, args.force)?;
    let tokenizer = Tokenizer::open(&args.tokenizer)?;
    let rows = target_rows(tokenizer.path(), args.target_rows)?;
    let chosen = if args.choice.plans() {
        let checkpoint = Checkpoint::open(&args.tokenizer).hint("a plan needs the model folder, not its tokenizer")?;
        let recipe = recipe(&checkpoint, None, &Overrides::default())?;
        let model = PlannedModel { checkpoint: &checkpoint, mtp_from: None, recipe: &recipe };
        choose(&args.choice, &tokenizer, rows, Some(&model), n_threads, terminal)?
    } else {
        choose(&args.choice, &tokenizer, rows, None, n_threads, terminal)?
    };
    let Choice { built, evidence, plan } = chosen;
    let mut files = built.write(&tokenizer, &evidence, &args.choice.forms, &dir)?;
    if let Some(plan) = &plan {
        dir.write(PLAN_NAME, &report::json_line(plan)?)?;
        files.push(PLAN_NAME.to_owned());
    }
    dir.commit()?;
    show(args, &built, &files, terminal)
}

/// What was chosen, from what, and by which plan.
#[derive(Debug)]
pub struct Choice {
    /// The vocabulary.
    pub built: Built,
    /// The counts.
    pub evidence: Evidence,
    /// The plan, when a machine is given.
    pub plan: Option<PlanRecord>,
}

/// Counts, plans if a machine is given, and selects.
///
/// # Errors
/// Bad input, a size that the tokenizer does not have, or `--size auto` without a machine.
pub fn choose(
    args: &ChoiceFlags,
    tokenizer: &Tokenizer,
    target_rows: usize,
    model: Option<&PlannedModel<'_>>,
    n_threads: Option<usize>,
    terminal: &Terminal,
) -> Result<Choice> {
    let gathered = counted(tokenizer, &args.evidence, n_threads, terminal)?;
    let plan = match model {
        Some(model) if args.plans() => {
            let curve = measured::curve(tokenizer, &gathered)?;
            let record = answer(model, &args.serving, curve, args.pad_to)?;
            record.assumptions.iter().for_each(|assumption| terminal.warn(assumption));
            terminal.say(report::plan::sentence(&record));
            Some(record)
        }
        _ => None,
    };
    let size = match (args.size, &plan) {
        (None, _) => DEFAULT_SIZE,
        (Some(Size::Rows(size)), _) => size,
        (Some(Size::Auto), Some(record)) => record.plan.best.design.n_rows.min(most_rows(tokenizer, args)?),
        (Some(Size::Auto), None) => {
            return Err(anyhow::anyhow!("`--size auto` needs a machine")).hint("give `--hardware NAME`");
        }
    };
    let select = SelectConfig { size, target_rows, pad_to: args.pad_to, pad_mode: args.pad_mode.into() };
    let made = make(tokenizer, gathered, &select, &args.floor)?;
    made.notes.iter().for_each(|note| terminal.say(note));
    summary::lines(&made.built).iter().for_each(|line| terminal.say(line));
    Ok(Choice { built: made.built, evidence: made.evidence, plan })
}

/// The largest size that always-kept ids and whole tiles leave room for.
fn most_rows(tokenizer: &Tokenizer, args: &ChoiceFlags) -> Result<usize> {
    let n_ids = tokenizer.n_ids();
    Ok(match args.pad_mode {
        Padding::Repeat => n_ids,
        Padding::Next => (n_ids / args.pad_to * args.pad_to).saturating_sub(retain(tokenizer)?.ids().count()).max(1),
    })
}

impl ChoiceFlags {
    /// Whether a plan is asked for.
    pub fn plans(&self) -> bool {
        self.size == Some(Size::Auto) || self.serving.hardware.is_some() || self.serving.bandwidth.is_some()
    }
}

/// Counts what the flags name, with a progress bar, and says what was skipped.
///
/// # Errors
/// As [`gather`], or chats that cannot be rendered as asked.
pub fn counted(
    tokenizer: &Tokenizer,
    args: &EvidenceFlags,
    n_threads: Option<usize>,
    terminal: &Terminal,
) -> Result<Gathered> {
    let mut options = CountOptions::default();
    options.n_threads = n_threads.unwrap_or(options.n_threads);
    options.extract = extract(&args.text, tokenizer, terminal)?;
    options.strict = args.text.strict;
    let request = Request {
        sources: args.corpus.clone(),
        heldout: args.heldout.clone(),
        mixture: args.mixture.clone(),
        counts: args.counts.clone(),
        weights: args.weight.clone(),
        options,
    };
    let progress = terminal.progress("counting", None, Unit::Bytes);
    let gathered = gather(tokenizer, &request, &progress)?;
    progress.finish();
    count::warn(&gathered.evidence.counts, terminal);
    Ok(gathered)
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
