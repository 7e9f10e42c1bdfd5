//! How often each pre-token was seen. Those of at most 7 bytes, which most are, of at most 15, and longer ones have
//! tables of their own: the first is small enough for the near caches.

use super::{
    hash,
    pairs::prefetch,
    scan::N_STARTS,
    slots::{Key, Slots, gather, share},
};

/// Long pre-tokens whose cache lines are asked for at once.
const N_ASKED: usize = 16;

/// Unique pre-tokens and their counts.
#[derive(Default)]
pub struct Table {
    /// Of at most 7 bytes.
    pub short: Slots<u64>,
    /// Of 8 to 15 bytes.
    pub middle: Slots<u128>,
    /// Of 16 bytes and more.
    pub long: Longs,
    batch: Box<Batch>,
}

/// Room for the pre-tokens of a few blocks of text.
struct Batch {
    short: [u64; N_STARTS],
    middle: [u128; N_STARTS],
    long: [(usize, usize); N_STARTS],
}

impl Default for Batch {
    fn default() -> Self {
        Self { short: [0; _], middle: [0; _], long: [(0, 0); _] }
    }
}

/// Masks of the first bytes.
static FIRST_BYTES: [u128; 16] = {
    let mut masks = [0; 16];
    let mut n = 1;
    while n < 16 {
        masks[n] = masks[n - 1] << 8 | 0xff;
        n += 1;
    }
    masks
};

impl Table {
    /// Bytes in use.
    pub fn n_bytes(&self) -> usize {
        self.short.n_bytes() + self.middle.n_bytes() + self.long.n_bytes()
    }

    /// Counts a pre-token of any length once more.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        if bytes.len() <= u64::N_BYTES {
            self.short.add(u64::of(bytes), 1);
        } else if bytes.len() <= u128::N_BYTES {
            self.middle.add(u128::of(bytes), 1);
        } else {
            self.long.add(bytes);
        }
    }

    /// Counts the pre-tokens between neighbouring starts, [`N_STARTS`] at most. The keys are made first, so that the
    /// lines of the tables are under way when they are needed.
    #[inline(always)]
    pub fn add_between(&mut self, text: &[u8], starts: &[u32]) {
        let Batch { short, middle, long } = &mut *self.batch;
        let (mut n_short, mut n_middle, mut n_long) = (0, 0, 0);
        for pair in starts.windows(2) {
            let (start, end) = (pair[0] as usize, pair[1] as usize);
            let n = end - start;
            match text[start..].first_chunk::<16>() {
                Some(chunk) if n <= u128::N_BYTES => {
                    // Both are written, and one is kept: the length of the next word is no branch to guess.
                    let key = u128::from_le_bytes(*chunk) & FIRST_BYTES[n & 15];
                    short[n_short & (N_STARTS - 1)] = key as u64 | (n as u64) << 56;
                    middle[n_middle & (N_STARTS - 1)] = key | (n as u128) << 120;
                    n_short += usize::from(n <= u64::N_BYTES);
                    n_middle += usize::from(n > u64::N_BYTES);
                }
                _ if n <= u64::N_BYTES => self.short.add(u64::of(&text[start..end]), 1),
                _ if n <= u128::N_BYTES => self.middle.add(u128::of(&text[start..end]), 1),
                _ => {
                    long[n_long & (N_STARTS - 1)] = (start, end);
                    n_long += 1;
                }
            }
        }
        self.long.add_all(text, &long[..n_long]);
        self.short.add_all(&short[..n_short]);
        self.middle.add_all(&middle[..n_middle]);
    }

    /// Moves the counts of pre-tokens that several tables hold to the first of these, thread `part` of `n`. Long ones,
    /// which few tables share, stay where they are.
    pub fn gather(tables: &[Self], part: usize, n: usize) {
        gather(&tables.iter().map(|table| &table.short).collect::<Vec<_>>(), part, n);
        gather(&tables.iter().map(|table| &table.middle).collect::<Vec<_>>(), part, n);
    }
}

/// Pre-tokens that are no keys; their bytes lie in an arena.
pub struct Longs {
    entries: Vec<Long>,
    n_used: usize,
    arena: Vec<u8>,
}

#[derive(Clone, Copy, Default)]
struct Long {
    hash: u64,
    start: u32,
    n_bytes: u32,
    count: u64,
}

impl Default for Longs {
    fn default() -> Self {
        Self { entries: vec![Long::default(); 1 << 8], n_used: 0, arena: Vec::new() }
    }
}

impl Longs {
    fn n_bytes(&self) -> usize {
        self.entries.len() * size_of::<Long>() + self.arena.capacity()
    }

    /// Counts a pre-token once more.
    fn add(&mut self, bytes: &[u8]) {
        self.add_hashed(bytes, hash::of_bytes(bytes));
    }

    /// Counts the pre-tokens at some places in a text once more each.
    pub fn add_all(&mut self, text: &[u8], places: &[(usize, usize)]) {
        for places in places.chunks(N_ASKED) {
            let mut hashes = [0; N_ASKED];
            for (hash, (start, end)) in hashes.iter_mut().zip(places) {
                *hash = hash::of_bytes(&text[*start..*end]);
                prefetch(&self.entries[*hash as usize & (self.entries.len() - 1)]);
            }
            for (hash, (start, end)) in hashes.iter().zip(places) {
                self.add_hashed(&text[*start..*end], *hash);
            }
        }
    }

    fn add_hashed(&mut self, bytes: &[u8], hash: u64) {
        let mask = self.entries.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let entry = &mut self.entries[slot];
            if entry.count == 0 {
                break;
            }
            let (start, n_bytes) = (entry.start as usize, entry.n_bytes as usize);
            if entry.hash == hash && n_bytes == bytes.len() && self.arena[start..start + n_bytes] == *bytes {
                entry.count += 1;
                return;
            }
            slot = (slot + 1) & mask;
        }
        self.entries[slot] = Long { hash, start: self.arena.len() as u32, n_bytes: bytes.len() as u32, count: 1 };
        self.arena.extend_from_slice(bytes);
        self.n_used += 1;
        if self.n_used * 8 > self.entries.len() * 5 {
            self.grow();
        }
    }

    #[cold]
    fn grow(&mut self) {
        let factor = if self.entries.len() < 1 << 14 { 4 } else { 2 };
        let mut grown = vec![Long::default(); self.entries.len() * factor];
        let mask = grown.len() - 1;
        for entry in self.entries.iter().filter(|entry| entry.count > 0) {
            let mut slot = entry.hash as usize & mask;
            while grown[slot].count > 0 {
                slot = (slot + 1) & mask;
            }
            grown[slot] = *entry;
        }
        self.entries = grown;
    }

    /// One of `n` parts, each pre-token with its count, in no particular order.
    pub fn part(&self, i: usize, n: usize) -> impl Iterator<Item = (&[u8], u64)> {
        let entries = share(&self.entries, i, n);
        let used = entries.iter().enumerate().filter(|(_, entry)| entry.count > 0);
        used.map(|(at, entry)| {
            // The bytes lie elsewhere, in the order in which they were first seen.
            let ahead = entries.get(at + N_ASKED).and_then(|entry| self.arena.get(entry.start as usize));
            ahead.into_iter().for_each(prefetch);
            (&self.arena[entry.start as usize..][..entry.n_bytes as usize], entry.count)
        })
    }
}
