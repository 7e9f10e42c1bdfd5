//! The fast quantizer: as many blocks at a time as a vector has lanes, a block a lane, so that scales, searches and sums
//! need no work across lanes.
//!
//! One source for all processors, over [`Simd`]: AVX-512 and AVX2 where the processor has them, elsewhere the portable
//! lanes. Every operation is the reference's, in its order, so the bytes are the same; only the spelling of rounding
//! differs.

use super::{
    BLOCK, E2M1_MAX, E4M3_MAX, QuantizeConfig, ScaleRule, Weight, e4m3, max_rule, reference,
    simd::{self, Kernel, Simd},
};

/// The most lanes that a vector has.
pub(super) const MAX_LANES: usize = 16;

/// Blocks transposed: element `i` of every block side by side.
pub(super) type Columns = [[f32; MAX_LANES]; BLOCK];

/// As [`reference::quantize_rows`].
pub(super) fn quantize_rows<W: Weight>(
    weights: &[W],
    k: usize,
    global_scale: f32,
    config: &QuantizeConfig,
    codes: &mut [u8],
    block_scales: &mut [u8],
) {
    match W::bf16_bits(weights) {
        Some(bits) if config.rule == ScaleRule::Max && max_rule::applies(global_scale) => {
            max_rule::quantize(bits, global_scale, config, codes, block_scales);
        }
        _ if config.rule == ScaleRule::FourSix1536 => {
            reference::quantize_rows(weights, k, global_scale, config, codes, block_scales);
        }
        _ => simd::dispatch(Quantize { weights, k, gs: global_scale, config, codes, scales: block_scales }),
    }
}

struct Quantize<'a, W> {
    weights: &'a [W],
    k: usize,
    gs: f32,
    config: &'a QuantizeConfig<'a>,
    codes: &'a mut [u8],
    scales: &'a mut [u8],
}

impl<W: Weight> Kernel for Quantize<'_, W> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Self { weights, k, gs, config, codes, scales } = self;
        let Some(importance) = config.importance else {
            return quantize_run::<W, S, false>(weights, gs, config, &[], codes, scales);
        };
        let importance = transpose_importance(importance, S::LANES);
        let rows = weights.chunks_exact(k).zip(codes.chunks_exact_mut(k / 2)).zip(scales.chunks_exact_mut(k / BLOCK));
        for ((weights, codes), scales) in rows {
            quantize_run::<W, S, true>(weights, gs, config, &importance, codes, scales);
        }
    }
}

/// Blocks that follow each other, a vector at a time; the last few with zero blocks beside them.
#[inline(always)]
fn quantize_run<W: Weight, S: Simd, const WEIGHTED: bool>(
    weights: &[W],
    gs: f32,
    config: &QuantizeConfig,
    importance: &[Columns],
    codes: &mut [u8],
    scales: &mut [u8],
) {
    let uniform = [[1.0; MAX_LANES]; BLOCK];
    let groups =
        weights.chunks(S::LANES * BLOCK).zip(codes.chunks_mut(S::LANES * BLOCK / 2)).zip(scales.chunks_mut(S::LANES));
    for (group, ((weights, codes), scales)) in groups.enumerate() {
        let mut blocks = [[0.0; MAX_LANES]; BLOCK];
        transpose::<W, S>(weights, &mut blocks);
        let importance = if WEIGHTED { &importance[group] } else { &uniform };
        let chosen = choose_scales::<S, WEIGHTED>(&blocks, importance, gs, config);
        let words = pack::<S>(&blocks, gs, chosen);
        if scales.len() == S::LANES {
            S::store_codes(words, codes);
            S::store_bytes(chosen, scales);
        } else {
            let (mut whole_codes, mut whole_scales) = ([0; MAX_LANES * BLOCK / 2], [0; MAX_LANES]);
            S::store_codes(words, &mut whole_codes);
            S::store_bytes(chosen, &mut whole_scales);
            codes.copy_from_slice(&whole_codes[..codes.len()]);
            scales.copy_from_slice(&whole_scales[..scales.len()]);
        }
    }
}

