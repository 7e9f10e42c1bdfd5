//! The rank of each pair of symbols that merges.
//!
//! A look-up goes in two steps: `ask` finds the slot where the pair would stand and has its cache line fetched, unless
//! the hash knows already that the pair does not merge, as it does of most; `answer` reads the slot. A caller with
//! several pairs asks for all of them first.

use std::hint::select_unpredictable;

use super::{pages, perfect::Perfect};

/// The number of no symbol, to stand beside the first and the last: it merges with nothing.
pub const EDGE: u32 = (1 << 20) - 1;

/// The rank of pairs that do not merge.
pub const NONE: u32 = u32::MAX;

/// The pairs that merge.
pub struct Pairs {
    hash: Perfect,
    /// `left (20 bits) | right (20 bits) | rank + 1 (24 bits)`; a slot without a pair is one of two edges.
    slots: Vec<u64>,
}

impl Pairs {
    /// The pairs with their ranks. A pair that stands twice has its last rank, as in the reference's map.
    ///
    /// # Errors
    /// The pairs cannot be hashed.
    pub fn new(ranked: &[([u32; 2], u32)]) -> Result<Self, String> {
        let hashes: Vec<u64> = ranked.iter().map(|([left, right], _)| hash_of(key_of(*left, *right))).collect();
        let (hash, found) = Perfect::new(&hashes)?;
        let mut slots = pages::filled(u64::MAX << 24, hash.n_slots());
        for (([left, right], rank), slot) in ranked.iter().zip(found) {
            slots[slot as usize] = key_of(*left, *right) << 24 | u64::from(rank + 1);
        }
        Ok(Self { hash, slots })
    }

    /// The rank of a pair, `NONE` if it does not merge.
    #[inline(always)]
    pub fn rank(&self, left: u32, right: u32) -> u32 {
        self.answer(left, right, self.ask(left, right))
    }

    /// The slot where the pair would stand.
    #[inline(always)]
    pub fn ask(&self, left: u32, right: u32) -> u32 {
        let slot = self.hash.slot(hash_of(key_of(left, right)));
        prefetch(&self.slots[slot as usize]);
        slot
    }

    /// The rank of the pair that was asked for.
    #[inline(always)]
    pub fn answer(&self, left: u32, right: u32, slot: u32) -> u32 {
        let entry = self.slots[slot as usize];
        let rank = (entry as u32 & 0xff_ffff).wrapping_sub(1);
        select_unpredictable(entry >> 24 == key_of(left, right), rank, NONE)
    }
}

#[inline(always)]
fn key_of(left: u32, right: u32) -> u64 {
    u64::from(left) << 20 | u64::from(right)
}

/// Different for different keys, and never 0, which no multiplier moves.
#[inline(always)]
fn hash_of(key: u64) -> u64 {
    (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Asks for a cache line that is read or written soon.
#[inline(always)]
pub fn prefetch<T>(at: &T) {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "a hint to the processor")]
    // SAFETY: a prefetch reads nothing, and the address is that of a reference.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(at).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
