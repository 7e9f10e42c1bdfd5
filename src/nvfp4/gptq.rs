//! GPTQ rounding with the block scale searched inside the loop: a vector of rows at a time, a row a lane.
//!
//! First pass: block by block in the plan's order, each block's targets carry the errors of the blocks before it; for each
//! candidate scale the block is rounded column by column, errors carried on within it, and the cheapest scale is kept.
//! Then rounds: each block in turn, all others fixed, gets the best scale and codes for what the others leave, and its
//! codes descend one at a time while the error falls. Rows are independent: neither threads nor vectors change a byte.

use rayon::prelude::*;

use super::{
    BLOCK, Weight, check_shape, e4m3,
    gemm::{Columns8, multiply},
    gptq_block::{Block, Choice, add, best_scale, cost, descend, dot, max_rule, round_block},
    gptq_plan::{BlockPlan, GptqPlan, PanelPlan},
    simd::{self, Kernel, Simd},
};

// Loops rather than closures in what follows: a closure that is not inlined would not be compiled for the vectors.

/// Sweeps of single-code descent in each round.
const N_SWEEPS: usize = 2;
/// Rows of a task. Together they should stay in the cache, and be several vectors so that the plan is read less often.
const ROWS_PER_TASK: usize = 32;

/// Quantizes `weights` `[n, k]` with error feedback, as [`super::quantize_rows`] but for the rounding; every block scale is
/// kernel-safe.
///
/// # Panics
/// As [`super::quantize_rows`], or the plan is for another `k`.
pub fn gptq_rows<W: Weight>(
    weights: &[W],
    k: usize,
    global_scale: f32,
    plan: &GptqPlan,
    codes: &mut [u8],
    block_scales: &mut [u8],
) {
    check_shape(weights.len(), k, codes.len(), block_scales.len(), None);
    assert_eq!(plan.k, k, "the plan is for another number of columns");
    weights
        .par_chunks(ROWS_PER_TASK * k)
        .zip(codes.par_chunks_mut(ROWS_PER_TASK * k / 2))
        .zip(block_scales.par_chunks_mut(ROWS_PER_TASK * k / BLOCK))
        .for_each(|((weights, codes), scales)| {
            simd::dispatch(GptqRows { weights, gs: global_scale, plan, codes, scales });
        });
}

struct GptqRows<'a, W> {
    weights: &'a [W],
    gs: f32,
    plan: &'a GptqPlan,
    codes: &'a mut [u8],
    scales: &'a mut [u8],
}

impl<W: Weight> Kernel for GptqRows<'_, W> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Self { weights, gs, plan, codes, scales } = self;
        for panel in &plan.panels {
            quantize_panel::<W, S>(weights, gs, panel, plan.k, codes, scales);
        }
    }
}

/// The columns of one panel, of rows of `k`.
#[inline(always)]
fn quantize_panel<W: Weight, S: Simd>(
    weights: &[W],
    gs: f32,
    plan: &PanelPlan,
    k: usize,
    codes: &mut [u8],
    scales: &mut [u8],
) {
    let mut vectors: Vec<Rows<S>> = weights.chunks(S::LANES * k).map(|rows| Rows::new(rows, gs, plan, k)).collect();
    for (at, block) in plan.blocks.iter().enumerate() {
        for rows in &mut vectors {
            rows.first_pass(at, block);
        }
    }
    for _ in 0..plan.n_rounds {
        for (at, block) in plan.blocks.iter().enumerate() {
            for rows in &mut vectors {
                rows.refine(at, block);
            }
        }
    }
    let out = codes.chunks_mut(S::LANES * k / 2).zip(scales.chunks_mut(S::LANES * k / BLOCK));
    for (rows, (codes, scales)) in vectors.iter().zip(out) {
        rows.store(plan, k, codes, scales);
    }
}

/// A vector of rows, in units of the global scale, columns in the order of visit: `[k, lanes]`.
struct Rows<S: Simd> {
    weights: Vec<f32>,
    /// weight - decoded
    errors: Vec<f32>,
    /// Scale codes, `[k / 16, lanes]`.
    scales: Vec<u32>,
    vector: std::marker::PhantomData<S>,
}

impl<S: Simd> Rows<S> {
    #[inline(always)]
    fn new<W: Weight>(rows: &[W], gs: f32, plan: &PanelPlan, k: usize) -> Self {
        let mut weights = vec![0.0; plan.k * S::LANES];
        for (lane, row) in rows.chunks_exact(k).enumerate() {
            for (i, out) in weights.chunks_exact_mut(S::LANES).enumerate() {
                out[lane] = row[plan.blocks[i / BLOCK].block * BLOCK + i % BLOCK].widen() / gs;
            }
        }
        Self {
            errors: vec![0.0; weights.len()],
            weights,
            scales: vec![0; plan.k / BLOCK * S::LANES],
            vector: std::marker::PhantomData,
        }
    }

