//! What is quantized: golden vectors, a real head, FP8, and heads that are NVFP4 already.

use std::{collections::BTreeMap, fs, path::Path};

use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::{draftfast, sidecar::overwrite, stderr};

/// A checkpoint of no known family: `lm_head.weight` and one linear, both the golden input.
fn golden_model(dir: &Path, input: &TensorView<'_>) {
    fs::create_dir(dir).unwrap();
    let (n, k) = (input.shape()[0], input.shape()[1]);
    let config = serde_json::json!({"model_type": "golden", "vocab_size": n, "hidden_size": k});
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let view = || TensorView::new(Dtype::BF16, vec![n, k], input.data()).unwrap();
    let tensors = BTreeMap::from([("lm_head.weight", view()), ("mtp.golden.weight", view())]);
    fs::write(dir.join("model.safetensors"), safetensors::serialize(tensors, None).unwrap()).unwrap();
}

#[test]
fn scale_max_writes_modelopts_bytes_for_every_golden_vector() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/nvfp4");
    if !golden.is_dir() {
        println!("skipped: the golden vectors are not beside this checkout");
        return;
    }
    for case in ["gauss_64x128", "edge_192x256", "ties_64x128"] {
        let dir = tempfile::tempdir().unwrap();
        let bytes = fs::read(golden.join(format!("{case}.safetensors"))).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let input = file.tensor("input").unwrap();
        golden_model(&dir.path().join("model"), &input);
        let n_kept = 63;
        fs::write(dir.path().join("ids.txt"), (0..n_kept).map(|i| format!("{i}\n")).collect::<String>()).unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let (model, vocab, out) = (at("model"), at("ids.txt"), at("out"));
        let args = ["quantize", &model, "--vocab", &vocab, "-o", &out, "--scale", "max", "--quantize", "mtp.*"];
        let output = draftfast(&args);
        assert!(output.status.success(), "{case}: {}", stderr(&output));
        let written = fs::read(dir.path().join("out/drafter.safetensors")).unwrap();
        let written = SafeTensors::deserialize(&written).unwrap();
        for part in ["weight", "weight_scale", "weight_scale_2"] {
            let ours = written.tensor(&format!("mtp.golden.{part}")).unwrap();
            let theirs = file.tensor(&format!("modelopt.{part}")).unwrap();
            assert!(ours.data() == theirs.data(), "{case} {part}");
        }
    }
}

/// The real head of the fixture as a model, and its hidden states as files.
fn real_head(dir: &Path) -> Option<()> {
    let fixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/real_head/smollm2_head_fixture.safetensors");
    let Ok(bytes) = fs::read(fixture) else {
        println!("skipped: the real head is not beside this checkout");
        return None;
    };
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let head = file.tensor("lm_head.weight").unwrap();
    fs::create_dir(dir.join("model")).unwrap();
    let config = serde_json::json!({"model_type": "golden", "vocab_size": 8192, "hidden_size": 576});
    fs::write(dir.join("model/config.json"), config.to_string()).unwrap();
    let linear = TensorView::new(Dtype::BF16, vec![64, 576], &head.data()[..64 * 576 * 2]).unwrap();
    let tensors = BTreeMap::from([("lm_head.weight", head), ("mtp.any.weight", linear)]);
    fs::write(dir.join("model/model.safetensors"), safetensors::serialize(tensors, None).unwrap()).unwrap();
    for (name, tensor) in [("calibration", "lm_head.weight"), ("test", "hidden_states")] {
        let states = file.tensor(&format!("hidden.{name}")).unwrap();
        let one = BTreeMap::from([(tensor, states)]);
        fs::write(dir.join(format!("{name}.safetensors")), safetensors::serialize(one, None).unwrap()).unwrap();
    }
    // All rows but the last: a vocabulary of all rows is not a reduced one.
    fs::write(dir.join("ids.txt"), (0..8191).map(|id| format!("{id}\n")).collect::<String>()).unwrap();
    Some(())
}

