//! Pre-tokens merged several at a time.
//!
//! A merge waits for memory: at which ranks the two pairs that it makes would merge. So a few pre-tokens go side by side;
//! each asks for its pairs, and by the time that all have asked, the first one's have come. No step is a branch that the
//! processor has to guess.

use super::{
    bpe::Merges,
    cuts::has_three,
    pairs::{EDGE, prefetch},
    slots::Key,
};

/// Pre-tokens side by side.
const N_LANES: usize = 8;

/// Finished symbols that wait for the cache lines of their ids.
const N_WAITING: usize = 128;

/// Bits of a pair's number in its key.
const PLACE_BITS: u32 = 6;

/// Keys from here on stand for pairs that do not merge.
const NO_MERGE: u32 = u32::MAX << PLACE_BITS;

/// One pre-token of at most `N` symbols, a power of two of at most 64. Pair `i` is that of symbols `i` and `i + 1`;
/// symbol 0 is an edge. `SIZE`, 2 `N` + 8, leaves room behind the last symbol to move whole vectors.
#[repr(align(64))]
pub struct Lane<const N: usize, const SIZE: usize> {
    /// Of each pair its rank, and its number less one in the low bits, so that the least key is the leftmost of the
    /// lowest ranks.
    keys: [u32; SIZE],
    symbols: [u32; SIZE],
    n_symbols: usize,
    /// The right one of the two pairs that the last merge made; 0 before the first, when all pairs are new.
    at: usize,
    /// Where the ranks of the new pairs stand.
    asked: [u32; SIZE],
    count: u64,
    /// Whether the first ranks were asked for.
    are_asked: bool,
}

impl<const N: usize, const SIZE: usize> Default for Lane<N, SIZE> {
    fn default() -> Self {
        Self { keys: [u32::MAX; _], symbols: [EDGE; _], n_symbols: 0, at: 0, asked: [0; _], count: 0, are_asked: false }
    }
}

impl<const N: usize, const SIZE: usize> Lane<N, SIZE> {
    /// Takes a pre-token in, the first `n` of `bytes`, others being zero, and asks for the ranks of its pairs; false, and
    /// empty, if it has too many symbols.
    #[inline(always)]
    fn fill(&mut self, merges: &Merges, bytes: &[u8], n: usize, count: u64) -> bool {
        self.keys.fill(u32::MAX);
        self.symbols.fill(EDGE);
        self.count = count;
        self.at = 0;
        // Long ones are looked at once, by their symbols.
        self.are_asked = n > u128::N_BYTES || has_three(bytes);
        if self.are_asked {
            return self.fill_characters(merges, &bytes[..n]);
        }
        if n > N {
            return false;
        }
        self.n_symbols = n;
        for (i, (symbol, byte)) in self.symbols[1..].iter_mut().zip(bytes).enumerate() {
            *symbol = if i < n { u32::from(*byte) } else { EDGE };
        }
        for pair in 1..n {
            let rank = merges.byte_rank(self.symbols[pair], self.symbols[pair + 1]);
            self.keys[pair] = rank << PLACE_BITS | (pair as u32 - 1);
        }
        true
    }

    #[inline(always)]
    fn fill_characters(&mut self, merges: &Merges, bytes: &[u8]) -> bool {
        let mut n = 0;
        merges.start(bytes, |symbol| {
            n += 1;
            self.symbols[n.min(N + 1)] = symbol;
        });
        if n > N {
            return false;
        }
        self.n_symbols = n;
        for pair in 1..n {
            self.asked[pair] = merges.pairs().ask(self.symbols[pair], self.symbols[pair + 1]);
        }
        true
    }

    /// Merges once, and asks for the ranks of the pairs that this makes; false if nothing merges any more.
    #[inline(always)]
    fn step(&mut self, merges: &Merges) -> bool {
        let least = self.keys[1..=N].iter().fold(u32::MAX, |least, key| least.min(*key));
        if least >= NO_MERGE {
            return false;
        }
        let at = (least as usize & (N - 1)) + 1;
        let made = merges.made(least >> PLACE_BITS);
        let (left, right) = (self.symbols[at - 1], self.symbols[at + 2]);
        self.asked[0] = merges.pairs().ask(left, made);
        self.asked[1] = merges.pairs().ask(made, right);
        // What stands behind the pair moves up, and its numbers with it.
        let (mut keys, mut symbols) = ([0; N], [0; N]);
        for i in 0..N {
            keys[i] = self.keys[at + 2 + i] - 1;
            symbols[i] = self.symbols[at + 2 + i];
        }
        self.keys[at + 1..at + 1 + N].copy_from_slice(&keys);
        self.symbols[at + 1..at + 1 + N].copy_from_slice(&symbols);
        self.symbols[at] = made;
        self.n_symbols -= 1;
        self.at = at;
        true
    }

