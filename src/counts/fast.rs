//! The fast engine: unique pre-tokens are counted, and each is merged once.
//!
//! Text -> added tokens -> NFC -> pre-tokens -> [`Table`] -> merged when the table is folded into the dense counts.

use std::{borrow::Cow, collections::HashMap, hash::BuildHasherDefault};

use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::{
    added::AddedTokens,
    bpe::{Ids, Merges, Scratch},
    classes::NFC_CARE,
    cuts::{Cuts, is_three},
    hash::Folded,
    lanes::merge_all,
    pattern::{Pattern, Plan, recognise},
    scan::{N_STARTS, Scanner},
    spec::Spec,
    split::split,
    table::{Key, N_AHEAD, N_KEY_BYTES, Table, gather},
    token_bytes::TokenBytes,
};

/// A tokenizer that the fast engine knows.
pub struct Fast {
    plan: Plan,
    merges: Merges,
    raw_added: AddedTokens,
    normalized_added: AddedTokens,
    /// `None` where a piece of a pre-token could be taken for a whole one.
    cuts: Option<Cuts>,
    /// Whole pre-tokens that are tokens without merging; empty unless the model ignores merges.
    whole: HashMap<Vec<u8>, u32, BuildHasherDefault<Folded>>,
    /// Whether long texts may be cut into pieces.
    can_cut: bool,
}

/// Counts in the making.
pub struct Tally {
    table: Table,
    counts: Vec<u64>,
}

impl Tally {
    /// An empty tally for `n_ids` ids.
    pub fn new(n_ids: usize) -> Self {
        Self { table: Table::default(), counts: vec![0; n_ids] }
    }

    /// The bytes that its table takes.
    pub fn n_table_bytes(&self) -> usize {
        self.table.n_bytes()
    }

    /// The dense counts; complete only after [`Fast::fold`].
    pub fn counts_mut(&mut self) -> &mut [u64] {
        &mut self.counts
    }

    /// The dense counts, taken.
    pub fn into_counts(self) -> Vec<u64> {
        self.counts
    }
}

impl Fast {
    /// Prepares the engine.
    ///
    /// # Errors
    /// Why the tokenizer has to be left to the reference.
    pub fn new(spec: &Spec<'_>) -> Result<Self, String> {
        let plan = recognise(spec)?;
        let vocab = &spec.model.vocab;
        let mut ids = Ids::with_capacity_and_hasher(vocab.0.len(), BuildHasherDefault::default());
        ids.extend(vocab.0.iter().map(|(token, id)| (token.as_ref(), *id)));
        let (raw_added, normalized_added) = AddedTokens::new(&spec.added_tokens, &ids, plan.nfc)?;
        let tokens = TokenBytes::new(vocab)?;
        let merges = Merges::new(spec, &ids, &tokens)?;
        let mut whole = HashMap::default();
        if plan.ignore_merges {
            whole.extend(tokens.iter().map(|(id, bytes)| (bytes.to_vec(), id)));
        }
        // A token that merging does not make is found as a whole pre-token alone, never as a piece of one.
        let mut scratch = Scratch::default();
        let mut is_made = |(bytes, id): (&Vec<u8>, &u32)| {
            !bytes.iter().any(|byte| is_three(*byte)) || merges.encode(bytes, &mut scratch).eq([*id])
        };
        let cuts = whole.iter().all(&mut is_made).then(|| Cuts::new(&tokens));
        let is_plain = |c: char| !(c.is_whitespace() || matches!(c, '。' | '，'));
        let can_cut = spec
            .added_tokens
            .iter()
            .all(|token| !(token.lstrip || token.rstrip || token.single_word) && token.content.chars().all(is_plain));
        Ok(Self { plan, merges, raw_added, normalized_added, cuts, whole, can_cut })
    }

