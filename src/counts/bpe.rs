//! Byte-pair merging of one pre-token: the lowest rank first, of equal ranks the leftmost, as the reference does.
//!
//! Merging starts at bytes, but a character of three bytes (Chinese, Japanese, Korean) may start as its own token. That
//! is exact when its bytes merge to that token by themselves, when no token reaches over either of its edges without
//! being whole UTF-8, and when every merge of whole characters that contains it ranks behind the merges inside it.

use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    hash::BuildHasherDefault,
};

use rayon::prelude::*;

use super::{
    cuts::{Straddled, is_three},
    hash::Folded,
    spec::Spec,
    token_bytes::TokenBytes,
};

/// No merge of a pair, or no token.
const NONE: u32 = u32::MAX;

/// Symbols up to which the lowest rank is searched in a row; for more it is kept in a heap, as searching is quadratic.
const ROW: usize = 64;

/// Bits of the filter: 256 KiB.
const N_FILTER_BITS: u32 = 21;

/// A vocabulary by its strings as tokenizer.json spells them.
pub type Ids<'a> = HashMap<&'a str, u32, BuildHasherDefault<Folded>>;

/// The merges of a tokenizer.
pub struct Merges {
    /// The id of each single byte.
    bytes: [u32; 256],
    /// Rank of each pair of bytes, `NONE` if they do not merge. Row: the left byte.
    byte_ranks: Vec<u32>,
    /// The id of each character of three bytes that may start as a whole, by code point.
    characters: Vec<u32>,
    straddled: Straddled,
    /// A bit for each hash of a pair that merges. Most look-ups are of pairs that do not, and end here, in the
    /// second-level cache.
    filter: Vec<u64>,
    /// Open table of `left id (20 bits) | right id (20 bits) | rank (24 bits)`; an empty slot is `u64::MAX`.
    pairs: Vec<u64>,
    /// 64 less the number of bits of a slot.
    shift: u32,
    /// The id that each rank makes.
    made: Vec<u32>,
}

/// Room for one pre-token, kept between calls.
pub struct Scratch {
    symbols: Vec<u32>,
    ranks: Vec<u32>,
    row: Box<Row>,
    heap: BinaryHeap<Reverse<(u32, u32)>>,
    links: Vec<(u32, u32)>,
}

/// At most [`ROW`] symbols as a linked list. A key is a rank and its position below it, so that the least key is the
/// leftmost of the lowest ranks.
struct Row {
    keys: [u32; ROW],
    next: [u8; ROW + 1],
    before: [u8; ROW + 1],
}

/// The links of a row before any merge.
const NEXT: [u8; ROW] = links(1);
const BEFORE: [u8; ROW] = links(u8::MAX);

const fn links(step: u8) -> [u8; ROW] {
    let mut links = [0; ROW];
    let mut at = 0;
    while at < ROW {
        links[at] = (at as u8).wrapping_add(step);
        at += 1;
    }
    links
}

impl Default for Scratch {
    fn default() -> Self {
        let row = Box::new(Row { keys: [NONE; ROW], next: [0; ROW + 1], before: [0; ROW + 1] });
        Self { symbols: Vec::new(), ranks: Vec::new(), row, heap: BinaryHeap::new(), links: Vec::new() }
    }
}

impl Merges {
    /// Builds the tables.
    ///
    /// # Errors
    /// Why the vocabulary cannot be merged here: a byte without a token, a merge of unknown tokens, too many ids.
    pub fn new(spec: &Spec<'_>, ids: &Ids<'_>, tokens: &TokenBytes) -> Result<Self, String> {
        let bytes = single_bytes(tokens)?;
        if spec.model.vocab.0.iter().any(|(_, id)| *id >= 1 << 20) || spec.model.merges.0.len() >= (1 << 24) - 1 {
            return Err("the vocabulary has more than 2^20 ids or 2^24 merges".to_owned());
        }
        let n_slots = (spec.model.merges.0.len() * 2).next_power_of_two().max(16);
        let mut merges = Self {
            bytes,
            byte_ranks: Vec::new(),
            characters: vec![NONE; 1 << 16],
            straddled: Straddled::new(tokens),
            filter: vec![0; 1 << (N_FILTER_BITS - 6)],
            pairs: vec![u64::MAX; n_slots],
            shift: 64 - n_slots.trailing_zeros(),
            made: Vec::with_capacity(spec.model.merges.0.len()),
        };
        let find = |token: &str| ids.get(token).copied().ok_or_else(|| format!("the merge token `{token}` is unknown"));
        let resolve = |joined: &mut String, (left, right): &(Cow<'_, str>, Cow<'_, str>)| {
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            Ok((find(left)?, find(right)?, find(joined)?))
        };
        let resolved = spec.model.merges.0.par_iter().map_init(String::new, resolve);
        let resolved: Vec<(u32, u32, u32)> = resolved.collect::<Result<_, String>>()?;
        for (rank, (left, right, made)) in resolved.iter().enumerate() {
            merges.insert(*left, *right, rank as u32);
            merges.made.push(*made);
        }
        merges.byte_ranks = (0..1_usize << 16).map(|pair| merges.rank(bytes[pair >> 8], bytes[pair & 0xff])).collect();
        merges.find_characters(&resolved, tokens);
        Ok(merges)
    }

