//! The matrix-vector products of a draft step, timed on the card: before (BF16, the full head) and after (NVFP4, the kept
//! rows), each against a plain read of as many bytes in the same run, and the whole step as one graph.

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::{
    checkpoint::Recipe,
    gpu::{Gpu, MAX_M, Output, Work},
    interrupt,
    nvfp4::BLOCK,
    report::Progress,
    sidecar::Manifest,
};

/// The seed's published figures, on a DGX Spark (GB10): its BF16 head and what replaced it.
const SEED: [(Weights, u32, u32, f64); 2] =
    [(Weights::Bf16, 248_320, 5120, 13_791.0), (Weights::Nvfp4Argmax, 64_064, 5120, 757.0)];
/// A spread beyond this share of the median is worth a warning.
const WIDE_SPREAD: f64 = 0.05;

/// What a product reads and gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weights {
    /// BF16, logits.
    Bf16,
    /// NVFP4, logits.
    Nvfp4,
    /// NVFP4, the id of the largest logit alone.
    Nvfp4Argmax,
}

/// Which side of the comparison a product is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// A draft step as the model ships it.
    Before,
    /// A draft step with the sidecar.
    After,
    /// Beside the step: for comparison.
    Control,
}

/// One product to time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Case {
    /// What it is in the model.
    pub name: String,
    /// What it reads and gives.
    pub weights: Weights,
    /// Where it counts.
    pub side: Side,
    /// Rows.
    pub n: u32,
    /// Columns.
    pub k: u32,
    /// Bytes of weights.
    pub bytes: u64,
}

/// A matrix of the step: how many rows it has before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// What it is in the model.
    pub name: String,
    /// Rows that the model ships.
    pub n_before: u32,
    /// Rows afterwards.
    pub n_after: u32,
    /// Columns.
    pub k: u32,
    /// Whether it is the head, which drafting needs the argmax of.
    pub head: bool,
}

/// Figures of one product at one number of vectors.
#[derive(Debug, Clone, Serialize)]
pub struct Timing {
    /// What was timed.
    #[serde(flatten)]
    pub case: Case,
    /// Vectors.
    pub m: u32,
    /// Median, in microseconds.
    pub median_us: f64,
    /// The fastest replay.
    pub min_us: f64,
    /// The slowest replay.
    pub max_us: f64,
    /// Half the distance between the quartiles, over the median.
    pub spread: f64,
    /// Bytes of weights over the median, in 10^9 a second.
    pub gb_per_s: f64,
    /// The median of a plain read of as many bytes, in this run.
    pub floor_us: f64,
    /// The floor over the median: 1 is the speed of a plain read.
    pub floor_share: f64,
    /// The seed's published time for this product, on a DGX Spark.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed_us: Option<f64>,
    /// Every replay, in the order in which they ran.
    pub samples_us: Vec<f64>,
}

/// A whole step at one number of vectors.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// Vectors.
    pub m: u32,
    /// The sum of the products before.
    pub before_us: f64,
    /// The sum of the products after.
    pub after_us: f64,
    /// All products after in a row, as one graph.
    pub after_chain_us: f64,
    /// Bytes before.
    pub before_bytes: u64,
    /// Bytes after.
    pub after_bytes: u64,
}

/// A run.
#[derive(Debug, Clone, Serialize)]
pub struct BenchReport {
    /// The card, its driver and its clocks.
    pub device: DeviceRecord,
    /// Replays for each figure.
    pub n_replays: usize,
    /// The products.
    pub timings: Vec<Timing>,
    /// Their sums.
    pub steps: Vec<Step>,
    /// What a reader should know before trusting a figure.
    pub warnings: Vec<String>,
}

/// The card as it was found.
#[derive(Debug, Clone, Serialize)]
pub struct DeviceRecord {
    /// Its name.
    pub name: String,
    /// Compute capability.
    pub capability: String,
    /// The CUDA version of the driver.
    pub cuda: String,
    /// The driver's version, where the machine tells.
    pub driver: Option<String>,
    /// The highest clock of the multiprocessors and of the memory, in MHz.
    pub max_clocks_mhz: (u32, u32),
    /// Streaming multiprocessors.
    pub n_multiprocessors: usize,
}

/// How long to measure.
#[derive(Debug, Clone, Copy)]
pub struct BenchConfig {
    /// Replays that do not count.
    pub n_warmups: usize,
    /// Replays that do.
    pub n_replays: usize,
}

