//! The classes of 64 bytes at a time, a bit a byte: ASCII by vector compares, other characters from the table.

use super::{
    classes::{CLASSES, Class, from_byte},
    cuts::is_three,
};

/// Bytes of a block.
pub const N_BLOCK: usize = 64;

/// The classes of a block; every byte of a character carries its class.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Masks {
    /// First bytes of characters.
    pub lead: u64,
    /// What the pattern takes for a letter.
    pub letter: u64,
    /// `\p{N}`.
    pub number: u64,
    /// `\s` without line ends.
    pub space: u64,
    /// Line ends.
    pub newline: u64,
    /// The space character alone.
    pub blank: u64,
    /// The apostrophe.
    pub apostrophe: u64,
    /// First bytes of letters of three bytes.
    pub three: u64,
    /// Bytes outside ASCII.
    pub wide: u64,
}

/// `Masks::ascii_plain` by vectors of `$n_bytes`: a function of the name and for the processor feature given.
#[cfg(target_arch = "x86_64")]
macro_rules! ascii_by_vectors {
    ($name:ident $feature:literal $n_bytes:literal $bits:ident, $set:ident [$($word:literal)+] $set1:ident $equal:ident
     $greater:ident $min:ident $movemask:ident $or:ident $sub:ident) => {
        #[target_feature(enable = $feature)]
        #[inline]
        fn $name(block: &[u8; N_BLOCK]) -> Self {
            use std::arch::x86_64::{$set, $set1, $equal, $greater, $min, $movemask, $or, $sub};
            let mut masks = Self::default();
            let (mut four, mut high) = (0, 0);
            for (i, part) in block.as_chunks::<$n_bytes>().0.iter().enumerate() {
                let word = |i: usize| {
                    let mut word = [0; 8];
                    word.copy_from_slice(&part[i * 8..i * 8 + 8]);
                    i64::from_le_bytes(word)
                };
                let x = $set($(word($word)),+);
                let equals = |byte: u8| $equal(x, $set1(byte as i8));
                // Unsigned `first <= y <= first + n` by wrapping.
                let within = |y, first: u8, n: u8| {
                    let offset = $sub(y, $set1(first as i8));
                    $equal($min(offset, $set1(n as i8)), offset)
                };
                let bits = |mask| u64::from($movemask(mask) as $bits) << (i * $n_bytes);
                let newline = $or(equals(b'\n'), equals(b'\r'));
                let blank = equals(b' ');
                masks.letter |= bits(within($or(x, $set1(0x20)), b'a', 25));
                masks.number |= bits(within(x, b'0', 9));
                masks.newline |= bits(newline);
                masks.blank |= bits(blank);
                masks.space |= bits($or(within(x, b'\t', 4), blank)) & !bits(newline);
                masks.apostrophe |= bits(equals(b'\''));
                masks.lead |= bits($greater(x, $set1(-65)));
                masks.wide |= bits(x);
                masks.three |= bits(within(x, 0xe5, 4));
                four |= bits(equals(0xe4));
                high |= bits(within(x, 0xb8, 7));
            }
            // U+4E00 is e4 b8 80.
            masks.three |= four & high >> 1;
            masks
        }
    };
}

impl Masks {
    /// Neither letter, number nor whitespace, of the bytes in `valid`.
    #[inline(always)]
    pub fn other(&self, valid: u64) -> u64 {
        valid & !(self.letter | self.number | self.space | self.newline)
    }

