//! How scales are chosen: the tensor's from its largest magnitude, a block's by one of four rules.

use super::{E2M1_MAX, E4M3_MAX, KERNEL_SAFE_MIN_CODE, e4m3};

/// How the block scale is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScaleRule {
    /// The block's largest magnitude becomes 6. Bit-exact with ModelOpt 0.47.
    Max,
    /// The largest magnitude becomes 6 or 4, whichever errs less; 6 on a tie.
    FourSix,
    /// [`ScaleRule::FourSix`] with the global scale amax / 1536, so that no scale for 4 saturates at 448. Bit-exact with
    /// fouroversix' `mse`.
    FourSix1536,
    /// The E4M3 scale with the least (weighted) squared error of all; the smaller of equals.
    Mse,
}

impl ScaleRule {
    /// The global scale that belongs to the rule; [`global_scale`] for all but [`ScaleRule::FourSix1536`].
    pub fn global_scale(self, amax: f32) -> f32 {
        match self {
            Self::FourSix1536 => scale_over(amax, E2M1_MAX * 256.0),
            Self::Max | Self::FourSix | Self::Mse => global_scale(amax),
        }
    }
}

/// The tensor's scale: amax / (6 * 448), so that the largest block scale is 448.
///
/// Two cases in which ModelOpt's own result is not usable: amax = 0 gives 1 (ModelOpt 0, then NaN block scales), and
/// where the quotient would be subnormal the smallest normal number (a kernel that flushes subnormals would lose the
/// tensor). Both are finite and positive, and so are their products with every block scale.
pub fn global_scale(amax: f32) -> f32 {
    scale_over(amax, E2M1_MAX * E4M3_MAX)
}

fn scale_over(amax: f32, range: f32) -> f32 {
    if amax == 0.0 { 1.0 } else { (amax / range).max(f32::MIN_POSITIVE) }
}

/// How rows are quantized.
#[derive(Debug, Clone, Copy)]
pub struct QuantizeConfig<'a> {
    /// How block scales are chosen.
    pub rule: ScaleRule,
    /// What an error in column `k` costs, `[k]`, finite and not negative: E[x_k^2], the second moment of the input of that
    /// column. Only relative sizes matter; largest value 1 keeps clear of overflow. `None`: all alike. `Max` ignores it.
    pub importance: Option<&'a [f32]>,
    /// Whether blocks with a nonzero weight get scale codes >= [`KERNEL_SAFE_MIN_CODE`]. Off only for byte-for-byte
    /// comparison with ModelOpt.
    pub kernel_safe: bool,
}

impl QuantizeConfig<'_> {
    /// The smallest scale code that a block with a nonzero weight may get.
    pub(super) fn min_code(&self) -> u8 {
        if self.kernel_safe { KERNEL_SAFE_MIN_CODE } else { 1 }
    }
}

/// The unrounded scale that maps the block's largest magnitude to 6; 0 for a zero block.
#[inline(always)]
pub(super) fn unrounded(block_amax: f32, global_scale: f32) -> f32 {
    block_amax / (E2M1_MAX * global_scale)
}

/// The code of an unrounded scale > 0: ModelOpt clamps to [2^-9, 448] before it rounds.
#[inline(always)]
pub(super) fn round(unrounded: f32, min_code: u8) -> u8 {
    e4m3::encode(unrounded.max(e4m3::MIN_POSITIVE)).max(min_code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn global_scales_are_finite_and_positive_for_every_amax() {
        assert_eq!(global_scale(2688.0), 1.0);
        assert_eq!(ScaleRule::FourSix1536.global_scale(1536.0), 1.0);
        assert_eq!(global_scale(0.0), 1.0);
        for amax in [f32::from_bits(1), 2f32.powi(-133), f32::MIN_POSITIVE, 1e-30, 1.0, 3.39e38, f32::MAX] {
            let scale = global_scale(amax);
            assert!(scale >= f32::MIN_POSITIVE && (scale * E4M3_MAX * E2M1_MAX).is_finite(), "{amax} {scale}");
        }
    }
}
