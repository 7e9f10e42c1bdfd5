//! Words on the command line that make no sense, or that would cost the person who mistypes them.

use std::{fs, path::Path};

use crate::{draftfast, stderr};

/// A tiny model, ids, and counts of a text.
fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    assert!(draftfast(&["synth", "qwen3.5-dense", "-o", &at("model")]).status.success());
    fs::write(at("ids.txt"), (0..64).map(|id| format!("{id}\n")).collect::<String>()).unwrap();
    fs::write(at("a.txt"), "words of a text").unwrap();
    assert!(draftfast(&["count", &at("model"), "--corpus", &at("a.txt"), "-o", &at("a.counts")]).status.success());
    dir
}

#[test]
fn numbers_out_of_their_range_are_bad_usage_at_once() {
    for args in [
        vec!["inspect", "model", "-j", "100000"],
        vec!["inspect", "model", "-j", "0"],
        vec!["inspect", "model", "-j", "18446744073709551615"],
        vec!["bench", "--shape", "128x256", "--dry-run", "--m", "0"],
        vec!["bench", "--shape", "128x256", "--dry-run", "--m", "9"],
        vec!["bench", "--shape", "128x256", "--dry-run", "--replays", "0"],
        vec!["bench", "--shape", "128x256", "--dry-run", "--replays", "18446744073709551615"],
    ] {
        let output = draftfast(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("invalid value"), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn a_log_that_says_absurd_numbers_of_draft_tokens_is_refused_at_once() {
    let dir = place();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for n_drafted in ["18446744073709551616", "33", "0.5"] {
        let log = format!("speculative_num_steps={n_drafted}\nDecode batch, #running-req: 1, accept len: 2.50,\n");
        fs::write(at("log"), log).unwrap();
        let output = draftfast(&["plan", &at("model"), "--hardware", "gb10", "--sglang-log", &at("log")]);
        assert_eq!(output.status.code(), Some(1), "{n_drafted}: {}", stderr(&output));
        assert!(stderr(&output).contains("drafted a step"), "{n_drafted}: {}", stderr(&output));
    }
}

#[test]
fn an_input_is_never_replaced_by_the_output_even_with_force() {
    let dir = place();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (model, text, counts) = (at("model"), at("a.txt"), at("a.counts"));
    let sidecar = at("sidecar");
    assert!(draftfast(&["quantize", &model, "--vocab", &at("ids.txt"), "-o", &sidecar]).status.success());
    for args in [
        vec!["build-vocab", &model, "--counts", &counts, "--size", "9", "--force", "-o", &model],
        vec!["quantize", &model, "--vocab", &at("ids.txt"), "--force", "-o", &model],
        vec!["export", &sidecar, "--layout", "gguf", "--force", "-o", &sidecar],
        vec!["count", &model, "--corpus", &text, "--force", "-o", &text],
        vec!["count", &model, "--corpus", &text, "--force", "-o", &at("model/tokenizer.json")],
    ] {
        let output = draftfast(&args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("cannot be its output"), "{args:?}: {}", stderr(&output));
    }
    assert!(Path::new(&at("model/model.safetensors.index.json")).exists());
    assert_eq!(fs::read_to_string(text).unwrap(), "words of a text");
}

#[test]
fn an_output_file_that_ends_as_a_folder_does_is_refused_before_the_work() {
    let dir = place();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    // The corpus is not there either: that the output is named shows what was looked at first.
    let output = draftfast(&["count", &at("model"), "--corpus", &at("nothing"), "-o", &at("x/")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("is a folder, not a file"), "{}", stderr(&output));
}