/// The shapes of a model's draft step with a head of `n_rows`. Linears that a runtime fuses are one matrix.
pub fn model_shapes(recipe: &Recipe, n_rows: usize) -> Result<Vec<Shape>> {
    let size = |n: usize| u32::try_from(n).with_context(|| format!("{n} is no size of a matrix"));
    let mut shapes = vec![Shape {
        name: "head".to_owned(),
        n_before: size(recipe.target_rows)?,
        n_after: size(n_rows.min(recipe.target_rows))?,
        k: size(recipe.hidden_size)?,
        head: true,
    }];
    for linear in &recipe.linears {
        let name = linear.fused.clone().unwrap_or_else(|| linear.name.trim_end_matches(".weight").to_owned());
        push_rows(&mut shapes, name, size(linear.n)?, size(linear.k)?);
    }
    Ok(shapes)
}

/// The shapes of a sidecar's draft step.
pub fn sidecar_shapes(manifest: &Manifest) -> Result<Vec<Shape>> {
    let size = |n: usize| u32::try_from(n).with_context(|| format!("{n} is no size of a matrix"));
    let mut shapes = vec![Shape {
        name: "head".to_owned(),
        n_before: size(manifest.target.target_rows)?,
        n_after: size(manifest.vocabulary.n_rows)?,
        k: size(manifest.target.hidden_size)?,
        head: true,
    }];
    for (name, tensor) in manifest.tensors.iter().filter(|(_, tensor)| tensor.to == "NVFP4") {
        let [n, k] = tensor.shape[..] else { bail!("`{name}` is no matrix: its shape is {:?}", tensor.shape) };
        if tensor.source != manifest.target.head_tensor {
            push_rows(&mut shapes, tensor.fused.clone().unwrap_or_else(|| name.clone()), size(n)?, size(k)?);
        }
    }
    Ok(shapes)
}

fn push_rows(shapes: &mut Vec<Shape>, name: String, n: u32, k: u32) {
    match shapes.iter_mut().find(|shape| shape.name == name && shape.k == k) {
        Some(shape) => (shape.n_before, shape.n_after) = (shape.n_before + n, shape.n_after + n),
        None => shapes.push(Shape { name, n_before: n, n_after: n, k, head: false }),
    }
}

/// The products to time for `shapes`.
///
/// # Errors
/// A shape is none that NVFP4 can have.
pub fn cases(shapes: &[Shape]) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for shape in shapes {
        if shape.k == 0 || !(shape.k as usize).is_multiple_of(BLOCK) || shape.n_after == 0 {
            bail!("`{}`: {} x {} is no NVFP4 matrix: k must be a multiple of 16", shape.name, shape.n_after, shape.k);
        }
        let mut push = |weights: Weights, side, n| {
            let bytes = weights.work().bytes(n, shape.k);
            cases.push(Case { name: shape.name.clone(), weights, side, n, k: shape.k, bytes });
        };
        push(Weights::Bf16, Side::Before, shape.n_before);
        if shape.n_before != shape.n_after {
            push(Weights::Bf16, Side::Control, shape.n_after);
        }
        push(Weights::Nvfp4, if shape.head { Side::Control } else { Side::After }, shape.n_after);
        if shape.head {
            push(Weights::Nvfp4Argmax, Side::After, shape.n_after);
        }
    }
    Ok(cases)
}

impl Weights {
    fn work(self) -> Work {
        match self {
            Self::Bf16 => Work::Bf16,
            Self::Nvfp4 => Work::Nvfp4(Output::Logits),
            Self::Nvfp4Argmax => Work::Nvfp4(Output::Argmax),
        }
    }

    fn floor(self) -> Work {
        if self == Self::Bf16 { Work::ReadBf16 } else { Work::ReadNvfp4 }
    }
}

/// Times `cases` at each number of vectors in `ms`.
///
/// # Errors
/// The card is out of memory or was lost.
pub fn run(gpu: &Gpu, cases: &[Case], ms: &[u32], config: BenchConfig, progress: &Progress) -> Result<BenchReport> {
    if let Some(m) = ms.iter().find(|&&m| m == 0 || m > MAX_M) {
        bail!("`--m {m}`: expected numbers of vectors from 1 to {MAX_M}");
    }
    let n_weights =
        cases.iter().map(|case| case.n as usize * case.k as usize).max().context("there is nothing to time")?;
    let pool = gpu.pool(n_weights)?;
    let (mut timings, mut steps) = (Vec::new(), Vec::new());
    for &m in ms {
        let first = timings.len();
        for case in cases {
            interrupt::check()?;
            let time = |work| gpu.time(&pool, &[(work, case.n, case.k)], m, config.n_warmups, config.n_replays);
            let floor_us = Summary::of(&time(case.weights.floor())?).median;
            timings.push(timing(case, m, floor_us, time(case.weights.work())?));
            progress.advance(1);
        }
        let after: Vec<_> =
            cases.iter().filter(|c| c.side == Side::After).map(|c| (c.weights.work(), c.n, c.k)).collect();
        let chain = gpu.time(&pool, &after, m, config.n_warmups, config.n_replays)?;
        steps.push(step(m, &timings[first..], Summary::of(&chain).median));
    }
    let warnings = warnings(&timings);
    Ok(BenchReport { device: device_record(gpu)?, n_replays: config.n_replays, timings, steps, warnings })
}