/// Puts up to a vector of blocks side by side; lanes without a block stay as they are.
#[inline(always)]
pub(super) fn transpose<W: Weight, S: Simd>(weights: &[W], blocks: &mut Columns) {
    let whole = weights.get(..S::LANES * BLOCK);
    match (whole, whole.and_then(W::bf16_bits)) {
        (_, Some(bits)) => S::transpose_bf16(bits, blocks),
        // Known to be whole, this loop needs no checks.
        (Some(weights), None) => transpose_blocks(weights.chunks_exact(BLOCK).take(S::LANES), blocks),
        (None, _) => transpose_blocks(weights.chunks_exact(BLOCK), blocks),
    }
}

#[inline(always)]
fn transpose_blocks<'a, W: Weight>(weights: impl Iterator<Item = &'a [W]>, blocks: &mut Columns) {
    for (lane, block) in weights.enumerate() {
        for i in 0..BLOCK {
            blocks[i][lane] = block[i].widen();
        }
    }
}

/// `importance` `[k]` as the rows' blocks will be: one entry a vector of blocks.
pub(super) fn transpose_importance(importance: &[f32], n_lanes: usize) -> Vec<Columns> {
    let mut groups = vec![[[1.0; MAX_LANES]; BLOCK]; importance.len().div_ceil(n_lanes * BLOCK)];
    for (block, columns) in importance.chunks_exact(BLOCK).enumerate() {
        for (i, weight) in reference::block_importance(columns).into_iter().enumerate() {
            groups[block / n_lanes][i][block % n_lanes] = weight;
        }
    }
    groups
}

/// Scale codes of a vector of blocks.
#[inline(always)]
fn choose_scales<S: Simd, const WEIGHTED: bool>(
    blocks: &Columns,
    importance: &Columns,
    gs: f32,
    config: &QuantizeConfig,
) -> S::U {
    let mut amax = S::splat(0.0);
    for x in blocks {
        amax = S::max(S::abs(S::load(x)), amax);
    }
    let unrounded = S::div(amax, S::splat(E2M1_MAX * gs));
    let min_code = S::splat_u(u32::from(config.min_code()));
    let max_rule = round_scale::<S>(unrounded, min_code);
    let chosen = match config.rule {
        ScaleRule::Max | ScaleRule::FourSix1536 => max_rule,
        ScaleRule::FourSix => {
            let four = round_scale::<S>(S::mul(unrounded, S::splat(1.5)), min_code);
            better_of_two::<S, WEIGHTED>(blocks, importance, gs, max_rule, four)
        }
        ScaleRule::Mse => least_error::<S, WEIGHTED>(blocks, importance, gs, max_rule, min_code),
    };
    one_for_zero::<S>(unrounded, chosen)
}

/// Zero blocks, and those that are zero beside this global scale, get the scale 1.
#[inline(always)]
pub(super) fn one_for_zero<S: Simd>(unrounded: S::F, chosen: S::U) -> S::U {
    S::select_u(S::lt(S::splat(0.0), unrounded), chosen, S::splat_u(u32::from(e4m3::ONE)))
}

/// The E2M1 codes at these scales, elements 0..8 in the first word from the lowest nibble up, 8..16 in the second.
#[inline(always)]
fn pack<S: Simd>(blocks: &Columns, gs: f32, scales: S::U) -> [S::U; 2] {
    let step = step::<S>(scales, gs);
    let mut words = [S::splat_u(0); 2];
    for (half, word) in words.iter_mut().enumerate() {
        for x in &blocks[half * 8..half * 8 + 8] {
            let y = S::div(S::load(x), step);
            let (sum, magic) = round_e2m1::<S>(S::abs(y));
            *word = S::or(S::shr::<4>(*word), top_nibble::<S>(sum, magic, y));
        }
    }
    words
}

#[inline(always)]
fn better_of_two<S: Simd, const WEIGHTED: bool>(
    blocks: &Columns,
    importance: &Columns,
    gs: f32,
    six: S::U,
    four: S::U,
) -> S::U {
    let six_error = block_errors::<S, WEIGHTED, false>(blocks, importance, gs, six).0;
    let four_error = block_errors::<S, WEIGHTED, false>(blocks, importance, gs, four).0;
    S::select_u(S::lt(four_error, six_error), four, six)
}

