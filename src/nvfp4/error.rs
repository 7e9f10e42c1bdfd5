//! What quantization costs a tensor: error figures of its rows, the same for any division of the rows into tiles.

use rayon::prelude::*;

use super::{BLOCK, Weight, check_shape, error_rows::ErrorRows, rows_per_task, simd};

/// Error figures of consecutive rows. [`ErrorStats::merge`] appends rows; sums are kept by row and added in row order, so
/// that neither tiles nor threads change a digit.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ErrorStats {
    rows: Vec<RowError>,
    /// Weights seen.
    pub n_weights: u64,
    /// The largest |decoded - weight|.
    pub max_abs_error: f32,
    /// Blocks with a nonzero code whose scale code is below [`KERNEL_SAFE_MIN_CODE`]: a kernel may read them as zero.
    pub n_flushed_blocks: u64,
    /// Weights beyond the largest number that their block can say, 6 times its scale.
    pub n_saturated: u64,
}

/// Sums over one row: F32 within sixteen blocks, F64 from there on (`error_rows` says in which order).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RowError {
    /// Sum of (decoded - weight)^2.
    pub sum_sq_error: f64,
    /// Sum of weight^2.
    pub sum_sq_weight: f64,
    /// Sum of importance * (decoded - weight)^2; importance 1 when none is given.
    pub weighted_sq_error: f64,
    /// Sum of importance * weight^2.
    pub weighted_sq_weight: f64,
}

/// The figures of one row as they are summed up, of everything times a power of two, [`figures_power`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowSums {
    /// Squared errors, squared weights, and both again times importance (or 1).
    pub sums: [f64; 4],
    /// The largest (decoded - weight)^2.
    pub largest_square: f32,
    /// As [`ErrorStats::n_saturated`].
    pub n_saturated: u64,
    /// As [`ErrorStats::n_flushed_blocks`].
    pub n_flushed: u64,
}

/// A power of two near 1 / `global_scale`: squares of tiny weights would underflow, and this scaling is exact.
pub fn figures_power(global_scale: f32) -> f32 {
    f32::from_bits((254 - (global_scale.to_bits() >> 23).clamp(1, 253)) << 23)
}

impl RowError {
    /// ||decoded - weight|| / ||weight||; 0 for a zero row.
    pub fn relative(&self) -> f64 {
        ratio(self.sum_sq_error, self.sum_sq_weight)
    }
}

impl ErrorStats {
    /// Appends the figures of the rows that follow.
    pub fn merge(&mut self, next_rows: &Self) {
        self.rows.extend_from_slice(&next_rows.rows);
        self.n_weights += next_rows.n_weights;
        self.max_abs_error = self.max_abs_error.max(next_rows.max_abs_error);
        self.n_flushed_blocks += next_rows.n_flushed_blocks;
        self.n_saturated += next_rows.n_saturated;
    }

    /// Appends a row of `k` weights whose figures are of everything times `power`.
    pub fn push_row(&mut self, k: usize, power: f32, figures: RowSums) {
        let unscale = |sum: f64| sum / (f64::from(power) * f64::from(power));
        let [sum_sq_error, sum_sq_weight, weighted_sq_error, weighted_sq_weight] = figures.sums.map(unscale);
        self.rows.push(RowError { sum_sq_error, sum_sq_weight, weighted_sq_error, weighted_sq_weight });
        // The root of a square is the number again.
        self.max_abs_error = self.max_abs_error.max(figures.largest_square.sqrt() / power);
        self.n_weights += k as u64;
        self.n_saturated += figures.n_saturated;
        self.n_flushed_blocks += figures.n_flushed;
    }

    /// The figures of each row.
    pub fn rows(&self) -> &[RowError] {
        &self.rows
    }

    /// Sum of squared errors over all rows.
    pub fn sum_sq_error(&self) -> f64 {
        self.rows.iter().map(|r| r.sum_sq_error).sum()
    }

    /// Sum of squared weights over all rows.
    pub fn sum_sq_weight(&self) -> f64 {
        self.rows.iter().map(|r| r.sum_sq_weight).sum()
    }

    /// The relative Frobenius error ||decoded - weight|| / ||weight||; 0 for a zero tensor.
    pub fn relative(&self) -> f64 {
        ratio(self.sum_sq_error(), self.sum_sq_weight())
    }

