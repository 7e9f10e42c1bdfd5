//! NVFP4, the format and its quantizer: 16 weights share one E4M3 scale, a tensor shares one F32 scale, a weight is four
//! bits of E2M1: `w = e2m1(code) * e4m3(block_scale) * global_scale`.
//!
//! Input: rows of BF16, FP16 or F32 weights. Output: ModelOpt's checkpoint layout, `codes` U8 `[n, k/2]` (low nibble =
//! even column) and `block_scales` E4M3 `[n, k/16]`, row-major. [`reference`] is the specification, one block at a time;
//! [`quantize_rows`] computes the same bytes many blocks at a time. Nothing here knows files or tensors' names.

mod cholesky;
pub mod e2m1;
pub mod e4m3;
mod error;
mod error_rows;
mod gemm;
pub mod ggml;
mod gptq;
mod gptq_block;
mod gptq_plan;
mod hessian;
mod lanes;
pub mod marlin;
mod max_rule;
mod nearest;
pub mod quality;
pub mod reference;
mod row_shift;
mod scale;
mod simd;
#[cfg(target_arch = "x86_64")]
mod simd_avx2;
#[cfg(target_arch = "x86_64")]
mod simd_avx512;
mod weight;

pub use error::{ErrorStats, RowError, RowSums, error_stats, figures_power};
pub use gptq::gptq_rows;
pub use gptq_plan::{GptqConfig, GptqPlan};
pub use hessian::{Hessian, importance_of_columns, importance_of_states};
pub use nearest::NearestPlan;
pub use row_shift::row_shift;
pub use scale::{QuantizeConfig, ScaleRule, global_scale};
pub use weight::{Weight, amax, amax_of_row, find_non_finite};

use rayon::prelude::*;

/// Weights that share a block scale.
pub const BLOCK: usize = 16;
/// The largest E2M1 magnitude.
pub const E2M1_MAX: f32 = 6.0;
/// The largest E4M3 magnitude.
pub const E4M3_MAX: f32 = 448.0;

/// The smallest block-scale code that every kernel reads as it is: 2^-6, the smallest normal E4M3. vLLM's Marlin flushes
/// smaller scales (codes 1..7) to zero whenever the tensor's largest block scale is above 224, that is, always with
/// [`global_scale`].
pub const KERNEL_SAFE_MIN_CODE: u8 = 0x08;

/// Rows are given to threads in groups of about this many weights.
const WEIGHTS_PER_TASK: usize = 1 << 18;

/// Quantizes `weights` `[n, k]` into `codes` `[n, k/2]` and `block_scales` `[n, k/16]`.
///
/// `global_scale` is [`ScaleRule::global_scale`] of the largest magnitude of the tensor, or of all tensors that a runtime
/// fuses with it. Rows are spread over rayon's threads; the bytes do not depend on them.
///
/// # Panics
/// `k` is not a multiple of 16, or a slice does not have the length that its shape says: the caller validates shapes.
pub fn quantize_rows<W: Weight>(
    weights: &[W],
    k: usize,
    global_scale: f32,
    config: &QuantizeConfig,
    codes: &mut [u8],
    block_scales: &mut [u8],
) {
    check_shape(weights.len(), k, codes.len(), block_scales.len(), config.importance);
    if k == 0 {
        return;
    }
    let rows = rows_per_task(k);
    weights
        .par_chunks(rows * k)
        .zip(codes.par_chunks_mut(rows * k / 2))
        .zip(block_scales.par_chunks_mut(rows * k / BLOCK))
        .for_each(|((weights, codes), scales)| lanes::quantize_rows(weights, k, global_scale, config, codes, scales));
}

/// Decodes `codes` `[n, k/2]` and `block_scales` `[n, k/16]` into `out` `[n, k]`. The product of code and block scale is
/// exact, so each weight is rounded once.
///
/// # Panics
/// As [`quantize_rows`].
pub fn decode_rows(codes: &[u8], block_scales: &[u8], k: usize, global_scale: f32, out: &mut [f32]) {
    check_shape(out.len(), k, codes.len(), block_scales.len(), None);
    if k == 0 {
        return;
    }
    let rows = rows_per_task(k);
    out.par_chunks_mut(rows * k)
        .zip(codes.par_chunks(rows * k / 2))
        .zip(block_scales.par_chunks(rows * k / BLOCK))
        .for_each(|((out, codes), scales)| {
            for ((out, codes), &scale) in out.chunks_exact_mut(BLOCK).zip(codes.chunks_exact(BLOCK / 2)).zip(scales) {
                decode_block(codes, scale, global_scale, out);
            }
        });
}

/// One block: 8 bytes of codes to 16 weights.
fn decode_block(codes: &[u8], block_scale: u8, global_scale: f32, out: &mut [f32]) {
    let block_scale = e4m3::decode(block_scale);
    for (pair, &byte) in out.chunks_exact_mut(2).zip(codes) {
        pair[0] = e2m1::decode(byte & 0xF) * block_scale * global_scale;
        pair[1] = e2m1::decode(byte >> 4) * block_scale * global_scale;
    }
}

fn rows_per_task(k: usize) -> usize {
    WEIGHTS_PER_TASK.div_ceil(k)
}

fn check_shape(n_weights: usize, k: usize, n_code_bytes: usize, n_scales: usize, importance: Option<&[f32]>) {
    assert!(k.is_multiple_of(BLOCK), "k = {k} is not a multiple of {BLOCK}");
    assert!(n_weights == 0 || (k > 0 && n_weights.is_multiple_of(k)), "{n_weights} weights are no rows of {k}");
    assert_eq!((n_code_bytes, n_scales), (n_weights / 2, n_weights / BLOCK), "codes and scales of {n_weights} weights");
    assert!(importance.is_none_or(|w| w.len() == k), "importance is not one value a column");
}
