//! Each weight to its nearest code, and the error figures of the result with it.

use rayon::prelude::*;

use super::{
    BLOCK, ErrorStats, QuantizeConfig, ScaleRule, Weight, check_shape, error_stats,
    max_rule::{self, Steps},
    quantize_rows, rows_per_task,
};

/// What can be known of a matrix before its first weight is rounded.
#[derive(Debug)]
pub struct NearestPlan<'a> {
    config: QuantizeConfig<'a>,
    global_scale: f32,
    /// For the rule that needs no arithmetic a weight.
    steps: Option<Steps>,
}

impl<'a> NearestPlan<'a> {
    /// A plan for matrices with this global scale.
    pub fn new(config: QuantizeConfig<'a>, global_scale: f32) -> Self {
        let is_counted =
            config.rule == ScaleRule::Max && config.importance.is_none() && max_rule::applies(global_scale);
        Self { config, global_scale, steps: is_counted.then(|| Steps::new(global_scale)) }
    }

    /// The rule and its weights.
    pub fn config(&self) -> &QuantizeConfig<'a> {
        &self.config
    }

    /// Whether a single BF16 row costs no more than one of many.
    pub fn begins_at_once(&self) -> bool {
        self.steps.is_some()
    }

    /// As [`quantize_rows`]; returns the [`error_stats`]. One pass for BF16 weights and [`ScaleRule::Max`].
    ///
    /// # Panics
    /// As [`quantize_rows`].
    pub fn quantize<W: Weight>(
        &self,
        weights: &[W],
        k: usize,
        codes: &mut [u8],
        block_scales: &mut [u8],
    ) -> ErrorStats {
        let Self { config, global_scale, steps } = self;
        check_shape(weights.len(), k, codes.len(), block_scales.len(), config.importance);
        let (Some(steps), Some(bits)) = (steps, W::bf16_bits(weights).filter(|_| k > 0)) else {
            quantize_rows(weights, k, *global_scale, config, codes, block_scales);
            return error_stats(weights, codes, block_scales, k, *global_scale, config.importance);
        };
        let rows = rows_per_task(k);
        let parts = bits
            .par_chunks(rows * k)
            .zip(codes.par_chunks_mut(rows * k / 2))
            .zip(block_scales.par_chunks_mut(rows * k / BLOCK))
            .map(|((bits, codes), scales)| max_rule::quantize_measured(bits, k, steps, config, codes, scales));
        let mut stats = ErrorStats::default();
        parts.collect::<Vec<_>>().iter().for_each(|part| stats.merge(part));
        stats
    }
}