    #[inline(always)]
    fn first_pass(&mut self, at: usize, plan: &BlockPlan) {
        let weights = self.block(&self.weights, at);
        let carried = self.multiply(&plan.earlier, at * BLOCK);
        let targets = add::<S>(&weights, &carried);
        let around = max_rule::<S>(&targets);
        let start = Choice { scale: around, cost: S::splat(f32::INFINITY) };
        let best = best_scale::<S>(&targets, &weights, &plan.factor, around, start);
        let (_, errors) = round_block::<S>(&targets, &weights, &plan.factor, best.scale);
        self.set_block(at, &errors, best.scale);
    }

    #[inline(always)]
    fn refine(&mut self, at: usize, plan: &BlockPlan) {
        let weights = self.block(&self.weights, at);
        let mut errors = self.block(&self.errors, at);
        let scale = S::load_u(&self.scales[at * S::LANES..]);
        let pull = self.multiply(&plan.others, plan.others[0].len());
        // With all else fixed, the block should be as near to these as it can, in the metric of its own Hessian.
        let mut shift = [S::splat(0.0); BLOCK];
        for (shift, inverse) in shift.iter_mut().zip(&plan.inverse) {
            *shift = dot::<S>(inverse, &pull);
        }
        let targets = add::<S>(&weights, &shift);
        let distances = add::<S>(&errors, &shift);
        let current = Choice { scale, cost: cost::<S>(&distances, &plan.own_factor) };
        let best = best_scale::<S>(&targets, &targets, &plan.own_factor, max_rule::<S>(&targets), current);
        let (_, rounded) = round_block::<S>(&targets, &targets, &plan.own_factor, best.scale);
        let better = S::lt(best.cost, current.cost);
        for j in 0..BLOCK {
            errors[j] = S::select(better, S::sub(rounded[j], shift[j]), errors[j]);
        }
        for _ in 0..N_SWEEPS {
            descend::<S>(&weights, &mut errors, &pull, plan, best.scale);
        }
        self.set_block(at, &errors, best.scale);
    }

    /// Errors of the first `n` columns times coefficients: sixteen sums.
    #[inline(always)]
    fn multiply(&self, coefficients: &[Vec<Columns8>; 2], n: usize) -> Block<S> {
        let errors = &self.errors[..n * S::LANES];
        let mut sums = [S::splat(0.0); BLOCK];
        sums[..8].copy_from_slice(&multiply::<S>(&coefficients[0], errors));
        sums[8..].copy_from_slice(&multiply::<S>(&coefficients[1], errors));
        sums
    }

    #[inline(always)]
    fn block(&self, from: &[f32], at: usize) -> Block<S> {
        let mut block = [S::splat(0.0); BLOCK];
        for (j, column) in block.iter_mut().enumerate() {
            *column = S::load(&from[(at * BLOCK + j) * S::LANES..]);
        }
        block
    }

    #[inline(always)]
    fn set_block(&mut self, at: usize, errors: &Block<S>, scale: S::U) {
        for (j, &error) in errors.iter().enumerate() {
            S::store(error, &mut self.errors[(at * BLOCK + j) * S::LANES..]);
        }
        S::store_u(scale, &mut self.scales[at * S::LANES..]);
    }

