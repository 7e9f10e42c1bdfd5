//! `completions SHELL` and `man`: what packagers install beside the binary.

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::{cli::Cli, report::Terminal};

/// # Errors
/// stdout is closed.
pub fn completions(shell: clap_complete::Shell, terminal: &Terminal) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "draftfast", &mut script);
    terminal.data(String::from_utf8_lossy(&script).trim_end())
}

/// # Errors
/// stdout is closed.
pub fn man(terminal: &Terminal) -> Result<()> {
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut page).context("cannot render the man page")?;
    terminal.data(String::from_utf8_lossy(&page).trim_end())
}
