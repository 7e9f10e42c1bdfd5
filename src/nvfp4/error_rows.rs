//! The error figures of rows, a block at a time.
//!
//! A sum over a row is sixteen sums, one for the columns that have the same place in their blocks: F32 over up to sixteen
//! blocks that follow each other, F64 from there on; then the sixteen are added pairwise. Every vector width can keep this
//! order without shuffling weights.

use super::{
    BLOCK, ErrorStats, KERNEL_SAFE_MIN_CODE, Weight, e2m1, e4m3,
    error::{RowSums, figures_power},
    reference::block_importance,
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

impl<W: Weight> Kernel for ErrorRows<'_, W> {
    type Out = ErrorStats;

    #[inline(always)]
    fn run<S: Simd>(self) -> ErrorStats {
        let Self { weights, codes, scales, k, gs, importance } = self;
        let importance: Option<Vec<f32>> =
            importance.map(|importance| importance.chunks_exact(BLOCK).flat_map(block_importance).collect());
        let decoded = Decoded::new(gs);
        let mut stats = ErrorStats::default();
        let rows = weights.chunks_exact(k).zip(codes.chunks_exact(k / 2)).zip(scales.chunks_exact(k / BLOCK));
        for ((weights, codes), scales) in rows {
            let mut figures = RowFigures::<S>::new();
            match &importance {
                Some(importance) => figures.push_row::<W, true>(weights, codes, scales, importance, &decoded),
                None => figures.push_row::<W, false>(weights, codes, scales, &[], &decoded),
            }
            figures.finish(k, importance.is_some(), decoded.power, &mut stats);
        }
        stats
    }
}

/// What codes mean, times `power`.
pub(super) struct Decoded {
    /// The values of the E2M1 magnitudes at each block scale.
    pub(super) values: [[f32; 8]; 256],
    pub(super) power: f32,
}

impl Decoded {
    #[inline(always)]
    pub(super) fn new(gs: f32) -> Self {
        let power = figures_power(gs);
        let gs = gs * power;
        let mut values = [[0.0; 8]; 256];
        for (scale, values) in (0..=u8::MAX).zip(&mut values) {
            let scale = e4m3::decode(scale);
            *values = e2m1::MAGNITUDES.map(|magnitude| magnitude * scale * gs);
        }
        Self { values, power }
    }
}

/// Blocks whose sums are kept in F32.
pub(super) const BLOCKS_PER_RUN: usize = 16;

/// The figures of one row.
pub(super) struct RowFigures<S: Simd> {
    /// Squared errors, squared weights, and both again times importance, of everything times the power.
    sums: [[f64; BLOCK]; 4],
    largest_square: S::F,
    /// A count a lane, and what was counted elsewhere.
    saturated: S::U,
    n_saturated: u64,
    n_flushed: u64,
}

impl<S: Simd> RowFigures<S> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        let (zero, none) = (S::splat(0.0), S::splat_u(0));
        Self { sums: [[0.0; BLOCK]; 4], largest_square: zero, saturated: none, n_saturated: 0, n_flushed: 0 }
    }

    #[inline(always)]
    fn push_row<W: Weight, const WEIGHTED: bool>(
        &mut self,
        weights: &[W],
        codes: &[u8],
        scales: &[u8],
        importance: &[f32],
        decoded: &Decoded,
    ) {
        let (weights, codes) = (weights.as_chunks::<BLOCK>().0, codes.as_chunks::<{ BLOCK / 2 }>().0);
        let uniform = [1.0; BLOCK];
        let runs = weights.chunks(BLOCKS_PER_RUN).zip(codes.chunks(BLOCKS_PER_RUN)).zip(scales.chunks(BLOCKS_PER_RUN));
        for (run, ((weights, codes), scales)) in runs.enumerate() {
            let mut sums = RunSums::<S>([[S::splat(0.0); 2]; 4]);
            for (i, ((weights, codes), &scale)) in weights.iter().zip(codes).zip(scales).enumerate() {
                let columns = (run * BLOCKS_PER_RUN + i) * BLOCK;
                let importance = if WEIGHTED { &importance[columns..][..BLOCK] } else { &uniform };
                self.push::<W, WEIGHTED>(&mut sums, weights, codes, scale, importance, decoded);
            }
            for (sum, run) in self.sums.iter_mut().zip(sums.0).take(if WEIGHTED { 4 } else { 2 }) {
                let mut lanes = [0.0; BLOCK];
                (0..BLOCK / S::LANES).for_each(|part| S::store(run[part], &mut lanes[part * S::LANES..]));
                add_lanes(sum, &lanes);
            }
        }
    }

    /// Adds a run of blocks.
    #[inline(always)]
    pub(super) fn add_run(&mut self, run: &Run<S>, codes: &[u8], scales: &[u8]) {
        for (sum, lanes) in self.sums.iter_mut().zip([run.error, run.square]) {
            add_lanes(sum, &S::columns(lanes));
        }
        self.largest_square = S::max(run.largest_square, self.largest_square);
        self.n_saturated += S::sum_block(run.saturated);
        if scales.iter().fold(u8::MAX, |least, scale| least.min(*scale)) < KERNEL_SAFE_MIN_CODE {
            let blocks = codes.as_chunks().0.iter().zip(scales);
            self.n_flushed += blocks.map(|(codes, &scale)| u64::from(is_flushed(codes, scale))).sum::<u64>();
        }
    }

    /// Adds a block.
    #[inline(always)]
    fn push<W: Weight, const WEIGHTED: bool>(
        &mut self,
        sums: &mut RunSums<S>,
        weights: &[W; BLOCK],
        codes: &[u8; BLOCK / 2],
        scale: u8,
        importance: &[f32],
        decoded: &Decoded,
    ) {
        let values = &decoded.values[usize::from(scale)];
        let (power, limit) = (S::splat(decoded.power), S::splat(values[7]));
        for part in 0..BLOCK / S::LANES {
            let first = part * S::LANES;
            let x = S::mul(load::<W, S>(weights, first), power);
            let value = S::pick(values, S::nibbles(codes, first));
            let difference = S::sub(value, x);
            let (error, square) = (S::mul(difference, difference), S::mul(x, x));
            let mut add = |sum: usize, term| sums.0[sum][part] = S::add(sums.0[sum][part], term);
            add(0, error);
            add(1, square);
            if WEIGHTED {
                let importance = S::load(&importance[first..]);
                add(2, S::mul(importance, error));
                add(3, S::mul(importance, square));
            }
            self.largest_square = S::max(error, self.largest_square);
            let saturated = S::lt(limit, S::abs(x));
            self.saturated = S::add_u(self.saturated, S::select_u(saturated, S::splat_u(1), S::splat_u(0)));
        }
        self.n_flushed += u64::from(is_flushed(codes, scale));
    }

    /// Appends the row, of `k` weights, to `stats`.
    #[inline(always)]
    pub(super) fn finish(self, k: usize, weighted: bool, power: f32, stats: &mut ErrorStats) {
        let [error, weight, weighted_error, weighted_weight] = self.sums.map(pairwise);
        let (mut largest, mut n_saturated) = ([0.0; BLOCK], [0; BLOCK]);
        S::store(self.largest_square, &mut largest);
        S::store_u(self.saturated, &mut n_saturated);
        let figures = RowSums {
            sums: if weighted {
                [error, weight, weighted_error, weighted_weight]
            } else {
                [error, weight, error, weight]
            },
            largest_square: largest.into_iter().fold(0.0, f32::max),
            n_saturated: self.n_saturated + n_saturated.into_iter().map(u64::from).sum::<u64>(),
            n_flushed: self.n_flushed,
        };
        stats.push_row(k, power, figures);
    }
}

