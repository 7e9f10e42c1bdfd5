//! Tables of pre-tokens turned into counts of tokens: each pre-token is merged once.

use super::{
    bpe::Scratch,
    fast::Fast,
    lanes::{Added, merge_all},
    pairs::NONE,
    slots::{Key, N_PART, Part},
    table::Table,
};

impl Fast {
    /// The counts of all tables together, each in the vector that goes with it and then in the first, on as many
    /// threads; what several tables hold is merged once.
    pub(super) fn fold_tables(&self, tables: &[Table], counts: &mut [Vec<u64>]) {
        let n = tables.len();
        on_threads(counts, |i, _| Table::gather(tables, i, n));
        on_threads(counts, |i, counts| self.merge_part(tables, i, n, counts));
        if let [sum, others @ ..] = counts {
            for more in others {
                sum.iter_mut().zip(more.iter()).for_each(|(sum, count)| *sum += count);
            }
        }
    }

    /// Merges the pre-tokens in one of `n` parts of the tables.
    fn merge_part(&self, tables: &[Table], i: usize, n: usize, counts: &mut [u64]) {
        #[cfg(target_arch = "x86_64")]
        if super::fast::has_avx2() {
            #[expect(unsafe_code, reason = "vector instructions")]
            // SAFETY: the processor has them.
            return unsafe { self.merge_part_avx2(tables, i, n, counts) };
        }
        self.merge_part_as_compiled(tables, i, n, counts);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn merge_part_avx2(&self, tables: &[Table], i: usize, n: usize, counts: &mut [u64]) {
        self.merge_part_as_compiled(tables, i, n, counts);
    }

    #[inline(always)]
    fn merge_part_as_compiled(&self, tables: &[Table], i: usize, n: usize, counts: &mut [u64]) {
        let mut added = Added::new(counts, self.merges().ids());
        for table in tables {
            self.merge_keys(table.short.part(i, n), &mut added);
            self.merge_keys(table.middle.part(i, n), &mut added);
            self.merge_long(table.long.part(i, n), &mut added);
        }
        added.finish();
    }

    /// Merges the pre-tokens of keys.
    #[inline(always)]
    fn merge_keys<K: Key>(&self, mut part: Part<'_, K>, added: &mut Added<'_>) {
        let (mut keys, mut n) = ([(K::default(), 0); N_PART], 0);
        merge_all::<16, 40, [u8; 16]>(
            self.merges(),
            added,
            #[inline(always)]
            |added| {
                while n == 0 {
                    n = part.next(&mut keys)?;
                    n = self.add_whole(&mut keys, n, added);
                }
                n -= 1;
                let (key, count) = keys[n & (N_PART - 1)];
                Some((key.bytes().to_le_bytes(), key.n_bytes(), count))
            },
            |_, _| (),
        );
    }

    /// Adds the first `n` of the pre-tokens that are tokens, and leaves the others: returns how many.
    #[inline(always)]
    fn add_whole<K: Key>(&self, keys: &mut [(K, u64); N_PART], n: usize, added: &mut Added<'_>) -> usize {
        let mut n_left = 0;
        let mut leave = |keys: &mut [(K, u64); N_PART], i: usize, is_left: bool| {
            keys[n_left & (N_PART - 1)] = keys[i];
            n_left += usize::from(is_left);
            n_left
        };
        if self.ignores_merges() {
            for i in 0..n {
                let (key, count) = keys[i];
                let id = self.whole_token(&key.bytes().to_le_bytes()[..key.n_bytes()]);
                id.iter().for_each(|id| added.add_id(*id, count));
                leave(keys, i, id.is_none());
            }
        } else if let Some(whole) = self.merges().whole() {
            let mut asked = [0; N_PART];
            for (slot, (key, _)) in asked.iter_mut().zip(&keys[..n]) {
                *slot = whole.ask(key.bytes(), key.n_bytes());
            }
            let (mut found, mut n_found) = ([(0, 0); N_PART], 0);
            for i in 0..n {
                let (key, count) = keys[i];
                let symbol = whole.answer(key.bytes(), key.n_bytes(), asked[i]);
                found[n_found & (N_PART - 1)] = (symbol, count);
                n_found += usize::from(symbol != NONE);
                leave(keys, i, symbol == NONE);
            }
            found[..n_found].iter().for_each(|(symbol, count)| added.add(&[*symbol], *count));
        } else {
            return n;
        }
        n_left
    }

    /// Merges long pre-tokens.
    #[inline(always)]
    fn merge_long<'t>(&self, part: impl Iterator<Item = (&'t [u8], u64)>, added: &mut Added<'_>) {
        let merges = self.merges();
        let mut part = part;
        let mut longer = Vec::new();
        let next = |added: &mut Added<'_>| loop {
            let (bytes, count) = part.next()?;
            match self.whole_token(bytes) {
                Some(id) => added.add_id(id, count),
                None => return Some((bytes, bytes.len(), count)),
            }
        };
        merge_all::<16, 40, _>(merges, added, next, |bytes, count| longer.push((bytes, count)));
        let mut longer = longer.into_iter().map(|(bytes, count): (&[u8], u64)| (bytes, bytes.len(), count));
        let mut longest = Vec::new();
        merge_all::<64, 136, _>(merges, added, |_| longer.next(), |bytes, count| longest.push((bytes, count)));
        let mut scratch = Scratch::default();
        for (bytes, count) in longest {
            added.add(merges.merge_long(bytes, &mut scratch), count);
        }
    }
}

/// Does `work` for each of the items, on as many threads.
fn on_threads<T: Send>(items: &mut [T], work: impl Fn(usize, &mut T) + Sync) {
    if let [item] = items {
        return work(0, item);
    }
    let work = &work;
    std::thread::scope(|scope| {
        for (i, item) in items.iter_mut().enumerate() {
            scope.spawn(move || work(i, item));
        }
    });
}
