//! quantize and verify, from a checkpoint folder to a sidecar and back.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use safetensors::SafeTensors;

use crate::{draftfast, stderr, stdout};

/// A tiny model, a vocabulary and a place for outputs.
struct Workshop {
    dir: tempfile::TempDir,
}

impl Workshop {
    fn new(family: &str) -> Self {
        let shop = Self { dir: tempfile::tempdir().unwrap() };
        let output = draftfast(&["synth", family, "--scale", "tiny", "-o", shop.at("model").to_str().unwrap()]);
        assert!(output.status.success(), "{}", stderr(&output));
        let ids: String = (0..384).map(|i| format!("{}\n", i * 3)).collect();
        fs::write(shop.at("ids.txt"), ids).unwrap();
        shop
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn quantize(&self, output: &str, flags: &[&str]) -> std::process::Output {
        let (model, vocab, out) = (self.at("model"), self.at("ids.txt"), self.at(output));
        let args =
            ["quantize", model.to_str().unwrap(), "--vocab", vocab.to_str().unwrap(), "-o", out.to_str().unwrap()];
        draftfast(&[&args[..], flags].concat())
    }

    fn built(&self, output: &str, flags: &[&str]) -> PathBuf {
        let out = self.quantize(output, flags);
        assert!(out.status.success(), "{}", stderr(&out));
        self.at(output)
    }

    fn verify(&self, sidecar: &str) -> std::process::Output {
        let (sidecar, model) = (self.at(sidecar), self.at("model"));
        draftfast(&["verify", sidecar.to_str().unwrap(), "--model", model.to_str().unwrap()])
    }
}

fn sums(sidecar: &Path) -> String {
    fs::read_to_string(sidecar.join("sha256sums.txt")).unwrap()
}

/// The file and the first byte of a tensor.
fn position(dir: &Path, tensor: &str) -> (PathBuf, u64) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "safetensors") {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        if let Ok(view) = SafeTensors::deserialize(&bytes).unwrap().tensor(tensor) {
            let begin = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
            return (path, begin as u64);
        }
    }
    panic!("no tensor {tensor} in {}", dir.display());
}

pub(crate) fn overwrite(dir: &Path, tensor: &str, offset: u64, bytes: &[u8]) {
    let (path, begin) = position(dir, tensor);
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, begin + offset).unwrap();
}

#[test]
fn both_families_are_quantized_verified_and_checked_by_sha256sum() {
    for family in ["qwen3.5-dense", "qwen3.8-flash-next"] {
        let shop = Workshop::new(family);
        let sidecar = shop.built("out", &[]);
        let output = shop.verify("out");
        assert_eq!(
            (output.status.code(), stdout(&output)),
            (Some(0), format!("{}: OK\n", sidecar.display())),
            "{family}"
        );
        let mut check = std::process::Command::new("sha256sum");
        assert!(check.args(["-c", "--quiet", "sha256sums.txt"]).current_dir(&sidecar).status().unwrap().success());
        let config: serde_json::Value =
            serde_json::from_slice(&fs::read(sidecar.join("config.json")).unwrap()).unwrap();
        let quantized = config["quantization_config"]["quantized_layers"].as_object().unwrap();
        assert!(quantized.contains_key("mtp.layers.0.self_attn.o_proj"), "{family}");
    }
}

#[test]
fn two_runs_and_any_number_of_threads_give_the_same_bytes() {
    let shop = Workshop::new("qwen3.5-dense");
    let first = sums(&shop.built("a", &["-j", "1"]));
    for (output, threads) in [("b", "1"), ("c", "2"), ("d", "5")] {
        assert_eq!(sums(&shop.built(output, &["-j", threads])), first, "{threads} threads");
    }
    let mode = {
        use std::os::unix::fs::PermissionsExt;
        fs::metadata(shop.at("a/drafter.safetensors")).unwrap().permissions().mode() & 0o777
    };
    assert_eq!(mode, 0o644);
}