/// The figures of up to [`BLOCKS_PER_RUN`] blocks of BF16 numbers whose codes have their signs.
pub(super) struct Run<S: Simd> {
    error: [S::F; 2],
    square: [S::F; 2],
    largest_square: S::F,
    saturated: S::B,
}

impl<S: Simd> Run<S> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        let zero = S::splat(0.0);
        Self { error: [zero; 2], square: [zero; 2], largest_square: zero, saturated: S::zero_block() }
    }

    /// Adds a block: magnitudes, and codes without signs, whose `values` times `power` are given, and the largest
    /// magnitude that does not saturate. Errors of numbers with the same sign are those of their magnitudes.
    #[inline(always)]
    pub(super) fn add(&mut self, magnitudes: S::B, codes: S::B, values: &[f32; 8], limit: &[u16; BLOCK], power: S::F) {
        let (weights, codes) = (S::widen_block(magnitudes), S::spread_block(codes));
        for part in 0..BLOCK / S::LANES {
            let x = S::mul(weights[part], power);
            let difference = S::sub(S::pick_magnitude(values, codes[part]), x);
            let error = S::mul(difference, difference);
            self.error[part] = S::add(self.error[part], error);
            self.square[part] = S::add(self.square[part], S::mul(x, x));
            self.largest_square = S::max(error, self.largest_square);
        }
        self.saturated = S::add_above(self.saturated, magnitudes, limit);
    }
}

/// Whether a kernel that reads small block scales as zero loses something.
#[inline(always)]
fn is_flushed(codes: &[u8; BLOCK / 2], scale: u8) -> bool {
    let is_nonzero = u64::from_le_bytes(*codes) & 0x7777_7777_7777_7777 != 0;
    is_nonzero & (scale & 0x7F < KERNEL_SAFE_MIN_CODE)
}

#[inline(always)]
fn add_lanes(sum: &mut [f64; BLOCK], lanes: &[f32; BLOCK]) {
    sum.iter_mut().zip(lanes).for_each(|(sum, lane)| *sum += f64::from(*lane));
}

/// The four sums of a run of blocks: each sixteen lanes, in as many vectors as it takes.
struct RunSums<S: Simd>([[S::F; 2]; 4]);

/// [`Simd::LANES`] weights of a block, from `first` on.
#[inline(always)]
fn load<W: Weight, S: Simd>(weights: &[W; BLOCK], first: usize) -> S::F {
    match W::bf16_bits(weights) {
        Some(bits) => S::load_bf16(&bits[first..]),
        None => S::load(&weights.map(Weight::widen)[first..]),
    }
}

/// Halves are added until one number is left.
fn pairwise(mut sums: [f64; BLOCK]) -> f64 {
    let mut n = BLOCK;
    while n > 1 {
        n /= 2;
        (0..n).for_each(|i| sums[i] += sums[i + n]);
    }
    sums[0]
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
