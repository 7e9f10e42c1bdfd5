//! The card: what is said where there is none, and, where there is one, that it gives the CPU's bytes.

use std::{path::Path, process::Command};

use draftfast::{
    gpu::{ErrorMeter, Gpu, Output, Quantizer, Rows},
    nvfp4::{
        self, BLOCK, QuantizeConfig, ScaleRule, Weight, e2m1, e4m3,
        quality::{self, Head},
    },
};
use half::bf16;
use safetensors::SafeTensors;

use crate::nvfp4::{bf16s, shared};

const RULES: [ScaleRule; 4] = [ScaleRule::Max, ScaleRule::FourSix, ScaleRule::FourSix1536, ScaleRule::Mse];

fn gpu() -> Option<Gpu> {
    Gpu::open(0).inspect_err(|error| println!("skipped: {error}")).ok()
}

/// Deterministic numbers in [0, 2^32).
fn random(seed: u64) -> impl FnMut() -> u32 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u32
    }
}

/// Quantizes on the card and on the CPU, by every rule, weighted and not, and compares every byte.
/// `too_small`: what the global scale is divided by, so that blocks need larger scales than E4M3 has.
fn assert_equal_bytes(gpu: &Gpu, name: &str, weights: &[bf16], k: usize, too_small: f32) {
    let mut next = random(k as u64);
    let importance: Vec<f32> = (0..k).map(|_| next() as f32 / u32::MAX as f32).collect();
    for rule in RULES {
        let global_scale = rule.global_scale(nvfp4::amax(weights)) / too_small;
        for importance in [None, Some(importance.as_slice())] {
            for kernel_safe in [true, false] {
                let config = QuantizeConfig { rule, importance, kernel_safe };
                let mut expected = (vec![0; weights.len() / 2], vec![0; weights.len() / BLOCK]);
                nvfp4::quantize_rows(weights, k, global_scale, &config, &mut expected.0, &mut expected.1);
                let quantizer = Quantizer::new(gpu, k, &config).unwrap();
                let wide: Vec<f32> = weights.iter().map(|w| w.widen()).collect();
                for rows in [Rows::Bf16(weights), Rows::F32(&wide)] {
                    let mut found = (vec![0xEE; weights.len() / 2], vec![0xEE; weights.len() / BLOCK]);
                    quantizer.quantize(rows, global_scale, &mut found.0, &mut found.1).unwrap();
                    let differ = (0..weights.len() / BLOCK)
                        .filter(|&b| {
                            found.1[b] != expected.1[b] || found.0[b * 8..b * 8 + 8] != expected.0[b * 8..b * 8 + 8]
                        })
                        .collect::<Vec<_>>();
                    let first = differ.first().map(|&b| {
                        (&weights[b * BLOCK..(b + 1) * BLOCK], expected.1[b], found.1[b], &expected.0[b * 8..b * 8 + 8])
                    });
                    assert!(
                        differ.is_empty(),
                        "{name} {rule:?} weighted {} safe {kernel_safe}: {} of {} blocks differ, first {first:?}",
                        importance.is_some(),
                        differ.len(),
                        weights.len() / BLOCK,
                    );
                }
            }
        }
    }
}

/// Their names, rows and columns; none where the shared data are missing.
fn golden_inputs() -> Vec<(&'static str, Vec<bf16>, usize)> {
    let read = |case: &'static str| {
        let bytes = shared(&format!("nvfp4/{case}.safetensors"))?;
        let file = SafeTensors::deserialize(&bytes).unwrap();
        Some((case, bf16s(&file, "input"), file.tensor("input").unwrap().shape()[1]))
    };
    ["gauss_64x128", "edge_192x256", "ties_64x128", "tiny_64x128", "zero_64x128"].into_iter().filter_map(read).collect()
}

#[test]
fn the_card_quantizes_every_golden_input_to_the_cpus_bytes() {
    let Some(gpu) = gpu() else { return };
    for (name, weights, k) in golden_inputs() {
        assert_equal_bytes(&gpu, name, &weights, k, 1.0);
    }
}

