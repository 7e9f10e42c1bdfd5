//! Byte-pair merging of one pre-token: the lowest rank first, of equal ranks the leftmost, as the reference does.

use std::{collections::HashMap, hash::BuildHasherDefault};

use super::{hash::Folded, spec::Spec, tokenizer::byte_of_char};

/// No merge of a pair.
const NONE: u32 = u32::MAX;

/// Pre-tokens longer than this go through a heap: searching a long row for its lowest rank each time is quadratic.
const LONGEST_ROW: usize = 48;

/// A vocabulary by its strings as tokenizer.json spells them.
pub type Ids<'a> = HashMap<&'a str, u32, BuildHasherDefault<Folded>>;

/// The merges of a tokenizer.
pub struct Merges {
    /// The id of each single byte.
    bytes: [u32; 256],
    /// Rank of each pair of bytes, `NONE` if they do not merge. Row: the left byte.
    byte_ranks: Vec<u32>,
    /// Open table of `left id (20 bits) | right id (20 bits) | rank (24 bits)`; an empty slot is `u64::MAX`.
    pairs: Vec<u64>,
    /// Number of bits of a slot.
    shift: u32,
    /// The id that each rank makes.
    made: Vec<u32>,
}

/// Room for one pre-token, kept between calls.
#[derive(Default)]
pub struct Scratch {
    symbols: Vec<u32>,
    ranks: Vec<u32>,
    heap: std::collections::BinaryHeap<std::cmp::Reverse<(u32, u32)>>,
    links: Vec<(u32, u32)>,
}

impl Merges {
    /// Builds the tables.
    ///
    /// # Errors
    /// Why the vocabulary cannot be merged here: a byte without a token, a merge of unknown tokens, too many ids.
    pub fn new(spec: &Spec<'_>, ids: &Ids<'_>) -> Result<Self, String> {
        let mut bytes = [NONE; 256];
        for c in (0..0x200).filter_map(char::from_u32) {
            if let (Some(byte), Some(id)) = (byte_of_char(c), ids.get(c.encode_utf8(&mut [0; 4]) as &str)) {
                bytes[byte as usize] = *id;
            }
        }
        if bytes.contains(&NONE) {
            return Err("a byte has no token".to_owned());
        }
        if spec.model.vocab.0.iter().any(|(_, id)| *id >= 1 << 20) || spec.model.merges.0.len() >= (1 << 24) - 1 {
            return Err("the vocabulary has more than 2^20 ids or 2^24 merges".to_owned());
        }
        let n_slots = (spec.model.merges.0.len() * 2).next_power_of_two().max(16);
        let shift = 64 - n_slots.trailing_zeros();
        let mut merges =
            Self { bytes, byte_ranks: Vec::new(), pairs: vec![u64::MAX; n_slots], shift, made: Vec::new() };
        let mut joined = String::new();
        for (rank, (left, right)) in spec.model.merges.0.iter().enumerate() {
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            let find =
                |token: &str| ids.get(token).copied().ok_or_else(|| format!("the merge token `{token}` is unknown"));
            merges.insert(find(left)?, find(right)?, rank as u32);
            merges.made.push(find(&joined)?);
        }
        merges.byte_ranks = (0..1_usize << 16).map(|pair| merges.rank(bytes[pair >> 8], bytes[pair & 0xff])).collect();
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
    }

    #[inline]
    fn slot(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// The rank of a pair of ids, `NONE` if they do not merge.
    #[inline]
    fn rank(&self, left: u32, right: u32) -> u32 {
        let key = pair_key(left, right);
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
    pub fn encode<'s>(&self, bytes: &[u8], scratch: &'s mut Scratch) -> &'s [u32] {
        scratch.symbols.clear();
        scratch.symbols.extend(bytes.iter().map(|byte| self.bytes[*byte as usize]));
        scratch.ranks.clear();
        scratch
            .ranks
            .extend(bytes.windows(2).map(|pair| self.byte_ranks[usize::from(pair[0]) << 8 | usize::from(pair[1])]));
        if bytes.len() <= LONGEST_ROW {
            self.merge_row(scratch)
        } else {
            self.merge_heap(scratch)
        }
        &scratch.symbols
    }

    /// Merges by searching the row of ranks; `ranks[i]` is that of symbols `i` and `i + 1`.
    fn merge_row(&self, scratch: &mut Scratch) {
        let Scratch { symbols, ranks, .. } = scratch;
        loop {
            let (mut at, mut lowest) = (0, NONE);
            for (i, rank) in ranks.iter().enumerate() {
                if *rank < lowest {
                    (at, lowest) = (i, *rank);
                }
            }
            if lowest == NONE {
                return;
            }
            symbols[at] = self.made[lowest as usize];
            symbols.remove(at + 1);
            ranks.remove(at);
            if at > 0 {
                ranks[at - 1] = self.rank(symbols[at - 1], symbols[at]);
            }
            if at < ranks.len() {
                ranks[at] = self.rank(symbols[at], symbols[at + 1]);
            }
        }
    }

    /// Merges with a heap of (rank, position) and a linked list of symbols; entries that are out of date are skipped.
    fn merge_heap(&self, scratch: &mut Scratch) {
        use std::cmp::Reverse;
        let Scratch { symbols, ranks, heap, links } = scratch;
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

#[inline]
fn pair_key(left: u32, right: u32) -> u64 {
    u64::from(left) << 20 | u64::from(right)
}
