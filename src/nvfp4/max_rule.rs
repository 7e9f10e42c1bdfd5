//! BF16 weights by the max rule, with integers: at a given block scale, the code of a magnitude is the number of seven
//! thresholds that it reaches, and the bits of BF16 magnitudes order as the magnitudes do. All blocks with the same scale
//! code share their thresholds, so that the divisions of the reference are made once a scale code, not once a weight.

use super::{
    BLOCK, E2M1_MAX, E4M3_MAX, ErrorStats, QuantizeConfig, e4m3,
    error_rows::{BLOCKS_PER_RUN, Decoded, RowFigures, Run},
    lanes,
    simd::{self, Kernel, Simd},
};

/// Whether no quotient of a BF16 number that is not zero and a step rounds to zero: such a number would lose its sign.
pub(super) fn applies(global_scale: f32) -> bool {
    // The smallest BF16 number is 2^-133, the smallest F32 number 2^-149.
    global_scale * E4M3_MAX < 65536.0
}

/// As [`super::reference::quantize_rows`] of BF16 numbers, given by their bits, with [`super::ScaleRule::Max`].
pub(super) fn quantize(bits: &[u16], gs: f32, config: &QuantizeConfig, codes: &mut [u8], scales: &mut [u8]) {
    let (steps, min_code) = (&Steps::new(gs), config.min_code());
    simd::dispatch(MaxRule::<false> { bits, k: bits.len().max(1), min_code, steps, codes, scales });
}

/// [`quantize`] of rows of `k`, and their error figures.
pub(super) fn quantize_measured(
    bits: &[u16],
    k: usize,
    steps: &Steps,
    config: &QuantizeConfig,
    codes: &mut [u8],
    scales: &mut [u8],
) -> ErrorStats {
    let min_code = config.min_code();
    simd::dispatch(MaxRule::<true> { bits, k, min_code, steps, codes, scales })
}

struct MaxRule<'a, const MEASURED: bool> {
    bits: &'a [u16],
    k: usize,
    min_code: u8,
    steps: &'a Steps,
    codes: &'a mut [u8],
    scales: &'a mut [u8],
}

impl<const MEASURED: bool> Kernel for MaxRule<'_, MEASURED> {
    type Out = ErrorStats;

    #[inline(always)]
    fn run<S: Simd>(self) -> ErrorStats {
        let Self { bits, k, min_code, steps, codes, scales } = self;
        let (min_code, largest_step) = (S::splat_u(u32::from(min_code)), S::splat(E2M1_MAX * steps.gs));
        let rule = Rule::<S, MEASURED> { min_code, largest_step, power: S::splat(steps.power), steps };
        let mut stats = ErrorStats::default();
        let rows = bits.chunks_exact(k).zip(codes.chunks_exact_mut(k / 2)).zip(scales.chunks_exact_mut(k / BLOCK));
        for ((bits, codes), scales) in rows {
            let mut figures = RowFigures::<S>::new();
            rule.quantize_row(bits, codes, scales, &mut figures);
            if MEASURED {
                figures.finish(k, false, steps.power, &mut stats);
            }
        }
        stats
    }
}

/// Blocks at a time.
const GROUP: usize = BLOCKS_PER_RUN;
/// Their bytes of codes.
const GROUP_CODES: usize = GROUP * BLOCK / 2;

struct Rule<'a, S: Simd, const MEASURED: bool> {
    min_code: S::U,
    largest_step: S::F,
    power: S::F,
    steps: &'a Steps,
}