/// `reference::least_error` in each lane; a lane that has stopped keeps its best.
#[inline(always)]
fn least_error<S: Simd, const WEIGHTED: bool>(
    blocks: &Columns,
    importance: &Columns,
    gs: f32,
    max_rule: S::U,
    min_code: S::U,
) -> S::U {
    let (mut best, mut best_error) = (max_rule, S::splat(f32::INFINITY));
    for above in (0..=u32::from(reference::CODES_ABOVE_MAX_RULE)).rev() {
        let codes = S::min_u(S::add_u(max_rule, S::splat_u(above)), S::splat_u(u32::from(e4m3::MAX_CODE)));
        let error = block_errors::<S, WEIGHTED, false>(blocks, importance, gs, codes).0;
        let better = S::le(error, best_error);
        best = S::select_u(better, codes, best);
        best_error = S::select(better, error, best_error);
    }
    let mut codes = max_rule;
    let mut searching = S::lt_u(min_code, codes);
    while S::any(searching) {
        codes = S::select_u(searching, S::sub_u(codes, S::splat_u(1)), codes);
        let (error, clipping) = block_errors::<S, WEIGHTED, true>(blocks, importance, gs, codes);
        let better = S::both(searching, S::le(error, best_error));
        best = S::select_u(better, codes, best);
        best_error = S::select(better, error, best_error);
        searching = S::except(searching, S::lt(best_error, clipping));
        searching = S::both(searching, S::lt_u(min_code, codes));
    }
    best
}

/// Errors of the blocks at these scales and, if asked for, what clipping contributes: `reference::block_error`.
#[inline(always)]
fn block_errors<S: Simd, const WEIGHTED: bool, const CLIPPING: bool>(
    blocks: &Columns,
    importance: &Columns,
    gs: f32,
    codes: S::U,
) -> (S::F, S::F) {
    let step = step::<S>(codes, gs);
    let (mut error, mut clipping) = (S::splat(0.0), S::splat(0.0));
    for (x, weight) in blocks.iter().zip(importance) {
        let y = S::div(S::abs(S::load(x)), step);
        let (sum, magic) = round_e2m1::<S>(y);
        let difference = S::sub(S::sub(sum, magic), y);
        let mut cost = S::mul(difference, difference);
        if WEIGHTED {
            cost = S::mul(S::load(weight), cost);
        }
        error = S::add(error, cost);
        if CLIPPING {
            let clipped = S::select(S::lt(S::splat(E2M1_MAX), y), cost, S::splat(0.0));
            clipping = S::add(clipping, clipped);
        }
    }
    let scale = decode::<S>(codes);
    let square = S::mul(scale, scale);
    (S::mul(error, square), S::mul(clipping, square))
}

/// Rounds a magnitude to the E2M1 grid. Its step is 0.5 below 2, then 1, then 2; a number whose last mantissa bit is worth
/// one step (2^22 times the power of two below the magnitude) is added, and the processor rounds to nearest, ties to even,
/// which are E2M1's even codes. Returns the sum and the number that was added.
#[inline(always)]
pub(super) fn round_e2m1<S: Simd>(magnitude: S::F) -> (S::F, S::F) {
    let a = S::min(magnitude, S::splat(E2M1_MAX));
    let exponent = S::and(S::bits(S::max(a, S::splat(1.0))), S::splat_u(0x7F80_0000));
    let magic = S::from_bits(S::add_u(exponent, S::splat_u(22 << 23)));
    (S::add(a, magic), magic)
}

/// `e2m1::encode(y)` in the highest four bits, from what [`round_e2m1`] gives for |y|: the steps above zero, two codes more
/// for each doubling of the step, and the sign.
#[inline(always)]
fn top_nibble<S: Simd>(sum: S::F, magic: S::F, y: S::F) -> S::U {
    let n_steps = S::sub_u(S::bits(sum), S::bits(magic));
    let doublings_twice = S::sub_u(S::shr::<22>(S::bits(magic)), S::splat_u(2 * (127 + 22)));
    let sign = S::select_u(S::lt(y, S::splat(0.0)), S::splat_u(1 << 31), S::splat_u(0));
    S::or(S::shl::<28>(S::add_u(n_steps, doublings_twice)), sign)
}

#[inline(always)]
fn step<S: Simd>(codes: S::U, gs: f32) -> S::F {
    S::mul(decode::<S>(codes), S::splat(gs))
}

/// `e4m3::decode` of positive codes.
#[inline(always)]
pub(super) fn decode<S: Simd>(codes: S::U) -> S::F {
    let normal = S::from_bits(S::shl::<20>(S::add_u(codes, S::splat_u(120 << 3))));
    let subnormal = S::mul(S::to_float(codes), S::splat(e4m3::MIN_POSITIVE));
    S::select(S::lt_u(codes, S::splat_u(8)), subnormal, normal)
}