fn timing(case: &Case, m: u32, floor_us: f64, samples_us: Vec<f64>) -> Timing {
    let summary = Summary::of(&samples_us);
    let seed = SEED.iter().find(|&&(weights, n, k, _)| m == 1 && (weights, n, k) == (case.weights, case.n, case.k));
    Timing {
        case: case.clone(),
        m,
        median_us: summary.median,
        min_us: summary.min,
        max_us: summary.max,
        spread: summary.spread,
        gb_per_s: case.bytes as f64 / summary.median / 1e3,
        floor_us,
        floor_share: floor_us / summary.median,
        seed_us: seed.map(|&(_, _, _, us)| us),
        samples_us,
    }
}

fn step(m: u32, timings: &[Timing], after_chain_us: f64) -> Step {
    let of = |side| timings.iter().filter(move |timing| timing.case.side == side);
    Step {
        m,
        before_us: of(Side::Before).map(|t| t.median_us).sum(),
        after_us: of(Side::After).map(|t| t.median_us).sum(),
        after_chain_us,
        before_bytes: of(Side::Before).map(|t| t.case.bytes).sum(),
        after_bytes: of(Side::After).map(|t| t.case.bytes).sum(),
    }
}

fn warnings(timings: &[Timing]) -> Vec<String> {
    let wide = timings.iter().filter(|timing| timing.spread > WIDE_SPREAD).count();
    let mut warnings = Vec::new();
    if wide > 0 {
        warnings.push(format!(
            "{wide} of {} figures spread by more than {:.0} %: another process may be using the card, or its clocks move; \
             run again on an idle card, or with more `--replays`",
            timings.len(),
            WIDE_SPREAD * 100.0
        ));
    }
    warnings
}

fn device_record(gpu: &Gpu) -> Result<DeviceRecord> {
    Ok(DeviceRecord {
        name: gpu.name.clone(),
        capability: format!("{}.{}", gpu.capability.0, gpu.capability.1),
        cuda: format!("{}.{}", gpu.cuda_version.0, gpu.cuda_version.1),
        driver: gpu.driver_version(),
        max_clocks_mhz: gpu.max_clocks_mhz()?,
        n_multiprocessors: gpu.n_multiprocessors,
    })
}

/// Order statistics of a few samples.
struct Summary {
    median: f64,
    min: f64,
    max: f64,
    spread: f64,
}

impl Summary {
    fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            sorted.get(((sorted.len().max(1) - 1) as f64 * share).round() as usize).copied().unwrap_or(0.0)
        };
        let median = at(0.5);
        let spread = if median > 0.0 { (at(0.75) - at(0.25)) / 2.0 / median } else { 0.0 };
        Self { median, min: at(0.0), max: at(1.0), spread }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_timed_four_ways_and_a_linear_twice() {
        let head = Shape { name: "head".into(), n_before: 248_320, n_after: 64_064, k: 5120, head: true };
        let linear = Shape { name: "fc".into(), n_before: 5120, n_after: 5120, k: 10240, head: false };
        let cases = cases(&[head, linear]).unwrap();
        let sides: Vec<_> = cases.iter().map(|case| (case.weights, case.side)).collect();
        assert_eq!(
            sides,
            [
                (Weights::Bf16, Side::Before),
                (Weights::Bf16, Side::Control),
                (Weights::Nvfp4, Side::Control),
                (Weights::Nvfp4Argmax, Side::After),
                (Weights::Bf16, Side::Before),
                (Weights::Nvfp4, Side::After),
            ]
        );
        assert_eq!(cases[0].bytes, 248_320 * 5120 * 2);
        assert_eq!(cases[3].bytes, 64_064 * 5120 * 9 / 16);
        assert_eq!(timing(&cases[3], 1, 700.0, vec![800.0; 3]).seed_us, Some(757.0));
        assert_eq!(timing(&cases[3], 4, 700.0, vec![800.0; 3]).seed_us, None);
    }

    #[test]
    fn order_statistics_of_known_samples() {
        let summary = Summary::of(&[5.0, 1.0, 2.0, 4.0, 3.0]);
        assert_eq!((summary.median, summary.min, summary.max), (3.0, 1.0, 5.0));
        assert!((summary.spread - 1.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn fused_linears_are_one_matrix() {
        let mut shapes = Vec::new();
        push_rows(&mut shapes, "qkv".into(), 4096, 2560);
        push_rows(&mut shapes, "qkv".into(), 512, 2560);
        push_rows(&mut shapes, "o".into(), 2560, 4096);
        assert_eq!(shapes.iter().map(|s| (s.n_after, s.k)).collect::<Vec<_>>(), [(4608, 2560), (2560, 4096)]);
    }
}