    /// Codes and scales of the rows, blocks back in their places.
    fn store(&self, plan: &PanelPlan, k: usize, codes: &mut [u8], scales: &mut [u8]) {
        let rows = codes.chunks_exact_mut(k / 2).zip(scales.chunks_exact_mut(k / BLOCK));
        for (lane, (codes, scales)) in rows.enumerate() {
            for (at, plan) in plan.blocks.iter().enumerate() {
                let scale = self.scales[at * S::LANES + lane] as u8;
                scales[plan.block] = scale;
                let nibble = |j: usize| {
                    let i = (at * BLOCK + j) * S::LANES + lane;
                    // Decoded weights are on the grid but for rounding in the last bits.
                    super::e2m1::encode((self.weights[i] - self.errors[i]) / e4m3::decode(scale))
                };
                for (pair, byte) in codes[plan.block * BLOCK / 2..][..BLOCK / 2].iter_mut().enumerate() {
                    *byte = nibble(2 * pair) | nibble(2 * pair + 1) << 4;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        nvfp4::{GptqConfig, Hessian, QuantizeConfig, ScaleRule, error_stats, quantize_rows},
        report::Progress,
    };

    /// Rows and states whose columns move together and differ in size.
    fn example(n: usize, k: usize) -> (Vec<f32>, Vec<f32>) {
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let weights = (0..n * k).map(|_| random() * random()).collect();
        let mut states = Vec::new();
        for _ in 0..4 * k {
            let common = random();
            states.extend((0..k).map(|i| (random() + 2.0 * common) / (1.0 + (i % 7) as f32)));
        }
        (weights, states)
    }

    fn output_error(weights: &[f32], codes: &[u8], scales: &[u8], k: usize, gs: f32, states: &[f32]) -> f64 {
        let mut decoded = vec![0.0; weights.len()];
        super::super::decode_rows(codes, scales, k, gs, &mut decoded);
        let difference: Vec<f32> = weights.iter().zip(&decoded).map(|(w, d)| w - d).collect();
        let outputs = difference.chunks(k).flat_map(|row| {
            states.chunks(k).map(move |x| row.iter().zip(x).map(|(d, x)| f64::from(d * x)).sum::<f64>().powi(2))
        });
        outputs.sum()
    }

    #[test]
    fn every_kind_of_vector_gives_the_same_bytes() {
        let (n, k) = (21, 96);
        let (weights, states) = example(n, k);
        let plan =
            GptqPlan::new(&Hessian::from_states(&states, k).unwrap(), &GptqConfig::default(), &Progress::silent());
        let plan = plan.unwrap();
        let gs = super::super::global_scale(1.0);
        let mut first = None;
        for level in simd::levels() {
            let (mut codes, mut scales) = (vec![0; n * k / 2], vec![0; n * k / BLOCK]);
            simd::run_at(
                level,
                GptqRows { weights: &weights, gs, plan: &plan, codes: &mut codes, scales: &mut scales },
            );
            let bytes = (codes, scales);
            assert!(first.get_or_insert(bytes.clone()) == &bytes, "{level:?}");
        }
    }

    #[test]
    fn outputs_err_less_than_with_the_best_scales_alone_and_each_round_helps() {
        let (n, k) = (40, 64);
        let (weights, states) = example(n, k);
        let hessian = Hessian::from_states(&states, k).unwrap();
        let gs = super::super::global_scale(1.0);
        let (mut codes, mut scales) = (vec![0; n * k / 2], vec![0; n * k / BLOCK]);
        let importance = hessian.importance();
        let config = QuantizeConfig { rule: ScaleRule::Mse, importance: Some(&importance), kernel_safe: true };
        quantize_rows(&weights, k, gs, &config, &mut codes, &mut scales);
        let mut last = output_error(&weights, &codes, &scales, k, gs, &states) * 0.6;
        for n_rounds in [0, 1, 2] {
            let config = GptqConfig { damping: Some(0.01), n_rounds, ..GptqConfig::default() };
            let plan = GptqPlan::new(&hessian, &config, &Progress::silent()).unwrap();
            gptq_rows(&weights, k, gs, &plan, &mut codes, &mut scales);
            let error = output_error(&weights, &codes, &scales, k, gs, &states);
            assert!(error < last, "{n_rounds} rounds: {error} against {last}");
            last = error;
            assert_eq!(error_stats(&weights, &codes, &scales, k, gs, None).n_flushed_blocks, 0);
        }
    }

    #[test]
    fn a_panel_of_columns_is_quantized_as_a_linear_of_its_own() {
        let (n, k) = (9, 96);
        let (weights, states) = example(n, k);
        let hessian = Hessian::from_states(&states, k).unwrap();
        let gs = super::super::global_scale(1.0);
        let quantize = |weights: &[f32], hessian: &Hessian, max_panel_columns: usize| {
            let config = GptqConfig { max_panel_columns, ..GptqConfig::default() };
            let plan = GptqPlan::new(hessian, &config, &Progress::silent()).unwrap();
            let (mut codes, mut scales) = (vec![0; weights.len() / 2], vec![0; weights.len() / BLOCK]);
            gptq_rows(weights, hessian.k(), gs, &plan, &mut codes, &mut scales);
            (codes, scales)
        };
        let (codes, scales) = quantize(&weights, &hessian, 40);
        for columns in [0..32, 32..64, 64..96] {
            let part: Vec<f32> = weights.chunks(k).flat_map(|row| &row[columns.clone()]).copied().collect();
            let (part_codes, part_scales) = quantize(&part, &hessian.part(columns.clone()), 32);
            for row in 0..n {
                let at = |per: usize| (row * k + columns.start) / per..(row * k + columns.end) / per;
                assert_eq!(codes[at(2)], part_codes[row * 16..(row + 1) * 16], "{columns:?}");
                assert_eq!(scales[at(BLOCK)], part_scales[row * 2..(row + 1) * 2], "{columns:?}");
            }
        }
    }

    #[test]
    fn zero_rows_and_a_single_block_are_quantized_too() {
        let (_, states) = example(1, 16);
        let plan =
            GptqPlan::new(&Hessian::from_states(&states, 16).unwrap(), &GptqConfig::default(), &Progress::silent());
        let (mut codes, mut scales) = (vec![9; 16], vec![9; 2]);
        let mut weights = vec![0.0f32; 32];
        weights[20] = 6.0;
        gptq_rows(&weights, 16, 1.0, &plan.unwrap(), &mut codes, &mut scales);
        assert_eq!(codes[..8], [0; 8]);
        assert!(codes[8..].iter().any(|&code| code != 0) && scales.iter().all(|&code| (8..=126).contains(&code)));
    }
}
