//! `draftfast quantize`: a model folder and a vocabulary in, a sidecar out.

use std::{path::Path, thread};

use anyhow::{Result, bail};

use super::{
    verify::check,
    weights::{Weights, options},
};
use crate::{
    checkpoint::{Recipe, ledger::ledger},
    checksum::{self, LIST_NAME},
    cli::quantize::{Quantize, WeightFlags},
    gpu::Device,
    output::{StagedDir, refuse_existing, refuse_inputs},
    quantize,
    report::{self, Terminal, Unit},
    sidecar::{self, Manifest, Sidecar, SidecarParts},
    vocab::{
        DraftVocab,
        build::{RECORD, provenance, record_beside},
        forms,
    },
};

/// # Errors
/// Anything that makes a sidecar impossible or wrong; then nothing is left behind.
pub fn run(args: &Quantize, terminal: &Terminal) -> Result<()> {
    if !args.writing.dry_run {
        refuse_existing(&args.output, args.writing.force)?;
        let inputs = args.weights.inputs().chain([args.model.as_path(), &args.vocab]);
        refuse_inputs(&args.output, inputs)?;
    }
    let weights = Weights::open(&args.model, &args.weights)?;
    let (mut vocab, detected) = forms::read(&args.vocab, Some(weights.recipe.target_rows))?;
    terminal.say(format!("vocabulary: {} ids, read as {}", vocab.token_ids.len(), detected.semantics));
    for note in &detected.notes {
        terminal.warn(note);
    }
    let tokenizer_sha256 = weights.tokenizer_sha256()?;
    if let Some(sha256) = &tokenizer_sha256 {
        detected.check_tokenizer(&args.vocab, sha256)?;
    }
    pad(&mut vocab, args.pad_to, terminal);
    if args.writing.dry_run {
        return plan(&weights.recipe, &vocab, terminal);
    }
    let staged = StagedDir::create(&args.output, args.writing.force)?;
    let selection = record_beside(&args.vocab, &vocab)?;
    if let Some((bytes, _)) = &selection {
        staged.write(RECORD, bytes)?;
    }
    let selection = selection.map(|(_, record)| provenance(record));
    let manifest = write(&weights, &args.weights, &vocab, selection, &staged, terminal)?;
    // Maps of gigabytes take a while to undo: beside the disk's work, not after it.
    let _ = thread::Builder::new().spawn(move || drop(weights));
    finish(&manifest, staged, &args.output, terminal)?;
    let (sidecar, model) = (args.output.display(), args.model.display());
    terminal.say(format!("compare it with its model: draftfast verify {sidecar} --model {model}"));
    Ok(())
}

/// Kernels want rows in multiples of 64, the fast ones of 128. A bare list of ids has no next-ranked ones to take, so the
/// first row is repeated, as the seed recipe does.
fn pad(vocab: &mut DraftVocab, pad_to: Option<usize>, terminal: &Terminal) {
    const TILE_ROWS: usize = 64;
    const FAST_TILE_ROWS: usize = 128;
    let n_rows = vocab.n_rows();
    let multiple = match pad_to {
        Some(multiple) => multiple.max(1),
        None if n_rows.is_multiple_of(TILE_ROWS) => return,
        None => FAST_TILE_ROWS,
    };
    let n_missing = n_rows.next_multiple_of(multiple) - n_rows;
    if n_missing > 0 {
        vocab.n_repeated += n_missing;
        terminal.say(format!("{n_rows} rows filled up to {} with copies of the first", vocab.n_rows()));
    }
}

/// Quantizes into `staged`.
///
/// # Errors
/// As [`sidecar::write`].
pub fn write(
    weights: &Weights,
    flags: &WeightFlags,
    vocab: &DraftVocab,
    selection: Option<serde_json::Value>,
    staged: &StagedDir,
    terminal: &Terminal,
) -> Result<Manifest> {
    let (device, why) = flags.device.open()?;
    terminal.say(why);
    let (recipe, sources) = (&weights.recipe, weights.sources());
    let options = options(flags)?;
    if options.row_shift {
        weights.refuse_capped_logits()?;
    }
    let parts = SidecarParts {
        sources,
        recipe,
        vocab,
        tokenizer_sha256: weights.tokenizer_sha256()?,
        selection,
        options: &options,
        device: &device,
        ledger: ledger(recipe, vocab.n_rows()),
    };
    let total = quantize::progress_bytes(recipe, vocab, sources);
    let progress = terminal.progress("quantize", Some(total), Unit::Bytes);
    let manifest = sidecar::write(&parts, staged, &progress)?;
    progress.finish();
    report::tell_quantized(&manifest, terminal);
    Ok(manifest)
}

/// Verifies what was staged against its model.
///
/// # Errors
/// It does not pass.
pub fn verify_staged(weights: &Weights, staged: &StagedDir, output: &Path, terminal: &Terminal) -> Result<()> {
    // On the CPU, whatever quantized: a card does not judge its own work.
    let found = check(&Sidecar::open(staged.path())?, weights.sources(), &Device::Cpu, terminal)?;
    if !found.problems.is_empty() {
        bail!("`{}` was not written: what was built does not pass `draftfast verify`", output.display());
    }
    Ok(())
}

/// Adds the checksums to what was staged, and moves it into place.
///
/// # Errors
/// The disk is full, or the directory cannot be moved.
pub fn finish(manifest: &Manifest, staged: StagedDir, output: &Path, terminal: &Terminal) -> Result<()> {
    let ledger = &manifest.ledger;
    let progress = terminal.progress("checksums", None, Unit::Bytes);
    checksum::add_list(&staged, &progress)?;
    progress.finish();
    staged.commit()?;
    terminal.say(report::ledger_sentence(ledger));
    terminal.say(format!("check it with: cd {} && sha256sum -c {LIST_NAME}", output.display()));
    if terminal.is_json() {
        return terminal
            .json(&serde_json::json!({ "output": output.to_string_lossy(), "ledger": ledger, "manifest": manifest }));
    }
    terminal.data(output.display().to_string())
}

/// What would be written.
///
/// # Errors
/// stdout is closed.
pub fn plan(recipe: &Recipe, vocab: &DraftVocab, terminal: &Terminal) -> Result<()> {
    let ledger = ledger(recipe, vocab.n_rows());
    if terminal.is_json() {
        return terminal.json(&serde_json::json!({ "recipe": recipe, "ledger": ledger, "n_rows": vocab.n_rows() }));
    }
    terminal.data(report::plan_text(recipe, &ledger))
}
