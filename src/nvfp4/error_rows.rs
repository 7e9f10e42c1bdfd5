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

impl<W: Weight> Kernel for ErrorRows<'_, W> {
    type Out = ErrorStats;

    #[inline(always)]
    fn run<S: Simd>(self) -> ErrorStats {
        let importance = self.importance.map(|importance| lanes::transpose_importance(importance, S::LANES));
        let mut stats = ErrorStats::default();
        let k = self.k;
        let rows =
            self.weights.chunks_exact(k).zip(self.codes.chunks_exact(k / 2)).zip(self.scales.chunks_exact(k / BLOCK));
        for ((weights, codes), scales) in rows {
            let mut figures = RowFigures::<S>::new(self.gs);
            match &importance {
                Some(importance) => figures.push_row::<W, true>(weights, codes, scales, importance),
                None => figures.push_row::<W, false>(weights, codes, scales, &[]),
            }
            figures.finish(k, self.importance.is_some(), &mut stats);
        }
        stats
    }
}

/// The figures of one row, a vector of blocks after the other.
pub(super) struct RowFigures<S: Simd> {
    /// Squared errors, squared weights, and both again times importance, of everything times `power`.
    sums: [f64; 4],
    largest: S::F,
    n_saturated: S::U,
    n_flushed: S::U,
    /// Squares of tiny weights would underflow: everything is scaled by a power of two near 1 / gs, which is exact.
    power: f32,
    gs: f32,
}

impl<S: Simd> RowFigures<S> {
    #[inline(always)]
    pub(super) fn new(gs: f32) -> Self {
        let power = f32::from_bits((254 - (gs.to_bits() >> 23).clamp(1, 253)) << 23);
        let (zero, none) = (S::splat(0.0), S::splat_u(0));
        Self { sums: [0.0; 4], largest: zero, n_saturated: none, n_flushed: none, power, gs: gs * power }
    }

    #[inline(always)]
    fn push_row<W: Weight, const WEIGHTED: bool>(
        &mut self,
        weights: &[W],
        codes: &[u8],
        scales: &[u8],
        importance: &[Columns],
    ) {
        let uniform = [[1.0; MAX_LANES]; BLOCK];
        let groups =
            weights.chunks(S::LANES * BLOCK).zip(codes.chunks(S::LANES * BLOCK / 2)).zip(scales.chunks(S::LANES));
        for (group, ((weights, codes), scales)) in groups.enumerate() {
            let mut blocks = [[0.0; MAX_LANES]; BLOCK];
            lanes::transpose::<W, S>(weights, &mut blocks);
            let importance = if WEIGHTED { &importance[group] } else { &uniform };
            let (words, scale_codes) = if scales.len() == S::LANES {
                (S::load_codes(codes), S::load_bytes(scales))
            } else {
                let (mut whole_codes, mut whole_scales) = ([0; MAX_LANES * BLOCK / 2], [0; MAX_LANES]);
                whole_codes[..codes.len()].copy_from_slice(codes);
                whole_scales[..scales.len()].copy_from_slice(scales);
                (S::load_codes(&whole_codes), S::load_bytes(&whole_scales))
            };
            let mut figures = self.begin(scale_codes);
            for (half, mut codes) in words.into_iter().enumerate() {
                for i in half * 8..half * 8 + 8 {
                    figures.push::<WEIGHTED>(S::e2m1(codes), S::load(&blocks[i]), &importance[i]);
                    codes = S::shr::<4>(codes);
                }
            }
            self.end::<WEIGHTED>(figures, words, scale_codes, scales.len());
        }
    }

    /// Begins a vector of blocks with these scales.
    #[inline(always)]
    pub(super) fn begin(&self, scale_codes: S::U) -> GroupFigures<S> {
        let scales = decode_any::<S>(scale_codes);
        GroupFigures {
            sums: [S::splat(0.0); 4],
            largest: self.largest,
            n_saturated: self.n_saturated,
            limit: S::mul(S::mul(S::splat(E2M1_MAX), scales), S::splat(self.gs)),
            scales,
            gs: S::splat(self.gs),
            power: S::splat(self.power),
        }
    }

