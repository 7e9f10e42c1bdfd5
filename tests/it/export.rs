//! export: a sidecar in other layouts.

#![expect(clippy::print_stdout, reason = "a skipped test says why")]

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use draftfast::nvfp4::marlin::{Activation, pack};
use safetensors::SafeTensors;

use crate::{draftfast, stderr, stdout};

#[test]
fn a_sidecar_is_written_in_other_layouts_with_the_same_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    assert!(draftfast(&["build", "--demo", "-o", &at("out")]).status.success());
    let output = draftfast(&["export", &at("out"), "--layout", "compressed-tensors", "-o", &at("ct")]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), format!("{}\n", at("ct")));
    for (name, activations) in [("bf16", Activation::Bf16), ("fp16", Activation::Fp16)] {
        let args = ["export", &at("out"), "--layout", "marlin", "--activations", name, "-o", &at(name)];
        assert!(draftfast(&args).status.success());
        compare_marlin(Path::new(&at("out")), Path::new(&at(name)), activations);
    }
    compare_compressed_tensors(Path::new(&at("out")), Path::new(&at("ct")));
    for name in ["ct", "bf16"] {
        assert!(draftfast(&["verify-sha", &at(name)]).status.success());
        let again = format!("{name}-again");
        let layout = if name == "ct" { "compressed-tensors" } else { "marlin" };
        assert!(draftfast(&["export", &at("out"), "--layout", layout, "-o", &at(&again)]).status.success());
        let sums = |name: &str| fs::read_to_string(Path::new(&at(name)).join("sha256sums.txt")).unwrap();
        assert_eq!(sums(name), sums(&again), "bf16 is what the demo's config says");
    }
    let refused = draftfast(&["export", &at("out"), "--layout", "marlin", "-o", &at("ct")]);
    assert_eq!(refused.status.code(), Some(1), "an output that exists is kept");
    let refused = draftfast(&["export", &at("out-model"), "--layout", "marlin", "-o", &at("none")]);
    assert!(!refused.status.success() && stderr(&refused).contains("not a draftfast sidecar"), "{}", stderr(&refused));
}

#[test]
fn a_gguf_file_holds_the_same_numbers_in_ggmls_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    assert!(draftfast(&["build", "--demo", "-o", &at("out")]).status.success());
    let output = draftfast(&["export", &at("out"), "--layout", "gguf", "-o", &at("gguf")]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(draftfast(&["verify-sha", &at("gguf")]).status.success());
    let gguf = fs::read(Path::new(&at("gguf")).join("drafter.gguf")).unwrap();
    let sidecar = fs::read(Path::new(&at("out")).join("drafter.safetensors")).unwrap();
    let (tensors, sidecar) = (gguf_tensors(&gguf), SafeTensors::deserialize(&sidecar).unwrap());
    for module in modules(&sidecar) {
        let part = |suffix: &str| sidecar.tensor(&format!("{module}.{suffix}")).unwrap();
        let (n, k) = (part("weight").shape()[0], part("weight").shape()[1] * 2);
        let (dimensions, ggml_type, data) = &tensors[&format!("{module}.weight")];
        assert_eq!((&dimensions[..], *ggml_type), (&[k as u64, n as u64][..], 40), "{module}");
        let mut expected = vec![0.0; n * k];
        draftfast::nvfp4::decode_rows(part("weight").data(), part("weight_scale").data(), k, 1.0, &mut expected);
        let found: Vec<f32> = data[..n * k / 64 * 36].chunks_exact(36).flat_map(ggml_block).collect();
        assert!(found == expected, "{module}");
        let (_, ggml_type, data) = &tensors[&format!("{module}.scale")];
        assert_eq!((*ggml_type, &data[..4]), (0, part("weight_scale_2").data()), "{module}");
    }
    let ids = sidecar.tensor("draft_head.token_ids").unwrap();
    let (dimensions, ggml_type, data) = &tensors["d2t"];
    assert_eq!((&dimensions[..], *ggml_type), (&[ids.shape()[0] as u64][..], 27));
    assert_eq!(&data[..ids.data().len()], ids.data());
    assert_eq!(tensors.len(), sidecar.len() - modules(&sidecar).len(), "every other tensor is there too");
    compare_with_the_gguf_package(&gguf, &tensors, Path::new(&at("gguf")));
}

