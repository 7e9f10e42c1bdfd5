//! Tables of pre-tokens turned into counts of tokens: each pre-token is merged once.

use super::{
    bpe::Scratch,
    fast::Fast,
    lanes::{Added, merge_all},
    slots::{Key, Part},
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
        let merges = self.merges();
        merge_all::<16, 40, [u8; 16]>(
            merges,
            added,
            #[inline(always)]
            |added| loop {
                let (key, count) = part.next(|key| merges.ask_whole(key))?;
                let (bytes, n) = (key.bytes().to_le_bytes(), key.n_bytes());
                if let Some(id) = self.whole_token(&bytes[..n]) {
                    added.add_id(id, count);
                } else if let Some(symbol) = merges.whole(key) {
                    added.add(&[symbol], count);
                } else {
                    return Some((bytes, n, count));
                }
            },
            |_, _| (),
        );
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
