//! `draftfast verify`: a sidecar against its model.

use std::process::ExitCode;

use anyhow::Result;

use crate::{
    checkpoint::Checkpoint,
    cli::verify::Verify,
    quantize::Sources,
    report::{Terminal, Unit},
    sidecar::{self, Sidecar, Verification},
};

/// # Errors
/// The sidecar or the model cannot be read.
pub fn run(args: &Verify, terminal: &Terminal) -> Result<ExitCode> {
    let sidecar = Sidecar::open(&args.sidecar)?;
    let target = Checkpoint::open(&args.model)?;
    let mtp_from = args.mtp_from.as_deref().map(Checkpoint::open).transpose()?;
    let sources = Sources { target: &target, mtp_from: mtp_from.as_ref() };
    let found = check(&sidecar, sources, terminal)?;
    if terminal.is_json() {
        terminal.json(&found)?;
    } else if found.problems.is_empty() {
        terminal.data(format!("{}: OK", args.sidecar.display()))?;
    }
    Ok(if found.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Verifies and says what was found.
///
/// # Errors
/// As [`sidecar::verify`].
pub fn check(sidecar: &Sidecar, sources: Sources<'_>, terminal: &Terminal) -> Result<Verification> {
    let progress = terminal.progress("verify", Some(sidecar::verify_bytes(sidecar, sources)), Unit::Bytes);
    let found = sidecar::verify(sidecar, sources, &progress)?;
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
