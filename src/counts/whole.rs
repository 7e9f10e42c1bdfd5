//! Pre-tokens that merging makes one token of: found by their bytes, without merging.
//!
//! That a token stands in the vocabulary does not say that merging makes it (in Qwen3.5's 201 are never made). It does if
//! it makes both parts of the token's merge, and leaves the boundary between them alone until that merge's turn. What
//! stands at the boundary meanwhile follows from how the parts are made: going back in time, the last merge of the part
//! made later is undone, and the pair that then meets must not merge earlier. Going back is possible where every merge
//! ranks behind those that make its parts; tokens of other merges are left out, as are those too long for an entry.

use rayon::prelude::*;

use super::{
    hash,
    pairs::{NONE, Pairs, prefetch},
};

/// Bytes of the longest token that is found.
const N_TOKEN_BYTES: usize = 12;

/// Entries whose cache lines are asked for at once.
const N_ASKED: usize = 32;

/// Symbols below are bytes.
const N_BYTES: u32 = 256;

/// A token's bytes, filled up with zeros, and above them its symbol; 0 is no token.
type Entry = u128;

/// The part of an entry that holds the bytes.
const BYTES: u128 = (1 << (8 * N_TOKEN_BYTES)) - 1;

/// Tokens by their bytes.
pub struct Whole {
    entries: Vec<Entry>,
}

impl Whole {
    /// Finds the tokens that merging makes. `parts` are the two symbols that each symbol is merged of, bytes first, and
    /// `bytes` tells what a symbol stands for. No two merges make the same symbol.
    pub fn new<'t>(pairs: &Pairs, parts: &[[u32; 2]], bytes: impl Fn(u32) -> &'t [u8]) -> Self {
        let mut whole = Self { entries: vec![0; (parts.len() * 2).next_power_of_two()] };
        for symbols in made(pairs, parts).chunks(N_ASKED) {
            let entry = |symbol: &u32| {
                let token = bytes(*symbol);
                // A zero at the end is not told from what fills up.
                if token.len() > N_TOKEN_BYTES || token.last() == Some(&0) {
                    return None;
                }
                let mut key = [0; 16];
                key[..token.len()].copy_from_slice(token);
                Some((u128::from_le_bytes(key), *symbol))
            };
            let tokens = || symbols.iter().filter_map(entry);
            tokens().for_each(|(bytes, _)| whole.prefetch(bytes));
            tokens().for_each(|(bytes, symbol)| whole.insert(bytes, symbol));
        }
        whole
    }

    fn insert(&mut self, bytes: u128, symbol: u32) {
        let mask = self.entries.len() - 1;
        let mut slot = hash_of(bytes) & mask;
        while self.entries[slot] != 0 {
            slot = (slot + 1) & mask;
        }
        self.entries[slot] = bytes | u128::from(symbol) << (8 * N_TOKEN_BYTES);
    }

    /// Asks for the cache line of a pre-token that is looked up soon.
    #[inline(always)]
    pub fn prefetch(&self, bytes: u128) {
        prefetch(&self.entries[hash_of(bytes & BYTES) & (self.entries.len() - 1)]);
    }

    /// The symbol of a pre-token of `n` bytes, filled up with zeros.
    #[inline(always)]
    pub fn get(&self, bytes: u128, n: usize) -> Option<u32> {
        if n > N_TOKEN_BYTES || bytes >> (8 * n - 8) == 0 {
            return None;
        }
        let mask = self.entries.len() - 1;
        let mut slot = hash_of(bytes) & mask;
        loop {
            let entry = self.entries[slot];
            if entry & BYTES == bytes {
                return Some((entry >> (8 * N_TOKEN_BYTES)) as u32);
            }
            if entry == 0 {
                return None;
            }
            slot = (slot + 1) & mask;
        }
    }
}

/// The symbols whose bytes merge to them.
fn made(pairs: &Pairs, parts: &[[u32; 2]]) -> Vec<u32> {
    let is_made_of = |symbol: u32| {
        let [left, right] = parts[symbol as usize];
        symbol < N_BYTES || (left.max(right) < symbol && stay_apart(pairs, parts, left, right))
    };
    let mut is_made: Vec<bool> = (0..parts.len() as u32).into_par_iter().map(is_made_of).collect();
    for symbol in N_BYTES as usize..parts.len() {
        is_made[symbol] &= parts[symbol].iter().all(|part| is_made.get(*part as usize) == Some(&true));
    }
    (0..parts.len() as u32).filter(|symbol| is_made[*symbol as usize]).collect()
}