#[test]
fn the_real_head_drafts_as_well_as_the_published_figures_say() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = real_head(dir.path()) else { return };
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let calibration = at("calibration.safetensors");
    // Centred error and KL of design/NVFP4.md for the fixture's 8,192 rows, with its README's tolerances.
    for (out, flags, centred_error, kl) in [
        ("max", &["--scale", "max"][..], 0.190, 0.083),
        ("four-six", &[], 0.172, 0.070),
        ("measured", &["--importance", &calibration], 0.1175, 0.0438),
        ("gptq", &["--importance", &calibration, "--rounding", "gptq"], 0.0670, 0.0138),
        // A shift changes no centred logit; the bar for it is on KL alone.
        ("shift", &["--importance", &calibration, "--rounding", "gptq", "--row-shift"], 0.0670, 0.0127),
    ] {
        let (model, vocab, sidecar) = (at("model"), at("ids.txt"), at(out));
        let args = ["quantize", &model, "--vocab", &vocab, "-o", &sidecar, "--keep", "mtp.*"];
        let output = draftfast(&[&args[..], flags].concat());
        assert!(output.status.success(), "{out}: {}", stderr(&output));
        let states = at("test.safetensors");
        let output = draftfast(&["verify", &sidecar, "--model", &model, "--hidden-states", &states, "--json"]);
        assert!(output.status.success(), "{out}: {}", stderr(&output));
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let figure = |name: &str| found["quality"][name].as_f64().unwrap();
        assert!(figure("centred_error") <= centred_error + 5e-4, "{out}: {}", found["quality"]);
        assert!(figure("kl") <= kl * 1.02, "{out}: {}", found["quality"]);
        assert!(figure("full_token_is_kept") > 0.999);
    }
}

#[test]
fn logits_that_are_capped_refuse_a_row_shift() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = real_head(dir.path()) else { return };
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let config = serde_json::json!({
        "model_type": "golden", "vocab_size": 8192, "hidden_size": 576, "final_logit_softcapping": 30.0
    });
    fs::write(at("model/config.json"), config.to_string()).unwrap();
    let (model, vocab, out, states) = (at("model"), at("ids.txt"), at("out"), at("calibration.safetensors"));
    let args = ["quantize", &model, "--vocab", &vocab, "-o", &out, "--importance", &states, "--row-shift"];
    let output = draftfast(&args);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("`final_logit_softcapping` is 30.0"), "{}", stderr(&output));
}

