//! Pre-tokens that merging makes one token of: found by their bytes, without merging.
//!
//! That a token stands in the vocabulary does not say that merging makes it (in Qwen3.5's 201 are never made). It does if
//! it makes both parts of the token's merge, and leaves the boundary between them alone until that merge's turn. What
//! stands at the boundary meanwhile follows from how the parts are made: going back in time, the last merge of the part
//! made later is undone, and the pair that then meets must not merge earlier. Going back is possible where every merge
//! ranks behind those that make its parts; tokens of other merges are left out, as are those too long for an entry.

use std::hint::select_unpredictable;

use rayon::prelude::*;

use super::{
    hash, pages,
    pairs::{NONE, Pairs, prefetch},
    perfect::Perfect,
};

/// Bytes of the longest token that is found.
const N_TOKEN_BYTES: usize = 12;

/// Where the length stands in an entry.
const LENGTH_SHIFT: usize = 8 * N_TOKEN_BYTES;

/// Where the symbol stands.
const SYMBOL_SHIFT: usize = LENGTH_SHIFT + 4;

/// Symbols below are bytes.
const N_BYTES: u32 = 256;

/// A token's bytes, filled up with zeros, above them their number and its symbol; 0 is no token.
type Entry = u128;

/// Tokens by their bytes.
pub struct Whole {
    hash: Perfect,
    entries: Vec<Entry>,
}

impl Whole {
    /// Finds the tokens that merging makes. `parts` are the two symbols that each symbol is merged of, bytes first, and
    /// `bytes` tells what a symbol stands for. No two merges make the same symbol.
    ///
    /// # Errors
    /// The tokens cannot be hashed.
    pub fn new<'t>(pairs: &Pairs, parts: &[[u32; 2]], bytes: impl Fn(u32) -> &'t [u8]) -> Result<Self, String> {
        let made = made(pairs, parts).into_iter().map(|symbol| (bytes(symbol), symbol));
        let short = made.filter(|(token, _)| token.len() <= N_TOKEN_BYTES);
        let tokens: Vec<Entry> = short
            .map(|(token, symbol)| {
                let mut key = [0; 16];
                key[..token.len()].copy_from_slice(token);
                key_of(u128::from_le_bytes(key), token.len()) | u128::from(symbol) << SYMBOL_SHIFT
            })
            .collect();
        let hashes: Vec<u64> = tokens.iter().map(|token| hash::of_key(key_in(*token))).collect();
        let (hash, slots) = Perfect::new(&hashes)?;
        let mut entries = pages::filled(0, hash.n_slots());
        for (token, slot) in tokens.iter().zip(slots) {
            entries[slot as usize] = *token;
        }
        Ok(Self { hash, entries })
    }

    /// The slot where a pre-token of `n` bytes, at most 15, filled up with zeros, would stand; its line is asked for.
    #[inline(always)]
    pub fn ask(&self, bytes: u128, n: usize) -> u32 {
        let slot = self.hash.slot(hash::of_key(key_of(bytes, n)));
        prefetch(&self.entries[slot as usize]);
        slot
    }

    /// Its symbol; `NONE` if it is not found.
    #[inline(always)]
    pub fn answer(&self, bytes: u128, n: usize, slot: u32) -> u32 {
        let entry = self.entries[slot as usize];
        let is_found = (key_in(entry) == key_of(bytes, n)) & (n <= N_TOKEN_BYTES);
        select_unpredictable(is_found, (entry >> SYMBOL_SHIFT) as u32, NONE)
    }
}

#[inline(always)]
fn key_of(bytes: u128, n: usize) -> u128 {
    bytes | (n as u128) << LENGTH_SHIFT
}

/// The part of an entry that holds the bytes and their number.
#[inline(always)]
fn key_in(entry: Entry) -> u128 {
    entry & ((1 << SYMBOL_SHIFT) - 1)
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
        let mut parts: Vec<[u32; 2]> = (0..N_BYTES).map(|byte| [byte; 2]).collect();
        for [left, right] in &merges {
            parts.push([left, right].map(|part| bytes.iter().position(|bytes| bytes == part).unwrap() as u32));
        }
        let ranked: Vec<_> = parts[N_BYTES as usize..].iter().copied().zip(0..).collect();
        let pairs = Pairs::new(&ranked).unwrap();
        (pairs, parts, bytes)
    }

    #[test]
    fn tokens_are_found_whole_exactly_where_merging_makes_them() {
        let mut n_unmade = 0;
        for seed in 0..100 {
            let n_moved = seed % 4;
            let (pairs, parts, bytes) = made_up(seed, n_moved);
            let whole = Whole::new(&pairs, &parts, |symbol| &bytes[symbol as usize]).unwrap();
            for (symbol, token) in bytes.iter().enumerate() {
                let merged = merge(&pairs, token.iter().map(|byte| u32::from(*byte)).collect());
                let is_made = merged == [symbol as u32];
                n_unmade += usize::from(!is_made);
                let mut key = [0; 16];
                key[..token.len()].copy_from_slice(token);
                let (key, n) = (u128::from_le_bytes(key), token.len());
                let found = Some(whole.answer(key, n, whole.ask(key, n))).filter(|found| *found != NONE);
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
