//! What a run says: sentences and progress bars on stderr, results on stdout.

use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use super::sentence::{one_line, printable, sentence};
use crate::{cli::Global, error::hints};

/// Where a command's words go.
#[derive(Debug, Clone)]
pub struct Terminal {
    quiet: bool,
    verbose: bool,
    json: bool,
    bars: bool,
}

/// What a progress bar counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes, shown with a rate and an ETA.
    Bytes,
    /// Plain items.
    Items,
}

/// A handle that long stages advance. Silent when stderr is no terminal, or with `-q`, `--json`, `--no-progress`.
#[derive(Debug, Clone)]
pub struct Progress(ProgressBar);

impl Progress {
    /// A handle that shows nothing: for tests and library callers.
    pub fn silent() -> Self {
        Self(ProgressBar::hidden())
    }

    /// `n` more units are done. Thread-safe.
    pub fn advance(&self, n: u64) {
        self.0.inc(n);
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// Nobody may be reading the talk any more; that is no reason to stop.
fn to_stderr(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", printable(line));
}

impl Terminal {
    /// A terminal that obeys the global flags.
    pub fn new(global: &Global) -> Self {
        let bars = !global.quiet && !global.json && !global.no_progress && std::io::stderr().is_terminal();
        Self { quiet: global.quiet, verbose: global.verbose, json: global.json, bars }
    }

    /// Whether results are asked for as JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Whether `-v` was given.
    pub fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// A sentence for the person watching (stderr, not with `-q`).
    pub fn say(&self, text: impl AsRef<str>) {
        if !self.quiet {
            to_stderr(text.as_ref());
        }
    }

    /// A detail (stderr, only with `-v`).
    pub fn detail(&self, text: impl AsRef<str>) {
        if self.verbose && !self.quiet {
            to_stderr(text.as_ref());
        }
    }

    /// Something that is not wrong but should be known (stderr, not with `-q`).
    pub fn warn(&self, text: impl AsRef<str>) {
        if !self.quiet {
            to_stderr(&format!("warning: {}", one_line(text.as_ref())));
        }
    }

    /// One thing that is wrong among others still to be told (stderr, also with `-q`).
    pub fn problem(&self, text: impl AsRef<str>) {
        to_stderr(&format!("error: {}", one_line(text.as_ref())));
    }

    /// A line of the result (stdout).
    ///
    /// # Errors
    /// stdout is closed or full; a broken pipe is success and handled by [`Terminal::fail`].
    pub fn data(&self, text: impl AsRef<str>) -> Result<()> {
        writeln!(std::io::stdout().lock(), "{}", text.as_ref()).context("cannot write to stdout")
    }

    /// The result as one JSON object (stdout).
    ///
    /// # Errors
    /// As [`Terminal::data`].
    pub fn json(&self, value: &impl Serialize) -> Result<()> {
        self.data(serde_json::to_string_pretty(value).context("cannot encode the result as JSON")?)
    }

    /// A progress bar over `total` units; `None` when the total is not known.
    pub fn progress(&self, label: &str, total: Option<u64>, unit: Unit) -> Progress {
        if !self.bars {
            return Progress::silent();
        }
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        let template = match (unit, total) {
            (Unit::Bytes, Some(_)) => "{msg:14} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} eta {eta}",
            (Unit::Bytes, None) => "{msg:14} {spinner} {bytes} {bytes_per_sec}",
            (Unit::Items, Some(_)) => "{msg:14} [{bar:30}] {pos}/{len} {per_sec} eta {eta}",
            (Unit::Items, None) => "{msg:14} {spinner} {pos} {per_sec}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(label.to_owned());
        Progress(bar)
    }

    /// Prints what a panic said; the exit code is 1.
    pub fn fail_unexpectedly(&self, payload: &(dyn std::any::Any + Send)) -> ExitCode {
        let said = payload.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no reason was given");
        to_stderr(&format!("error: draftfast stopped where it should not have: {}", one_line(said)));
        to_stderr("hint: this is a defect; please report it with the command and, if you can, the input");
        ExitCode::FAILURE
    }

    /// Prints an error and its hints; the exit code is 1, or 0 when the reader of stdout went away.
    pub fn fail(&self, error: &anyhow::Error) -> ExitCode {
        let broken_pipe = |cause: &(dyn std::error::Error + 'static)| {
            cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
        };
        if error.chain().any(broken_pipe) {
            return ExitCode::SUCCESS;
        }
        to_stderr(&format!("error: {}", sentence(error)));
        for hint in hints(error) {
            to_stderr(&format!("hint: {}", one_line(hint)));
        }
        ExitCode::FAILURE
    }
}
