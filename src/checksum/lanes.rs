//! SHA-256 of several messages at once. Each round of one message waits for the round before it; rounds of two or three
//! messages fill the wait, and hash about twice as fast as one message after the other.
#![expect(unsafe_code, reason = "the processor's SHA-256 instructions")]

use sha2::{Digest, Sha256, block_api::compress256};

/// Messages at a time: more would not fit the vector registers.
pub(super) const LANES: usize = 3;

/// Bytes of a block.
pub(super) const BLOCK_BYTES: usize = 64;

/// The state of a digest before the first block: FIPS 180-4, 5.3.3.
#[rustfmt::skip]
pub(super) const START: [u32; 8] = [
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
];

/// Whether the processor has instructions for the rounds.
pub(super) fn is_fast() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        has!("sha") && has!("sse4.1") && has!("ssse3")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Takes as many blocks of each message into its state. Returns of each message the largest of its 16-bit words without
/// their highest bit: the rounds leave the processor time for it.
pub(super) fn compress<const N: usize>(states: &mut [[u32; 8]; N], messages: [&[[u8; BLOCK_BYTES]]; N]) -> [u16; N] {
    assert!(messages.iter().all(|message| message.len() == messages[0].len()), "messages of different lengths");
    #[cfg(target_arch = "x86_64")]
    if is_fast() {
        // SAFETY: the processor has the instructions, and the messages have the same number of blocks.
        return unsafe { x86::compress(states, messages) };
    }
    states.iter_mut().zip(messages).for_each(|(state, message)| compress256(state, message));
    messages.map(|message| largest_magnitude(message.as_flattened()))
}

/// The digest from the state after all whole blocks, the bytes left, and the length of the message.
pub(super) fn finish(mut state: [u32; 8], tail: &[u8], n_bytes: u64) -> [u8; 32] {
    let mut last = [[0; BLOCK_BYTES]; 2];
    let n_blocks = if tail.len() + 9 > BLOCK_BYTES { 2 } else { 1 };
    let bytes = last[..n_blocks].as_flattened_mut();
    bytes[..tail.len()].copy_from_slice(tail);
    bytes[tail.len()] = 0x80;
    let n = bytes.len();
    bytes[n - 8..].copy_from_slice(&(n_bytes * 8).to_be_bytes());
    compress256(&mut state, &last[..n_blocks]);
    let mut digest = [0; 32];
    digest.as_chunks_mut().0.iter_mut().zip(state).for_each(|(bytes, word)| *bytes = word.to_be_bytes());
    digest
}

/// The digests of messages of the same length, a multiple of [`BLOCK_BYTES`], and of each what [`compress`] says.
pub(super) fn sha256_lanes(messages: [&[u8]; LANES]) -> [([u8; 32], u16); LANES] {
    if !is_fast() || messages.iter().any(|message| !message.len().is_multiple_of(BLOCK_BYTES)) {
        return messages.map(|message| (Sha256::digest(message).into(), largest_magnitude(message)));
    }
    let mut states = [START; LANES];
    let largest = compress(&mut states, messages.map(|message| message.as_chunks().0));
    let mut digests = [([0; 32], 0); LANES];
    for (lane, found) in digests.iter_mut().enumerate() {
        *found = (finish(states[lane], &[], messages[lane].len() as u64), largest[lane]);
    }
    digests
}

