//! Byte-pair merging of one pre-token: the lowest rank first, of equal ranks the leftmost, as the reference does.
//!
//! Merging starts at bytes, but a character of three bytes (Chinese, Japanese, Korean) may start as its own token. That
//! is exact when its bytes merge to that token by themselves, when no token reaches over either of its edges without
//! being whole UTF-8, and when every merge of whole characters that contains it ranks behind the merges inside it.

use std::{borrow::Cow, cmp::Reverse, collections::BinaryHeap};

use rayon::prelude::*;

use super::{
    cuts::{Straddled, is_three},
    ids::Ids,
    lanes::Lane,
    pairs::{EDGE, NONE, Pairs},
    spec::Spec,
    token_bytes::TokenBytes,
    whole::Whole,
};

/// Symbols below are the single bytes; above, each merge makes its own.
const N_BYTES: u32 = 256;

/// The merges of a tokenizer. Inside, a token is a symbol: a byte, or 256 plus the rank of the first merge that makes it.
pub struct Merges {
    pairs: Pairs,
    /// Rank of each pair of bytes. Row: the left byte.
    byte_ranks: Vec<u32>,
    /// The symbol of each character of three bytes that may start as a whole, by code point.
    characters: Vec<u32>,
    straddled: Straddled,
    /// The symbol that each rank makes; empty if no two make the same.
    made: Vec<u32>,
    /// The id of each symbol.
    ids: Vec<u32>,
    /// `None` where several merges make the same token.
    whole: Option<Whole>,
}

/// Room for one pre-token, kept between calls.
#[derive(Default)]
pub struct Scratch {
    lane: Lane<64, 136>,
    symbols: Vec<u32>,
    ranks: Vec<u32>,
    heap: BinaryHeap<Reverse<(u32, u32)>>,
    links: Vec<(u32, u32)>,
}

impl Merges {
    /// Builds the tables.
    ///
    /// # Errors
    /// Why the vocabulary cannot be merged here: a byte without a token, a merge of unknown tokens, too many ids.
    pub fn new(spec: &Spec<'_>, ids: &Ids<'_>, tokens: &TokenBytes) -> Result<Self, String> {
        let bytes = single_bytes(tokens)?;
        if spec.model.merges.0.len() >= (EDGE - N_BYTES) as usize {
            return Err("the vocabulary has 2^20 merges or more".to_owned());
        }
        let merged = merged_ids(spec, ids)?;
        let mut symbols = vec![NONE; tokens.n_ids()];
        let mut made = Vec::with_capacity(merged.len());
        let by_rank = merged.iter().map(|(_, _, id)| *id);
        for (symbol, id) in bytes.into_iter().chain(by_rank).enumerate() {
            let known = &mut symbols[id as usize];
            *known = (*known).min(symbol as u32);
            made.push(*known);
        }
        let is_own = made.iter().zip(0..).all(|(made, symbol)| *made == symbol);
        // A token that nothing makes is never there to be merged.
        let pair = |ids: [u32; 2]| ids.map(|id| symbols[id as usize]);
        let ranked = merged.iter().zip(0..).map(|((left, right, _), rank)| (pair([*left, *right]), rank));
        let ranked: Vec<_> = ranked.filter(|(pair, _)| !pair.contains(&NONE)).collect();
        let pairs = Pairs::new(&ranked)?;
        let ids: Vec<u32> = bytes.into_iter().chain(merged.iter().map(|(_, _, id)| *id)).collect();
        let find_whole = || {
            let parts = merged.iter().map(|(left, right, _)| pair([*left, *right]));
            let parts: Vec<[u32; 2]> = (0..N_BYTES).map(|byte| [byte; 2]).chain(parts).collect();
            Whole::new(&pairs, &parts, |symbol| tokens.get(ids[symbol as usize]))
        };
        let whole = is_own.then(find_whole).transpose()?;
        let mut merges = Self {
            byte_ranks: (0..1 << 16).map(|pair| pairs.rank(pair >> 8, pair & 0xff)).collect(),
            pairs,
            characters: vec![NONE; 1 << 16],
            straddled: Straddled::new(tokens),
            made: if is_own { Vec::new() } else { made.split_off(N_BYTES as usize) },
            ids,
            whole,
        };
        merges.find_characters(&merged, &symbols, tokens);
        Ok(merges)
    }

