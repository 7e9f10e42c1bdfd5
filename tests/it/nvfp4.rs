//! The quantizer against golden vectors of other people's packages (`../shared/data/nvfp4`, README there).

use std::path::PathBuf;

use draftfast::nvfp4::{self, QuantizeConfig, ScaleRule};
use half::bf16;
use safetensors::SafeTensors;

/// The bytes of a file of shared data, or `None` with a word where it is not mounted.
pub fn shared(path: &str) -> Option<Vec<u8>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/data").join(path);
    let bytes = std::fs::read(&path).ok();
    if bytes.is_none() {
        println!("skipped: `{}` is not there", path.display());
    }
    bytes
}

pub fn bf16s(file: &SafeTensors, name: &str) -> Vec<bf16> {
    let data = file.tensor(name).unwrap().data().as_chunks::<2>().0.to_vec();
    data.into_iter().map(bf16::from_le_bytes).collect()
}

fn f32_of(file: &SafeTensors, name: &str) -> f32 {
    f32::from_le_bytes(file.tensor(name).unwrap().data().try_into().unwrap())
}

fn quantize(weights: &[bf16], k: usize, global_scale: f32, config: &QuantizeConfig) -> (Vec<u8>, Vec<u8>) {
    let (mut codes, mut scales) = (vec![0; weights.len() / 2], vec![0; weights.len() / 16]);
    nvfp4::quantize_rows(weights, k, global_scale, config, &mut codes, &mut scales);
    (codes, scales)
}

const BIT_EXACT: QuantizeConfig = QuantizeConfig { rule: ScaleRule::Max, importance: None, kernel_safe: false };

#[test]
fn the_max_rule_is_bit_exact_with_modelopt() {
    for case in ["gauss_64x128", "edge_192x256", "ties_64x128"] {
        let Some(bytes) = shared(&format!("nvfp4/{case}.safetensors")) else { return };
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let weights = bf16s(&file, "input");
        let global_scale = nvfp4::global_scale(nvfp4::amax(&weights));
        assert_eq!(global_scale.to_bits(), f32_of(&file, "modelopt.weight_scale_2").to_bits(), "{case}");
        let k = file.tensor("input").unwrap().shape()[1];
        let (codes, scales) = quantize(&weights, k, global_scale, &BIT_EXACT);
        assert_eq!(scales, file.tensor("modelopt.weight_scale").unwrap().data(), "{case}");
        assert_eq!(codes, file.tensor("modelopt.weight").unwrap().data(), "{case}");
    }
}

#[test]
fn tensors_that_modelopt_spoils_stay_finite_and_close() {
    for case in ["zero_64x128", "tiny_64x128"] {
        let Some(bytes) = shared(&format!("nvfp4/{case}.safetensors")) else { return };
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let weights = bf16s(&file, "input");
        let global_scale = nvfp4::global_scale(nvfp4::amax(&weights));
        for kernel_safe in [false, true] {
            let (codes, scales) = quantize(&weights, 128, global_scale, &QuantizeConfig { kernel_safe, ..BIT_EXACT });
            assert!(scales.iter().all(|code| (1..=126).contains(code)), "{case}: NaN or zero block scale");
            let stats = nvfp4::error_stats(&weights, &codes, &scales, 128, global_scale, None);
            assert!(stats.relative() < 0.2, "{case}: {}", stats.relative());
        }
    }
}

#[test]
fn four_six_over_1536_is_bit_exact_with_fouroversix() {
    for case in ["gauss_64x128", "ties_64x128"] {
        let Some(bytes) = shared(&format!("nvfp4/search_{case}.safetensors")) else { return };
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let weights = bf16s(&file, "input");
        let rule = ScaleRule::FourSix1536;
        let global_scale = rule.global_scale(nvfp4::amax(&weights));
        assert_eq!(global_scale.to_bits(), f32_of(&file, "fos_mse.weight_scale_2").to_bits(), "{case}");
        let config = QuantizeConfig { rule, ..BIT_EXACT };
        let (codes, scales) = quantize(&weights, 128, global_scale, &config);
        assert_eq!(scales, file.tensor("fos_mse.weight_scale").unwrap().data(), "{case}");
        assert_eq!(codes, file.tensor("fos_mse.weight").unwrap().data(), "{case}");
    }
}

