//! One file a verb: a command joins stages and owns no logic.

mod shell;

use std::process::ExitCode;

use anyhow::Result;

use crate::{
    cli::{Cli, Command},
    report::Terminal,
};

/// Runs the command that was asked for.
///
/// # Errors
/// Whatever the command says is wrong.
pub fn run(cli: &Cli, terminal: &Terminal) -> Result<ExitCode> {
    match &cli.command {
        Command::Completions { shell } => shell::completions(*shell, terminal),
        Command::Man => shell::man(terminal),
    }?;
    Ok(ExitCode::SUCCESS)
}