    /// Fills `characters`: those whose bytes make their token, less those that a merge of whole characters precedes.
    fn find_characters(&mut self, merged: &[(u32, u32, u32)], symbols: &[u32], tokens: &TokenBytes) {
        let mut scratch = Scratch::default();
        let mut highest = vec![0; 1 << 16];
        let mut found = vec![NONE; 1 << 16];
        for (id, bytes) in tokens.iter() {
            if let Ok([lead, second, third]) = <[u8; 3]>::try_from(bytes)
                && is_three(lead)
                && std::str::from_utf8(bytes).is_ok()
                && self.encode(bytes, &mut scratch).eq([id])
            {
                let at = code_point(lead, second, third);
                found[at] = symbols[id as usize];
                highest[at] = self.highest_rank(bytes);
            }
        }
        for (rank, (left, right, _)) in merged.iter().enumerate() {
            let parts = [tokens.get(*left), tokens.get(*right)];
            let is_wide = |part: &&[u8]| part.iter().any(|byte| is_three(*byte));
            if !parts.iter().any(is_wide) || parts.iter().any(|part| std::str::from_utf8(part).is_err()) {
                continue;
            }
            for part in parts {
                for (i, lead) in part.iter().enumerate().filter(|(_, byte)| is_three(**byte)) {
                    let at = code_point(*lead, part[i + 1], part[i + 2]);
                    if (rank as u32) < highest[at] {
                        found[at] = NONE;
                    }
                }
            }
        }
        self.characters = found;
    }

    /// The highest rank in the merging of a character that becomes one token.
    fn highest_rank(&self, bytes: &[u8]) -> u32 {
        let symbol = |i: usize| u32::from(bytes[i]);
        let (first, second) = (self.pairs.rank(symbol(0), symbol(1)), self.pairs.rank(symbol(1), symbol(2)));
        let last = match first <= second {
            true => self.pairs.rank(self.made(first), symbol(2)),
            false => self.pairs.rank(symbol(0), self.made(second)),
        };
        last.max(first.min(second))
    }

    /// The tokens that are found without merging.
    pub fn whole(&self) -> Option<&Whole> {
        self.whole.as_ref()
    }

    /// The ranks of pairs.
    pub fn pairs(&self) -> &Pairs {
        &self.pairs
    }

    /// The rank of a pair of bytes.
    #[inline(always)]
    pub fn byte_rank(&self, left: u32, right: u32) -> u32 {
        self.byte_ranks[(left << 8 | right) as usize & 0xffff]
    }

    /// The symbol that the merge of a rank makes.
    #[inline(always)]
    pub fn made(&self, rank: u32) -> u32 {
        if self.made.is_empty() { N_BYTES + rank } else { self.made[rank as usize] }
    }

    /// The id of each symbol.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The tokens of a pre-token.
    pub fn encode(&self, bytes: &[u8], scratch: &mut Scratch) -> impl Iterator<Item = u32> {
        let Scratch { lane, .. } = scratch;
        let symbols = match lane.merge(self, bytes) {
            true => scratch.lane.symbols(),
            false => self.merge_long(bytes, scratch),
        };
        symbols.iter().map(|symbol| self.ids[*symbol as usize])
    }

