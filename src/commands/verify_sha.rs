//! `draftfast verify-sha`: checksums in, a line a file out.

use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::json;

use crate::{
    checksum::{self, Expected, LIST_NAME, Outcome},
    cli::verify_sha::VerifySha,
    report::{Terminal, Unit},
};

/// # Errors
/// The list is malformed or leads outside its folder; nothing was checked.
pub fn run(args: &VerifySha, quiet: bool, terminal: &Terminal) -> Result<ExitCode> {
    if args.write {
        let progress = terminal.progress("hash", None, Unit::Bytes);
        let n_files = checksum::write_list(&args.path, args.force, &progress)?;
        progress.finish();
        let list = args.path.join(LIST_NAME);
        terminal.say(format!("hashed {n_files} files"));
        if terminal.is_json() {
            terminal.json(&json!({ "list": list.to_string_lossy(), "n_files": n_files }))?;
        } else {
            terminal.data(list.display().to_string())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let expected = expected(args)?;
    let total = expected.iter().filter_map(|file| file.path.metadata().ok()).map(|m| m.len()).sum();
    let progress = terminal.progress("hash", Some(total), Unit::Bytes);
    let outcomes = checksum::check(&expected, &progress)?;
    progress.finish();
    report(&expected, &outcomes, args.ignore_missing, quiet, terminal)
}

fn expected(args: &VerifySha) -> Result<Vec<Expected>> {
    if args.path.is_dir() {
        let list = args.path.join(LIST_NAME);
        if args.against.is_some() || !list.exists() {
            return checksum::read_pointers(&args.path, args.against.as_deref());
        }
        return checksum::read_list(&list);
    }
    checksum::read_list(&args.path)
}

/// Prints the outcomes as `sha256sum -c` does; with `--quiet` only failures.
fn report(
    expected: &[Expected],
    outcomes: &[Outcome],
    ignore_missing: bool,
    quiet: bool,
    terminal: &Terminal,
) -> Result<ExitCode> {
    let (mut n_ok, mut n_failed) = (0, 0);
    let mut files = Vec::new();
    for (file, outcome) in expected.iter().zip(outcomes) {
        let word = match outcome {
            Outcome::Ok => "OK",
            Outcome::Failed => "FAILED",
            Outcome::Missing if ignore_missing => continue,
            Outcome::Missing | Outcome::Unreadable(_) => "FAILED open or read",
        };
        match outcome {
            Outcome::Ok => n_ok += 1,
            _ => n_failed += 1,
        }
        if terminal.is_json() {
            files.push(json!({ "name": file.name, "ok": *outcome == Outcome::Ok, "outcome": word }));
        } else if *outcome != Outcome::Ok || !quiet {
            terminal.data(format!("{}: {word}", file.name))?;
        }
        if let Outcome::Unreadable(reason) = outcome {
            terminal.warn(format!("`{}`: {reason}", file.name));
        }
    }
    if terminal.is_json() {
        terminal
            .json(&json!({ "ok": n_failed == 0 && n_ok > 0, "n_ok": n_ok, "n_failed": n_failed, "files": files }))?;
    }
    if n_ok + n_failed == 0 {
        bail!("no file was verified: every listed file is missing");
    }
    if n_failed > 0 {
        terminal.warn(format!("{n_failed} of {} files did not pass", n_ok + n_failed));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
