//! E4M3 (the `fn` variant, no infinities) as block scales use it: never negative, 1..=126 are 2^-9 to 448, 127 is NaN.

use super::E4M3_MAX;

/// The code of the largest number, 448.
pub const MAX_CODE: u8 = 0x7E;
/// The code of 1.0.
pub const ONE: u8 = 0x38;
/// The smallest positive number, 2^-9.
pub const MIN_POSITIVE: f32 = 1.0 / 512.0;

/// The value of a code, with its sign; 0x7F and 0xFF are NaN.
#[inline(always)]
pub const fn decode(code: u8) -> f32 {
    let magnitude = (code & 0x7F) as u32;
    if magnitude == 0x7F {
        return f32::NAN;
    }
    // Normal numbers: exponent bias 7 becomes 127. Below 2^-6 the code counts steps of 2^-9.
    let normal = f32::from_bits((magnitude + (120 << 3)) << 20);
    let subnormal = magnitude as f32 * MIN_POSITIVE;
    let value = if magnitude < 8 { subnormal } else { normal };
    if code & 0x80 == 0 { value } else { -value }
}

/// The nearest code of a number >= 0: ties to even, above 448 the largest. NaN becomes the largest too.
#[inline(always)]
pub fn encode(x: f32) -> u8 {
    let x = x.min(E4M3_MAX);
    let code = if x < MIN_POSITIVE * 8.0 {
        // Adding 2^14, whose last mantissa bit is 2^-9, lets the processor round to steps of 2^-9.
        (x + 16384.0).to_bits() - 16384f32.to_bits()
    } else {
        let bits = x.to_bits();
        ((bits + 0x7_FFFF + (bits >> 20 & 1)) >> 20) - (120 << 3)
    };
    code as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_round_trips_and_midpoints_go_to_even() {
        for code in 0..=MAX_CODE {
            assert_eq!(encode(decode(code)), code);
            assert_eq!(decode(code | 0x80), -decode(code));
        }
        for code in 0..MAX_CODE {
            let middle = (decode(code) + decode(code + 1)) / 2.0;
            assert_eq!(encode(middle), code + code % 2);
            assert_eq!(encode(middle.next_down()), code);
            assert_eq!(encode(middle.next_up()), code + 1);
        }
    }

    #[test]
    fn landmarks_are_where_the_format_puts_them() {
        assert_eq!((decode(1), decode(7), decode(8)), (2f32.powi(-9), 7.0 * 2f32.powi(-9), 2f32.powi(-6)));
        assert_eq!((decode(ONE), decode(MAX_CODE)), (1.0, 448.0));
        assert!(decode(0x7F).is_nan() && decode(0xFF).is_nan());
        assert_eq!((encode(1e30), encode(f32::INFINITY), encode(0.0)), (MAX_CODE, MAX_CODE, 0));
    }
}