impl<S: Simd, const MEASURED: bool> Rule<'_, S, MEASURED> {
    #[inline(always)]
    fn quantize_row(&self, bits: &[u16], codes: &mut [u8], scales: &mut [u8], figures: &mut RowFigures<S>) {
        let (groups, rest) = bits.as_chunks::<BLOCK>().0.as_chunks::<GROUP>();
        let (codes, rest_codes) = codes.as_chunks_mut::<GROUP_CODES>();
        let (scales, rest_scales) = scales.as_chunks_mut::<GROUP>();
        // All scales first: the code of a weight has to wait long for its scale.
        for (blocks, scales) in groups.iter().zip(&mut *scales) {
            self.find_scales(blocks, scales);
        }
        for ((blocks, codes), scales) in groups.iter().zip(codes).zip(scales) {
            // Of the row that probably follows.
            S::prefetch::<{ GROUP * BLOCK }>(blocks.as_ptr().cast::<u16>().wrapping_add(bits.len()));
            self.quantize(blocks, scales, codes, figures);
        }
        if rest.is_empty() {
            return;
        }
        // With blocks of zeros, which add nothing to the figures.
        let (mut blocks, mut codes, mut scales) = ([[0; BLOCK]; GROUP], [0; GROUP_CODES], [0; GROUP]);
        blocks[..rest.len()].copy_from_slice(rest);
        self.find_scales(&blocks, &mut scales);
        self.quantize(&blocks, &scales, &mut codes, figures);
        rest_codes.copy_from_slice(&codes[..rest_codes.len()]);
        rest_scales.copy_from_slice(&scales[..rest_scales.len()]);
    }

    // No closures around vectors: the compiler may leave one outside the function that has the features.
    #[inline(always)]
    fn find_scales(&self, blocks: &[[u16; BLOCK]; GROUP], scales: &mut [u8; GROUP]) {
        const { assert!(GROUP.is_multiple_of(S::LANES)) };
        for (blocks, scales) in blocks.chunks_exact(S::LANES).zip(scales.chunks_exact_mut(S::LANES)) {
            let unrounded = S::div(S::from_bits(S::largest_of_blocks(blocks)), self.largest_step);
            let rounded = lanes::round_scale::<S>(unrounded, self.min_code);
            S::store_bytes(lanes::one_for_zero::<S>(unrounded, rounded), scales);
        }
    }

    #[inline(always)]
    fn quantize(
        &self,
        blocks: &[[u16; BLOCK]; GROUP],
        scales: &[u8; GROUP],
        codes: &mut [u8; GROUP_CODES],
        figures: &mut RowFigures<S>,
    ) {
        let mut run = Run::<S>::new();
        let fours = blocks.as_chunks::<4>().0.iter().zip(scales.as_chunks::<4>().0).zip(codes.as_chunks_mut().0);
        for ((blocks, scales), codes) in fours {
            let mut pairs = [S::zero_block(); 4];
            // As one word, so that indices do not pass through vector registers.
            let scales = u32::from_le_bytes(*scales);
            for i in 0..4 {
                let step = &self.steps.of_scale[(scales >> (8 * i)) as usize % N_CODES];
                let bits = S::load_block(&blocks[i]);
                let magnitudes = S::magnitudes(bits);
                let mut found = S::zero_block();
                for below in &step.below {
                    found = S::add_above(found, magnitudes, below);
                }
                if MEASURED {
                    run.add(magnitudes, found, &step.values, &step.limit, self.power);
                }
                pairs[i] = S::pair_signed(found, bits);
            }
            S::store_pairs(pairs, codes);
        }
        if MEASURED {
            figures.add_run(&run, codes, scales);
        }
    }
}

/// Scale codes: 0 is never given, 127 is not a number.
const N_CODES: usize = 128;

/// What blocks with the same scale code share. Magnitudes are BF16 bits, each once for every place in a block, as vectors
/// want them.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Step {
    /// The largest that are still below each of the seven codes above zero.
    below: [[u16; BLOCK]; 7],
    /// The largest that does not saturate.
    limit: [u16; BLOCK],
    /// The values of the E2M1 magnitudes, times [`Steps::power`].
    values: [f32; 8],
}

#[derive(Debug)]
pub(super) struct Steps {
    of_scale: Box<[Step; N_CODES]>,
    /// The global scale.
    gs: f32,
    /// As [`Decoded::power`].
    power: f32,
}

impl Steps {
    pub(super) fn new(gs: f32) -> Self {
        let mut of_scale = vec![Step::default(); N_CODES];
        let Decoded { values, power } = Decoded::new(gs);
        for (scale, found) in (1..=e4m3::MAX_CODE).zip(&mut of_scale[1..]) {
            let step = e4m3::decode(scale) * gs;
            // The middles between neighbours; those that go to the lower, even, one are reached only from above.
            let reached: [fn(f32) -> bool; 7] =
                [|y| y > 0.25, |y| y >= 0.75, |y| y > 1.25, |y| y >= 1.75, |y| y > 2.5, |y| y >= 3.5, |y| y > 5.0];
            let middles = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
            for ((below, middle), reached) in found.below.iter_mut().zip(middles).zip(reached) {
                *below = [last_below(middle, step, reached); BLOCK];
            }
            found.values = values[usize::from(scale)];
            found.limit = [last_within(found.values[7], power); BLOCK];
        }
        let of_scale = of_scale.into_boxed_slice().try_into();
        Self { of_scale: of_scale.unwrap_or_else(|_| unreachable!("the vector has this length")), gs, power }
    }
}

/// The largest BF16 magnitude that times `power` is not above `limit`.
fn last_within(limit: f32, power: f32) -> u16 {
    let is_within = |bits: u16| f32::from_bits(u32::from(bits) << 16) * power <= limit;
    // The quotient is a rounding away.
    let mut bits = ((limit / power).to_bits() >> 16) as u16;
    while is_within(bits + 1) {
        bits += 1;
    }
    while !is_within(bits) {
        bits -= 1;
    }
    bits
}

