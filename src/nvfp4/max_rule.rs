//! BF16 weights by the max rule, with integers: at a given block scale, the code of a magnitude is the number of seven
//! thresholds that it reaches, and the bits of BF16 magnitudes order as the magnitudes do. All blocks with the same scale
//! code share their thresholds, so that the divisions of the reference are made once a scale code, not once a weight.

use super::{
    BLOCK, E2M1_MAX, E4M3_MAX, QuantizeConfig, e4m3, lanes,
    simd::{self, Kernel, Simd},
};

/// Whether no quotient of a BF16 number that is not zero and a step rounds to zero: such a number would lose its sign.
pub(super) fn applies(global_scale: f32) -> bool {
    // The smallest BF16 number is 2^-133, the smallest F32 number 2^-149.
    global_scale * E4M3_MAX < 65536.0
}

/// As [`super::reference::quantize_rows`] of BF16 numbers, given by their bits, with [`super::ScaleRule::Max`].
pub(super) fn quantize(bits: &[u16], gs: f32, config: &QuantizeConfig, codes: &mut [u8], scales: &mut [u8]) {
    let min_code = config.min_code();
    simd::dispatch(MaxRule { bits, gs, min_code, thresholds: &Thresholds::new(gs), codes, scales });
}

struct MaxRule<'a> {
    bits: &'a [u16],
    gs: f32,
    min_code: u8,
    thresholds: &'a Thresholds,
    codes: &'a mut [u8],
    scales: &'a mut [u8],
}

impl Kernel for MaxRule<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let rule = Rule::<S> {
            min_code: S::splat_u(u32::from(self.min_code)),
            largest_step: S::splat(E2M1_MAX * self.gs),
            thresholds: self.thresholds,
        };
        let (blocks, rest) = self.bits.as_chunks::<BLOCK>().0.as_chunks::<GROUP>();
        let (codes, rest_codes) = self.codes.as_chunks_mut::<GROUP_CODES>();
        let (scales, rest_scales) = self.scales.as_chunks_mut::<GROUP>();
        for ((blocks, codes), scales) in blocks.iter().zip(codes).zip(scales) {
            rule.quantize(blocks, codes, scales);
        }
        let (mut blocks, mut codes, mut scales) = ([[0; BLOCK]; GROUP], [0; GROUP_CODES], [0; GROUP]);
        blocks[..rest.len()].copy_from_slice(rest);
        rule.quantize(&blocks, &mut codes, &mut scales);
        rest_codes.copy_from_slice(&codes[..rest_codes.len()]);
        rest_scales.copy_from_slice(&scales[..rest_scales.len()]);
    }
}

/// Blocks at a time.
const GROUP: usize = 16;
/// Their bytes of codes.
const GROUP_CODES: usize = GROUP * BLOCK / 2;

struct Rule<'a, S: Simd> {
    min_code: S::U,
    largest_step: S::F,
    thresholds: &'a Thresholds,
}

impl<S: Simd> Rule<'_, S> {
    #[inline(always)]
    fn quantize(&self, blocks: &[[u16; BLOCK]; GROUP], codes: &mut [u8; GROUP_CODES], scales: &mut [u8; GROUP]) {
        const { assert!(GROUP.is_multiple_of(S::LANES)) };
        // No closures around vectors: the compiler may leave one outside the function that has the features.
        let mut amax = [0; GROUP];
        for (amax, block) in amax.iter_mut().zip(blocks) {
            *amax = u32::from(S::largest_of_block(block)) << 16;
        }
        for (amax, scales) in amax.chunks_exact(S::LANES).zip(scales.chunks_exact_mut(S::LANES)) {
            let unrounded = S::div(S::from_bits(S::load_u(amax)), self.largest_step);
            let rounded = lanes::round_scale::<S>(unrounded, self.min_code);
            S::store_bytes(lanes::one_for_zero::<S>(unrounded, rounded), scales);
        }
        let fours = blocks.as_chunks::<4>().0.iter().zip(scales.as_chunks::<4>().0).zip(codes.as_chunks_mut().0);
        for ((blocks, scales), codes) in fours {
            S::count_above(blocks, scales.map(|scale| &self.thresholds.0[usize::from(scale) % N_CODES]), codes);
        }
    }
}

/// Scale codes: 0 is never given, 127 is not a number.
const N_CODES: usize = 128;

/// For each scale code, the largest BF16 magnitudes, as bits, that are still below each of the seven codes above zero; each
/// once for every place in a block, as vectors want them.
struct Thresholds(Box<[[[u16; BLOCK]; 7]; N_CODES]>);

impl Thresholds {
    fn new(gs: f32) -> Self {
        let mut thresholds = vec![[[0; BLOCK]; 7]; N_CODES];
        for (scale, thresholds) in (1..=e4m3::MAX_CODE).zip(&mut thresholds[1..]) {
            let step = e4m3::decode(scale) * gs;
            // The middles between neighbours; those that go to the lower, even, one are reached only from above.
            let reached: [fn(f32) -> bool; 7] =
                [|y| y > 0.25, |y| y >= 0.75, |y| y > 1.25, |y| y >= 1.75, |y| y > 2.5, |y| y >= 3.5, |y| y > 5.0];
            let middles = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
            for ((threshold, middle), reached) in thresholds.iter_mut().zip(middles).zip(reached) {
                *threshold = [last_below(middle, step, reached); BLOCK];
            }
        }
        let thresholds = thresholds.into_boxed_slice().try_into();
        Self(thresholds.unwrap_or_else(|_| unreachable!("the vector has this length")))
    }
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
    use crate::nvfp4::{ScaleRule, e2m1, reference};

    #[test]
    fn thresholds_part_all_bf16_magnitudes_as_division_and_encoding_do() {
        for gs in [f32::MIN_POSITIVE, 3.1e-38, 1e-20, 7.44e-5, 1.0, 97.3, 146.2] {
            assert!(applies(gs));
            let thresholds = Thresholds::new(gs);
            for scale in (1..=e4m3::MAX_CODE).filter(|scale| gs != 1.0 || scale % 8 == 5) {
                let step = e4m3::decode(scale) * gs;
                for bits in 0..0x7F80u16 {
                    let found = thresholds.0[usize::from(scale)].iter().filter(|t| bits > t[0]).count();
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
            let thresholds = &Thresholds::new(gs);
            let (codes_out, scales_out) = (&mut fast_codes[..], &mut fast_scales[..]);
            let min_code = config.min_code();
            simd::run_at(level, MaxRule { bits, gs, min_code, thresholds, codes: codes_out, scales: scales_out });
            assert_eq!((fast_scales, fast_codes), (scales, codes), "{level:?} gs {gs} kernel-safe {kernel_safe}");
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