/// `scale::round`.
#[inline(always)]
pub(super) fn round_scale<S: Simd>(unrounded: S::F, min_code: S::U) -> S::U {
    let x = S::min(S::max(unrounded, S::splat(e4m3::MIN_POSITIVE)), S::splat(E4M3_MAX));
    let bits = S::bits(x);
    let odd = S::and(S::shr::<20>(bits), S::splat_u(1));
    let normal = S::shr::<20>(S::add_u(S::add_u(bits, S::splat_u(0x7_FFFF)), odd));
    let normal = S::sub_u(normal, S::splat_u(120 << 3));
    let subnormal = S::sub_u(S::bits(S::add(x, S::splat(16384.0))), S::splat_u(16384f32.to_bits()));
    let code = S::select_u(S::lt(x, S::splat(e4m3::MIN_POSITIVE * 8.0)), subnormal, normal);
    S::max_u(code, min_code)
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::*;

    const RULES: [ScaleRule; 3] = [ScaleRule::Max, ScaleRule::FourSix, ScaleRule::Mse];

    fn assert_equal_to_reference<W: Weight + std::fmt::Debug>(w: &[W], k: usize, gs: f32, importance: Option<&[f32]>) {
        for (rule, kernel_safe) in RULES.into_iter().flat_map(|rule| [(rule, false), (rule, true)]) {
            let config = QuantizeConfig { rule, importance, kernel_safe };
            let (mut codes, mut scales) = (vec![0; w.len() / 2], vec![0; w.len() / BLOCK]);
            reference::quantize_rows(w, k, gs, &config, &mut codes, &mut scales);
            for level in simd::levels() {
                let (mut fast_codes, mut fast_scales) = (vec![9; codes.len()], vec![9; scales.len()]);
                let (codes_out, scales_out) = (&mut fast_codes[..], &mut fast_scales[..]);
                let kernel = Quantize { weights: w, k, gs, config: &config, codes: codes_out, scales: scales_out };
                simd::run_at(level, kernel);
                for b in 0..scales.len() {
                    let block = &w[b * BLOCK..(b + 1) * BLOCK];
                    let at = b * 8..(b + 1) * 8;
                    assert_eq!(fast_scales[b], scales[b], "{level:?} {config:?} block {b} gs {gs}: {block:?}");
                    assert_eq!(fast_codes[at.clone()], codes[at], "{level:?} {config:?} block {b} gs {gs}: {block:?}");
                }
            }
        }
    }

    #[test]
    fn every_bf16_pattern_is_quantized_as_by_the_reference() {
        let finite: Vec<bf16> =
            (0..=u16::MAX).map(bf16::from_bits).map(|w| if w.is_finite() { w } else { bf16::ONE }).collect();
        for gs in [f32::MIN_POSITIVE, 1e-20, 1e-4, 1.0, 1.26e35] {
            assert_equal_to_reference(&finite, 256, gs, None);
        }
        // Each pattern beside others of its size, and each as the largest of its block.
        for top in [1.0, 0.037, 6.0] {
            let mixed: Vec<bf16> = (0..=u16::MAX)
                .map(|i| if i % 16 == 7 { bf16::from_f32(top) } else { finite[usize::from(i)] })
                .collect();
            assert_equal_to_reference(&mixed, 16, 1e-3, None);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn random_rows_are_quantized_as_by_the_reference(
            blocks in 1..40usize,
            rows in 1..4usize,
            values in prop::collection::vec(-1f32..1.0, 16 * 40 * 3),
            importance in prop::collection::vec(prop_oneof![Just(0f32), 0f32..1.0, Just(1e-3f32)], 16 * 40),
            log_gs in -12f32..0.0,
            zero_every in 2..50usize,
        ) {
            let k = blocks * BLOCK;
            let mut values = values[..rows * k].to_vec();
            values.iter_mut().enumerate().for_each(|(i, v)| *v = if (i / 16).is_multiple_of(zero_every) { 0.0 } else { v.powi(3) });
            let gs = log_gs.exp();
            assert_equal_to_reference(&values, k, gs, None);
            assert_equal_to_reference(&values, k, gs, Some(&importance[..k]));
            let narrow: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
            assert_equal_to_reference(&narrow, k, gs, Some(&importance[..k]));
        }
    }
}