    /// Adds a vector of blocks, `n_blocks` of them, with their codes; the other lanes are zero.
    #[inline(always)]
    pub(super) fn end<const WEIGHTED: bool>(
        &mut self,
        group: GroupFigures<S>,
        words: [S::U; 2],
        scale_codes: S::U,
        n_blocks: usize,
    ) {
        let magnitudes = S::and(S::or(words[0], words[1]), S::splat_u(0x7777_7777));
        let unsafe_code = S::lt_u(S::and(scale_codes, S::splat_u(0x7F)), S::splat_u(u32::from(KERNEL_SAFE_MIN_CODE)));
        let flushed = S::both(S::lt_u(S::splat_u(0), magnitudes), unsafe_code);
        self.n_flushed = S::add_u(self.n_flushed, S::select_u(flushed, S::splat_u(1), S::splat_u(0)));
        (self.largest, self.n_saturated) = (group.largest, group.n_saturated);
        let n_sums = if WEIGHTED { 4 } else { 2 };
        for (sum, lanes) in self.sums.iter_mut().zip(group.sums).take(n_sums) {
            let mut blocks = [0.0; MAX_LANES];
            S::store(lanes, &mut blocks);
            blocks[..n_blocks].iter().for_each(|&block| *sum += f64::from(block));
        }
    }

    /// Appends the row, of `k` weights, to `stats`.
    #[inline(always)]
    pub(super) fn finish(self, k: usize, weighted: bool, stats: &mut ErrorStats) {
        let unscale = |sum: f64| sum / (f64::from(self.power) * f64::from(self.power));
        let [error, weight, weighted_error, weighted_weight] = self.sums.map(unscale);
        stats.rows.push(RowError {
            sum_sq_error: error,
            sum_sq_weight: weight,
            weighted_sq_error: if weighted { weighted_error } else { error },
            weighted_sq_weight: if weighted { weighted_weight } else { weight },
        });
        let (mut largest, mut counts) = ([0.0; MAX_LANES], [[0; MAX_LANES]; 2]);
        S::store(self.largest, &mut largest);
        S::store_u(self.n_saturated, &mut counts[0]);
        S::store_u(self.n_flushed, &mut counts[1]);
        let [n_saturated, n_flushed] = counts.map(|lanes| lanes.into_iter().map(u64::from).sum::<u64>());
        stats.max_abs_error = stats.max_abs_error.max(largest.into_iter().fold(0.0, f32::max) / self.power);
        stats.n_weights += k as u64;
        stats.n_saturated += n_saturated;
        stats.n_flushed_blocks += n_flushed;
    }
}

/// The figures of a vector of blocks, an element of each at a time.
pub(super) struct GroupFigures<S: Simd> {
    sums: [S::F; 4],
    largest: S::F,
    n_saturated: S::U,
    /// The largest number that the blocks can say.
    limit: S::F,
    scales: S::F,
    gs: S::F,
    power: S::F,
}

impl<S: Simd> GroupFigures<S> {
    /// Adds an element: its E2M1 value and the weight. The signs of both may be taken off.
    #[inline(always)]
    pub(super) fn push<const WEIGHTED: bool>(&mut self, e2m1: S::F, weight: S::F, importance: &[f32; MAX_LANES]) {
        let x = S::mul(weight, self.power);
        let decoded = S::mul(S::mul(e2m1, self.scales), self.gs);
        let difference = S::sub(decoded, x);
        let (error, square) = (S::mul(difference, difference), S::mul(x, x));
        self.sums[0] = S::add(self.sums[0], error);
        self.sums[1] = S::add(self.sums[1], square);
        if WEIGHTED {
            let importance = S::load(importance);
            self.sums[2] = S::add(self.sums[2], S::mul(importance, error));
            self.sums[3] = S::add(self.sums[3], S::mul(importance, square));
        }
        self.largest = S::max(lanes::abs::<S>(difference), self.largest);
        let saturated = S::lt(self.limit, lanes::abs::<S>(x));
        self.n_saturated = S::add_u(self.n_saturated, S::select_u(saturated, S::splat_u(1), S::splat_u(0)));
    }
}

/// `e4m3::decode` of any code.
#[inline(always)]
fn decode_any<S: Simd>(codes: S::U) -> S::F {
    let magnitude = S::and(codes, S::splat_u(0x7F));
    let finite = S::bits(lanes::decode::<S>(magnitude));
    let nan = S::lt_u(S::splat_u(u32::from(e4m3::MAX_CODE)), magnitude);
    let value = S::select_u(nan, S::splat_u(f32::NAN.to_bits()), finite);
    S::from_bits(S::or(value, S::shl::<24>(S::and(codes, S::splat_u(0x80)))))
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
