//! Habits of the command line.

use std::path::Path;

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

#[test]
fn exit_codes_are_0_done_1_failed_or_found_wrong_2_bad_usage() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (out, model, lost) = (at("out"), at("out-model"), at("lost"));
    let code = |args: &[&str]| draftfast(args).status.code();
    assert_eq!(code(&["build", "--demo", "-o", &out]), Some(0));
    assert_eq!(code(&["verify", &out, "--model", &model]), Some(0));
    assert_eq!(code(&["verify-sha", &out]), Some(0));
    assert_eq!(code(&["vocab", "audit", &out, &model]), Some(0));
    // Failed.
    for args in [&["inspect", &lost][..], &["verify", &lost, "--model", &model], &["build", "--demo", "-o", &out]] {
        assert_eq!(code(args), Some(1), "{args:?}");
    }
    // Found wrong: the check itself ran to its end.
    std::fs::write(Path::new(&out).join("config.json"), "{}").unwrap();
    assert_eq!(code(&["verify-sha", &out]), Some(1));
    let few = at("few.txt");
    std::fs::write(&few, "1\n2\n").unwrap();
    assert_eq!(code(&["vocab", "audit", &few, &model, "--target-rows", "2304"]), Some(1));
    // Bad usage.
    for args in [&["build"][..], &["build", "--demo", "--size", "many"], &["no-such-command"], &["plan", &model]] {
        assert_eq!(code(args), Some(2), "{args:?}");
    }
}

#[test]
fn every_command_has_a_man_page_that_names_its_flags() {
    let dir = tempfile::tempdir().unwrap();
    let output = draftfast(&["man", dir.path().to_str().unwrap()]);
    assert!(output.status.success());
    let page = |name: &str| std::fs::read_to_string(dir.path().join(format!("{name}.1"))).unwrap();
    for command in draftfast::cli::Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
        assert!(page(&format!("draftfast-{}", command.get_name())).contains(".SH OPTIONS"), "{}", command.get_name());
    }
    assert!(page("draftfast-vocab-audit").contains("always"));
    assert!(page("draftfast-plan").contains("\\-\\-vllm\\-metrics"));
    assert!(!dir.path().join("draftfast-completions.1").exists(), "hidden commands have none");
}

#[test]
fn every_shell_has_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = draftfast(&["completions", shell]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("verify-sha"), "{shell}");
    }
}

#[test]
fn the_long_version_names_kernels_and_formats_and_is_the_same_everywhere() {
    let long = |args: &[&str]| String::from_utf8(draftfast(args).stdout).unwrap();
    let text = long(&["--version"]);
    for said in
        ["draftfast ", "kernels       sha256 ", "sidecar       format 1", "draftfast-counts-1", "vocab_mapping.pt"]
    {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert_eq!(
        text.lines().skip(1).collect::<Vec<_>>(),
        long(&["build", "--version"]).lines().skip(1).collect::<Vec<_>>()
    );
    assert_eq!(long(&["-V"]).trim(), concat!("draftfast ", env!("CARGO_PKG_VERSION")));
}