/// ggml's arithmetic: doubled E2M1 values, halved E4M3 scales; in a block of 16, byte j holds elements j and j + 8.
fn ggml_block(block: &[u8]) -> Vec<f32> {
    let value =
        |code: u8| [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0][usize::from(code & 7)] * if code > 7 { -1.0 } else { 1.0 };
    let scale = |code: u8| match (code >> 3, f32::from(code & 7)) {
        (0, mantissa) => mantissa / 1024.0,
        (exponent, mantissa) => (8.0 + mantissa) / 16.0 * 2f32.powi(i32::from(exponent) - 7),
    };
    let nibble = |i: usize| block[4 + i / 16 * 8 + i % 8] >> (if i % 16 < 8 { 0 } else { 4 }) & 0xF;
    (0..64).map(|i| value(nibble(i)) * scale(block[i / 16])).collect()
}

/// Dimensions, ggml type and data (up to the end of the file) of every tensor of a GGUF file.
fn gguf_tensors(file: &[u8]) -> BTreeMap<String, (Vec<u64>, u32, &[u8])> {
    let mut at = 0;
    let mut take = |n: usize| {
        at += n;
        &file[at - n..at]
    };
    let u32_of = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    let u64_of = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    assert_eq!((take(4), u32_of(take(4))), (&b"GGUF"[..], 3));
    let (n_tensors, n_pairs) = (u64_of(take(8)), u64_of(take(8)));
    for _ in 0..n_pairs {
        let n = u64_of(take(8));
        take(n as usize);
        let n = if u32_of(take(4)) == 8 { u64_of(take(8)) } else { 4 };
        take(n as usize);
    }
    let mut places = Vec::new();
    for _ in 0..n_tensors {
        let n = u64_of(take(8));
        let name = String::from_utf8(take(n as usize).to_vec()).unwrap();
        let n_dimensions = u32_of(take(4));
        let dimensions: Vec<u64> = (0..n_dimensions).map(|_| u64_of(take(8))).collect();
        places.push((name, dimensions, u32_of(take(4)), u64_of(take(8)) as usize));
    }
    let begin = at.next_multiple_of(32);
    let tensor = |(name, dimensions, ggml_type, offset)| {
        assert_eq!(offset % 32, 0);
        (name, (dimensions, ggml_type, &file[begin + offset..]))
    };
    places.into_iter().map(tensor).collect()
}

/// llama.cpp's own Python package reads and dequantizes the file, where `DRAFTFAST_TEST_PYTHON` (or `python3`) has it.
fn compare_with_the_gguf_package(file: &[u8], tensors: &BTreeMap<String, (Vec<u64>, u32, &[u8])>, dir: &Path) {
    let python = std::env::var("DRAFTFAST_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has_gguf = Command::new(&python).args(["-c", "import gguf; gguf.quants.NVFP4"]).output();
    if !has_gguf.is_ok_and(|output| output.status.success()) {
        println!("skipped: `{python}` has no gguf with NVFP4 (name another with DRAFTFAST_TEST_PYTHON)");
        return;
    }
    let script = "import sys, gguf
for t in gguf.GGUFReader(sys.argv[1]).tensors:
    if t.tensor_type == gguf.GGMLQuantizationType.NVFP4:
        values = gguf.quants.dequantize(t.data, t.tensor_type)
        open(f'{sys.argv[1]}.{t.name}.f32', 'wb').write(values.astype('<f4').tobytes())
";
    let path = dir.join("drafter.gguf");
    let output = Command::new(python).args(["-c", script]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read(&path).unwrap(), file);
    for (name, (dimensions, _, data)) in tensors.iter().filter(|(_, (_, ggml_type, _))| *ggml_type == 40) {
        let n_blocks = dimensions.iter().product::<u64>() as usize / 64;
        let ours = data[..n_blocks * 36].chunks_exact(36).flat_map(ggml_block);
        let theirs = fs::read(dir.join(format!("drafter.gguf.{name}.f32"))).unwrap();
        let theirs = theirs.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
        assert!(ours.eq(theirs), "{name}");
    }
}

#[test]
fn what_gguf_cannot_say_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    assert!(
        draftfast(&["build", "--demo", "--size", "100", "--pad-to", "64", "--pad-mode", "repeat", "-o", &at("out")])
            .status
            .success()
    );
    let refused = draftfast(&["export", &at("out"), "--layout", "gguf", "-o", &at("gguf")]);
    assert!(!refused.status.success() && stderr(&refused).contains("an id twice"), "{}", stderr(&refused));
    assert!(!Path::new(&at("gguf")).exists());
}

