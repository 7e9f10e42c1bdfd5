//! The rank of each pair of symbols that merges.
//!
//! A look-up goes in two steps: `ask` reads a bit of the filter, which says whether the pair may merge at all (most do
//! not), and has the one cache line fetched that holds the rank; `answer` reads it. A caller with several pairs asks for
//! all of them first.

use std::hint::select_unpredictable;

/// The number of no symbol, to stand beside the first and the last: it merges with nothing.
pub const EDGE: u32 = (1 << 20) - 1;

/// The rank of pairs that do not merge.
pub const NONE: u32 = u32::MAX;

/// Bits of the filter: 256 KiB, which stay in the second-level cache.
const N_FILTER_BITS: u32 = 21;

/// Pairs in a cache line.
const N_BUCKET: usize = 8;

/// A pair of two edges, without a rank.
const EMPTY: u64 = u64::MAX << 24;

/// The pairs that merge.
pub struct Pairs {
    /// A bit for each hash of a pair.
    filter: Vec<u64>,
    /// A pair stands in the bucket of its hash, or, when that is full, in the next. Bucket 0 stays empty.
    buckets: Vec<Bucket>,
    /// 64 less the number of bits of a bucket's number.
    shift: u32,
}

/// Entries of `left (20 bits) | right (20 bits) | rank + 1 (24 bits)`.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Bucket([u64; N_BUCKET]);

impl Pairs {
    /// Room for `n` pairs.
    pub fn with_capacity(n: usize) -> Self {
        let n_buckets = (n * 2 / N_BUCKET).next_power_of_two().max(2);
        Self {
            filter: vec![0; 1 << (N_FILTER_BITS - 6)],
            buckets: vec![Bucket([EMPTY; N_BUCKET]); n_buckets + 2],
            shift: 64 - n_buckets.trailing_zeros(),
        }
    }

    /// A pair that stands twice has the rank of its last line, as in the reference's map.
    pub fn insert(&mut self, left: u32, right: u32, rank: u32) {
        let key = key_of(left, right);
        let (word, bit) = filter_bit(key);
        self.filter[word] |= 1 << bit;
        let mut at = 1 + (hash_of(key) >> self.shift) as usize;
        let is_free = |entry: &&mut u64| **entry == EMPTY || **entry >> 24 == key;
        loop {
            if let Some(entry) = self.buckets[at].0.iter_mut().find(is_free) {
                *entry = key << 24 | u64::from(rank + 1);
                return;
            }
            at += 1;
            if at + 1 == self.buckets.len() {
                self.buckets.push(Bucket([EMPTY; N_BUCKET]));
            }
        }
    }

    /// The rank of a pair, `NONE` if it does not merge.
    #[inline(always)]
    pub fn rank(&self, left: u32, right: u32) -> u32 {
        self.answer(left, right, self.ask(left, right))
    }

    /// The bucket where the pair would stand; the empty one if the filter knows that it does not merge.
    #[inline(always)]
    pub fn ask(&self, left: u32, right: u32) -> u32 {
        let key = key_of(left, right);
        let (word, bit) = filter_bit(key);
        let may_merge = self.filter[word] >> bit & 1 != 0;
        // There is no guessing this.
        let bucket = select_unpredictable(may_merge, 1 + (hash_of(key) >> self.shift), 0);
        prefetch(&self.buckets[bucket as usize]);
        bucket as u32
    }

    /// The rank of the pair that was asked for.
    #[inline(always)]
    pub fn answer(&self, left: u32, right: u32, bucket: u32) -> u32 {
        let key = key_of(left, right);
        let mut at = bucket as usize;
        loop {
            let bucket = &self.buckets[at].0;
            let rank_above_0 = |entry: &u64| if entry >> 24 == key { *entry as u32 & 0xff_ffff } else { 0 };
            let found = bucket.iter().fold(0, |found, entry| found | rank_above_0(entry));
            if found != 0 || bucket[N_BUCKET - 1] == EMPTY {
                return found.wrapping_sub(1);
            }
            at += 1;
        }
    }
}

#[inline(always)]
fn key_of(left: u32, right: u32) -> u64 {
    u64::from(left) << 20 | u64::from(right)
}

#[inline(always)]
fn hash_of(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Word and bit in the filter.
#[inline(always)]
fn filter_bit(key: u64) -> (usize, u64) {
    let bit = hash_of(key) >> (64 - N_FILTER_BITS);
    ((bit >> 6) as usize, bit & 63)
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
