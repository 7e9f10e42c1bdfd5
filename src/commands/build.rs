//! `draftfast build`: the whole job.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{
    build_vocab::{Choice, choose},
    plan::PlannedModel,
    quantize::{finish, plan, verify_staged, write},
    weights::Weights,
};
use crate::{
    cli::{
        build::Build,
        build_vocab::{ChoiceFlags, Size},
        quantize::{WeightFlags, WritingFlags},
    },
    counts::Tokenizer,
    demo,
    output::{StagedDir, refuse_existing, refuse_inputs},
    plan::PLAN_NAME,
    report::{self, Terminal},
    vocab::build::provenance,
};

/// # Errors
/// Anything that makes a sidecar impossible or wrong; then nothing is left behind.
pub fn run(args: &Build, n_threads: Option<usize>, terminal: &Terminal) -> Result<()> {
    let Some(model) = &args.model else { return run_demo(args, n_threads, terminal) };
    let output = match &args.output {
        Some(output) => output.clone(),
        None => default_output(model)?,
    };
    build(model, &output, &args.choice, &args.weights, &args.writing, n_threads, terminal)
}

fn build(
    model: &Path,
    output: &Path,
    choice: &ChoiceFlags,
    flags: &WeightFlags,
    writing: &WritingFlags,
    n_threads: Option<usize>,
    terminal: &Terminal,
) -> Result<()> {
    if !writing.dry_run {
        refuse_existing(output, writing.force)?;
        refuse_inputs(output, flags.inputs().chain(choice.evidence.paths()).chain([model]))?;
    }
    let weights = Weights::open(model, flags)?;
    let recipe = &weights.recipe;
    let head = if recipe.head.tied { "the tied embedding" } else { "its own head" };
    terminal.say(format!(
        "model: {}, {} rows of {} in {head}, {} MTP linears to quantize, {} tensors to keep",
        recipe.family,
        recipe.target_rows,
        recipe.hidden_size,
        recipe.linears.len(),
        recipe.kept.len()
    ));
    recipe.notes.iter().for_each(|note| terminal.say(note));
    let tokenizer = Tokenizer::open(model)?;
    let sources = weights.sources();
    let model = PlannedModel { checkpoint: sources.target, mtp_from: sources.mtp_from, recipe };
    let chosen = choose(choice, &tokenizer, recipe.target_rows, Some(&model), n_threads, terminal)?;
    let Choice { built, evidence, plan: planned } = chosen;
    if writing.dry_run {
        return plan(recipe, built.vocab(), terminal);
    }
    let staged = StagedDir::create(output, writing.force)?;
    built.write(&tokenizer, &evidence, &choice.forms, &staged)?;
    if let Some(planned) = &planned {
        staged.write(PLAN_NAME, &report::json_line(planned)?)?;
    }
    let selection = provenance(built.record(&tokenizer, &evidence));
    let manifest = write(&weights, flags, built.vocab(), Some(selection), &staged, terminal)?;
    verify_staged(&weights, &staged, output, terminal)?;
    finish(&manifest, staged, output, terminal)
}

/// A tiny model beside the output, our sample texts, and the same job.
fn run_demo(args: &Build, n_threads: Option<usize>, terminal: &Terminal) -> Result<()> {
    let output = args.output.clone().unwrap_or_else(|| PathBuf::from("artifacts/demo"));
    if !args.writing.dry_run {
        refuse_existing(&output, args.writing.force)?;
    }
    let name = output.file_name().context("`-o` does not name a folder")?;
    let scratch = tempfile::tempdir().context("cannot make a temporary folder for the sample texts")?;
    let model = match args.writing.dry_run {
        true => scratch.path().join("model"),
        false => output.with_file_name(format!("{}-model", name.to_string_lossy())),
    };
    let is_new = !model.exists();
    demo::write_model(&model, args.writing.force)?;
    terminal.say(format!("demo: a tiny {} model with random weights in `{}`", demo::FAMILY, model.display()));
    let mut choice = args.choice.clone();
    choice.size.get_or_insert(Size::Rows(demo::SIZE));
    if choice.evidence.corpus.is_empty() && choice.evidence.counts.is_empty() {
        choice.evidence.corpus = demo::write_samples(&scratch.path().join("corpus"))?;
    }
    if let Err(error) = build(&model, &output, &choice, &args.weights, &args.writing, n_threads, terminal) {
        if is_new {
            let _ = std::fs::remove_dir_all(&model);
        }
        return Err(error);
    }
    if args.writing.dry_run {
        return Ok(());
    }
    terminal.say(format!(
        "compare it with its model: draftfast verify {} --model {}",
        output.display(),
        model.display()
    ));
    Ok(())
}

fn default_output(model: &Path) -> Result<PathBuf> {
    let model = model.canonicalize().with_context(|| format!("`{}`: cannot open the folder", model.display()))?;
    let name = model.file_name().context("the model folder has no name: give `-o DIR`")?;
    Ok(Path::new("artifacts").join(format!("{}-drafter", name.to_string_lossy())))
}
