//! Parses the command line, runs one command, prints the error and its hints in one place.

use std::process::ExitCode;

use clap::Parser;
use draftfast::{cli::Cli, commands, interrupt, report::Terminal};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let terminal = Terminal::new(&cli.global);
    interrupt::install();
    match commands::run(&cli, &terminal) {
        Ok(code) => code,
        Err(error) => terminal.fail(&error),
    }
}