#[test]
fn the_card_quantizes_every_bf16_pattern_to_the_cpus_bytes() {
    let Some(gpu) = gpu() else { return };
    let finite: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).filter(|w| w.is_finite()).collect();
    assert_equal_bytes(&gpu, "all patterns", &finite[..finite.len() / 256 * 256], 256, 1.0);
    // and at scales at which many of them matter
    for exponent in [-120, -60, -20, 0, 20, 60, 100] {
        let close: Vec<bf16> = finite
            .iter()
            .copied()
            .filter(|w| w.widen().abs() < 2f32.powi(exponent) && w.widen().abs() > 2f32.powi(exponent - 14))
            .collect();
        assert_equal_bytes(&gpu, &format!("patterns below 2^{exponent}"), &close[..close.len() / 32 * 32], 32, 1.0);
    }
}

#[test]
fn the_card_quantizes_random_shapes_to_the_cpus_bytes() {
    let Some(gpu) = gpu() else { return };
    let mut next = random(7);
    for round in 0..24 {
        let (rows, k) = (next() as usize % 300 + 1, (next() as usize % 40 + 1) * BLOCK);
        let spread = 2f32.powi(next() as i32 % 30 - 15);
        let mut weight = || {
            let normal: f32 = (0..6).map(|_| next() as f32 / u32::MAX as f32 - 0.5).sum();
            let outlier = if next().is_multiple_of(97) { 30.0 } else { 1.0 };
            bf16::from_f32(if next().is_multiple_of(11) { 0.0 } else { normal * spread * outlier })
        };
        let weights: Vec<bf16> = (0..rows * k).map(|_| weight()).collect();
        assert_equal_bytes(
            &gpu,
            &format!("round {round}, {rows} x {k}"),
            &weights,
            k,
            if round % 4 == 3 { 30.0 } else { 1.0 },
        );
    }
}

/// Weights of some range with zeros and outliers, and what any codes and any scales but NaN decode to.
fn random_matrix(next: &mut impl FnMut() -> u32, rows: usize, k: usize) -> (Vec<bf16>, Vec<u8>, Vec<u8>) {
    let spread = 2f32.powi(next() as i32 % 30 - 15);
    let mut weight = || {
        let uniform = next() as f32 / u32::MAX as f32 - 0.5;
        bf16::from_f32(if next().is_multiple_of(11) { 0.0 } else { uniform * spread })
    };
    let weights = (0..rows * k).map(|_| weight()).collect();
    let codes = (0..rows * k / 2).map(|_| next() as u8).collect();
    (weights, codes, (0..rows * k / BLOCK).map(|_| (next() % 127) as u8).collect())
}

#[test]
fn the_card_finds_the_cpus_error_figures_to_the_last_digit() {
    let Some(gpu) = gpu() else { return };
    let meter = ErrorMeter::new(&gpu).unwrap();
    let mut next = random(5);
    for (rows, k) in [(1, 16), (3, 48), (70, 512), (9, 528), (257, 2560), (5, 17408)] {
        let (weights, codes, scales) = random_matrix(&mut next, rows, k);
        let wide: Vec<f32> = weights.iter().map(|w| w.widen()).collect();
        for global_scale in [1e-5, 0.25, f32::MIN_POSITIVE, 1e30] {
            let expected = nvfp4::error_stats(&weights, &codes, &scales, k, global_scale, None);
            for rows in [Rows::Bf16(&weights), Rows::F32(&wide)] {
                let found = meter.error_stats(rows, &codes, &scales, k, global_scale).unwrap();
                assert_eq!(found, expected, "{k} columns, global scale {global_scale:e}");
            }
        }
    }
}

/// What the card and the CPU say of the rows that each golden input quantizes to.
#[test]
fn the_card_finds_the_cpus_error_figures_of_every_golden_input() {
    let Some(gpu) = gpu() else { return };
    let meter = ErrorMeter::new(&gpu).unwrap();
    for (name, weights, k) in golden_inputs() {
        let global_scale = nvfp4::global_scale(nvfp4::amax(&weights));
        let (mut codes, mut scales) = (vec![0; weights.len() / 2], vec![0; weights.len() / BLOCK]);
        let config = QuantizeConfig { rule: ScaleRule::Max, importance: None, kernel_safe: true };
        nvfp4::quantize_rows(&weights, k, global_scale, &config, &mut codes, &mut scales);
        let found = meter.error_stats(Rows::Bf16(&weights), &codes, &scales, k, global_scale).unwrap();
        assert_eq!(found, nvfp4::error_stats(&weights, &codes, &scales, k, global_scale, None), "{name}");
    }
}

