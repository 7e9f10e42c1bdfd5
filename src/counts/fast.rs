//! The fast engine: unique pre-tokens are counted, and each is merged once.
//!
//! Text -> added tokens -> NFC -> pre-tokens -> [`Table`] -> merged when the table is folded into the dense counts.

use std::{borrow::Cow, collections::HashMap, hash::BuildHasherDefault};

use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::{
    added::AddedTokens,
    bpe::{Merges, Scratch},
    classes::NFC_CARE,
    cuts::{Cuts, is_three},
    hash::Folded,
    ids::Ids,
    masks::{Masks, N_BLOCK},
    pattern::{Pattern, Plan, recognise},
    scan::Scanner,
    spec::Spec,
    split::split,
    table::Table,
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
        let ids = Ids::new(vocab)?;
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
        self.count_segment_as_compiled::<false>(segment, table);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn count_segment_avx2(&self, segment: &str, table: &mut Table) {
        self.count_segment_as_compiled::<true>(segment, table);
    }

    #[inline(always)]
    fn count_segment_as_compiled<const AVX2: bool>(&self, segment: &str, table: &mut Table) {
        let bytes = segment.as_bytes();
        if let Pattern::Cl100k { marks_are_letters, n_digits } = self.plan.pattern {
            let scanner = Scanner { marks_are_letters, n_digits: n_digits as u32, cuts: self.cuts.as_ref() };
            scanner.scan::<AVX2>(
                segment,
                #[inline(always)]
                |starts| table.add_between(bytes, starts),
            );
        } else {
            let mut start = 0;
            split(self.plan.pattern, segment, |end| {
                table.add(&bytes[start..end]);
                start = end;
            });
        }
    }

    /// Merges every pre-token of the table into the dense counts and empties the table.
    pub fn fold(&self, tally: &mut Tally) {
        let table = std::mem::take(&mut tally.table);
        self.fold_tables(&[table], std::slice::from_mut(&mut tally.counts));
    }

    /// The counts of all tallies together.
    pub fn fold_all(&self, tallies: Vec<Tally>) -> Vec<u64> {
        let (tables, mut counts): (Vec<_>, Vec<_>) =
            tallies.into_iter().map(|tally| (tally.table, tally.counts)).unzip();
        self.fold_tables(&tables, &mut counts);
        counts.into_iter().next().unwrap_or_default()
    }

    /// The merges.
    pub(super) fn merges(&self) -> &Merges {
        &self.merges
    }

    /// Whether pre-tokens may be tokens that merging does not make.
    pub(super) fn ignores_merges(&self) -> bool {
        !self.whole.is_empty()
    }

    /// The token that a pre-token is because the model ignores merges for it.
    pub(super) fn whole_token(&self, bytes: &[u8]) -> Option<u32> {
        if self.whole.is_empty() { None } else { self.whole.get(bytes).copied() }
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

/// Whether the processor has the instructions that the hot loops are compiled for a second time.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

/// The text in NFC; most texts are and are returned as they are.
fn nfc(text: &str) -> Cow<'_, str> {
    if !needs_care(text) || is_nfc_quick(text.chars()) == IsNormalized::Yes {
        return Cow::Borrowed(text);
    }
    // No character composes with the line end before it.
    let mut composed = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        match needs_care(line) {
            true => composed.extend(line.nfc().map(|(c, _)| c)),
            false => composed.push_str(line),
        }
    }
    Cow::Owned(composed)
}

/// Whether a character stands in the text that could make it differ from its NFC.
fn needs_care(text: &str) -> bool {
    let care = &*NFC_CARE;
    let needs_care = |at: usize| text[at..].chars().next().is_some_and(|c| care.get(c as u32) == 1);
    let (blocks, rest) = text.as_bytes().as_chunks::<N_BLOCK>();
    let mut last = [0; N_BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    for (i, block) in blocks.iter().chain([&last]).enumerate() {
        // U+4E00 to U+9FFF need no care (a test checks it).
        let mut foreign = Masks::foreign(block);
        while foreign != 0 {
            if needs_care(i * N_BLOCK + foreign.trailing_zeros() as usize) {
                return true;
            }
            foreign &= foreign - 1;
        }
    }
    false
}
