//! `draftfast plan`: a model, a machine and what is known of the traffic in; the best (N, k) and what it earns out.

use anyhow::{Result, anyhow, ensure};
use serde_json::json;

use crate::{
    checkpoint::{Checkpoint, Overrides, recipe},
    cli::plan::Plan,
    error::Hint,
    plan::{Acceptance, Costs, CoverageCurve, Hardware, Load, Question, coverage_file, logs, model},
    report::{self, Terminal},
};

/// # Errors
/// The model, the machine or a record cannot be read, or no number of draft tokens is left to choose from.
pub fn run(args: &Plan, terminal: &Terminal) -> Result<()> {
    let question = question(args, terminal)?;
    for assumption in question.assumptions() {
        terminal.warn(assumption);
    }
    let plan = question.answer().ok_or_else(|| anyhow!("there is no number of draft tokens to choose from"))?;
    if terminal.is_json() {
        return terminal.json(&json!({ "question": question, "plan": plan, "assumptions": question.assumptions() }));
    }
    terminal.data(report::plan::lines(&question, &plan).join("\n"))
}

fn question(args: &Plan, terminal: &Terminal) -> Result<Question> {
    let hardware = match (&args.hardware, args.bandwidth) {
        (Some(name), _) => Hardware::named(name)?,
        (None, Some(bandwidth_gb_s)) => Hardware::of_bandwidth(bandwidth_gb_s)?,
        (None, None) => {
            return Err(anyhow!("no machine is given")).hint("give `--hardware NAME` or `--bandwidth GB/S`");
        }
    };
    let checkpoint = Checkpoint::open(&args.model)?;
    let mtp_from = args.mtp_from.as_deref().map(Checkpoint::open).transpose()?;
    let recipe = recipe(&checkpoint, mtp_from.as_ref(), &Overrides::default())?;
    let (drafted, refused) = model::bootable(recipe.family, &args.k.0);
    if let Some(why) = refused {
        ensure_some(&drafted, why)?;
        terminal.warn(format!("{why}; they are left out"));
    }
    let coverage = match &args.coverage {
        Some(path) => coverage_file::read(path)?,
        None => CoverageCurve::assumed(recipe.target_rows),
    };
    Ok(Question {
        acceptance: acceptance(args)?,
        coverage,
        rows: model::sizes(recipe.target_rows, args.pad_to),
        drafted,
        costs: Costs {
            hardware,
            target: model::target(&checkpoint, &recipe, measured_step_us(args.baseline)?)?,
            drafter: model::drafter(&recipe, mtp_from.as_ref().unwrap_or(&checkpoint).config()),
            load: Load { batch: usize::from(args.batch), n_context_tokens: args.context },
        },
    })
}

fn ensure_some(drafted: &[usize], why: &str) -> Result<()> {
    let checked = || {
        ensure!(!drafted.is_empty(), "{why}");
        Ok(())
    };
    checked().hint("give `--k 1..4`")
}

fn acceptance(args: &Plan) -> Result<Acceptance> {
    if let Some(rate) = args.acceptance {
        return Acceptance::new(vec![rate], "the rate given with `--acceptance`, for every position");
    }
    match (&args.acceptance_curve, &args.vllm_metrics, &args.sglang_log) {
        (Some(path), _, _) => logs::read_curve(path),
        (None, Some(path), _) => logs::read_vllm_metrics(path),
        (None, None, Some(path)) => logs::read_sglang_log(path, args.logged_k),
        (None, None, None) => Ok(Acceptance::assumed()),
    }
}

fn measured_step_us(baseline: Option<f64>) -> Result<Option<f64>> {
    let Some(speed) = baseline else { return Ok(None) };
    ensure!(speed.is_finite() && speed > 0.0, "`--baseline` is {speed}, expected tokens a second above 0");
    Ok(Some(1e6 / speed))
}
