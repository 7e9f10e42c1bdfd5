//! `draftfast verify`: a sidecar against its model.

use std::{path::Path, process::ExitCode};

use anyhow::Result;
use serde_json::json;

use crate::{
    checkpoint::Checkpoint,
    cli::verify::Verify,
    gpu::Device,
    quantize::Sources,
    report::{Terminal, Unit},
    sidecar::{self, DraftQuality, Sidecar, Verification},
};

/// # Errors
/// The sidecar or the model cannot be read.
pub fn run(args: &Verify, terminal: &Terminal) -> Result<ExitCode> {
    let sidecar = Sidecar::open(&args.sidecar)?;
    sidecar.check_finished()?;
    let target = Checkpoint::open(&args.model)?;
    let mtp_from = args.mtp_from.as_deref().map(Checkpoint::open).transpose()?;
    let sources = Sources { target: &target, mtp_from: mtp_from.as_ref() };
    let (device, why) = args.device.open()?;
    terminal.say(why);
    let found = check(&sidecar, sources, &device, terminal)?;
    let quality = match &args.hidden_states {
        // A head that is not what the manifest says has no figures.
        Some(path) if found.problems.is_empty() => Some(judge(&sidecar, sources, path, &device, terminal)?),
        _ => None,
    };
    if terminal.is_json() {
        terminal.json(&json!({ "verification": found, "quality": quality }))?;
    } else if found.problems.is_empty() {
        terminal.data(format!("{}: OK", args.sidecar.display()))?;
    }
    Ok(if found.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn judge(
    sidecar: &Sidecar,
    sources: Sources<'_>,
    path: &Path,
    device: &Device,
    terminal: &Terminal,
) -> Result<DraftQuality> {
    let states = Checkpoint::open_file(path)?;
    let progress = terminal.progress("full head", Some(sidecar.manifest.target.target_rows as u64), Unit::Items);
    let quality = sidecar::draft_quality(sidecar, sources, &states, device, &progress)?;
    progress.finish();
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    terminal.say(format!(
        "on {} hidden states, against the same rows in BF16: centred logit error {:.4}, KL {:.5} nats, \
         same token {}, among the first four {}, median margin {:.3} (where it differs: {})",
        quality.n_states,
        quality.centred_error,
        quality.kl,
        percent(quality.top1_agreement),
        percent(quality.top4_agreement),
        quality.median_margin,
        quality.median_margin_lost.map_or_else(|| "-".to_owned(), |margin| format!("{margin:.3}")),
    ));
    terminal.say(format!(
        "against the full BF16 head: its token is kept in {}, drafted in {}",
        percent(quality.full_token_is_kept),
        percent(quality.full_top1_agreement)
    ));
    Ok(quality)
}

/// Verifies and says what was found.
///
/// # Errors
/// As [`sidecar::verify`].
pub fn check(sidecar: &Sidecar, sources: Sources<'_>, device: &Device, terminal: &Terminal) -> Result<Verification> {
    let progress = terminal.progress("verify", Some(sidecar::verify_bytes(sidecar, sources)), Unit::Bytes);
    let found = sidecar::verify(sidecar, sources, device, &progress)?;
    progress.finish();
    for problem in &found.problems {
        terminal.problem(problem);
    }
    if found.problems.is_empty() {
        terminal.say(format!(
            "verified: {} rows of the draft head and {} linears decode to their sources, {} tensors are equal bit for bit",
            found.n_rows,
            found.n_quantized - 1,
            found.n_kept
        ));
    } else {
        terminal.warn(format!(
            "{} problems: this sidecar does not belong to this model, or is damaged",
            found.problems.len()
        ));
    }
    Ok(found)
}