#[test]
fn fp8_linears_with_block_scales_are_decoded_before_they_are_quantized() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    // Codes of 1.0 with multipliers 0.5 and 2: the BF16 twin of the FP8 linear.
    let (n, k) = (128, 256);
    let codes = vec![0x38u8; n * k];
    let multipliers: Vec<u8> = [0.5f32, 2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let twin: Vec<u8> =
        (0..n * k).flat_map(|i| half::bf16::from_f32(if i % k < 128 { 0.5 } else { 2.0 }).to_le_bytes()).collect();
    let head: Vec<u8> = (0..128 * k).flat_map(|i| half::bf16::from_f32((i % 37) as f32).to_le_bytes()).collect();
    fs::create_dir(at("model")).unwrap();
    let config = serde_json::json!({"model_type": "golden", "vocab_size": 128, "hidden_size": k});
    fs::write(at("model/config.json"), config.to_string()).unwrap();
    let tensors = BTreeMap::from([
        ("lm_head.weight", TensorView::new(Dtype::BF16, vec![128, k], &head).unwrap()),
        ("mtp.a.weight", TensorView::new(Dtype::F8_E4M3, vec![n, k], &codes).unwrap()),
        ("mtp.a.weight_scale_inv", TensorView::new(Dtype::F32, vec![1, 2], &multipliers).unwrap()),
        ("mtp.b.weight", TensorView::new(Dtype::BF16, vec![n, k], &twin).unwrap()),
    ]);
    fs::write(at("model/model.safetensors"), safetensors::serialize(tensors, None).unwrap()).unwrap();
    fs::write(at("ids.txt"), (0..64).map(|id| format!("{id}\n")).collect::<String>()).unwrap();
    let (model, vocab, out) = (at("model"), at("ids.txt"), at("out"));
    let output = draftfast(&["quantize", &model, "--vocab", &vocab, "-o", &out, "--quantize", "mtp.*"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let bytes = fs::read(dir.path().join("out/drafter.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    for part in ["weight", "weight_scale", "weight_scale_2"] {
        let data = |name: &str| file.tensor(&format!("mtp.{name}.{part}")).unwrap().data().to_vec();
        assert_eq!(data("a"), data("b"), "{part}");
    }
    assert!(file.tensor("mtp.a.weight_scale_inv").is_err(), "the old multipliers are gone");
    assert!(draftfast(&["verify", &out, "--model", &model]).status.success());
}

#[test]
fn a_head_that_is_nvfp4_already_is_sliced_bit_for_bit_in_either_naming() {
    let (n, k) = (256, 128);
    let codes: Vec<u8> = (0..n * k / 2).map(|i| (i * 31 % 256) as u8).collect();
    let scales: Vec<u8> = (0..n * k / 16).map(|i| 8 + (i * 7 % 118) as u8).collect();
    let linear: Vec<u8> = (0..n * k).flat_map(|i| half::bf16::from_f32((i % 37) as f32).to_le_bytes()).collect();
    for (names, global) in [
        (["lm_head.weight", "lm_head.weight_scale", "lm_head.weight_scale_2"], 0.25f32),
        (["lm_head.weight_packed", "lm_head.weight_scale", "lm_head.weight_global_scale"], 4.0),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        fs::create_dir(at("model")).unwrap();
        let config = serde_json::json!({"model_type": "golden", "vocab_size": n, "hidden_size": k});
        fs::write(at("model/config.json"), config.to_string()).unwrap();
        let global = global.to_le_bytes();
        let tensors = BTreeMap::from([
            (names[0], TensorView::new(Dtype::U8, vec![n, k / 2], &codes).unwrap()),
            (names[1], TensorView::new(Dtype::F8_E4M3, vec![n, k / 16], &scales).unwrap()),
            (names[2], TensorView::new(Dtype::F32, vec![1], &global).unwrap()),
            ("mtp.fc.weight", TensorView::new(Dtype::BF16, vec![n, k], &linear).unwrap()),
        ]);
        fs::write(at("model/model.safetensors"), safetensors::serialize(tensors, None).unwrap()).unwrap();
        fs::write(at("ids.txt"), (0..64).map(|id| format!("{}\n", 3 * id)).collect::<String>()).unwrap();
        let (model, vocab, out) = (at("model"), at("ids.txt"), at("out"));
        let output = draftfast(&["quantize", &model, "--vocab", &vocab, "-o", &out]);
        assert!(output.status.success(), "{}", stderr(&output));
        let bytes = fs::read(dir.path().join("out/drafter.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let part = |name: &str| file.tensor(&format!("draft_head.{name}")).unwrap().data().to_vec();
        for row in 0..64 {
            assert_eq!(part("weight")[row * k / 2..][..k / 2], codes[3 * row * k / 2..][..k / 2]);
            assert_eq!(part("weight_scale")[row * k / 16..][..k / 16], scales[3 * row * k / 16..][..k / 16]);
        }
        assert_eq!(part("weight_scale_2"), 0.25f32.to_le_bytes());
        assert!(draftfast(&["verify", &out, "--model", &model]).status.success());
        overwrite(Path::new(&out), "draft_head.weight", 5, &[codes[5] ^ 1]);
        let output = draftfast(&["verify", &out, "--model", &model]);
        assert!(stderr(&output).contains("row 0 is not its source row bit for bit"), "{}", stderr(&output));
    }
}
