//! Short pre-tokens merged several at a time.
//!
//! A merge waits for memory: at which ranks the two pairs that it makes would merge. So a few pre-tokens go side by side;
//! each asks for its pairs, and by the time that all have asked, the first one's have come. No step is a branch that the
//! processor has to guess.

use super::{
    bpe::Merges,
    pairs::{EDGE, prefetch},
};

/// Symbols that a lane holds.
const N_SYMBOLS: usize = 16;

/// Pre-tokens side by side.
const N_LANES: usize = 8;

/// Finished symbols that wait for the cache lines of their counts.
const N_WAITING: usize = 64;

/// Keys from here on stand for pairs that do not merge.
const NO_MERGE: u32 = !0xf;

/// One pre-token. Pair `i` is that of symbols `i` and `i + 1`; symbol 0 is an edge.
#[repr(align(64))]
pub struct Lane {
    /// Of each pair its rank, and its number less one in the low four bits, so that the least key is the leftmost of the
    /// lowest ranks. Behind the last is room to move whole vectors.
    keys: [u32; 2 * N_SYMBOLS + 2],
    symbols: [u32; 2 * N_SYMBOLS + 3],
    n_symbols: usize,
    /// The right one of the two pairs that the last merge made, and where their ranks stand.
    at: usize,
    asked: [u32; 2],
    count: u64,
}

impl Default for Lane {
    fn default() -> Self {
        Self { keys: [u32::MAX; _], symbols: [EDGE; _], n_symbols: 0, at: 1, asked: [0; 2], count: 0 }
    }
}

impl Lane {
    /// Takes a pre-token in; false, and empty, if it has too many symbols.
    #[inline(always)]
    fn fill(&mut self, merges: &Merges, bytes: &[u8], count: u64) -> bool {
        self.keys.fill(u32::MAX);
        self.symbols.fill(EDGE);
        self.count = count;
        let mut n = 0;
        let are_bytes = merges.start(bytes, |symbol| {
            n += 1;
            self.symbols[n.min(N_SYMBOLS + 1)] = symbol;
        });
        self.n_symbols = n;
        if n > N_SYMBOLS {
            return false;
        }
        for pair in 1..n {
            let (left, right) = (self.symbols[pair], self.symbols[pair + 1]);
            let rank = if are_bytes { merges.byte_rank(left, right) } else { merges.pairs().rank(left, right) };
            self.keys[pair] = rank << 4 | (pair as u32 - 1);
        }
        true
    }

    /// Merges once, and asks for the ranks of the pairs that this makes; false if nothing merges any more.
    #[inline(always)]
    fn step(&mut self, merges: &Merges) -> bool {
        let least = self.keys[1..=N_SYMBOLS].iter().fold(u32::MAX, |least, key| least.min(*key));
        if least >= NO_MERGE {
            return false;
        }
        let at = (least & 0xf) as usize + 1;
        let made = merges.made(least >> 4);
        let (left, right) = (self.symbols[at - 1], self.symbols[at + 2]);
        self.asked = [merges.pairs().ask(left, made), merges.pairs().ask(made, right)];
        // What stands behind the pair moves up, and its numbers with it.
        let mut keys = [0; N_SYMBOLS];
        let mut symbols = [0; N_SYMBOLS];
        for i in 0..N_SYMBOLS {
            keys[i] = self.keys[at + 2 + i] - 1;
            symbols[i] = self.symbols[at + 2 + i];
        }
        self.keys[at + 1..at + 1 + N_SYMBOLS].copy_from_slice(&keys);
        self.symbols[at + 1..at + 1 + N_SYMBOLS].copy_from_slice(&symbols);
        self.symbols[at] = made;
        self.n_symbols -= 1;
        self.at = at;
        true
    }

    /// Takes the ranks that the last step asked for.
    #[inline(always)]
    fn answer(&mut self, merges: &Merges) {
        let at = self.at & 0x1f;
        let [left, made, right] = [self.symbols[at - 1], self.symbols[at], self.symbols[at + 1]];
        self.keys[at - 1] = merges.pairs().answer(left, made, self.asked[0]) << 4 | (at as u32).wrapping_sub(2) & 0xf;
        self.keys[at] = merges.pairs().answer(made, right, self.asked[1]) << 4 | (at as u32 - 1);
    }

    /// Merges one pre-token; false if it is too long for a lane.
    pub fn merge(&mut self, merges: &Merges, bytes: &[u8]) -> bool {
        let fits = self.fill(merges, bytes, 1);
        while fits && self.step(merges) {
            self.answer(merges);
        }
        fits
    }

    /// The symbols.
    #[inline(always)]
    pub fn symbols(&self) -> &[u32] {
        &self.symbols[1..=self.n_symbols.min(N_SYMBOLS)]
    }
}

/// Counts of symbols. Those of the last few pre-tokens wait until the cache lines that they go to have come.
struct Added<'c> {
    counts: &'c mut [u64],
    waiting: [(u32, u64); N_WAITING],
    n_waiting: usize,
}

impl Added<'_> {
    #[inline(always)]
    fn add(&mut self, symbols: &[u32], count: u64) {
        if self.n_waiting + N_SYMBOLS > N_WAITING {
            self.finish();
        }
        for symbol in symbols {
            prefetch(&self.counts[*symbol as usize]);
            self.waiting[self.n_waiting] = (*symbol, count);
            self.n_waiting += 1;
        }
    }

    #[inline(always)]
    fn finish(&mut self) {
        for (symbol, count) in &self.waiting[..self.n_waiting] {
            self.counts[*symbol as usize] += count;
        }
        self.n_waiting = 0;
    }
}

/// Merges pre-tokens and adds their counts to those of their symbols. Those that are too long for a lane are handed to
/// `long`.
#[inline(always)]
pub fn merge_all<'t>(
    merges: &Merges,
    mut pre_tokens: impl Iterator<Item = (&'t [u8], u64)>,
    counts: &mut [u64],
    mut long: impl FnMut(&'t [u8], u64),
) {
    let mut added = Added { counts, waiting: [(0, 0); N_WAITING], n_waiting: 0 };
    let mut fill_next = |lane: &mut Lane| loop {
        let Some((bytes, count)) = pre_tokens.next() else { return false };
        if lane.fill(merges, bytes, count) {
            return true;
        }
        long(bytes, count);
    };
    // All lanes are empty at first: nothing merges in them, and nothing is added.
    let mut lanes: [Lane; N_LANES] = Default::default();
    let mut n_busy = N_LANES;
    while n_busy > 0 {
        let mut at = 0;
        while at < n_busy {
            if lanes[at].step(merges) {
                at += 1;
                continue;
            }
            added.add(lanes[at].symbols(), lanes[at].count);
            if !fill_next(&mut lanes[at]) {
                n_busy -= 1;
                lanes.swap(at, n_busy);
            }
        }
        for lane in &mut lanes[..n_busy] {
            lane.answer(merges);
        }
    }
    added.finish();
}