    /// First bytes of characters outside ASCII and U+4E00 to U+9FFF.
    #[inline(always)]
    pub fn foreign(block: &[u8; N_BLOCK]) -> u64 {
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "vector instructions")]
        // SAFETY: SSE2 is part of every x86-64 processor.
        let masks = unsafe { Self::ascii(block) };
        #[cfg(not(target_arch = "x86_64"))]
        let masks = Self::ascii(block);
        masks.lead & masks.wide & !masks.three
    }

    /// The classes of a block that holds whole characters, `n` bytes of it valid.
    #[inline(always)]
    pub fn new<const AVX2: bool>(block: &[u8; N_BLOCK], n: usize, marks_are_letters: bool) -> Self {
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "vector instructions")]
        // SAFETY: SSE2 is part of every x86-64 processor; who passes `AVX2` has looked for it.
        let mut masks = unsafe { if AVX2 { Self::ascii_avx2(block) } else { Self::ascii(block) } };
        #[cfg(not(target_arch = "x86_64"))]
        let mut masks = Self::ascii(block);
        let valid = u64::MAX >> (N_BLOCK - n);
        for mask in [&mut masks.lead, &mut masks.letter, &mut masks.number, &mut masks.space, &mut masks.newline] {
            *mask &= valid;
        }
        masks.blank &= valid;
        masks.apostrophe &= valid;
        masks.wide &= valid;
        masks.three &= valid;
        if masks.wide != 0 {
            masks.add_wide(block, marks_are_letters);
        }
        masks
    }

    #[inline(always)]
    fn add_wide(&mut self, block: &[u8; N_BLOCK], marks_are_letters: bool) {
        // Here `three` holds U+4E00 to U+9FFF, which are all letters: a test checks it.
        self.letter |= self.three | self.three << 1 | self.three << 2;
        let classes = &*CLASSES;
        let mut rest = self.wide & self.lead & !self.three;
        while rest != 0 {
            let at = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let byte = |i: usize| u32::from(block[(at + i) & (N_BLOCK - 1)] & 0x3f);
            let first = block[at];
            let (c, n) = match first {
                0..0xe0 => (u32::from(first & 0x1f) << 6 | byte(1), 2),
                0xe0..0xf0 => (u32::from(first & 0xf) << 12 | byte(1) << 6 | byte(2), 3),
                _ => (u32::from(first & 7) << 18 | byte(1) << 12 | byte(2) << 6 | byte(3), 4),
            };
            let bits = (u64::MAX >> (N_BLOCK - n)) << at;
            match from_byte(classes.get(c)) {
                Class::Upper | Class::Lower | Class::Letter => {
                    self.letter |= bits;
                    self.three |= u64::from(is_three(first)) << at;
                }
                Class::Mark if marks_are_letters => self.letter |= bits,
                Class::Number => self.number |= bits,
                Class::Space => self.space |= bits,
                _ => {}
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    ascii_by_vectors! { ascii "sse2" 16 u16, _mm_set_epi64x [1 0] _mm_set1_epi8 _mm_cmpeq_epi8 _mm_cmpgt_epi8 _mm_min_epu8
    _mm_movemask_epi8 _mm_or_si128 _mm_sub_epi8 }

    #[cfg(target_arch = "x86_64")]
    ascii_by_vectors! { ascii_avx2 "avx2" 32 u32, _mm256_set_epi64x [3 2 1 0] _mm256_set1_epi8 _mm256_cmpeq_epi8
    _mm256_cmpgt_epi8 _mm256_min_epu8 _mm256_movemask_epi8 _mm256_or_si256 _mm256_sub_epi8 }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline]
    fn ascii(block: &[u8; N_BLOCK]) -> Self {
        Self::ascii_plain(block)
    }

    /// The specification: the classes of ASCII, `lead`, `wide` and `three`.
    #[cfg(any(test, not(target_arch = "x86_64")))]
    #[inline]
    fn ascii_plain(block: &[u8; N_BLOCK]) -> Self {
        let mut masks = Self::default();
        for (i, byte) in block.iter().enumerate() {
            let bit = |is_set: bool| u64::from(is_set) << i;
            masks.letter |= bit(byte.is_ascii_alphabetic());
            masks.number |= bit(byte.is_ascii_digit());
            masks.newline |= bit(matches!(byte, b'\n' | b'\r'));
            masks.blank |= bit(*byte == b' ');
            masks.space |= bit(matches!(byte, b'\t' | 0x0b | 0x0c | b' '));
            masks.apostrophe |= bit(*byte == b'\'');
            masks.lead |= bit(byte & 0xc0 != 0x80);
            masks.wide |= bit(*byte >= 0x80);
            let next = block.get(i + 1).copied().unwrap_or_default();
            masks.three |= bit((0xe5..=0xe9).contains(byte) || (*byte == 0xe4 && (0xb8..=0xbf).contains(&next)));
        }
        masks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn vectors_find_what_the_plain_code_finds() {
        for first in 0..=255_u8 {
            let block = std::array::from_fn(|i| first.wrapping_mul(i as u8 | 1).wrapping_add(i as u8 * 37));
            let plain = Masks::ascii_plain(&block);
            #[expect(unsafe_code, reason = "vector instructions")]
            // SAFETY: SSE2 is part of every x86-64 processor.
            let narrow = unsafe { Masks::ascii(&block) };
            assert_eq!(narrow, plain, "{block:?}");
            if is_x86_feature_detected!("avx2") {
                #[expect(unsafe_code, reason = "vector instructions")]
                // SAFETY: the processor has them.
                let wide = unsafe { Masks::ascii_avx2(&block) };
                assert_eq!(wide, plain, "{block:?}");
            }
        }
    }

    #[test]
    fn the_shortcut_for_han_letters_holds() {
        assert!((0x4e00..=0x9fff).all(|c| from_byte(CLASSES.get(c)) == Class::Letter));
    }

    #[test]
    fn every_ascii_byte_has_its_class() {
        for byte in 0..0x80_u8 {
            let masks = Masks::new::<false>(&[byte; N_BLOCK], N_BLOCK, true);
            let all = |mask: u64| mask == u64::MAX;
            let found = match from_byte(CLASSES.get(byte.into())) {
                Class::Upper | Class::Lower => all(masks.letter),
                Class::Number => all(masks.number),
                Class::Space => all(masks.space),
                Class::Newline => all(masks.newline),
                _ => all(masks.other(u64::MAX)),
            };
            assert!(found && all(masks.lead) && masks.wide == 0, "{byte:#x}");
        }
    }
}
