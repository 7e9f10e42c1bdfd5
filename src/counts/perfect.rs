//! A perfect hash: each key has a slot of its own, so a look-up reads one slot and never goes on to the next.
//!
//! Keys are their 64-bit hashes. Each group of keys has a word, found by trying, by which their hashes are multiplied to
//! give their slots. The word's upper half says of most foreign keys that they are none.

use std::{cmp::Reverse, hint::select_unpredictable};

/// Bits of a group's word that are tried; above them stands a bit for each hash of its keys.
const N_SEED_BITS: u32 = 16;

/// Keys in a group at most; three or four are usual.
const N_GROUP: usize = 64;

/// Where keys stand.
pub struct Perfect {
    groups: Vec<u32>,
    /// 64 less the number of bits of a group's number.
    group_shift: u32,
    /// The same for slots.
    slot_shift: u32,
}

impl Perfect {
    /// Finds a slot for each of the hashes, and the same for equal ones. Returns those too.
    ///
    /// # Errors
    /// No word keeps a group apart: the keys were made for that.
    pub fn new(hashes: &[u64]) -> Result<(Self, Vec<u32>), String> {
        let n_slots = (hashes.len() * 2).next_power_of_two().max(256);
        let n_groups = n_slots / 8;
        let [group_shift, slot_shift] = [n_groups, n_slots].map(|n| 64 - n.trailing_zeros());
        let mut perfect = Self { groups: vec![1; n_groups], group_shift, slot_shift };
        let mut groups = Groups::new(hashes, n_groups, group_shift);
        // Slot 0 is for foreign keys.
        let mut is_used = vec![0; n_slots / 64];
        is_used[0] = 1;
        for group in groups.by_size() {
            perfect.groups[group] = perfect.word(groups.of(group), &mut is_used)?;
        }
        let slots = hashes.iter().map(|hash| perfect.slot(*hash)).collect();
        Ok((perfect, slots))
    }

    /// How many slots there are.
    pub fn n_slots(&self) -> usize {
        1 << (64 - self.slot_shift)
    }

    /// The word that sends the keys of a group to free slots, which are taken.
    fn word(&self, hashes: &mut [u64], is_used: &mut [u64]) -> Result<u32, String> {
        let too_many = || "it has keys that no hash keeps apart".to_owned();
        hashes.sort_unstable();
        let (mut keys, mut n_keys) = ([0; N_GROUP], 0);
        for equal in hashes.chunk_by(|a, b| a == b) {
            *keys.get_mut(n_keys).ok_or_else(too_many)? = equal[0];
            n_keys += 1;
        }
        let keys = &keys[..n_keys];
        let marks = keys.iter().fold(0, |marks, key| marks | 1 << mark_of(*key));
        let mut slots = [0_u64; N_GROUP];
        'seeds: for seed in ((1 << (N_SEED_BITS - 1)) + 1..1_u32 << N_SEED_BITS).step_by(2) {
            let word = marks << N_SEED_BITS | seed;
            for (i, key) in keys.iter().enumerate() {
                slots[i] = key.wrapping_mul(word.into()) >> self.slot_shift;
                let is_taken = is_used[(slots[i] >> 6) as usize] >> (slots[i] & 63) & 1 != 0;
                if is_taken || slots[..i].contains(&slots[i]) {
                    continue 'seeds;
                }
            }
            slots[..n_keys].iter().for_each(|slot| is_used[(slot >> 6) as usize] |= 1 << (slot & 63));
            return Ok(word);
        }
        Err(too_many())
    }

    /// The slot of a key; 0 of most foreign keys, any of others.
    #[inline(always)]
    pub fn slot(&self, hash: u64) -> u32 {
        let word = self.groups[(hash >> self.group_shift) as usize];
        let may_be = word >> (N_SEED_BITS + mark_of(hash)) & 1 != 0;
        // There is no guessing this.
        select_unpredictable(may_be, hash.wrapping_mul(word.into()) >> self.slot_shift, 0) as u32
    }
}

/// Which of the upper bits of its group's word a hash sets.
#[inline(always)]
fn mark_of(hash: u64) -> u32 {
    (hash >> 32) as u32 & 15
}

/// Hashes by their groups.
struct Groups {
    hashes: Vec<u64>,
    /// Where each group starts, and the last one ends.
    starts: Vec<u32>,
}

impl Groups {
    fn new(hashes: &[u64], n_groups: usize, shift: u32) -> Self {
        let group_of = |hash: u64| (hash >> shift) as usize;
        let mut starts = vec![0; n_groups + 1];
        hashes.iter().for_each(|hash| starts[group_of(*hash) + 1] += 1);
        for group in 0..n_groups {
            starts[group + 1] += starts[group];
        }
        let (mut next, mut grouped) = (starts.clone(), vec![0; hashes.len()]);
        for hash in hashes {
            let at = &mut next[group_of(*hash)];
            grouped[*at as usize] = *hash;
            *at += 1;
        }
        Self { hashes: grouped, starts }
    }

    /// The largest first: they need the most room.
    fn by_size(&self) -> impl Iterator<Item = usize> + use<> {
        let bounds = self.starts.windows(2).zip(0..);
        let mut groups: Vec<(Reverse<u32>, u32)> = bounds.map(|(at, group)| (Reverse(at[1] - at[0]), group)).collect();
        groups.sort_unstable();
        groups.into_iter().map(|(_, group)| group as usize)
    }

    fn of(&mut self, group: usize) -> &mut [u64] {
        &mut self.hashes[self.starts[group] as usize..self.starts[group + 1] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_slots_of_their_own() {
        let hash = |key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for n in [0, 1, 2, 100, 1000, 30_000] {
            let mut hashes: Vec<u64> = (0..n).map(|key| hash(key * key + 1)).collect();
            let (perfect, mut slots) = Perfect::new(&hashes).unwrap();
            assert!(hashes.iter().zip(&slots).all(|(hash, slot)| perfect.slot(*hash) == *slot), "{n}");
            slots.sort_unstable();
            assert!(slots.windows(2).all(|pair| pair[0] < pair[1]) && slots.first() != Some(&0), "{n}");
            assert!(slots.last().is_none_or(|last| (*last as usize) < perfect.n_slots()), "{n}");
            // Equal keys share a slot.
            hashes.extend_from_within(..);
            let (_, slots) = Perfect::new(&hashes).unwrap();
            assert!(slots[..n as usize] == slots[n as usize..], "{n}");
        }
    }

    #[test]
    fn keys_made_to_meet_are_refused() {
        let hashes: Vec<u64> = (0..1000).collect();
        assert!(Perfect::new(&hashes).is_err());
        assert!(Perfect::new(&[u64::MAX / 3; 1000]).is_ok());
    }
}
