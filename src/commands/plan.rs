//! `draftfast plan`: a model, a machine and what is known of the traffic in; the best (N, k) and what it earns out.

use anyhow::{Context, Result, anyhow};

use super::build_vocab::counted;
use crate::{
    checkpoint::{Checkpoint, Overrides, Recipe, recipe},
    cli::{
        build_vocab::EvidenceFlags,
        plan::{Plan, ServingFlags},
    },
    counts::Tokenizer,
    error::Hint,
    plan::{
        Acceptance, CoverageCurve, Hardware, Load, PlanRecord, bench_file, coverage_file, logs, measured,
        model::{Inputs, question},
    },
    report::{self, Terminal},
};

/// # Errors
/// The model, the machine or a record cannot be read, or no number of draft tokens is left to choose from.
pub fn run(args: &Plan, n_threads: Option<usize>, terminal: &Terminal) -> Result<()> {
    let checkpoint = Checkpoint::open(&args.model)?;
    let mtp_from = args.mtp_from.as_deref().map(Checkpoint::open).transpose()?;
    let recipe = recipe(&checkpoint, mtp_from.as_ref(), &Overrides::default())?;
    let model = PlannedModel { checkpoint: &checkpoint, mtp_from: mtp_from.as_ref(), recipe: &recipe };
    let record = answer(&model, &args.serving, coverage(args, n_threads, terminal)?, args.pad_to)?;
    record.assumptions.iter().for_each(|assumption| terminal.warn(assumption));
    if terminal.is_json() {
        return terminal.json(&record);
    }
    terminal.data(report::plan::lines(&record.question, &record.plan).join("\n"))
}

/// The model that is planned for.
#[derive(Debug, Clone, Copy)]
pub struct PlannedModel<'a> {
    /// The target.
    pub checkpoint: &'a Checkpoint,
    /// The checkpoint that the MTP tensors come from, when it is another.
    pub mtp_from: Option<&'a Checkpoint>,
    /// What is quantized.
    pub recipe: &'a Recipe,
}

/// Plans with the flags; the caller says what was assumed.
///
/// # Errors
/// No machine, a record that cannot be read, or no number of draft tokens to choose from.
pub fn answer(
    model: &PlannedModel<'_>,
    flags: &ServingFlags,
    coverage: Option<CoverageCurve>,
    pad_to: usize,
) -> Result<PlanRecord> {
    let hardware = match (&flags.hardware, flags.bandwidth) {
        (Some(name), _) => Hardware::named(name)?,
        (None, Some(bandwidth_gb_s)) => Hardware::of_bandwidth(bandwidth_gb_s)?,
        (None, None) => {
            return Err(anyhow!("no machine is given")).hint("give `--hardware NAME` or `--bandwidth GB/S`");
        }
    };
    let hardware = match &flags.bench {
        Some(path) => bench_file::measured(&hardware, path, usize::from(flags.batch))?,
        None => hardware,
    };
    let inputs = Inputs {
        hardware,
        acceptance: acceptance(flags)?,
        coverage,
        drafted: flags.k.0.clone(),
        load: Load { batch: usize::from(flags.batch), n_context_tokens: flags.context },
        baseline: flags.baseline,
        pad_to,
    };
    let question = question(model.checkpoint, model.mtp_from, model.recipe, &inputs)?;
    PlanRecord::new(question).context("there is no number of draft tokens to choose from")
}

fn coverage(args: &Plan, n_threads: Option<usize>, terminal: &Terminal) -> Result<Option<CoverageCurve>> {
    if let Some(path) = &args.coverage {
        return coverage_file::read(path).map(Some);
    }
    if !args.evidence.is_given() {
        return Ok(None);
    }
    let tokenizer = Tokenizer::open(&args.model)?;
    let gathered = counted(&tokenizer, &args.evidence, n_threads, terminal)?;
    gathered.notes.iter().for_each(|note| terminal.say(note));
    measured::curve(&tokenizer, &gathered)
}

fn acceptance(flags: &ServingFlags) -> Result<Option<Acceptance>> {
    if let Some(rate) = flags.acceptance {
        return Acceptance::new(vec![rate], "the rate given with `--acceptance`, for every position").map(Some);
    }
    match (&flags.acceptance_curve, &flags.vllm_metrics, &flags.sglang_log) {
        (Some(path), _, _) => logs::read_curve(path).map(Some),
        (None, Some(path), _) => logs::read_vllm_metrics(path).map(Some),
        (None, None, Some(path)) => logs::read_sglang_log(path, flags.logged_k).map(Some),
        (None, None, None) => Ok(None),
    }
}

impl EvidenceFlags {
    /// Whether any text or counts are named.
    fn is_given(&self) -> bool {
        let Self { corpus, counts, mixture, heldout, weight: _, text: _ } = self;
        !(corpus.is_empty() && counts.is_empty() && mixture.is_none() && heldout.is_empty())
    }
}
