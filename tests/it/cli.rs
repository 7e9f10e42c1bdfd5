//! Habits of the command line.

use clap::CommandFactory;

use crate::draftfast;

#[test]
fn the_flag_definitions_are_consistent() {
    draftfast::cli::Cli::command().debug_assert();
}

#[test]
fn no_command_is_a_usage_error_with_exit_code_2() {
    let output = draftfast(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty(), "usage goes to stderr");
}

#[test]
fn completions_are_data_on_stdout() {
    let output = draftfast(&["completions", "bash"]);
    assert!(output.status.success());
    assert!(String::from_utf8(output.stdout).unwrap().contains("_draftfast()"));
}
