//! E2M1: a sign, two exponent bits, one mantissa bit; the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6.

/// The magnitude of each code without its sign bit.
pub const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The value of each code, `sign << 3 | magnitude index`.
pub const VALUES: [f32; 16] = {
    let mut values = [0.0; 16];
    let mut i = 0;
    while i < 8 {
        values[i] = MAGNITUDES[i];
        values[i + 8] = -MAGNITUDES[i];
        i += 1;
    }
    values
};

/// The value of a code; bits above the lowest four are ignored.
#[inline(always)]
pub fn decode(code: u8) -> f32 {
    VALUES[usize::from(code & 0xF)]
}

/// The nearest code: ties to the even code, beyond 6 the largest. As ModelOpt, -0.0 becomes 0x0 and a negative number
/// that rounds to zero 0x8.
pub fn encode(x: f32) -> u8 {
    let a = x.abs();
    // Half-way points go to the even code, so every second one belongs to the upper code.
    let above = [a > 0.25, a >= 0.75, a > 1.25, a >= 1.75, a > 2.5, a >= 3.5, a > 5.0];
    let index: u8 = above.into_iter().map(u8::from).sum();
    u8::from(x < 0.0) << 3 | index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_its_own_nearest() {
        for code in (0..16).filter(|&code| code != 8) {
            assert_eq!(encode(decode(code)), code);
        }
        assert_eq!(encode(-0.0), 0);
        assert_eq!(encode(-1e-30), 8);
    }

    #[test]
    fn midpoints_go_to_the_even_code_and_neighbours_to_the_nearest() {
        for index in 0..7u8 {
            let (low, high) = (MAGNITUDES[usize::from(index)], MAGNITUDES[usize::from(index) + 1]);
            let middle = (low + high) / 2.0;
            assert_eq!(encode(middle) % 2, 0);
            assert_eq!(encode(middle.next_down()), index);
            assert_eq!(encode(middle.next_up()), index + 1);
            assert_eq!(encode(-middle.next_up()), 8 | (index + 1));
        }
        assert_eq!(encode(f32::MAX), 7);
        assert_eq!(encode(f32::NEG_INFINITY), 15);
    }
}