/// The largest 16-bit word, little-endian, without its highest bit: of BF16 and FP16 numbers the largest magnitude.
pub(super) fn largest_magnitude(bytes: &[u8]) -> u16 {
    bytes.as_chunks().0.iter().fold(0, |largest, &word| largest.max(u16::from_le_bytes(word) & 0x7FFF))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::{asm, x86_64::*};

    use super::BLOCK_BYTES;

    /// FIPS 180-4, 4.2.2.
    #[rustfmt::skip]
    static K: [u32; 64] = [
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
    ];
    /// # Safety
    /// The processor has SHA, SSE4.1 and SSSE3; the messages have the same number of blocks.
    #[target_feature(enable = "sha,sse4.1,ssse3")]
    pub(super) unsafe fn compress<const N: usize>(
        states: &mut [[u32; 8]; N],
        messages: [&[[u8; BLOCK_BYTES]]; N],
    ) -> [u16; N] {
        let mut vectors = [[_mm_setzero_si128(); 2]; N];
        for (vectors, state) in vectors.iter_mut().zip(&*states) {
            let [a, b, c, d, e, f, g, h] = state.map(u32::cast_signed);
            *vectors = [_mm_set_epi32(a, b, e, f), _mm_set_epi32(c, d, g, h)];
        }
        // SAFETY: the pointers are good for the blocks that the lengths say.
        let largest = unsafe { rounds(&mut vectors, messages.map(|m| m.as_ptr().cast()), messages[0].len()) };
        for (state, [abef, cdgh]) in states.iter_mut().zip(vectors) {
            let [a, b] = [_mm_extract_epi32::<3>(abef), _mm_extract_epi32::<2>(abef)];
            let [c, d] = [_mm_extract_epi32::<3>(cdgh), _mm_extract_epi32::<2>(cdgh)];
            let [e, f] = [_mm_extract_epi32::<1>(abef), _mm_extract_epi32::<0>(abef)];
            let [g, h] = [_mm_extract_epi32::<1>(cdgh), _mm_extract_epi32::<0>(cdgh)];
            *state = [a, b, c, d, e, f, g, h].map(i32::cast_unsigned);
        }
        let mut found = [0; N];
        for (found, largest) in found.iter_mut().zip(largest) {
            // There is an instruction for the smallest of eight: of their complements.
            let smallest = _mm_minpos_epu16(_mm_xor_si128(largest, _mm_set1_epi16(-1)));
            *found = !(_mm_cvtsi128_si32(smallest) as u16);
        }
        found
    }

    /// A state is A, B, E, F and C, D, G, H, from the highest lane down, as the instructions take them.
    ///
    /// # Safety
    /// The processor has the instructions, and each pointer is good for `n_blocks` times 64 bytes.
    #[target_feature(enable = "sha,sse4.1,ssse3")]
    unsafe fn rounds<const N: usize>(
        states: &mut [[__m128i; 2]; N],
        messages: [*const u8; N],
        n_blocks: usize,
    ) -> [__m128i; N] {
        let mut largest = [_mm_setzero_si128(); N];
        let big_endian = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
        for block in 0..n_blocks {
            let before = *states;
            // The last sixteen words of each message's schedule, four a vector.
            let mut schedule = [[_mm_setzero_si128(); 4]; N];
            // Written out, so that every index into `schedule` is a constant and the vectors stay in registers.
            macro_rules! four_rounds {
                ($($i:literal)*) => {$(
                    // SAFETY: `K` has four words for each of the 16 steps.
                    let k = unsafe { _mm_loadu_si128(K.as_ptr().add(4 * $i).cast()) };
                    for lane in 0..N {
                        let words = &mut schedule[lane];
                        if $i < 4 {
                            // SAFETY: within the block.
                            let loaded = unsafe { _mm_loadu_si128(messages[lane].add(64 * block + 16 * $i).cast()) };
                            let magnitudes = _mm_and_si128(loaded, _mm_set1_epi16(0x7FFF));
                            largest[lane] = _mm_max_epu16(largest[lane], magnitudes);
                            words[$i % 4] = _mm_shuffle_epi8(loaded, big_endian);
                        } else {
                            let (second, third, last) = (words[($i + 1) % 4], words[($i + 2) % 4], words[($i + 3) % 4]);
                            let sum = _mm_add_epi32(
                                _mm_sha256msg1_epu32(words[$i % 4], second),
                                _mm_alignr_epi8::<4>(last, third),
                            );
                            words[$i % 4] = _mm_sha256msg2_epu32(sum, last);
                        }
                        let added = _mm_add_epi32(words[$i % 4], k);
                        let [abef, cdgh] = states[lane];
                        let cdgh = _mm_sha256rnds2_epu32(cdgh, abef, added);
                        let abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32::<0x0E>(added));
                        states[lane] = [in_turn(abef), cdgh];
                    }
                )*};
            }
            four_rounds!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
            for (state, before) in states.iter_mut().zip(before) {
                *state = [_mm_add_epi32(state[0], before[0]), _mm_add_epi32(state[1], before[1])];
            }
        }
        largest
    }

    /// Does nothing, in a way that the compiler must leave where it stands. It would sort the rounds by message, and the
    /// processor, which looks some 200 instructions ahead, would wait for each.
    #[inline(always)]
    fn in_turn(mut vector: __m128i) -> __m128i {
        // SAFETY: there is no instruction.
        unsafe { asm!("/* {0} */", inout(xmm_reg) vector, options(nomem, nostack, preserves_flags)) };
        vector
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_one_message_at_a_time() {
        let bytes: Vec<u8> = (0..3 * 4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for n_bytes in [0, 64, 128, 192, 1024, 4096, 1, 63, 100] {
            let messages = [&bytes[..n_bytes], &bytes[n_bytes..2 * n_bytes], &bytes[2 * n_bytes..3 * n_bytes]];
            let one_by_one = messages.map(|message| (Sha256::digest(message).into(), largest_magnitude(message)));
            assert_eq!(sha256_lanes(messages), one_by_one, "{n_bytes}");
        }
    }

    #[test]
    fn a_digest_is_finished_from_any_number_of_bytes_left() {
        let bytes: Vec<u8> = (0..64 + 63).collect();
        for n_left in 0..64 {
            let mut states = [START; LANES];
            compress(&mut states, [bytes[..64].as_chunks().0; LANES]);
            let message = &bytes[..64 + n_left];
            let found = states.map(|state| finish(state, &message[64..], message.len() as u64));
            assert_eq!(found, [<[u8; 32]>::from(Sha256::digest(message)); LANES], "{n_left}");
        }
    }
}
