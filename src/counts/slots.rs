//! An open table of short pre-tokens that are their own keys: a look-up touches one cache line and compares no strings.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{hash, pairs::prefetch};

/// How many look-ups ahead the cache line of one is asked for.
const N_AHEAD: usize = 12;

/// Keys whose cache lines are asked for at once.
const N_ASKED: usize = 32;

/// Entries that are gone through at once.
pub const N_PART: usize = 64;

/// The bytes of a short pre-token, filled up with zeros, its length in the top byte; 0 is no pre-token.
pub trait Key: Copy + Default + Eq + Send + Sync {
    /// Bytes that fit beside the length.
    const N_BYTES: usize = size_of::<Self>() - 1;

    /// The key of at most `N_BYTES` bytes.
    fn of(bytes: &[u8]) -> Self;

    /// The bytes, filled up with zeros.
    fn bytes(self) -> u128;

    /// How many bytes there are.
    fn n_bytes(self) -> usize;

    /// Where it stands.
    fn hash(self) -> u64;
}

impl Key for u64 {
    #[inline(always)]
    fn of(bytes: &[u8]) -> Self {
        let mut key = [0; 8];
        key[..bytes.len()].copy_from_slice(bytes);
        key[7] = bytes.len() as u8;
        Self::from_le_bytes(key)
    }

    #[inline(always)]
    fn bytes(self) -> u128 {
        u128::from(self & (u64::MAX >> 8))
    }

    #[inline(always)]
    fn n_bytes(self) -> usize {
        (self >> 56) as usize
    }

    #[inline(always)]
    fn hash(self) -> u64 {
        hash::of_short_key(self)
    }
}

impl Key for u128 {
    #[inline(always)]
    fn of(bytes: &[u8]) -> Self {
        let mut key = [0; 16];
        key[..bytes.len()].copy_from_slice(bytes);
        key[15] = bytes.len() as u8;
        Self::from_le_bytes(key)
    }

    #[inline(always)]
    fn bytes(self) -> u128 {
        self & (u128::MAX >> 8)
    }

    #[inline(always)]
    fn n_bytes(self) -> usize {
        (self >> 120) as usize
    }

    #[inline(always)]
    fn hash(self) -> u64 {
        hash::of_key(self)
    }
}

/// Keys and their counts.
pub struct Slots<K> {
    entries: Vec<Entry<K>>,
    n_used: usize,
}

/// A quarter or half of a cache line. The count is atomic for [`gather`] alone.
#[derive(Default)]
#[repr(C)]
struct Entry<K> {
    key: K,
    count: AtomicU64,
}

impl<K: Key> Default for Slots<K> {
    fn default() -> Self {
        Self { entries: empty(1 << 14), n_used: 0 }
    }
}

impl<K: Key> Slots<K> {
    /// Bytes in use.
    pub fn n_bytes(&self) -> usize {
        self.entries.len() * size_of::<Entry<K>>()
    }

    /// Counts keys once more each.
    #[inline(always)]
    pub fn add_all(&mut self, keys: &[K]) {
        for keys in keys.chunks(N_ASKED) {
            keys.iter().for_each(|key| self.prefetch(*key));
            keys.iter().for_each(|key| self.add(*key, 1));
        }
    }

    #[inline(always)]
    fn prefetch(&self, key: K) {
        prefetch(&self.entries[key.hash() as usize & (self.entries.len() - 1)]);
    }

    /// Counts a key `n` times more.
    #[inline(always)]
    pub fn add(&mut self, key: K, n: u64) {
        let mask = self.entries.len() - 1;
        let mut slot = key.hash() as usize & mask;
        loop {
            let entry = &mut self.entries[slot];
            if entry.key == key {
                *entry.count.get_mut() += n;
                return;
            }
            if entry.key == K::default() {
                *entry = Entry { key, count: n.into() };
                self.n_used += 1;
                if self.n_used * 8 > self.entries.len() * 5 {
                    self.grow();
                }
                return;
            }
            slot = (slot + 1) & mask;
        }
    }

    #[cold]
    fn grow(&mut self) {
        // A small table soon grows again; a large one costs its pages.
        let factor = if self.entries.len() < 1 << 18 { 4 } else { 2 };
        let mut grown = empty(self.entries.len() * factor);
        let mask = grown.len() - 1;
        for entry in self.entries.drain(..).filter(|entry| entry.key != K::default()) {
            let mut slot = entry.key.hash() as usize & mask;
            while grown[slot].key != K::default() {
                slot = (slot + 1) & mask;
            }
            grown[slot] = entry;
        }
        self.entries = grown;
    }

    /// The entry of a key.
    fn find(&self, key: K) -> Option<&Entry<K>> {
        let mask = self.entries.len() - 1;
        let mut slot = key.hash() as usize & mask;
        loop {
            let entry = &self.entries[slot];
            if entry.key == key {
                return Some(entry);
            }
            if entry.key == K::default() {
                return None;
            }
            slot = (slot + 1) & mask;
        }
    }

    /// One of `n` parts of about the same size, in no particular order.
    pub fn part(&self, i: usize, n: usize) -> Part<'_, K> {
        Part { entries: share(&self.entries, i, n).chunks(N_PART) }
    }
}

/// Goes through a part of the slots.
pub struct Part<'s, K> {
    entries: std::slice::Chunks<'s, Entry<K>>,
}

impl<K: Key> Part<'_, K> {
    /// Fills `keys` with the next keys and their counts, and returns how many; `None` behind the last. Whether an entry
    /// is in use is no branch to guess.
    #[inline(always)]
    pub fn next(&mut self, keys: &mut [(K, u64); N_PART]) -> Option<usize> {
        let mut n = 0;
        for entry in self.entries.next()? {
            let count = entry.count.load(Relaxed);
            keys[n & (N_PART - 1)] = (entry.key, count);
            n += usize::from(count > 0);
        }
        Some(n)
    }
}

/// Moves the counts of keys that several tables hold to the first of these. Each of `n` threads does its part; all have
/// to be done before the counts are read.
///
/// A thread takes counts away only where an earlier table holds the key, and adds only where none does: no two threads
/// undo each other's work, and the order does not matter.
pub fn gather<K: Key>(tables: &[&Slots<K>], part: usize, n: usize) {
    for (i, table) in tables.iter().enumerate().skip(1) {
        let entries = share(&table.entries, part, n);
        for (at, entry) in entries.iter().enumerate() {
            if let Some(ahead) = entries.get(at + N_AHEAD).filter(|ahead| ahead.key != K::default()) {
                tables[0].prefetch(ahead.key);
            }
            if entry.key != K::default()
                && let Some(first) = tables[..i].iter().find_map(|earlier| earlier.find(entry.key))
            {
                first.count.fetch_add(entry.count.swap(0, Relaxed), Relaxed);
            }
        }
    }
}

/// Empty entries. They are written one by one: the pages are needed soon anyway.
fn empty<K: Key>(n: usize) -> Vec<Entry<K>> {
    let mut entries = Vec::new();
    entries.resize_with(n, Entry::default);
    entries
}

/// Part `i` of `n` of a slice.
pub fn share<T>(all: &[T], i: usize, n: usize) -> &[T] {
    &all[all.len() * i / n..all.len() * (i + 1) / n]
}