#[test]
fn the_mse_rule_is_as_good_as_an_exhaustive_search_in_every_block() {
    for case in ["gauss_64x128", "ties_64x128"] {
        let Some(bytes) = shared(&format!("nvfp4/search_{case}.safetensors")) else { return };
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let weights = bf16s(&file, "input");
        let global_scale = nvfp4::global_scale(nvfp4::amax(&weights));
        for (kernel_safe, golden) in [(false, "exhaustive_mse"), (true, "exhaustive_mse_marlin_safe")] {
            let config = QuantizeConfig { rule: ScaleRule::Mse, importance: None, kernel_safe };
            let (codes, scales) = quantize(&weights, 128, global_scale, &config);
            let mut decoded = vec![0.0; weights.len()];
            nvfp4::decode_rows(&codes, &scales, 128, global_scale, &mut decoded);
            let golden = file.tensor(&format!("{golden}.block_sqerr")).unwrap();
            let golden = golden.data().as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b));
            for (block, golden) in golden.enumerate() {
                let pairs = decoded.iter().zip(&weights).skip(block * 16).take(16);
                let error: f64 = pairs.map(|(d, w)| (f64::from(*d) - w.to_f64()).powi(2)).sum();
                assert!(error <= golden * (1.0 + 1e-6), "{case}: block {block}: {error} against {golden}");
            }
        }
    }
}

#[test]
fn codes_and_scales_in_marlins_layout_are_those_of_vllm() {
    use nvfp4::marlin::{Activation, pack};
    for case in ["gauss_64x128", "ties_64x128"] {
        let Some(bytes) = shared(&format!("nvfp4/marlin_{case}.safetensors")) else { return };
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let codes = file.tensor("modelopt.weight").unwrap();
        let mut cases =
            vec![("modelopt", "marlin_bf16", Activation::Bf16), ("modelopt", "marlin_fp16", Activation::Fp16)];
        if case.starts_with("gauss") {
            cases.push(("low", "low.marlin_bf16", Activation::Bf16));
        }
        for (source, golden, activation) in cases {
            let scales = file.tensor(&format!("{source}.weight_scale")).unwrap();
            let global_scale = f32_of(&file, &format!("{source}.weight_scale_2"));
            let marlin = pack(codes.data(), scales.data(), (64, 128), global_scale, activation).unwrap();
            let expected = |name: &str| file.tensor(&format!("{golden}.{name}")).unwrap();
            let qweight: Vec<u8> = marlin.qweight.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(qweight, expected("qweight").data(), "{case} {golden}");
            assert_eq!(marlin.scales, expected("scales").data(), "{case} {golden}");
            assert_eq!(marlin.global_scale, f32_of(&file, &format!("{golden}.global_scale")), "{case} {golden}");
            assert_eq!(marlin.scale_factor, f32_of(&file, &format!("{golden}.scale_factor")), "{case} {golden}");
            let shape: Vec<u8> = [marlin.n, marlin.k].iter().flat_map(|&x| (x as i64).to_le_bytes()).collect();
            assert_eq!(shape, expected("padded_nk").data(), "{case} {golden}");
        }
    }
}

/// Given its scales, compressed-tensors' packer writes the same bytes as ours: the layouts differ in names and in the sense
/// of the global scale, which divides.
#[test]
fn codes_are_those_of_compressed_tensors_given_its_scales() {
    for case in ["gauss_64x128", "ties_64x128", "edge_192x256"] {
        let Some(bytes) = shared(&format!("nvfp4/{case}.safetensors")) else { return };
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let weights = bf16s(&file, "input");
        let divisor = f32_of(&file, "ct.weight_global_scale");
        let scales = file.tensor("ct.weight_scale").unwrap();
        let nibble = |i: usize| {
            let step = nvfp4::e4m3::decode(scales.data()[i / 16]) / divisor;
            nvfp4::e2m1::encode(weights[i].to_f32() / step)
        };
        let codes: Vec<u8> = (0..weights.len() / 2).map(|i| nibble(2 * i) | nibble(2 * i + 1) << 4).collect();
        assert_eq!(codes, file.tensor("ct.weight_packed").unwrap().data(), "{case}");
    }
}
