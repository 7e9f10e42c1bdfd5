//! How often each pre-token was seen. Short ones (15 bytes at most, nearly all) are their own key, so that a look-up
//! touches one cache line and compares no strings; longer ones lie in an arena.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{hash, pairs::prefetch};

/// How many look-ups ahead the cache line of one is asked for.
pub const N_AHEAD: usize = 12;

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

/// Half a cache line. The count is atomic for [`gather`] alone.
#[repr(align(32))]
#[derive(Default)]
struct Short {
    key: [u8; 16],
    count: AtomicU64,
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
        Self { short: empty(1 << 14), n_short: 0, long: vec![Long::default(); 1 << 8], n_long: 0, arena: Vec::new() }
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

    /// Asks for the cache line of a key that is added soon.
    #[inline(always)]
    pub fn prefetch(&self, key: Key) {
        prefetch(&self.short[hash::of_key(key) as usize & (self.short.len() - 1)]);
    }

    /// Counts a short pre-token `n` times more.
    #[inline(always)]
    pub fn add_key(&mut self, key: Key, n: u64) {
        let mask = self.short.len() - 1;
        let mut slot = hash::of_key(key) as usize & mask;
        loop {
            let entry = &mut self.short[slot];
            if entry.key() == key {
                *entry.count.get_mut() += n;
                return;
            }
            if entry.key() == 0 {
                *entry = Short { key: key.to_le_bytes(), count: n.into() };
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
        let mut grown = empty(self.short.len() * factor);
        let mask = grown.len() - 1;
        for entry in self.short.drain(..).filter(|entry| entry.key() != 0) {
            let mut slot = hash::of_key(entry.key()) as usize & mask;
            while grown[slot].key() != 0 {
                slot = (slot + 1) & mask;
            }
            grown[slot] = entry;
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

    /// The entry of a short pre-token.
    fn find(&self, key: Key) -> Option<&Short> {
        let mask = self.short.len() - 1;
        let mut slot = hash::of_key(key) as usize & mask;
        loop {
            let entry = &self.short[slot];
            if entry.key() == key {
                return Some(entry);
            }
            if entry.key() == 0 {
                return None;
            }
            slot = (slot + 1) & mask;
        }
    }

    /// The pre-tokens of one of `n` parts of about the same size, each with its count, in no particular order.
    pub fn part(&self, i: usize, n: usize) -> impl Iterator<Item = (&[u8], u64)> {
        let short = share(&self.short, i, n).iter().map(|entry| (entry.bytes(), entry.count.load(Relaxed)));
        let long = share(&self.long, i, n).iter().map(|entry| (entry.bytes(&self.arena), entry.count));
        short.chain(long).filter(|(_, count)| *count > 0)
    }
}

/// Moves the counts of pre-tokens that several tables hold to the first of these. Each of `n` threads does its part; all
/// have to be done before the counts are read. Long pre-tokens, which few tables share, stay where they are.
///
/// A thread takes counts away only where an earlier table holds the key, and adds only where none does: no two threads
/// undo each other's work, and the order does not matter.
pub fn gather(tables: &[&Table], part: usize, n: usize) {
    for (i, table) in tables.iter().enumerate().skip(1) {
        let entries = share(&table.short, part, n);
        for (at, entry) in entries.iter().enumerate() {
            if let Some(ahead) = entries.get(at + N_AHEAD).filter(|ahead| ahead.key() != 0) {
                tables[0].prefetch(ahead.key());
            }
            if entry.key() != 0
                && let Some(first) = tables[..i].iter().find_map(|earlier| earlier.find(entry.key()))
            {
                first.count.fetch_add(entry.count.swap(0, Relaxed), Relaxed);
            }
        }
    }
}

/// Empty entries. They are written one by one: the pages are needed soon anyway.
fn empty(n: usize) -> Vec<Short> {
    let mut entries = Vec::new();
    entries.resize_with(n, Short::default);
    entries
}

/// Part `i` of `n` of a slice.
fn share<T>(all: &[T], i: usize, n: usize) -> &[T] {
    &all[all.len() * i / n..all.len() * (i + 1) / n]
}

impl Short {
    #[inline(always)]
    fn key(&self) -> Key {
        Key::from_le_bytes(self.key)
    }

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        &self.key[..usize::from(self.key[N_KEY_BYTES])]
    }
}

impl Long {
    fn bytes<'a>(&self, arena: &'a [u8]) -> &'a [u8] {
        &arena[self.start as usize..self.start as usize + self.n_bytes as usize]
    }
}
