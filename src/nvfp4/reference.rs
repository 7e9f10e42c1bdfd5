//! The specification of the quantizer, one block at a time and as plain as it can be said. The fast paths produce the same
//! bytes; where the order of F32 operations matters (the error of a candidate scale) this file fixes it.

use super::{BLOCK, E2M1_MAX, QuantizeConfig, ScaleRule, Weight, e2m1, e4m3, scale};

/// Above the code of the max rule no scale can be better: eight codes up is twice the scale, whose grid is a subset of
/// this one's for everything that the max rule's scale does not clip. Seven codes up are worth trying.
pub(super) const CODES_ABOVE_MAX_RULE: u8 = 7;

/// As [`super::quantize_rows`], on one thread.
pub fn quantize_rows<W: Weight>(
    weights: &[W],
    k: usize,
    global_scale: f32,
    config: &QuantizeConfig,
    codes: &mut [u8],
    block_scales: &mut [u8],
) {
    let blocks = weights.chunks_exact(BLOCK).zip(codes.chunks_exact_mut(BLOCK / 2)).zip(block_scales);
    for (block, ((weights, codes), block_scale)) in blocks.enumerate() {
        let weights = std::array::from_fn(|i| weights[i].widen());
        let column = block * BLOCK % k;
        let importance = config.importance.map_or([1.0; BLOCK], |w| block_importance(&w[column..column + BLOCK]));
        *block_scale = quantize_block(&weights, &importance, global_scale, config, codes);
    }
}

/// Quantizes one block into 8 bytes of codes; returns the code of its scale.
fn quantize_block(
    weights: &[f32; BLOCK],
    importance: &[f32; BLOCK],
    global_scale: f32,
    config: &QuantizeConfig,
    codes: &mut [u8],
) -> u8 {
    if config.rule == ScaleRule::FourSix1536 {
        return fouroversix_block(weights, importance, global_scale, config.kernel_safe, codes);
    }
    let unrounded = scale::unrounded(block_amax(weights), global_scale);
    let min_code = config.min_code();
    let block_scale = if unrounded == 0.0 {
        // A zero block, or one that is zero beside this global scale: ModelOpt gives it the scale 1.
        e4m3::ONE
    } else {
        let max_rule = scale::round(unrounded, min_code);
        match config.rule {
            ScaleRule::Max | ScaleRule::FourSix1536 => max_rule,
            ScaleRule::FourSix => {
                let four = scale::round(unrounded * 1.5, min_code);
                let error = |code| block_error(&scaled(weights, code, global_scale), importance, code).0;
                if error(four) < error(max_rule) { four } else { max_rule }
            }
            ScaleRule::Mse => least_error(weights, importance, global_scale, max_rule, min_code),
        }
    };
    pack(&scaled(weights, block_scale, global_scale), codes);
    block_scale
}

/// The scale code with the least error among `min_code..=126`; the smaller of equals.
///
/// From the top down, until clipping the largest weights alone costs more than the best scale found: smaller scales clip
/// more.
fn least_error(weights: &[f32; BLOCK], importance: &[f32; BLOCK], gs: f32, max_rule: u8, min_code: u8) -> u8 {
    let top = (max_rule + CODES_ABOVE_MAX_RULE).min(e4m3::MAX_CODE);
    let (mut best, mut best_error) = (top, f32::INFINITY);
    for code in (min_code..=top).rev() {
        let (error, clipping) = block_error(&scaled(weights, code, gs), importance, code);
        if error <= best_error {
            (best, best_error) = (code, error);
        }
        // Not above the max rule's code: rounding may make even that one clip a little.
        if code < max_rule && clipping > best_error {
            break;
        }
    }
    best
}

