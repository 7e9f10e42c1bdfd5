//! Parses the command line, runs one command, prints the error and its hints in one place.

use std::{panic, process::ExitCode};

use clap::Parser;
use draftfast::{cli::Cli, commands, interrupt, report::Terminal};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let terminal = Terminal::new(&cli.global);
    interrupt::install();
    // A panic is a defect of ours (or of a library that met hostile input), but still one sentence and exit code 1; what
    // was staged is removed as the stack unwinds.
    panic::set_hook(Box::new(|_| {}));
    match panic::catch_unwind(|| commands::run(&cli, &terminal)) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => terminal.fail(&interrupt::explained(error)),
        Err(payload) => terminal.fail_unexpectedly(payload.as_ref()),
    }
}