#[test]
fn the_card_gives_the_cpus_logits_of_hidden_states_to_the_last_digit() {
    let Some(gpu) = gpu() else { return };
    let mut next = random(6);
    for (rows, k, n_states) in [(1, 16, 1), (63, 48, 65), (300, 512, 7), (65, 2560, 130)] {
        let (weights, codes, block_scales) = random_matrix(&mut next, rows, k);
        let states: Vec<bf16> = (0..n_states * k).map(|_| bf16::from_f32(next() as f32 / 1e9 - 2.0)).collect();
        let quantized = Head::Nvfp4 { codes: &codes, block_scales: &block_scales, global_scale: 1.5e-4 };
        for head in [Head::Bf16(&weights), quantized] {
            assert_eq!(
                gpu.head_logits(head, k, &states).unwrap(),
                quality::logits(head, k, &states),
                "{rows} x {k}, {n_states} states"
            );
        }
    }
}

/// y = W x in FP64, and the sum of |w x| and of |w|, by which errors are judged.
fn reference(codes: &[u8], scales: &[u8], global_scale: f32, x: &[bf16], row: usize, k: usize) -> (f64, f64, f64) {
    let mut sums = (0.0, 0.0, 0.0);
    for (column, x) in x.iter().enumerate() {
        let at = row * k + column;
        let code = codes[at / 2] >> (at % 2 * 4) & 0xF;
        let weight =
            f64::from(e2m1::decode(code)) * f64::from(e4m3::decode(scales[at / BLOCK])) * f64::from(global_scale);
        let term = weight * f64::from(x.widen());
        sums = (sums.0 + term, sums.1 + term.abs(), sums.2 + weight.abs());
    }
    sums
}

#[test]
fn the_card_multiplies_as_fp64_does_for_any_shape_and_any_activations() {
    let Some(gpu) = gpu() else { return };
    let mut next = random(11);
    for (n, k) in [
        (1u32, 16u32),
        (1, 32),
        (17, 48),
        (1000, 2576),
        (1001, 2592),
        (2049, 2560),
        (530, 5120),
        (257, 272),
        (96, 12288),
        (2592, 4096),
    ] {
        let weights = n as usize * k as usize;
        let codes: Vec<u8> = (0..weights / 2).map(|_| next() as u8).collect();
        let scales: Vec<u8> = (0..weights / BLOCK).map(|_| (next() % 127) as u8).collect();
        let matrix = gpu.nvfp4_matrix(n, k, &codes, &scales, 1.23e-4).unwrap();
        for m in 1..=8u32 {
            for kind in 0..4 {
                let mut element = |i: u32| match kind {
                    0 => next() as f32 / u32::MAX as f32 - 0.5,
                    1 => (next() as f32 / u32::MAX as f32 - 0.5) * 2f32.powi(next() as i32 % 20),
                    2 if i % 97 == 5 => 3e37,
                    2 => -1e-30,
                    _ => [-0.0, 1e-39, -2e-40][i as usize % 3],
                };
                let x: Vec<bf16> = (0..m * k).map(|i| bf16::from_f32(element(i))).collect();
                let ids: Vec<i32> = (0..n as i32).map(|i| i * 3 + 7).collect();
                let vectors = gpu.vectors(&x, m, n, Some(&ids)).unwrap();
                let plan = gpu.plan(n, k, m).unwrap();
                gpu.multiply(&matrix, &vectors, &plan, Output::Logits, false).unwrap();
                gpu.multiply(&matrix, &vectors, &plan, Output::Argmax, true).unwrap();
                let (y, winners) = (gpu.logits(&vectors).unwrap(), gpu.winners(&vectors).unwrap());
                for (v, x) in x.chunks_exact(k as usize).enumerate() {
                    let largest = f64::from(nvfp4::amax(x));
                    let logits = &y[v * n as usize..][..n as usize];
                    for row in (0..n as usize).step_by(1 + n as usize / 64) {
                        let (expected, terms, weights) = reference(&codes, &scales, 1.23e-4, x, row, k as usize);
                        // gemv.cu: sums of up to eight products are rounded to FP16, seven times 2^-12 at most; what is
                        // small beside the largest element is off by up to 2^-34 of that.
                        let (sums, small) =
                            if m == 1 && k.is_multiple_of(32) { (7.0 / 4096.0, -34) } else { (1e-6, -40) };
                        let limit = terms * sums + largest * weights * 2f64.powi(small) + 1e-44;
                        let error = (f64::from(logits[row]) - expected).abs();
                        assert!(error <= limit, "{n} x {k}, m {m}, kind {kind}, row {row}: {error:e} over {limit:e}");
                    }
                    let best = (0..logits.len()).reduce(|a, b| if logits[b] > logits[a] { b } else { a }).unwrap();
                    assert_eq!(winners[v], (ids[best], logits[best]), "{n} x {k}, m {m}, kind {kind}");
                }
            }
        }
    }
}

