//! build: the whole job on the demo's model and on real text.

use std::{fs, path::Path, process::Command};

use crate::{draftfast, stderr, stdout};

#[test]
fn the_demo_needs_nothing_and_ends_with_a_verified_sidecar() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let output = draftfast(&["build", "--demo", "-o", &at("out")]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), format!("{}\n", at("out")));
    assert!(stderr(&output).contains("fewer bytes"));
    for name in ["drafter.safetensors", "config.json", "draft_vocab.safetensors", "manifest.json", "REPORT.md"] {
        assert!(Path::new(&at("out")).join(name).is_file(), "{name}");
    }
    assert!(draftfast(&["verify", &at("out"), "--model", &at("out-model")]).status.success());
    let mut check = Command::new("sha256sum");
    assert!(check.args(["-c", "--quiet", "sha256sums.txt"]).current_dir(at("out")).status().unwrap().success());

    let again = draftfast(&["build", "--demo", "-o", &at("again"), "-j", "1"]);
    assert!(again.status.success());
    let sums = |name: &str| fs::read_to_string(Path::new(&at(name)).join("sha256sums.txt")).unwrap();
    assert_eq!(sums("out"), sums("again"), "two runs and any number of threads give the same bytes");
}

#[test]
fn no_path_and_no_time_reaches_the_sidecar() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    assert!(draftfast(&["build", "--demo", "-o", out.to_str().unwrap()]).status.success());
    let place = dir.path().to_str().unwrap();
    for entry in fs::read_dir(&out).unwrap() {
        let path = entry.unwrap().path();
        let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
        assert!(!text.contains(place), "{} names a path of this machine", path.display());
    }
}

#[test]
fn a_model_without_mtp_tensors_is_told_where_they_can_come_from() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    assert!(draftfast(&["synth", "qwen3.5-dense", "-o", &at("upstream")]).status.success());
    strip_mtp(Path::new(&at("upstream")), Path::new(&at("stripped")));
    fs::write(at("text.txt"), "A few words to count, and 12 more: één, 二, три.\n").unwrap();
    let build = |extra: &[&str]| {
        let args = ["build", &at("stripped"), "--corpus", &at("text.txt"), "--size", "500", "-o", &at("out")];
        draftfast(&[&args[..], extra].concat())
    };
    let output = build(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--mtp-from"), "{}", stderr(&output));
    let output = build(&["--mtp-from", &at("upstream")]);
    assert!(output.status.success(), "{}", stderr(&output));
    let verify = ["verify", &at("out"), "--model", &at("stripped"), "--mtp-from", &at("upstream")];
    assert!(draftfast(&verify).status.success());
}

/// A copy of a model as some exports leave it: one shard, without the MTP tensors.
fn strip_mtp(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
    let mut shards = Vec::new();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            shards.push(fs::read(path).unwrap());
        }
    }
    let files: Vec<_> = shards.iter().map(|bytes| safetensors::SafeTensors::deserialize(bytes).unwrap()).collect();
    let tensors = files.iter().flat_map(|file| file.tensors()).filter(|(name, _)| !name.starts_with("mtp."));
    fs::write(to.join("model.safetensors"), safetensors::serialize(tensors, None).unwrap()).unwrap();
}