/// Whether no pair merges over the boundary of two neighbours before both are made.
fn stay_apart(pairs: &Pairs, parts: &[[u32; 2]], mut left: u32, mut right: u32) -> bool {
    // A part that nothing makes counts as a byte; the token is left out anyway.
    let part = |of: u32, side: usize| parts.get(of as usize).map_or(0, |parts| parts[side]);
    while left.max(right) >= N_BYTES {
        // Of two that are made at the same time the left one is made first. A pair of the rank of that time merges
        // before the right one, which lies behind it, but not before the left one.
        let time;
        if left > right {
            (time, left) = (left, part(left, 1));
        } else {
            (time, right) = (right.saturating_add(1), part(right, 0));
        }
        let rank = pairs.rank(left, right);
        if rank != NONE && N_BYTES + rank < time {
            return false;
        }
    }
    true
}

#[inline(always)]
fn hash_of(bytes: u128) -> usize {
    hash::of_key(bytes) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges by the letter of the rule: the lowest rank first, of equal ones the leftmost.
    fn merge(pairs: &Pairs, mut symbols: Vec<u32>) -> Vec<u32> {
        let rank = |pair: &[u32]| pairs.rank(pair[0], pair[1]);
        while let Some(at) = (1..symbols.len()).min_by_key(|at| rank(&symbols[at - 1..=*at]))
            && rank(&symbols[at - 1..=at]) != NONE
        {
            symbols[at - 1] = N_BYTES + rank(&symbols[at - 1..=at]);
            symbols.remove(at);
        }
        symbols
    }

    /// Merges of `a` to `c`, and what each symbol stands for; `n_moved` of them rank before those that make their parts.
    fn made_up(seed: u64, n_moved: u64) -> (Pairs, Vec<[u32; 2]>, Vec<Vec<u8>>) {
        let mut state = seed;
        let mut random = |n: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) % n
        };
        let mut tokens: Vec<Vec<u8>> = (b'a'..=b'c').map(|byte| vec![byte]).collect();
        let mut merges: Vec<[Vec<u8>; 2]> = Vec::new();
        while merges.len() < 60 {
            let [left, right] = [0; 2].map(|_| tokens[random(tokens.len() as u64) as usize].clone());
            let joined = [left.clone(), right.clone()].concat();
            if joined.len() <= 9 && !tokens.contains(&joined) {
                merges.push([left, right]);
                tokens.push(joined);
            }
        }
        (0..n_moved).for_each(|_| merges.swap(random(60) as usize, random(60) as usize));
        let mut bytes: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        bytes.extend(merges.iter().map(|parts| parts.concat()));
        let mut pairs = Pairs::with_capacity(merges.len());
        let mut parts: Vec<[u32; 2]> = (0..N_BYTES).map(|byte| [byte; 2]).collect();
        for (rank, [left, right]) in merges.iter().enumerate() {
            let of = [left, right].map(|part| bytes.iter().position(|bytes| bytes == part).unwrap() as u32);
            pairs.insert(of[0], of[1], rank as u32);
            parts.push(of);
        }
        (pairs, parts, bytes)
    }

    #[test]
    fn tokens_are_found_whole_exactly_where_merging_makes_them() {
        let mut n_unmade = 0;
        for seed in 0..100 {
            let n_moved = seed % 4;
            let (pairs, parts, bytes) = made_up(seed, n_moved);
            let whole = Whole::new(&pairs, &parts, |symbol| &bytes[symbol as usize]);
            for (symbol, token) in bytes.iter().enumerate().skip(1) {
                let merged = merge(&pairs, token.iter().map(|byte| u32::from(*byte)).collect());
                let is_made = merged == [symbol as u32];
                n_unmade += usize::from(!is_made);
                let mut key = [0; 16];
                key[..token.len()].copy_from_slice(token);
                let found = whole.get(u128::from_le_bytes(key), token.len());
                let is_right = if n_moved == 0 { found.is_some() == is_made } else { found.is_none() || is_made };
                assert!(
                    is_right && found.is_none_or(|found| found as usize == symbol),
                    "{seed}: {token:?}: {merged:?}"
                );
            }
        }
        assert!(n_unmade > 100, "the vocabularies are too easy: {n_unmade}");
    }
}