#[test]
fn ties_go_to_the_lower_id_and_nan_is_the_largest() {
    let Some(gpu) = gpu() else { return };
    let (n, k) = (640u32, 256u32);
    let matrix = gpu.nvfp4_matrix(n, k, &vec![0x22; 640 * 128], &vec![e4m3::ONE; 640 * 16], 1.0).unwrap();
    let mut x = vec![bf16::from_f32(1.0); 512];
    x[300] = bf16::NAN;
    let ids: Vec<i32> = (0..n as i32).map(|i| if i == 639 { 100 } else { 100 + i }).collect();
    let one = gpu.vectors(&x[..256], 1, n, Some(&ids)).unwrap();
    let plan = gpu.plan(n, k, 1).unwrap();
    for _ in 0..3 {
        gpu.multiply(&matrix, &one, &plan, Output::Argmax, false).unwrap();
        assert_eq!(gpu.winners(&one).unwrap(), [(100, 256.0)]);
    }
    let vectors = gpu.vectors(&x, 2, n, Some(&ids)).unwrap();
    let plan = gpu.plan(n, k, 2).unwrap();
    for _ in 0..3 {
        gpu.multiply(&matrix, &vectors, &plan, Output::Argmax, false).unwrap();
        gpu.multiply(&matrix, &vectors, &plan, Output::Logits, false).unwrap();
        let winners = gpu.winners(&vectors).unwrap();
        assert_eq!(winners[0], (100, 256.0));
        assert!(winners[1].0 == 100 && winners[1].1.is_nan());
        let y = gpu.logits(&vectors).unwrap();
        assert!(y[..640].iter().all(|&y| y == 256.0) && y[640..].iter().all(|y| y.is_nan()));
    }
}

/// A driver that fails as asked, in place of the machine's: `CODE` from cuInit, `VERSION`, `DEVICES`, `CONTEXT`.
const FAKE_DRIVER: &str = r#"
#include <stdlib.h>
static int number(const char *name, int otherwise) { char *s = getenv(name); return s ? atoi(s) : otherwise; }
int cuInit(unsigned flags) { (void)flags; return number("FAKE_INIT", 0); }
int cuDriverGetVersion(int *version) { *version = number("FAKE_VERSION", 13000); return 0; }
int cuDeviceGetCount(int *count) { *count = number("FAKE_DEVICES", 1); return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = 0; return number("FAKE_CONTEXT", 0); }
int cuGetErrorString(int code, const char **text) { (void)code; *text = "it is only pretended"; return 0; }
"#;

fn open_with_fake_driver(dir: &Path, variable: &str, value: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_draftfast"))
        .args(["bench", "--shape", "64x256", "--device", "cuda"])
        .env("LD_LIBRARY_PATH", dir)
        .env(variable, value)
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("error: ") && stderr.contains("\nhint: ") && !stderr.contains("panicked"), "{stderr}");
    stderr
}

#[test]
fn each_way_to_have_no_usable_device_is_one_sentence_and_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("fake.c");
    std::fs::write(&source, FAKE_DRIVER).unwrap();
    let library = dir.path().join("libcuda.so");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    if !built.is_ok_and(|status| status.success()) {
        println!("skipped: there is no C compiler to build a pretended driver");
        return;
    }
    std::fs::copy(&library, dir.path().join("libcuda.so.1")).unwrap();
    let cases = [
        ("FAKE_INIT", "34", "the toolkit's stub, not a driver"),
        ("FAKE_INIT", "100", "the CUDA driver shows no device"),
        ("FAKE_INIT", "803", "of different versions"),
        ("FAKE_INIT", "999", "the CUDA driver says `it is only pretended` (999)"),
        ("FAKE_VERSION", "12040", "too old: it speaks CUDA 12.4, expected 12.8 or later"),
        ("FAKE_DEVICES", "0", "the CUDA driver shows no device"),
        ("FAKE_CONTEXT", "46", "busy (another process holds it exclusively)"),
        ("FAKE_CONTEXT", "2", "the device is out of memory"),
    ];
    for (variable, value, sentence) in cases {
        let stderr = open_with_fake_driver(dir.path(), variable, value);
        assert!(stderr.contains(sentence), "{variable}={value}: {stderr}");
    }
}
