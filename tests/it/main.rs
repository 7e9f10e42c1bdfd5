//! The integration tests: one binary, a module a feature, sentence names.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic, and says why it is skipped")]

mod arguments;
mod bench;
mod bit_rot;
mod build;
mod checkpoint;
mod checksum;
mod cli;
mod consumers;
mod corpus;
mod count_cli;
mod count_fuzz;
mod counts;
mod docs;
mod export;
mod faults;
mod forms;
mod gpu;
mod hostile;
mod injected;
mod inspect;
mod killed;
mod nvfp4;
mod plan;
mod real_head;
mod recipe;
mod report;
mod sidecar;
mod sources;
mod vocab;

use std::process::{Command, Output};

/// A folder in memory where there is one, for tests that write much and sync often.
fn memory_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Runs the built program.
fn draftfast(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_draftfast")).args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