    /// Takes the ranks that were asked for.
    #[inline(always)]
    fn answer(&mut self, merges: &Merges) {
        if self.at == 0 {
            let n = if self.are_asked { self.n_symbols } else { 0 };
            for pair in 1..n {
                let rank = merges.pairs().answer(self.symbols[pair], self.symbols[pair + 1], self.asked[pair]);
                self.keys[pair] = rank << PLACE_BITS | (pair as u32 - 1);
            }
            return;
        }
        let at = ((self.at - 1) & (N - 1)) + 1;
        let [left, made, right] = [self.symbols[at - 1], self.symbols[at], self.symbols[at + 1]];
        let ranks =
            [merges.pairs().answer(left, made, self.asked[0]), merges.pairs().answer(made, right, self.asked[1])];
        self.keys[at - 1] = ranks[0] << PLACE_BITS | (at as u32).wrapping_sub(2) & !NO_MERGE;
        self.keys[at] = ranks[1] << PLACE_BITS | (at as u32 - 1);
    }

    /// Merges one pre-token; false if it is too long for a lane.
    pub fn merge(&mut self, merges: &Merges, bytes: &[u8]) -> bool {
        if !self.fill(merges, bytes, bytes.len(), 1) {
            return false;
        }
        self.answer(merges);
        while self.step(merges) {
            self.answer(merges);
        }
        true
    }

    /// The symbols.
    #[inline(always)]
    pub fn symbols(&self) -> &[u32] {
        &self.symbols[1..=self.n_symbols.min(N)]
    }
}

/// Counts of tokens. The symbols of the last few pre-tokens wait until the cache lines of their ids have come.
pub struct Added<'c> {
    counts: &'c mut [u64],
    /// The id of each symbol.
    ids: &'c [u32],
    waiting: [(u32, u64); N_WAITING],
    n_waiting: usize,
}

impl<'c> Added<'c> {
    /// Adds to `counts`, by id.
    pub fn new(counts: &'c mut [u64], ids: &'c [u32]) -> Self {
        Self { counts, ids, waiting: [(0, 0); N_WAITING], n_waiting: 0 }
    }

    /// Adds to the count of each symbol.
    #[inline(always)]
    pub fn add(&mut self, symbols: &[u32], count: u64) {
        for symbol in symbols {
            if self.n_waiting == N_WAITING {
                self.finish();
            }
            prefetch(&self.ids[*symbol as usize]);
            self.waiting[self.n_waiting] = (*symbol, count);
            self.n_waiting += 1;
        }
    }

    /// Adds to the count of an id.
    #[inline(always)]
    pub fn add_id(&mut self, id: u32, count: u64) {
        self.counts[id as usize] += count;
    }

    /// Adds what waits.
    #[inline(always)]
    pub fn finish(&mut self) {
        let waiting = &mut self.waiting[..self.n_waiting];
        for (symbol, _) in waiting.iter_mut() {
            *symbol = self.ids[*symbol as usize];
            prefetch(&self.counts[*symbol as usize]);
        }
        for (id, count) in waiting {
            self.counts[*id as usize] += *count;
        }
        self.n_waiting = 0;
    }
}

/// Merges pre-tokens and adds their counts to those of their symbols. Those that are too long for a lane are handed to
/// `long`. `next` returns where a pre-token lies, its length and its count, and may add what it finds by itself.
#[inline(always)]
pub fn merge_all<const N: usize, const SIZE: usize, B: AsRef<[u8]>>(
    merges: &Merges,
    added: &mut Added<'_>,
    mut next: impl FnMut(&mut Added<'_>) -> Option<(B, usize, u64)>,
    mut long: impl FnMut(B, u64),
) {
    // All lanes are empty at first: nothing merges in them, and nothing is added.
    let mut lanes: [Lane<N, SIZE>; N_LANES] = Default::default();
    let mut n_busy = N_LANES;
    while n_busy > 0 {
        let mut at = 0;
        while at < n_busy {
            let lane = &mut lanes[at];
            if lane.step(merges) {
                at += 1;
                continue;
            }
            added.add(lane.symbols(), lane.count);
            lane.n_symbols = 0;
            let is_filled = loop {
                let Some((bytes, n, count)) = next(added) else { break false };
                if lane.fill(merges, bytes.as_ref(), n, count) {
                    break true;
                }
                long(bytes, count);
            };
            if is_filled {
                at += 1;
            } else {
                n_busy -= 1;
                lanes.swap(at, n_busy);
            }
        }
        for lane in &mut lanes[..n_busy] {
            lane.answer(merges);
        }
    }
}