    /// A pair that stands twice has the rank of its last line, as in the reference's map.
    fn insert(&mut self, left: u32, right: u32, rank: u32) {
        let key = pair_key(left, right);
        let mut slot = self.slot(key);
        while self.pairs[slot] != u64::MAX && self.pairs[slot] >> 24 != key {
            slot = (slot + 1) & (self.pairs.len() - 1);
        }
        self.pairs[slot] = (key << 24) | u64::from(rank);
        let bit = hash_of(key) >> (64 - N_FILTER_BITS);
        self.filter[(bit >> 6) as usize] |= 1 << (bit & 63);
    }

    /// Fills `characters`: those whose bytes make their token, less those that a merge of whole characters precedes.
    fn find_characters(&mut self, resolved: &[(u32, u32, u32)], tokens: &TokenBytes) {
        let mut scratch = Scratch::default();
        let mut highest = vec![0; 1 << 16];
        let mut found = vec![NONE; 1 << 16];
        for (id, bytes) in tokens.iter() {
            if let Ok([lead, second, third]) = <[u8; 3]>::try_from(bytes)
                && is_three(lead)
                && std::str::from_utf8(bytes).is_ok()
                && self.encode(bytes, &mut scratch) == [id]
            {
                let at = code_point(lead, second, third);
                found[at] = id;
                highest[at] = self.highest_rank(bytes);
            }
        }
        for (rank, (left, right, _)) in resolved.iter().enumerate() {
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
        let id = |i: usize| self.bytes[bytes[i] as usize];
        let (first, second) = (self.rank(id(0), id(1)), self.rank(id(1), id(2)));
        let last = match first <= second {
            true => self.rank(self.made[first as usize], id(2)),
            false => self.rank(id(0), self.made[second as usize]),
        };
        last.max(first.min(second))
    }

    #[inline]
    fn slot(&self, key: u64) -> usize {
        (hash_of(key) >> self.shift) as usize
    }

    /// The rank of a pair of ids, `NONE` if they do not merge.
    #[inline(always)]
    fn rank(&self, left: u32, right: u32) -> u32 {
        let key = pair_key(left, right);
        let bit = hash_of(key) >> (64 - N_FILTER_BITS);
        if self.filter[(bit >> 6) as usize] >> (bit & 63) & 1 == 0 {
            return NONE;
        }
        let mut slot = self.slot(key);
        loop {
            let entry = self.pairs[slot];
            if entry >> 24 == key {
                return (entry & 0xff_ffff) as u32;
            }
            if entry == u64::MAX {
                return NONE;
            }
            slot = (slot + 1) & (self.pairs.len() - 1);
        }
    }

    /// The tokens of a pre-token.
    #[inline(always)]
    pub fn encode<'s>(&self, bytes: &[u8], scratch: &'s mut Scratch) -> &'s [u32] {
        self.start(bytes, scratch);
        if scratch.symbols.len() <= ROW {
            self.merge_row(scratch)
        } else {
            self.merge_heap(scratch)
        }
        &scratch.symbols
    }

    /// The symbols that merging starts from, and the rank of each with the next.
    #[inline(always)]
    fn start(&self, bytes: &[u8], scratch: &mut Scratch) {
        let Scratch { symbols, ranks, .. } = scratch;
        symbols.clear();
        ranks.clear();
        if !bytes.iter().any(|byte| is_three(*byte)) {
            symbols.extend(bytes.iter().map(|byte| self.bytes[*byte as usize]));
            let rank = |pair: &[u8]| self.byte_ranks[usize::from(pair[0]) << 8 | usize::from(pair[1])];
            ranks.extend(bytes.windows(2).map(rank));
            return;
        }
        let mut at = 0;
        while at < bytes.len() {
            let n = self.character(bytes, at).map_or(1, |id| {
                symbols.push(id);
                3
            });
            if n == 1 {
                symbols.push(self.bytes[bytes[at] as usize]);
            }
            at += n;
        }
        for pair in symbols.windows(2) {
            ranks.push(self.rank(pair[0], pair[1]));
        }
    }

    /// The character at `at`, if it may start as a whole.
    #[inline(always)]
    fn character(&self, bytes: &[u8], at: usize) -> Option<u32> {
        let [lead, second, third] = *bytes[at..].first_chunk::<3>()?;
        if !is_three(lead) {
            return None;
        }
        let id = self.characters[code_point(lead, second, third)];
        let is_free = |left: Option<&u8>, right: Option<&u8>| match (left, right) {
            (Some(left), Some(right)) => !self.straddled.contains(*left, *right),
            _ => true,
        };
        let before = at.checked_sub(1).and_then(|at| bytes.get(at));
        (id != NONE && is_free(before, Some(&lead)) && is_free(Some(&third), bytes.get(at + 3))).then_some(id)
    }

    /// Merges by searching the row for its least key.
    #[inline(always)]
    fn merge_row(&self, scratch: &mut Scratch) {
        let Scratch { symbols, ranks, row, .. } = scratch;
        let n = symbols.len();
        if ranks.iter().all(|rank| *rank == NONE) {
            return; // one symbol, or none that merge
        }
        // Whole vectors are searched; the keys behind the last are none.
        let n_keys = n.next_multiple_of(8);
        ranks.resize(n_keys, NONE);
        let Row { keys, next, before } = row.as_mut();
        let key = |rank: u32, at: usize| if rank == NONE { NONE } else { rank << 6 | at as u32 };
        for (at, (slot, rank)) in keys.iter_mut().zip(ranks.iter()).enumerate() {
            *slot = key(*rank, at);
        }
        next[..n_keys].copy_from_slice(&NEXT[..n_keys]);
        before[..n_keys].copy_from_slice(&BEFORE[..n_keys]);
        loop {
            let least = keys[..n_keys].iter().fold(NONE, |least, key| least.min(*key));
            if least == NONE {
                break;
            }
            let at = (least & 63) as usize;
            let right = usize::from(next[at]);
            let behind = usize::from(next[right]);
            symbols[at] = self.made[(least >> 6) as usize];
            symbols[right] = NONE;
            keys[right] = NONE;
            next[at] = behind as u8;
            before[behind] = at as u8;
            keys[at] = if behind < n { key(self.rank(symbols[at], symbols[behind]), at) } else { NONE };
            let left = usize::from(before[at]);
            if left < n {
                keys[left] = key(self.rank(symbols[left], symbols[at]), left);
            }
        }
        symbols.retain(|symbol| *symbol != NONE);
    }

    /// Merges with a heap of (rank, position) and a linked list of symbols; entries that are out of date are skipped.
    fn merge_heap(&self, scratch: &mut Scratch) {
        let Scratch { symbols, ranks, heap, links, .. } = scratch;
        let n = symbols.len() as u32;
        heap.clear();
        heap.extend(ranks.iter().zip(0..).filter(|(rank, _)| **rank != NONE).map(|(rank, i)| Reverse((*rank, i))));
        links.clear();
        links.extend((0..n).map(|i| (i.wrapping_sub(1), i + 1)));
        ranks.push(NONE);
        while let Some(Reverse((rank, at))) = heap.pop() {
            if ranks[at as usize] != rank {
                continue;
            }
            let right = links[at as usize].1;
            let next = links[right as usize].1;
            symbols[at as usize] = self.made[rank as usize];
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
                        if is_pair { self.rank(symbols[first as usize], symbols[second as usize]) } else { NONE };
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

#[inline]
fn pair_key(left: u32, right: u32) -> u64 {
    u64::from(left) << 20 | u64::from(right)
}

#[inline]
fn hash_of(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[inline]
fn code_point(lead: u8, second: u8, third: u8) -> usize {
    usize::from(lead & 0xf) << 12 | usize::from(second & 0x3f) << 6 | usize::from(third & 0x3f)
}
