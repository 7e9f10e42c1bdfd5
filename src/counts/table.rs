//! How often each pre-token was seen. Short ones (15 bytes at most, nearly all) are their own key, so that a look-up
//! touches one cache line and compares no strings; longer ones lie in an arena.

use super::hash;

/// Bytes that fit beside their length in a key.
pub const N_KEY_BYTES: usize = 15;

/// The bytes of a short pre-token, its length in the top byte; 0 is no pre-token.
pub type Key = u128;

/// Unique pre-tokens and their counts.
pub struct Table {
    short: Vec<Short>,
    n_short: usize,
    long: Vec<Long>,
    n_long: usize,
    arena: Vec<u8>,
}

#[derive(Clone, Copy, Default)]
struct Short {
    key: Key,
    count: u64,
}

#[derive(Clone, Copy, Default)]
struct Long {
    hash: u64,
    start: u32,
    n_bytes: u32,
    count: u64,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            short: vec![Short::default(); 1 << 14],
            n_short: 0,
            long: vec![Long::default(); 1 << 8],
            n_long: 0,
            arena: Vec::new(),
        }
    }
}

/// The key of at most [`N_KEY_BYTES`] bytes.
#[inline]
pub fn key_of(bytes: &[u8]) -> Key {
    let mut key = [0; 16];
    key[..bytes.len()].copy_from_slice(bytes);
    key[15] = bytes.len() as u8;
    Key::from_le_bytes(key)
}

impl Table {
    /// Bytes in use.
    pub fn n_bytes(&self) -> usize {
        self.short.len() * size_of::<Short>() + self.long.len() * size_of::<Long>() + self.arena.capacity()
    }

    /// Pre-tokens in the table.
    pub fn len(&self) -> usize {
        self.n_short + self.n_long
    }

    /// Asks for the cache line of a key that is added soon.
    #[inline(always)]
    pub fn prefetch(&self, key: Key) {
        let slot = hash::of_key(key) as usize & (self.short.len() - 1);
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "a hint to the processor")]
        // SAFETY: a prefetch reads nothing, and the address is inside the table.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(&self.short[slot]).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = slot;
    }

    /// Counts a short pre-token `n` times more.
    #[inline(always)]
    pub fn add_key(&mut self, key: Key, n: u64) {
        let mask = self.short.len() - 1;
        let mut slot = hash::of_key(key) as usize & mask;
        loop {
            let entry = &mut self.short[slot];
            if entry.key == key {
                entry.count += n;
                return;
            }
            if entry.key == 0 {
                *entry = Short { key, count: n };
                self.n_short += 1;
                if self.n_short * 8 > self.short.len() * 5 {
                    self.grow_short();
                }
                return;
            }
            slot = (slot + 1) & mask;
        }
    }

    #[cold]
    fn grow_short(&mut self) {
        // A small table soon grows again; a large one costs its pages.
        let factor = if self.short.len() < 1 << 18 { 4 } else { 2 };
        let mut grown = vec![Short::default(); self.short.len() * factor];
        let mask = grown.len() - 1;
        for entry in self.short.iter().filter(|entry| entry.key != 0) {
            let mut slot = hash::of_key(entry.key) as usize & mask;
            while grown[slot].key != 0 {
                slot = (slot + 1) & mask;
            }
            grown[slot] = *entry;
        }
        self.short = grown;
    }

    /// Counts a pre-token of any length `n` times more.
    pub fn add(&mut self, bytes: &[u8], n: u64) {
        if bytes.len() <= N_KEY_BYTES {
            return self.add_key(key_of(bytes), n);
        }
        let hash = hash::of_bytes(bytes);
        let mask = self.long.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let entry = &mut self.long[slot];
            if entry.count == 0 {
                break;
            }
            let (start, n_bytes) = (entry.start as usize, entry.n_bytes as usize);
            if entry.hash == hash && n_bytes == bytes.len() && self.arena[start..start + n_bytes] == *bytes {
                entry.count += n;
                return;
            }
            slot = (slot + 1) & mask;
        }
        self.long[slot] = Long { hash, start: self.arena.len() as u32, n_bytes: bytes.len() as u32, count: n };
        self.arena.extend_from_slice(bytes);
        self.n_long += 1;
        if self.n_long * 2 > self.long.len() {
            self.grow_long();
        }
    }

    #[cold]
    fn grow_long(&mut self) {
        let mut grown = vec![Long::default(); self.long.len() * 4];
        let mask = grown.len() - 1;
        for entry in self.long.iter().filter(|entry| entry.count > 0) {
            let mut slot = entry.hash as usize & mask;
            while grown[slot].count > 0 {
                slot = (slot + 1) & mask;
            }
            grown[slot] = *entry;
        }
        self.long = grown;
    }

    /// Visits every pre-token with its count, in no particular order.
    pub fn for_each(&self, mut visit: impl FnMut(&[u8], u64)) {
        for entry in self.short.iter().filter(|entry| entry.key != 0) {
            let (bytes, n) = bytes_of(entry.key);
            visit(&bytes[..n], entry.count);
        }
        for entry in self.long.iter().filter(|entry| entry.count > 0) {
            visit(entry.bytes(&self.arena), entry.count);
        }
    }

    /// The table in `n` parts of about the same size; it is good for nothing else afterwards but [`Table::clear`].
    pub fn parts(&mut self, n: usize) -> impl Iterator<Item = Part<'_>> {
        self.short.retain(|entry| entry.key != 0);
        self.long.retain(|entry| entry.count > 0);
        let (n_short, n_long) = (self.short.len().div_ceil(n), self.long.len().div_ceil(n));
        let (mut short, mut long, arena) = (self.short.as_mut_slice(), self.long.as_mut_slice(), &self.arena);
        (0..n).map(move |_| {
            let n_short = n_short.min(short.len());
            let n_long = n_long.min(long.len());
            let short = short.split_off_mut(..n_short).unwrap_or_default();
            let long = long.split_off_mut(..n_long).unwrap_or_default();
            Part { short, long, arena }
        })
    }

    /// Forgets everything, and gives the memory back.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// A share of a table's pre-tokens.
pub struct Part<'t> {
    short: &'t mut [Short],
    long: &'t mut [Long],
    arena: &'t [u8],
}

impl Part<'_> {
    /// Visits every pre-token with its count. Short ones come in alphabetical order: neighbours begin alike, and merge
    /// the same pairs, which then lie in the nearest cache.
    #[inline(always)]
    pub fn for_each(self, mut visit: impl FnMut(&[u8], u64)) {
        self.short.sort_unstable_by_key(|entry| (entry.key as u64).swap_bytes());
        for entry in self.short {
            let (bytes, n) = bytes_of(entry.key);
            visit(&bytes[..n], entry.count);
        }
        for entry in self.long {
            visit(entry.bytes(self.arena), entry.count);
        }
    }
}

/// The bytes of a key with its length behind them.
#[inline(always)]
fn bytes_of(key: Key) -> ([u8; 16], usize) {
    (key.to_le_bytes(), (key >> 120) as usize)
}

impl Long {
    fn bytes<'a>(&self, arena: &'a [u8]) -> &'a [u8] {
        &arena[self.start as usize..self.start as usize + self.n_bytes as usize]
    }
}