#[test]
fn an_existing_output_is_kept_unless_forced() {
    let shop = Workshop::new("qwen3.5-dense");
    let before = sums(&shop.built("out", &[]));
    let output = shop.quantize("out", &["--scale", "max"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("exists already") && stderr(&output).contains("--force"), "{}", stderr(&output));
    assert_eq!(sums(&shop.at("out")), before);
    assert_ne!(sums(&shop.built("out", &["--scale", "max", "--force"])), before);
    let left: Vec<_> = fs::read_dir(shop.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "nothing but model, ids.txt and out: {left:?}");
}

#[test]
fn a_dry_run_writes_nothing_and_names_every_tensor() {
    let shop = Workshop::new("qwen3.5-dense");
    let output = shop.quantize("out", &["--dry-run"]);
    assert!(output.status.success());
    assert!(stdout(&output).contains("mtp.fc.weight") && stdout(&output).contains("mtp.norm.weight"));
    assert!(!shop.at("out").exists());
}

#[test]
fn verify_names_the_tensor_whose_bytes_changed() {
    let shop = Workshop::new("qwen3.5-dense");
    for (i, (tensor, bytes)) in [
        ("draft_head.weight", &[0x77u8; 4][..]),
        ("draft_head.weight_scale", &[0x7F]),
        ("draft_head.token_ids", &[1]),
        ("mtp.fc.weight_scale", &[0x01]),
        ("mtp.layers.0.mlp.up_proj.weight_scale_2", &[0, 0, 0, 0]),
        ("mtp.norm.weight", &[0x12, 0x34]),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("out{i}");
        let sidecar = shop.built(&name, &[]);
        overwrite(&sidecar, tensor, 0, bytes);
        let output = shop.verify(&name);
        assert_eq!(output.status.code(), Some(1), "{tensor}");
        let named = tensor.rsplit_once(".weight_scale").map_or(tensor, |(module, _)| module);
        let named = named.strip_suffix(".weight").unwrap_or(named);
        assert!(stderr(&output).contains(named), "{tensor}: {}", stderr(&output));
    }
}

#[test]
fn verify_refuses_a_sidecar_without_its_checksums_which_are_written_last() {
    let shop = Workshop::new("qwen3.5-dense");
    let out = shop.built("out", &[]);
    let list = out.join("sha256sums.txt");
    let whole = fs::read_to_string(&list).unwrap();
    let said = || {
        let output = shop.verify("out");
        assert_eq!(output.status.code(), Some(1));
        stderr(&output)
    };
    fs::remove_file(&list).unwrap();
    assert!(said().contains("sha256sums.txt` is missing: the run that wrote this sidecar did not end"), "{}", said());
    // A run that is killed between making the list and writing it leaves it empty.
    fs::write(&list, "").unwrap();
    assert!(said().contains("lists no file") && said().contains("build it again"), "{}", said());
    let of_manifest = |line: &&str| line.ends_with("manifest.json");
    fs::write(
        &list,
        whole.lines().filter(|line| !of_manifest(line)).map(|line| line.to_owned() + "\n").collect::<String>(),
    )
    .unwrap();
    assert!(said().contains("does not name `manifest.json`"), "{}", said());
    fs::write(&list, whole).unwrap();
    assert!(shop.verify("out").status.success());
}

#[test]
fn verify_finds_rows_in_the_wrong_order_even_with_a_manifest_to_match() {
    // The manifest's own figures cannot be trusted to catch this: a writer with swapped rows would record them too.
    let shop = Workshop::new("qwen3.5-dense");
    let sidecar = shop.built("out", &[]);
    let (path, begin) = position(&sidecar, "draft_head.weight");
    let bytes = fs::read(&path).unwrap();
    let row = SafeTensors::deserialize(&bytes).unwrap().tensor("draft_head.weight").unwrap().shape()[1];
    let rows = &bytes[begin as usize..begin as usize + 2 * row];
    overwrite(&sidecar, "draft_head.weight", 0, &[&rows[row..], &rows[..row]].concat());
    let output = shop.verify("out");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("row 0 does not decode to row 0"), "{}", stderr(&output));
}

#[test]
fn verify_refuses_another_target() {
    let shop = Workshop::new("qwen3.5-dense");
    shop.built("out", &[]);
    overwrite(&shop.at("model"), "lm_head.weight", 0, &[0x12, 0x34]);
    let output = shop.verify("out");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("`lm_head.weight` has changed"), "{}", stderr(&output));
}

#[test]
fn a_weight_that_is_not_finite_is_named_by_row_and_column() {
    let shop = Workshop::new("qwen3.5-dense");
    let nan = half::bf16::NAN.to_le_bytes();
    let infinity = half::bf16::INFINITY.to_le_bytes();
    overwrite(&shop.at("model"), "mtp.fc.weight", 2 * 5, &infinity);
    let output = shop.quantize("out", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("`mtp.fc.weight` has inf in row 0, column 5"), "{}", stderr(&output));
    overwrite(&shop.at("model"), "mtp.fc.weight", 2 * 5, &[0, 0]);

    // Row 2 of the head is not kept and may hold anything; row 3 is.
    let columns = {
        let config: serde_json::Value =
            serde_json::from_slice(&fs::read(shop.at("model/config.json")).unwrap()).unwrap();
        let text = config.get("text_config").unwrap_or(&config);
        text["hidden_size"].as_u64().unwrap()
    };
    overwrite(&shop.at("model"), "lm_head.weight", 2 * (2 * columns), &nan);
    shop.built("fine", &[]);
    overwrite(&shop.at("model"), "lm_head.weight", 2 * (3 * columns + 1), &nan);
    let output = shop.quantize("out", &[]);
    assert!(stderr(&output).contains("`lm_head.weight` has NaN in row 3, column 1"), "{}", stderr(&output));
    assert!(!shop.at("out").exists());
}

#[test]
fn fused_parts_share_one_global_scale() {
    let shop = Workshop::new("qwen3.5-dense");
    for (tensor, largest) in [("self_attn.k_proj", 5.25f32), ("mlp.up_proj", 10.5)] {
        let largest = half::bf16::from_f32(largest).to_le_bytes();
        overwrite(&shop.at("model"), &format!("mtp.layers.0.{tensor}.weight"), 6, &largest);
    }
    let sidecar = shop.built("out", &["--scale", "max"]);
    let bytes = fs::read(sidecar.join("drafter.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let scale = |name: &str| {
        let tensor = file.tensor(&format!("mtp.layers.0.{name}.weight_scale_2")).unwrap();
        f32::from_le_bytes(tensor.data().try_into().unwrap())
    };
    for part in ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"] {
        assert_eq!(scale(part), 5.25 / 2688.0, "{part}");
    }
    for part in ["mlp.gate_proj", "mlp.up_proj"] {
        assert_eq!(scale(part), 10.5 / 2688.0, "{part}");
    }
    assert!(scale("self_attn.o_proj") < 1e-3, "not fused with q, k and v");
}
