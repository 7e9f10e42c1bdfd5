//! The error figures of rows, a vector of blocks at a time.

use super::{
    BLOCK, E2M1_MAX, ErrorStats, KERNEL_SAFE_MIN_CODE, Weight, e4m3,
    error::RowError,
    lanes::{self, Columns, MAX_LANES},
    simd::{Kernel, Simd},
};

/// Rows to compare: `weights` `[n, k]`, `codes` `[n, k/2]`, `scales` `[n, k/16]`.
pub(super) struct ErrorRows<'a, W> {
    pub(super) weights: &'a [W],
    pub(super) codes: &'a [u8],
    pub(super) scales: &'a [u8],
    pub(super) k: usize,
    pub(super) gs: f32,
    pub(super) importance: Option<&'a [f32]>,
}

/// The value of each scale code.
static SCALES: [f32; 256] = {
    let mut scales = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        scales[code] = e4m3::decode(code as u8);
        code += 1;
    }
    scales
};

impl<W: Weight> Kernel for ErrorRows<'_, W> {
    type Out = ErrorStats;

    #[inline(always)]
    fn run<S: Simd>(self) -> ErrorStats {
        let importance = self.importance.map(|importance| lanes::transpose_importance(importance, S::LANES));
        let mut stats = ErrorStats { n_weights: self.weights.len() as u64, ..ErrorStats::default() };
        let k = self.k;
        let rows =
            self.weights.chunks_exact(k).zip(self.codes.chunks_exact(k / 2)).zip(self.scales.chunks_exact(k / BLOCK));
        for ((weights, codes), scales) in rows {
            match &importance {
                Some(importance) => push_row::<W, S, true>(&mut stats, weights, codes, scales, self.gs, importance),
                None => push_row::<W, S, false>(&mut stats, weights, codes, scales, self.gs, &[]),
            }
        }
        stats
    }
}

#[inline(always)]
fn push_row<W: Weight, S: Simd, const WEIGHTED: bool>(
    stats: &mut ErrorStats,
    weights: &[W],
    codes: &[u8],
    scales: &[u8],
    gs: f32,
    importance: &[Columns],
) {
    // Squares of tiny weights would underflow: everything is scaled by a power of two near 1 / gs, which is exact.
    let power = f32::from_bits((254 - (gs.to_bits() >> 23).clamp(1, 253)) << 23);
    let (mut row, uniform) = ([0f64; 4], [[1.0; MAX_LANES]; BLOCK]);
    let (mut largest, mut n_saturated) = (S::splat(0.0), S::splat_u(0));
    let groups = weights.chunks(S::LANES * BLOCK).zip(codes.chunks(S::LANES * BLOCK / 2)).zip(scales.chunks(S::LANES));
    for (group, ((weights, codes), scales)) in groups.enumerate() {
        let mut blocks = [[0.0; MAX_LANES]; BLOCK];
        lanes::transpose::<W, S>(weights, &mut blocks);
        let (mut words, mut block_scales) = ([[0u32; MAX_LANES]; 2], [0f32; MAX_LANES]);
        for (lane, (bytes, &scale)) in codes.as_chunks::<{ BLOCK / 2 }>().0.iter().zip(scales).enumerate() {
            let word = u64::from_le_bytes(*bytes);
            (words[0][lane], words[1][lane]) = (word as u32, (word >> 32) as u32);
            block_scales[lane] = SCALES[usize::from(scale)];
            let nonzero = word & 0x7777_7777_7777_7777 != 0;
            stats.n_flushed_blocks += u64::from(nonzero && scale & 0x7F < KERNEL_SAFE_MIN_CODE);
        }
        let importance = if WEIGHTED { &importance[group] } else { &uniform };
        let words = words.map(|word| S::load_u(&word));
        let figures =
            Figures::<S>::of::<WEIGHTED>(&blocks, words, S::load(&block_scales), importance, gs * power, power);
        largest = S::max(figures.largest, largest);
        n_saturated = S::add_u(n_saturated, figures.n_saturated);
        for (sum, lanes) in row.iter_mut().zip(figures.sums) {
            let mut blocks = [0.0; MAX_LANES];
            S::store(lanes, &mut blocks);
            blocks[..scales.len()].iter().for_each(|&block| *sum += f64::from(block));
        }
    }
    let unscale = |sum: f64| sum / (f64::from(power) * f64::from(power));
    let [error, weight, weighted_error, weighted_weight] = row.map(unscale);
    stats.rows.push(RowError {
        sum_sq_error: error,
        sum_sq_weight: weight,
        weighted_sq_error: if WEIGHTED { weighted_error } else { error },
        weighted_sq_weight: if WEIGHTED { weighted_weight } else { weight },
    });
    let (mut largest_lanes, mut saturated_lanes) = ([0.0; MAX_LANES], [0; MAX_LANES]);
    S::store(largest, &mut largest_lanes);
    S::store_u(n_saturated, &mut saturated_lanes);
    let largest = largest_lanes.into_iter().fold(0.0, f32::max) / power;
    stats.max_abs_error = stats.max_abs_error.max(largest);
    stats.n_saturated += saturated_lanes.into_iter().map(u64::from).sum::<u64>();
}