/// The largest BF16 magnitude that does not reach `middle` steps.
fn last_below(middle: f32, step: f32, reached: fn(f32) -> bool) -> u16 {
    // The product is a rounding away from the number that is sought, the grid of BF16 2^16 roundings wide: of the grid's
    // numbers, the one below the product and the next are in doubt.
    let below = ((middle * step).to_bits() >> 16) as u16;
    let is_reached = |bits: u16| reached(f32::from_bits(u32::from(bits) << 16) / step);
    if is_reached(below) {
        below - 1
    } else if is_reached(below + 1) {
        below
    } else {
        below + 1
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::*;
    use crate::nvfp4::{ScaleRule, e2m1, error_rows::ErrorRows, reference};

    #[test]
    fn thresholds_part_all_bf16_magnitudes_as_division_and_encoding_do() {
        for gs in [f32::MIN_POSITIVE, 3.1e-38, 1e-20, 7.44e-5, 1.0, 97.3, 146.2] {
            assert!(applies(gs));
            let steps = Steps::new(gs);
            for scale in (1..=e4m3::MAX_CODE).filter(|scale| gs != 1.0 || scale % 8 == 5) {
                let step = e4m3::decode(scale) * gs;
                for bits in 0..0x7F80u16 {
                    let found = steps.of_scale[usize::from(scale)].below.iter().filter(|t| bits > t[0]).count();
                    let expected = e2m1::encode(f32::from_bits(u32::from(bits) << 16) / step);
                    assert_eq!(found, usize::from(expected), "gs {gs} scale {scale} bits {bits:#x}");
                }
            }
        }
    }

    fn assert_equal_to_reference(bits: &[u16], gs: f32) {
        let weights: Vec<bf16> = bits.iter().map(|&bits| bf16::from_bits(bits)).collect();
        for (kernel_safe, level) in simd::levels().flat_map(|level| [(false, level), (true, level)]) {
            let config = QuantizeConfig { rule: ScaleRule::Max, importance: None, kernel_safe };
            let (mut codes, mut scales) = (vec![0; bits.len() / 2], vec![0; bits.len() / BLOCK]);
            reference::quantize_rows(&weights, BLOCK, gs, &config, &mut codes, &mut scales);
            let (mut fast_codes, mut fast_scales) = (vec![9; codes.len()], vec![9; scales.len()]);
            let (steps, min_code) = (&Steps::new(gs), config.min_code());
            let (codes_out, scales_out) = (&mut fast_codes[..], &mut fast_scales[..]);
            let whole = bits.len();
            let kernel = MaxRule::<false> { bits, k: whole, min_code, steps, codes: codes_out, scales: scales_out };
            simd::run_at(level, kernel);
            assert_eq!((&fast_scales, &fast_codes), (&scales, &codes), "{level:?} gs {gs} kernel-safe {kernel_safe}");

            // One row, and rows of which each ends within a group.
            let n_blocks = bits.len() / BLOCK;
            for k in [whole, BLOCK * (1..=23).rev().find(|n| n_blocks.is_multiple_of(*n)).unwrap()] {
                fast_codes.fill(9);
                fast_scales.fill(9);
                let (codes_out, scales_out) = (&mut fast_codes[..], &mut fast_scales[..]);
                let kernel = MaxRule::<true> { bits, k, min_code, steps, codes: codes_out, scales: scales_out };
                let stats = simd::run_at(level, kernel);
                assert_eq!((&fast_scales, &fast_codes), (&scales, &codes), "{level:?} gs {gs} rows of {k}");
                let (codes, scales) = (&codes[..], &scales[..]);
                let plain = ErrorRows { weights: &weights, codes, scales, k, gs, importance: None };
                let plain = simd::run_at(simd::Level::Portable, plain);
                assert_eq!(format!("{stats:?}"), format!("{plain:?}"), "{level:?} gs {gs} rows of {k}");
            }
        }
    }

    #[test]
    fn every_bf16_pattern_is_quantized_as_by_the_reference() {
        let finite: Vec<u16> = (0..=u16::MAX).filter(|bits| bits & 0x7F80 != 0x7F80).collect();
        for gs in [f32::MIN_POSITIVE, 1e-20, 7.44e-5, 1.0, 146.0] {
            assert_equal_to_reference(&finite, gs);
        }
        // Each pattern beside a number that sets the scale of its block.
        for top in [1.0, 0.037, 6.0] {
            let top = bf16::from_f32(top).to_bits();
            let mixed: Vec<u16> = finite.chunks(15).flat_map(|some| [&[top], some].concat()).collect();
            assert_equal_to_reference(&mixed[..mixed.len() / BLOCK * BLOCK], 1e-3);
        }
    }

    proptest! {
        #[test]
        fn random_blocks_are_quantized_as_by_the_reference(
            blocks in prop::collection::vec(prop::array::uniform16(-1f32..1.0), 1..70),
            log_gs in -80f32..5.0,
            spread in 1..4i32,
        ) {
            let gs = log_gs.exp();
            let bits: Vec<u16> =
                blocks.as_flattened().iter().map(|x| bf16::from_f32(x.powi(2 * spread - 1) * gs * 900.0).to_bits()).collect();
            assert_equal_to_reference(&bits, gs);
        }
    }
}
