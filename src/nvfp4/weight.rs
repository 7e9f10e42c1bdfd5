//! What a weight may be on the way in: BF16, FP16 or F32, each widened to F32 without loss.

use half::{bf16, f16, slice::HalfFloatSliceExt};
use rayon::prelude::*;

use super::{
    WEIGHTS_PER_TASK,
    simd::{self, Kernel, Simd},
};

/// An unquantized weight.
pub trait Weight: Copy + Send + Sync + 'static {
    /// The same number as F32.
    fn widen(self) -> f32;

    /// The weights' bits, if they are BF16.
    fn bf16_bits(weights: &[Self]) -> Option<&[u16]> {
        let _ = weights;
        None
    }
}

impl Weight for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        // `bf16::to_f32` has a branch for signalling NaNs; NaNs are refused before any weight is quantized.
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn bf16_bits(weights: &[Self]) -> Option<&[u16]> {
        Some(weights.reinterpret_cast())
    }
}

impl Weight for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl Weight for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

/// The largest magnitude, 0 for no weights. With an infinity or a NaN among the weights it is not finite; then
/// [`find_non_finite`] says where.
pub fn amax<W: Weight>(weights: &[W]) -> f32 {
    // NaN sorts above infinity: compared as bits.
    let largest = |chunk| amax_of_row(chunk).to_bits();
    f32::from_bits(weights.par_chunks(WEIGHTS_PER_TASK).map(largest).max().unwrap_or(0))
}

/// [`amax`] of few weights, on this thread.
pub fn amax_of_row<W: Weight>(weights: &[W]) -> f32 {
    f32::from_bits(simd::dispatch(LargestBits(weights)))
}

/// The largest of the weights' F32 bits without the sign: IEEE bits order as magnitudes do, and NaN above infinity.
struct LargestBits<'a, W>(&'a [W]);

impl<W: Weight> Kernel for LargestBits<'_, W> {
    type Out = u32;

    // Plain loops: compiled for the vectors, the compiler finds the rest.
    #[inline(always)]
    fn run<S: Simd>(self) -> u32 {
        match W::bf16_bits(self.0) {
            Some(bits) => u32::from(bits.iter().fold(0, |max, bits| max.max(bits & 0x7FFF))) << 16,
            None => self.0.iter().fold(0, |max, w| max.max(w.widen().to_bits() & 0x7FFF_FFFF)),
        }
    }
}

/// The position of the first NaN or infinity.
pub fn find_non_finite<W: Weight>(weights: &[W]) -> Option<usize> {
    weights.iter().position(|w| !w.widen().is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bf16_pattern_widens_to_its_value() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (bf16::from_bits(bits).widen(), bf16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()));
        }
    }

    #[test]
    fn amax_ignores_signs_and_shows_what_is_not_finite() {
        assert_eq!(amax::<f32>(&[]), 0.0);
        assert_eq!(amax(&[bf16::from_f32(1.0), bf16::from_f32(-3.0)]), 3.0);
        assert_eq!(amax(&[1.0, f32::NEG_INFINITY]), f32::INFINITY);
        assert!(amax(&[1.0, f32::NAN, f32::INFINITY]).is_nan());
        assert_eq!(find_non_finite(&[1.0, f32::NAN, f32::INFINITY]), Some(1));
        assert_eq!(find_non_finite(&[1.0f32, f32::MAX]), None);
    }
}