/// What a vector of blocks contributes.
struct Figures<S: Simd> {
    /// Squared errors, squared weights, and both again times importance.
    sums: [S::F; 4],
    largest: S::F,
    n_saturated: S::U,
}

impl<S: Simd> Figures<S> {
    #[inline(always)]
    fn of<const WEIGHTED: bool>(
        blocks: &Columns,
        words: [S::U; 2],
        block_scales: S::F,
        importance: &Columns,
        gs: f32,
        power: f32,
    ) -> Self {
        let (zero, one) = (S::splat(0.0), S::splat_u(1));
        let mut sums = [zero; 4];
        let (mut largest, mut n_saturated) = (zero, S::splat_u(0));
        let limit = S::mul(S::mul(S::splat(E2M1_MAX), block_scales), S::splat(gs));
        for (half, word) in words.into_iter().enumerate() {
            let mut codes = word;
            for i in half * 8..half * 8 + 8 {
                let x = S::mul(S::load(&blocks[i]), S::splat(power));
                let decoded = S::mul(S::mul(S::e2m1(codes), block_scales), S::splat(gs));
                codes = S::shr::<4>(codes);
                let difference = S::sub(decoded, x);
                let (error, weight) = (S::mul(difference, difference), S::mul(x, x));
                sums[0] = S::add(sums[0], error);
                sums[1] = S::add(sums[1], weight);
                if WEIGHTED {
                    let importance = S::load(&importance[i]);
                    sums[2] = S::add(sums[2], S::mul(importance, error));
                    sums[3] = S::add(sums[3], S::mul(importance, weight));
                }
                largest = S::max(lanes::abs::<S>(difference), largest);
                let saturated = S::lt(limit, lanes::abs::<S>(x));
                n_saturated = S::add_u(n_saturated, S::select_u(saturated, one, S::splat_u(0)));
            }
        }
        Self { sums, largest, n_saturated }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::nvfp4::{decode_rows, simd};

    proptest! {
        #[test]
        fn figures_are_those_of_a_plain_loop_over_the_decoded_weights(
            blocks in 1..40usize,
            values in prop::collection::vec(-1f32..1.0, 16 * 40 * 2),
            codes in prop::collection::vec(any::<u8>(), 8 * 40 * 2),
            scales in prop::collection::vec(0..=126u8, 40 * 2),
            gs in prop_oneof![Just(f32::MIN_POSITIVE), Just(1e-30f32), 1e-5f32..1e-1, Just(1e33f32)],
        ) {
            let k = blocks * BLOCK;
            let weights: Vec<f32> = values[..2 * k].iter().map(|v| v * gs * 500.0).collect();
            let importance: Vec<f32> = (0..k).map(|i| 1.0 / (1.0 + i as f32)).collect();
            let (codes, scales) = (&codes[..k], &scales[..k / 8]);
            let mut decoded = vec![0.0; 2 * k];
            decode_rows(codes, scales, k, gs, &mut decoded);
            let mut first = None;
            for level in simd::levels() {
                let kernel = ErrorRows { weights: &weights, codes, scales, k, gs, importance: Some(&importance) };
                let stats = simd::run_at(level, kernel);
                for (row, figures) in stats.rows().iter().enumerate() {
                    let pairs = || weights.iter().zip(&decoded).skip(row * k).take(k).zip(&importance);
                    let error = |x: &f32, d: &f32| (f64::from(*d) - f64::from(*x)).powi(2);
                    let plain: f64 = pairs().map(|((x, d), _)| error(x, d)).sum();
                    let weighted: f64 = pairs().map(|((x, d), w)| f64::from(*w) * error(x, d)).sum();
                    let weight: f64 = pairs().map(|((x, _), _)| f64::from(*x).powi(2)).sum();
                    for (a, b) in [(figures.sum_sq_error, plain), (figures.weighted_sq_error, weighted), (figures.sum_sq_weight, weight)] {
                        prop_assert!((a - b).abs() <= b * 1e-5, "{level:?} {a} {b}");
                    }
                }
                let largest = weights.iter().zip(&decoded).fold(0f32, |max, (x, d)| max.max((x - d).abs()));
                prop_assert!((stats.max_abs_error - largest).abs() <= largest * 1e-6, "{} {largest}", stats.max_abs_error);
                let stats = format!("{stats:?}");
                prop_assert_eq!(first.get_or_insert(stats.clone()), &stats, "{:?}", level);
            }
        }
    }
}