/// The weighted squared error of a block at a scale, in units of the global scale squared (so that tensors of tiny numbers
/// do not underflow), and the part of it that comes from clipping at 6.
fn block_error(scaled: &[f32; BLOCK], importance: &[f32; BLOCK], code: u8) -> (f32, f32) {
    let (mut error, mut clipping) = (0.0, 0.0);
    for (y, weight) in scaled.iter().zip(importance) {
        let difference = e2m1::decode(e2m1::encode(*y)) - y;
        let cost = weight * (difference * difference);
        error += cost;
        clipping += if y.abs() > E2M1_MAX { cost } else { 0.0 };
    }
    let square = e4m3::decode(code) * e4m3::decode(code);
    (error * square, clipping * square)
}

/// 4/6 in the arithmetic of fouroversix' `quantize.pytorch.reference` (commit dadfad69): reciprocals where we divide, and
/// the scale 0 for a block that underflows. amax / 1536 * 1536 is amax exactly, so the global scale is enough.
fn fouroversix_block(
    weights: &[f32; BLOCK],
    importance: &[f32; BLOCK],
    global_scale: f32,
    kernel_safe: bool,
    codes: &mut [u8],
) -> u8 {
    const RANGE: f32 = E2M1_MAX * 256.0;
    let amax = global_scale * RANGE;
    let encode_scale = RANGE / amax;
    let decode_scale = 1.0 / encode_scale;
    let unrounded = block_amax(weights) / E2M1_MAX * encode_scale;
    let candidate = |unrounded: f32| {
        let code = e4m3::encode(unrounded);
        let code = if kernel_safe && unrounded > 0.0 { code.max(super::KERNEL_SAFE_MIN_CODE) } else { code };
        let reciprocal = 1.0 / (decode_scale * e4m3::decode(code));
        let scaled = weights.map(|x| if code == 0 { 0.0 } else { x * reciprocal });
        let cost = |i: usize| {
            let difference = unsaturated(scaled[i]) * e4m3::decode(code) * amax / RANGE - weights[i];
            importance[i] * (difference * difference)
        };
        // The order in which torch's `sum` adds sixteen numbers with eight lanes; it decides ties.
        let error = (0..BLOCK / 2).fold(0.0, |sum, i| sum + (cost(i) + cost(i + BLOCK / 2)));
        (code, scaled, error)
    };
    let (six, four) = (candidate(unrounded), candidate(unrounded * 1.5));
    let (code, scaled, _) = if four.2 < six.2 { four } else { six };
    // Its packer writes 8 as 0x8, minus zero. Only scale codes 1 and 2, never kernel-safe ones, let a weight reach 7.
    let nibble = |y: f32| if y.abs() >= 7.0 { 0x8 } else { e2m1::encode(y) };
    for (byte, pair) in codes.iter_mut().zip(scaled.chunks_exact(2)) {
        *byte = nibble(pair[0]) | nibble(pair[1]) << 4;
    }
    code
}

/// fouroversix rounds without a ceiling: from 7 up to 8, as if E2M1 went on.
fn unsaturated(y: f32) -> f32 {
    if y.abs() >= 7.0 { 8f32.copysign(y) } else { e2m1::decode(e2m1::encode(y)) }
}

/// The importance of a block's columns. Where none matters all do: any scale would have error 0, and the weights be lost.
pub(super) fn block_importance(columns: &[f32]) -> [f32; BLOCK] {
    if columns.iter().all(|&w| w == 0.0) { [1.0; BLOCK] } else { std::array::from_fn(|i| columns[i]) }
}

fn block_amax(weights: &[f32; BLOCK]) -> f32 {
    weights.iter().fold(0.0, |max, w| max.max(w.abs()))
}

/// The weights in units of their step: true division, as ModelOpt.
fn scaled(weights: &[f32; BLOCK], code: u8, global_scale: f32) -> [f32; BLOCK] {
    let step = e4m3::decode(code) * global_scale;
    weights.map(|x| x / step)
}

/// Two codes a byte, the even column in the low nibble.
fn pack(scaled: &[f32; BLOCK], codes: &mut [u8]) {
    for (byte, pair) in codes.iter_mut().zip(scaled.chunks_exact(2)) {
        *byte = e2m1::encode(pair[0]) | e2m1::encode(pair[1]) << 4;
    }
}