    /// The symbols of a pre-token that is too long for a lane.
    pub fn merge_long<'s>(&self, bytes: &[u8], scratch: &'s mut Scratch) -> &'s [u32] {
        let Scratch { symbols, ranks, .. } = scratch;
        symbols.clear();
        self.start(bytes, |symbol| symbols.push(symbol));
        ranks.clear();
        ranks.extend(symbols.windows(2).map(|pair| self.pairs.rank(pair[0], pair[1])));
        ranks.push(NONE);
        // Most are one character repeated: many pairs of the lowest rank at once.
        while let Some(least) = ranks.iter().copied().min().filter(|least| *least != NONE) {
            let n = symbols.len();
            self.merge_least(least, symbols, ranks);
            if (n - symbols.len()) * 16 < n {
                self.merge_heap(scratch);
                break;
            }
        }
        &scratch.symbols
    }

    /// Merges the pairs of the lowest rank from left to right; stops early where a merge makes a pair of a lower one.
    fn merge_least(&self, least: u32, symbols: &mut Vec<u32>, ranks: &mut Vec<u32>) {
        let rank = |left: Option<&u32>, right: Option<&u32>| match (left, right) {
            (Some(left), Some(right)) => self.pairs.rank(*left, *right),
            _ => NONE,
        };
        let (mut from, mut to, mut is_least) = (0, 0_usize, true);
        while from < symbols.len() {
            if is_least && ranks[from] == least {
                let made = self.made(least);
                let before = to.checked_sub(1);
                let behind = rank(Some(&made), symbols.get(from + 2));
                let ahead = rank(before.map(|before| &symbols[before]), Some(&made));
                is_least = least < behind.min(ahead);
                before.iter().for_each(|before| ranks[*before] = ahead);
                (symbols[to], ranks[to]) = (made, behind);
                from += 2;
            } else {
                (symbols[to], ranks[to]) = (symbols[from], ranks[from]);
                from += 1;
            }
            to += 1;
        }
        symbols.truncate(to);
        ranks.truncate(to);
    }

    /// The symbols that merging starts from.
    #[inline(always)]
    pub fn start(&self, bytes: &[u8], mut push: impl FnMut(u32)) {
        // Whether no token reaches over the place with a part of a character.
        let is_free = |at: usize| bytes.get(at).is_none_or(|next| !self.straddled.contains(bytes[at - 1], *next));
        let (mut at, mut is_free_before) = (0, true);
        while let [first, rest @ ..] = &bytes[at..] {
            if let [second, third, ..] = *rest
                && is_three(*first)
                && is_free_before
            {
                let symbol = self.characters[code_point(*first, second, third)];
                is_free_before = is_free(at + 3);
                if symbol != NONE && is_free_before {
                    push(symbol);
                    at += 3;
                    continue;
                }
            }
            push((*first).into());
            at += 1;
            is_free_before = is_free(at);
        }
    }

    /// Merges with a heap of (rank, position) and a linked list of symbols; entries that are out of date are skipped.
    fn merge_heap(&self, scratch: &mut Scratch) {
        let Scratch { symbols, ranks, heap, links, .. } = scratch;
        let n = symbols.len() as u32;
        heap.clear();
        heap.extend(ranks.iter().zip(0..).filter(|(rank, _)| **rank != NONE).map(|(rank, i)| Reverse((*rank, i))));
        links.clear();
        links.extend((0..n).map(|i| (i.wrapping_sub(1), i + 1)));
        while let Some(Reverse((rank, at))) = heap.pop() {
            if ranks[at as usize] != rank {
                continue;
            }
            let right = links[at as usize].1;
            let next = links[right as usize].1;
            symbols[at as usize] = self.made(rank);
            symbols[right as usize] = NONE;
            ranks[right as usize] = NONE;
            links[at as usize].1 = next;
            if next < n {
                links[next as usize].0 = at;
            }
            let left = links[at as usize].0;
            for (first, second) in [(left, at), (at, next)] {
                if first < n {
                    let is_pair = second < n;
                    let rank =
                        if is_pair { self.pairs.rank(symbols[first as usize], symbols[second as usize]) } else { NONE };
                    ranks[first as usize] = rank;
                    if rank != NONE {
                        heap.push(Reverse((rank, first)));
                    }
                }
            }
        }
        symbols.retain(|symbol| *symbol != NONE);
    }
}

fn single_bytes(tokens: &TokenBytes) -> Result<[u32; 256], String> {
    let mut ids = [NONE; 256];
    for (id, bytes) in tokens.iter() {
        if let [byte] = bytes {
            ids[*byte as usize] = id;
        }
    }
    if ids.contains(&NONE) { Err("a byte has no token".to_owned()) } else { Ok(ids) }
}

/// The ids of each merge, left, right and made, by rank.
fn merged_ids(spec: &Spec<'_>, ids: &Ids<'_>) -> Result<Vec<(u32, u32, u32)>, String> {
    let (vocab, merges) = (&spec.model.vocab.0, &spec.model.merges.0);
    let find = |token: &str| ids.get(token).ok_or_else(|| format!("the merge token `{token}` is unknown"));
    // Most vocabularies list what merges make in their order, with few others between: looked at there before it is
    // searched for. Of a token listed twice the last place counts.
    let is_listed_once = ids.len() == vocab.len();
    let listed = |at: usize, left: &str, right: &str| {
        let (token, id) = vocab.get(at).filter(|_| is_listed_once)?;
        (token.strip_prefix(left) == Some(right)).then_some(*id)
    };
    let merged = |n_before: &mut usize, (rank, (left, right)): (usize, &(Cow<'_, str>, Cow<'_, str>))| {
        let made = match listed(rank.wrapping_add(*n_before), left, right) {
            Some(made) => made,
            None => find(&format!("{left}{right}"))?,
        };
        *n_before = (made as usize).wrapping_sub(rank);
        Ok((find(left)?, find(right)?, made))
    };
    merges.par_iter().enumerate().map_init(|| N_BYTES as usize, merged).collect()
}

#[inline]
fn code_point(lead: u8, second: u8, third: u8) -> usize {
    usize::from(lead & 0xf) << 12 | usize::from(second & 0x3f) << 6 | usize::from(third & 0x3f)
}
