//! One file a verb: a command joins stages and owns no logic.

mod bench;
mod build;
mod build_vocab;
mod convert;
mod count;
mod diff;
mod export;
pub mod inspect;
mod merge;
mod plan;
mod quantize;
mod report;
mod shell;
mod synth;
mod verify;
mod verify_sha;
mod vocab;
mod weights;

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::{
    cli::{Cli, Command},
    report::Terminal,
};

/// Runs the command that was asked for.
///
/// # Errors
/// Whatever the command says is wrong.
pub fn run(cli: &Cli, terminal: &Terminal) -> Result<ExitCode> {
    let Some(n_threads) = cli.global.threads else { return dispatch(cli, terminal) };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().context("cannot start the threads")?;
    pool.install(|| dispatch(cli, terminal))
}

fn dispatch(cli: &Cli, terminal: &Terminal) -> Result<ExitCode> {
    match &cli.command {
        Command::Build(args) => build::run(args, cli.global.threads, terminal),
        Command::BuildVocab(args) => build_vocab::run(args, cli.global.threads, terminal),
        Command::Count(args) => count::run(args, cli.global.threads, terminal),
        Command::Merge(args) => merge::run(args, terminal),
        Command::Convert(args) => convert::run(args, terminal),
        Command::Vocab(args) => return vocab::run(args, terminal),
        Command::Quantize(args) => quantize::run(args, terminal),
        Command::Verify(args) => return verify::run(args, terminal),
        Command::Diff(args) => diff::run(args, terminal),
        Command::Report(args) => report::run(args, terminal),
        Command::Plan(args) => plan::run(args, cli.global.threads, terminal),
        Command::VerifySha(args) => return verify_sha::run(args, cli.global.quiet, terminal),
        Command::Export(args) => export::run(args, terminal),
        Command::Inspect(args) => inspect::run(args, terminal),
        Command::Bench(args) => bench::run(args, terminal),
        Command::Synth(args) => synth::run(args, terminal),
        Command::Completions { shell } => shell::completions(*shell, terminal),
        Command::Man { dir: None } => shell::man(terminal),
        Command::Man { dir: Some(dir) } => shell::man_pages(dir, terminal),
    }?;
    Ok(ExitCode::SUCCESS)
}