    /// [`ErrorStats::relative`] with each column weighted by its importance; the same figure when none is given.
    pub fn weighted_relative(&self) -> f64 {
        let sum = |f: fn(&RowError) -> f64| self.rows.iter().map(f).sum();
        ratio(sum(|r| r.weighted_sq_error), sum(|r| r.weighted_sq_weight))
    }

    /// The row with the largest relative error (the first of equals) and that error; `None` without rows.
    pub fn worst_row(&self) -> Option<(usize, f64)> {
        let relative = self.rows.iter().map(RowError::relative).enumerate();
        relative.reduce(|worst, row| if row.1 > worst.1 { row } else { worst })
    }
}

fn ratio(error: f64, weight: f64) -> f64 {
    if weight > 0.0 { (error / weight).sqrt() } else { 0.0 }
}

/// Error figures of quantized rows, `weights` `[n, k]` against `codes` and `block_scales`. A block scale that is NaN makes
/// its row's sums NaN.
///
/// # Panics
/// As [`super::quantize_rows`].
pub fn error_stats<W: Weight>(
    weights: &[W],
    codes: &[u8],
    block_scales: &[u8],
    k: usize,
    global_scale: f32,
    importance: Option<&[f32]>,
) -> ErrorStats {
    check_shape(weights.len(), k, codes.len(), block_scales.len(), importance);
    if k == 0 {
        return ErrorStats::default();
    }
    let rows = rows_per_task(k);
    let parts: Vec<ErrorStats> = weights
        .par_chunks(rows * k)
        .zip(codes.par_chunks(rows * k / 2))
        .zip(block_scales.par_chunks(rows * k / BLOCK))
        .map(|((weights, codes), scales)| {
            simd::dispatch(ErrorRows { weights, codes, scales, k, gs: global_scale, importance })
        })
        .collect();
    let mut stats = ErrorStats::default();
    parts.iter().for_each(|part| stats.merge(part));
    stats
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvfp4::{QuantizeConfig, ScaleRule, e4m3, global_scale, quantize_rows};

    #[test]
    fn figures_do_not_depend_on_the_division_into_tiles() {
        let k = 64;
        let weights: Vec<f32> = (0..37 * k).map(|i| ((i * 7919 % 1009) as f32 - 500.0) * 1e-3).collect();
        let importance: Vec<f32> = (0..k).map(|i| 1.0 / (1.0 + i as f32)).collect();
        let (mut codes, mut scales) = (vec![0; weights.len() / 2], vec![0; weights.len() / BLOCK]);
        let config = QuantizeConfig { rule: ScaleRule::Max, importance: None, kernel_safe: true };
        quantize_rows(&weights, k, global_scale(0.5), &config, &mut codes, &mut scales);
        let whole = error_stats(&weights, &codes, &scales, k, global_scale(0.5), Some(&importance));
        for rows in [1, 5, 36] {
            let mut merged = ErrorStats::default();
            let tiles = weights.chunks(rows * k).zip(codes.chunks(rows * k / 2)).zip(scales.chunks(rows * k / BLOCK));
            for ((weights, codes), scales) in tiles {
                merged.merge(&error_stats(weights, codes, scales, k, global_scale(0.5), Some(&importance)));
            }
            assert_eq!(merged, whole);
        }
        assert!(whole.relative() > 0.05 && whole.relative() < 0.15);
    }

    #[test]
    fn saturated_weights_and_flushed_blocks_are_counted() {
        let mut weights = [1.0f32; BLOCK];
        weights[3] = 7.0;
        let stats = error_stats(&weights, &[0x22; 8], &[e4m3::ONE], BLOCK, 1.0, None);
        assert_eq!((stats.n_saturated, stats.n_flushed_blocks, stats.max_abs_error), (1, 0, 6.0));
        assert_eq!(stats.worst_row(), Some((0, (36.0f64 / 64.0).sqrt())));
        let stats =
            error_stats(&[0.0; 32], &[0x80, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], &[1, 7], 32, 1.0, None);
        assert_eq!(stats.n_flushed_blocks, 1, "codes that are all zero lose nothing");
        assert_eq!(ErrorStats::default().worst_row(), None);
    }
}
