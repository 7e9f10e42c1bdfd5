//! In-memory speed of the quantizer: `cargo bench --bench nvfp4 [-- ROWS COLUMNS]`, by default the draft head of a 27B
//! model, BF16 `[64064, 2560]`, 328 MB. Prints the best and the median of several runs as a Markdown table.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::time::Instant;

use draftfast::nvfp4::{self, NearestPlan, QuantizeConfig, ScaleRule};
use half::bf16;

fn main() {
    let shape: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let (n, k) = if let [n, k] = shape[..] { (n, k) } else { (64064, 2560) };
    let weights = gaussian(n * k);
    let importance: Vec<f32> = (0..k).map(|i| if i % 97 == 0 { 1.0 } else { 0.01 }).collect();
    let (mut codes, mut scales) = (vec![0u8; n * k / 2], vec![0u8; n * k / 16]);
    let amax = nvfp4::amax(&weights);
    let global_scale = nvfp4::global_scale(amax);
    println!(
        "BF16 [{n}, {k}], {} threads, ms: best / median, GB/s of input at the best\n",
        rayon::current_num_threads()
    );
    println!("| step | best | median | GB/s |\n|---|---|---|---|");
    let gigabytes = (n * k * 2) as f64 / 1e9;
    let row = |name: &str, mut run: Box<dyn FnMut() + '_>| {
        let mut seconds: Vec<f64> = (0..7)
            .map(|_| {
                let start = Instant::now();
                run();
                start.elapsed().as_secs_f64()
            })
            .collect();
        seconds.sort_by(f64::total_cmp);
        let (best, median) = (seconds[0], seconds[seconds.len() / 2]);
        println!("| {name} | {:.0} | {:.0} | {:.2} |", best * 1e3, median * 1e3, gigabytes / best);
    };
    row("amax", Box::new(|| assert!(std::hint::black_box(nvfp4::amax(&weights)) == amax)));
    let rules = [
        ("max", ScaleRule::Max, None),
        ("four-six", ScaleRule::FourSix, None),
        ("mse", ScaleRule::Mse, None),
        ("mse, importance", ScaleRule::Mse, Some(&importance[..])),
    ];
    for (name, rule, importance) in rules {
        let config = QuantizeConfig { rule, importance, kernel_safe: true };
        row(name, Box::new(|| nvfp4::quantize_rows(&weights, k, global_scale, &config, &mut codes, &mut scales)));
    }
    let plan =
        NearestPlan::new(QuantizeConfig { rule: ScaleRule::Max, importance: None, kernel_safe: true }, global_scale);
    row(
        "max and error figures",
        Box::new(|| {
            std::hint::black_box(plan.quantize(&weights, k, &mut codes, &mut scales));
        }),
    );
    row(
        "error figures",
        Box::new(|| {
            std::hint::black_box(nvfp4::error_stats(&weights, &codes, &scales, k, global_scale, None));
        }),
    );
    row(
        "error figures, importance",
        Box::new(|| {
            std::hint::black_box(nvfp4::error_stats(&weights, &codes, &scales, k, global_scale, Some(&importance)));
        }),
    );
}

/// Weights of standard deviation 0.02: sums of twelve uniform numbers from a fixed seed.
fn gaussian(n: usize) -> Vec<bf16> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..n).map(|_| bf16::from_f32(((0..12).map(|_| uniform()).sum::<f32>() - 6.0) * 0.02)).collect()
}