fn f32_of(file: &SafeTensors, name: &str) -> f32 {
    f32::from_le_bytes(file.tensor(name).unwrap().data().try_into().unwrap())
}

fn modules(file: &SafeTensors) -> Vec<String> {
    let names = file.names();
    names.iter().filter_map(|name| Some(name.strip_suffix(".weight_scale_2")?.to_owned())).collect()
}

fn compare_compressed_tensors(sidecar: &Path, export: &Path) {
    let (ours, theirs) = [sidecar, export].map(|dir| fs::read(dir.join("drafter.safetensors")).unwrap()).into();
    let (ours, theirs) = (SafeTensors::deserialize(&ours).unwrap(), SafeTensors::deserialize(&theirs).unwrap());
    let modules = modules(&ours);
    assert!(modules.iter().any(|module| module == "draft_head") && modules.len() > 5);
    for module in &modules {
        for (from, to) in [("weight", "weight_packed"), ("weight_scale", "weight_scale")] {
            let [from, to] =
                [(&ours, from), (&theirs, to)].map(|(file, name)| file.tensor(&format!("{module}.{name}")).unwrap());
            assert!(from.data() == to.data() && from.shape() == to.shape() && from.dtype() == to.dtype());
        }
        let divisor = theirs.tensor(&format!("{module}.weight_global_scale")).unwrap();
        assert_eq!(divisor.shape(), [1]);
        let scale = f32_of(&ours, &format!("{module}.weight_scale_2"));
        assert_eq!(f32_of(&theirs, &format!("{module}.weight_global_scale")), 1.0 / scale);
    }
    assert_eq!(theirs.len(), ours.len(), "every other tensor is there too");
    let config: serde_json::Value = serde_json::from_slice(&fs::read(export.join("config.json")).unwrap()).unwrap();
    let quantization = &config["quantization_config"];
    assert_eq!(quantization["quant_method"], "compressed-tensors");
    let targets = quantization["config_groups"]["group_0"]["targets"].as_array().unwrap();
    assert_eq!(targets.len(), modules.len());
}

fn compare_marlin(sidecar: &Path, export: &Path, activation: Activation) {
    let (ours, theirs) = [sidecar, export].map(|dir| fs::read(dir.join("drafter.safetensors")).unwrap()).into();
    let (ours, theirs) = (SafeTensors::deserialize(&ours).unwrap(), SafeTensors::deserialize(&theirs).unwrap());
    for module in modules(&ours) {
        let tensor = |suffix: &str| ours.tensor(&format!("{module}.{suffix}")).unwrap();
        let (n, k) = (tensor("weight").shape()[0], tensor("weight").shape()[1] * 2);
        let global_scale = f32_of(&ours, &format!("{module}.weight_scale_2"));
        let packed =
            pack(tensor("weight").data(), tensor("weight_scale").data(), (n, k), global_scale, activation).unwrap();
        let words: Vec<u8> = packed.qweight.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert!(theirs.tensor(&format!("{module}.qweight")).unwrap().data() == words, "{module}");
        assert!(theirs.tensor(&format!("{module}.scales")).unwrap().data() == packed.scales, "{module}");
        assert_eq!(f32_of(&theirs, &format!("{module}.global_scale")), packed.global_scale);
        assert_eq!(packed.n_flushed_blocks, 0, "the sidecar is kernel-safe");
    }
}
