//! Cuts inside runs of Chinese, Japanese and Korean letters.
//!
//! Such a run is one pre-token, as long as a clause and hardly ever seen twice. But merging never joins two characters
//! that stand side by side in no token, so the run may be cut there, and the pieces, which are words, repeat. Exact,
//! with one exception: tokens that are no whole UTF-8 may reach over a character boundary; a boundary whose two bytes
//! stand in such a token is never cut.

/// Bits of the pair filter: 128 KiB, which stay in the second-level cache.
const N_FILTER_BITS: u32 = 20;

use super::token_bytes::TokenBytes;

/// The pairs of bytes at a character boundary that stand side by side in a token which is no whole UTF-8. Only there
/// can merging reach over a boundary with a part of a character.
pub struct Straddled(Vec<u64>);

impl Straddled {
    /// Learns the pairs.
    pub fn new(tokens: &TokenBytes) -> Self {
        let mut straddled = Self(vec![0; 1 << 10]);
        for (_, token) in tokens.iter().filter(|(_, token)| std::str::from_utf8(token).is_err()) {
            for pair in token.windows(2).filter(|pair| pair[1] & 0xc0 != 0x80) {
                let bit = usize::from(pair[0]) << 8 | usize::from(pair[1]);
                straddled.0[bit >> 6] |= 1 << (bit & 63);
            }
        }
        straddled
    }

    /// Whether a token reaches from `left`, the end of a character, to `right`, the start of the next.
    #[inline]
    pub fn contains(&self, left: u8, right: u8) -> bool {
        let bit = usize::from(left) << 8 | usize::from(right);
        self.0[bit >> 6] >> (bit & 63) & 1 != 0
    }
}

/// Where runs may be cut.
pub struct Cuts {
    /// A bit for each hash of a pair of characters that stand side by side in a token. A collision forbids a cut that
    /// were possible, no more.
    pairs: Vec<u64>,
    /// Row: low half of the second character's first byte; bit: low six bits of the first character's last byte.
    straddled: [u64; 16],
}

impl Cuts {
    /// Learns the pairs from the bytes of all tokens.
    pub fn new(tokens: &TokenBytes) -> Self {
        let mut cuts = Self { pairs: vec![0; 1 << (N_FILTER_BITS - 6)], straddled: [0; 16] };
        for (_, token) in tokens.iter() {
            if !token.iter().any(|byte| is_three(*byte)) {
                continue;
            }
            match std::str::from_utf8(token) {
                Ok(_) => {
                    for pair in token.windows(6).filter(|pair| is_three(pair[0]) && is_three(pair[3])) {
                        let mut word = [0; 8];
                        word[..6].copy_from_slice(pair);
                        let bit = bit_of(u64::from_le_bytes(word));
                        cuts.pairs[bit >> 6] |= 1 << (bit & 63);
                    }
                }
                Err(_) => {
                    for pair in token.windows(2).filter(|pair| pair[0] & 0xc0 == 0x80 && is_three(pair[1])) {
                        cuts.straddled[usize::from(pair[1] & 15)] |= 1 << (pair[0] & 63);
                    }
                }
            }
        }
        cuts
    }

    /// Whether to cut between two three-byte characters, which are the low six bytes of `pair`.
    #[inline]
    pub fn is_cut(&self, pair: u64) -> bool {
        let bit = bit_of(pair);
        let straddled = self.straddled[(pair >> 24 & 15) as usize] >> (pair >> 16 & 63);
        (self.pairs[bit >> 6] >> (bit & 63) | straddled) & 1 == 0
    }
}

/// Whether the byte starts a character of three bytes.
#[inline]
pub fn is_three(byte: u8) -> bool {
    byte & 0xf0 == 0xe0
}

/// Whether a byte starts a character of three bytes; looks at all of them, many at a time.
#[inline(always)]
pub fn has_three(bytes: &[u8]) -> bool {
    bytes.iter().fold(false, |found, byte| found | is_three(*byte))
}

#[inline]
fn bit_of(pair: u64) -> usize {
    ((pair << 16).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - N_FILTER_BITS)) as usize
}