    /// The name of the split in provenance.
    pub fn name(&self) -> &'static str {
        self.plan.name
    }

    /// Counts one text.
    pub fn count(&self, text: &str, tally: &mut Tally) {
        let Tally { table, counts } = tally;
        let counts = std::cell::RefCell::new(counts);
        let found = |id: u32| counts.borrow_mut()[id as usize] += 1;
        self.raw_added.walk(text, found, |segment| {
            let segment = if self.plan.nfc { nfc(segment) } else { Cow::Borrowed(segment) };
            if self.normalized_added.is_empty() {
                self.count_segment(&segment, table);
            } else {
                self.normalized_added.walk(&segment, found, |segment| self.count_segment(segment, table));
            }
        });
    }

    /// The ids of one text in order: the plain way, for texts that are few.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let ids = std::cell::RefCell::new(Vec::new());
        let mut scratch = Scratch::default();
        let found = |id: u32| ids.borrow_mut().push(id);
        let mut encode_segment = |segment: &str| {
            let mut start = 0;
            split(self.plan.pattern, segment, |end| {
                let bytes = &segment.as_bytes()[start..end];
                match self.whole.get(bytes) {
                    Some(id) => ids.borrow_mut().push(*id),
                    None => ids.borrow_mut().extend(self.merges.encode(bytes, &mut scratch)),
                }
                start = end;
            });
        };
        self.raw_added.walk(text, found, |segment| {
            let segment = if self.plan.nfc { nfc(segment) } else { Cow::Borrowed(segment) };
            self.normalized_added.walk(&segment, found, &mut encode_segment);
        });
        ids.into_inner()
    }

    fn count_segment(&self, segment: &str, table: &mut Table) {
        #[cfg(target_arch = "x86_64")]
        if has_avx2() {
            #[expect(unsafe_code, reason = "vector instructions")]
            // SAFETY: the processor has them.
            return unsafe { self.count_segment_avx2(segment, table) };
        }
        self.count_segment_as_compiled(segment, table);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn count_segment_avx2(&self, segment: &str, table: &mut Table) {
        self.count_segment_as_compiled(segment, table);
    }

    #[inline(always)]
    fn count_segment_as_compiled(&self, segment: &str, table: &mut Table) {
        let bytes = segment.as_bytes();
        if let Pattern::Cl100k { marks_are_letters, n_digits } = self.plan.pattern {
            let scanner = Scanner { marks_are_letters, n_digits: n_digits as u32, cuts: self.cuts.as_ref() };
            scanner.scan(
                segment,
                #[inline(always)]
                |starts| add_all(bytes, starts, table),
            );
        } else {
            let mut start = 0;
            split(self.plan.pattern, segment, |end| {
                table.add(&bytes[start..end], 1);
                start = end;
            });
        }
    }

    /// Merges every pre-token of the table into the dense counts and empties the table.
    pub fn fold(&self, tally: &mut Tally) {
        self.merge_part(&[&tally.table], 0, 1, &mut tally.counts);
        tally.table = Table::default(); // gives the memory back
    }

    /// The counts of all tallies together, on as many threads; what several have seen is merged once.
    pub fn fold_all(&self, mut tallies: Vec<Tally>) -> Vec<u64> {
        let Some(mut counts) = tallies.first_mut().map(|tally| std::mem::take(&mut tally.counts)) else {
            return Vec::new();
        };
        let tables: Vec<&Table> = tallies.iter().map(|tally| &tally.table).collect();
        let n = tables.len();
        on_threads(n, |i| gather(&tables, i, n));
        let merged = on_threads(n, |i| {
            let mut counts = vec![0; counts.len()];
            self.merge_part(&tables, i, n, &mut counts);
            counts
        });
        for more in merged.iter().chain(tallies.iter().skip(1).map(|tally| &tally.counts)) {
            counts.iter_mut().zip(more).for_each(|(sum, count)| *sum += count);
        }
        counts
    }

    /// Merges the pre-tokens in one of `n` parts of the tables.
    fn merge_part(&self, tables: &[&Table], i: usize, n: usize, counts: &mut [u64]) {
        #[cfg(target_arch = "x86_64")]
        if has_avx2() {
            #[expect(unsafe_code, reason = "vector instructions")]
            // SAFETY: the processor has them.
            return unsafe { self.merge_part_avx2(tables, i, n, counts) };
        }
        self.merge_part_as_compiled(tables, i, n, counts);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn merge_part_avx2(&self, tables: &[&Table], i: usize, n: usize, counts: &mut [u64]) {
        self.merge_part_as_compiled(tables, i, n, counts);
    }

    #[inline(always)]
    fn merge_part_as_compiled(&self, tables: &[&Table], i: usize, n: usize, counts: &mut [u64]) {
        let mut by_symbol = vec![0; self.merges.ids().len()];
        let mut long = Vec::new();
        let merged = tables.iter().flat_map(|table| table.part(i, n)).filter(|(bytes, count)| {
            let whole = if self.whole.is_empty() { None } else { self.whole.get(*bytes) };
            whole.map(|id| counts[*id as usize] += count).is_none()
        });
        merge_all(&self.merges, merged, &mut by_symbol, |bytes, count| long.push((bytes, count)));
        let mut scratch = Scratch::default();
        for (bytes, count) in long {
            for symbol in self.merges.merge_long(bytes, &mut scratch) {
                by_symbol[*symbol as usize] += count;
            }
        }
        for (id, count) in self.merges.ids().iter().zip(by_symbol) {
            counts[*id as usize] += count;
        }
    }

    /// Whether long texts may be cut at all: no added token reaches over a cut.
    pub fn can_cut(&self) -> bool {
        self.can_cut
    }

    /// The last place where a long text can be cut without changing its tokens: every pattern ends a pre-token between
    /// a letter and a space, behind a line end that a letter follows, and between a Han letter and its full stop or
    /// comma; what follows is split without looking back.
    pub fn cut_at(&self, bytes: &[u8]) -> Option<usize> {
        let is_han = |byte: u8| (0xe5..=0xe9).contains(&byte);
        let is_cut = |at: &usize| {
            let (left, right) = bytes.split_at(*at);
            match (left, right) {
                ([.., b'\n'], [next, ..]) => next.is_ascii_alphabetic() || is_han(*next),
                ([.., last], [b' ', next, ..]) => last.is_ascii_alphabetic() && next.is_ascii_alphabetic(),
                ([.., han, _, _], [0xe3, 0x80, 0x82, ..] | [0xef, 0xbc, 0x8c, ..]) => is_han(*han),
                _ => false,
            }
        };
        (1..bytes.len()).rev().find(is_cut)
    }
}

/// What `work` returns for each number below `n`, on as many threads.
fn on_threads<T: Send>(n: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    if n == 1 {
        return vec![work(0)];
    }
    let work = &work;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..n).map(|i| scope.spawn(move || work(i))).collect();
        let joined = workers.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// Whether the processor has the instructions that the hot loops are compiled for a second time.
#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

/// Counts the pre-tokens between the starts. The keys are made first, so that the lines of the table, which is larger
/// than the near caches, are under way when they are needed.
#[inline(always)]
fn add_all(bytes: &[u8], starts: &[u32], table: &mut Table) {
    let mut keys = [0; N_STARTS];
    let mut n_keys = 0;
    for pair in starts.windows(2) {
        let (start, end) = (pair[0] as usize, pair[1] as usize);
        let n = end - start;
        match bytes[start..].first_chunk::<16>() {
            Some(chunk) if n <= N_KEY_BYTES => {
                let kept = Key::from_le_bytes(*chunk) & ((1 << (8 * n)) - 1);
                keys[n_keys] = kept | (n as Key) << 120;
                n_keys += 1;
            }
            _ => table.add(&bytes[start..end], 1),
        }
    }
    let keys = &keys[..n_keys];
    keys.iter().take(N_AHEAD).for_each(|key| table.prefetch(*key));
    for (i, key) in keys.iter().enumerate() {
        if let Some(ahead) = keys.get(i + N_AHEAD) {
            table.prefetch(*ahead);
        }
        table.add_key(*key, 1);
    }
}

/// The text in NFC; most texts are and are returned as they are.
fn nfc(text: &str) -> Cow<'_, str> {
    if !needs_care(text) || is_nfc_quick(text.chars()) == IsNormalized::Yes {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.nfc().map(|(c, _)| c).collect())
}

/// Whether a character stands in the text that could make it differ from its NFC.
fn needs_care(text: &str) -> bool {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if let Some(chunk) = bytes[at..].first_chunk::<16>()
            && u128::from_le_bytes(*chunk) & 0x8080_8080_8080_8080_8080_8080_8080_8080 == 0
        {
            at += 16;
            continue;
        }
        // U+5000 to U+9FFF need no care (a test checks it); other characters are looked up.
        let end = (at + 16).min(bytes.len());
        while at < end {
            match bytes[at] {
                0..0x80 => at += 1,
                0xe5..=0xe9 => at += 3,
                _ => {
                    let Some(c) = text[at..].chars().next() else { return false };
                    if NFC_CARE.get(c as u32) == 1 {
                        return true;
                    }
                    at += c.len_utf8();
                }
            }
        }
    }
    false
}
