//! export: a sidecar in other layouts.

use std::{fs, path::Path};

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
