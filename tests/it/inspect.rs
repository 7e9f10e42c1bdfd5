//! `draftfast inspect` and `draftfast synth`, as a person runs them.

use std::{fs, path::Path, time::Instant};

use draftfast::checkpoint::synth::{Scale, write_headers};
use serde_json::Value;

use crate::draftfast;

fn inspect(args: &[&str]) -> (i32, String, String) {
    let output = draftfast(&[&["inspect"], args].concat());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn inspect_json(args: &[&str]) -> Value {
    let (code, stdout, stderr) = inspect(&[args, &["--json"]].concat());
    assert_eq!(code, 0, "{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

fn headers_of(family: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_headers(family, Scale::Full, dir.path()).unwrap();
    dir
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_27b_ledger_has_the_bytes_of_the_seed() {
    let dir = headers_of("qwen3.5-dense");
    let found = inspect_json(&[text(dir.path()), "--rows", "64064"]);
    assert_eq!(found["kind"], "model");
    assert_eq!(found["recipe"]["family"], "qwen3.5-dense");
    assert_eq!(found["ledger"]["before_bytes"], 3_392_143_360_u64);
    assert_eq!(found["ledger"]["head_before_bytes"], 2_542_796_800_u64);
    assert_eq!(found["ledger"]["linears_before_bytes"], 849_346_560_u64);
    assert_eq!(found["ledger"]["after_bytes"], 423_383_040_u64);
}

#[test]
fn the_text_shows_every_line_item_of_flash_next_and_folds_the_experts() {
    let dir = headers_of("qwen3.8-flash-next");
    let (code, stdout, _) = inspect(&[text(dir.path())]);
    assert_eq!(code, 0);
    for expected in [
        "head: lm_head.weight [248,320, 2,560] BF16",
        "mtp.layers.0.mlp.experts.*.down_proj.weight",
        "x512",
        "27,648,000",
        "2,621,440",
        "3,276,800",
        "39,976,960",
        "routed expert, already NVFP4",
    ] {
        assert!(stdout.contains(expected), "`{expected}` is not in\n{stdout}");
    }
    assert!(stdout.lines().count() < 70, "{stdout}");
}

#[test]
fn sixty_gigabytes_are_inspected_without_reading_them() {
    // A sparse file of 60 GB beside the real shards: only headers may be read.
    let dir = headers_of("qwen3.5-dense");
    let header =
        r#"{"model.layers.0.big.weight":{"dtype":"BF16","shape":[30000000000],"data_offsets":[0,60000000000]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    let path = dir.path().join("model-extra.safetensors");
    fs::write(&path, &bytes).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(bytes.len() as u64 + 60_000_000_000).unwrap();
    let start = Instant::now();
    let found = inspect_json(&[text(dir.path())]);
    // 20 ms on an idle machine; reading the data would take far longer than this bound for busy ones.
    assert!(start.elapsed().as_secs_f64() < 6.0, "{:?}", start.elapsed());
    assert!(found["contents"]["n_bytes"].as_u64().unwrap() > 60_000_000_000);
}

#[test]
fn overrides_change_the_recipe_that_is_shown() {
    let dir = headers_of("qwen3.5-dense");
    let found = inspect_json(&[text(dir.path()), "--keep", "mtp.fc.weight"]);
    assert_eq!(found["recipe"]["linears"].as_array().unwrap().len(), 7);
    let (code, _, stderr) = inspect(&[text(dir.path()), "--keep", "nothing*"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("error: `--keep nothing*` matches no tensor of the MTP module"), "{stderr}");
}

#[test]
fn a_safetensors_file_and_a_vocabulary_are_told_apart() {
    let dir = headers_of("qwen3.5-dense");
    let shard = dir.path().join("model-00001-of-00002.safetensors");
    assert_eq!(inspect_json(&[text(&shard)])["kind"], "safetensors");
    let ids = dir.path().join("ids.txt");
    fs::write(&ids, "1\n5\n9\n").unwrap();
    let found = inspect_json(&[text(&ids), "--target-rows", "16"]);
    assert_eq!((&found["kind"], &found["n_kept"]), (&Value::from("vocabulary"), &Value::from(3)));
    let (_, stdout, _) = inspect(&[text(&ids), "--target-rows", "16"]);
    assert!(stdout.contains("keeps 3 of 16 rows"), "{stdout}");
}

#[test]
fn what_does_not_exist_is_an_error() {
    let (code, stdout, stderr) = inspect(&["no/such/path"]);
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (1, "", "error: `no/such/path` does not exist\n"));
}

#[test]
fn synth_writes_a_folder_that_inspect_reads_and_refuses_to_overwrite_it() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    let synth = |extra: &[&str]| {
        draftfast(&[&["synth", "qwen3.8-flash-next", "--scale", "tiny", "-o", text(&model)], extra].concat())
    };
    assert!(synth(&[]).status.success());
    assert_eq!(inspect_json(&[text(&model)])["recipe"]["family"], "qwen3.8-flash-next");
    let again = synth(&[]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8(again.stderr).unwrap().contains("exists already"));
    assert!(synth(&["--force", "--seed", "3"]).status.success());
}

#[test]
fn synth_names_the_families_it_knows() {
    let dir = tempfile::tempdir().unwrap();
    let output = draftfast(&["synth", "gpt-5", "-o", text(&dir.path().join("x"))]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("error: there is no family `gpt-5`"), "{stderr}");
    assert!(stderr.contains("hint: families are `qwen3.5-dense`, `qwen3.5-moe`"), "{stderr}");
    assert!(!dir.path().join("x").exists());
}
