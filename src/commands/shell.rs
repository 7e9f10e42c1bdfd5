//! `completions SHELL` and `man`: what packagers install beside the binary.

use std::path::Path;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};

use crate::{cli::Cli, output::write_file, report::Terminal};

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
    terminal.data(String::from_utf8_lossy(&page(Cli::command())?).trim_end())
}

/// Writes `draftfast.1`, `draftfast-build.1`, ...: the pages of commands that people see.
///
/// # Errors
/// A page cannot be written.
pub fn man_pages(dir: &Path, terminal: &Terminal) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("`{}`: cannot create the folder", dir.display()))?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    write_pages(&command, "draftfast", dir, terminal)
}

fn write_pages(command: &Command, name: &str, dir: &Path, terminal: &Terminal) -> Result<()> {
    // A page's name must live as long as the program; there are a few dozen.
    let title: &'static str = Box::leak(name.to_owned().into_boxed_str());
    let path = dir.join(format!("{name}.1"));
    write_file(&path, &page(command.clone().name(title))?, true)?;
    terminal.data(path.display().to_string())?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        write_pages(sub, &format!("{name}-{}", sub.get_name()), dir, terminal)?;
    }
    Ok(())
}

fn page(command: Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page).context("cannot render the man page")?;
    Ok(page)
}
