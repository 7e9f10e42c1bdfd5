//! The cl100k family of splits, 64 bytes at a time: where a pre-token starts follows from the classes of the bytes
//! around by bit operations, without a branch a character.
//!
//! With letters L, numbers N, other characters O, line ends R and other whitespace S, a pre-token starts
//! - at a letter behind N, R, or an O that does not stand alone (a lone O, and any S, belongs to the word behind it);
//! - at each number (or each third one);
//! - at the first O of a run, unless a space stands before it, which then starts the pre-token;
//! - at the first character of whitespace, unless it is a line end behind an O, which belongs to the O;
//! - at the last S before anything but whitespace: `\s+(?!\S)` gives it back;
//! - at an S behind the last R of its whitespace: `\s*[\r\n]+` reaches up to there;
//! - behind a contraction (`'s`), where letters go on.
//!
//! [`super::split`] is the same, written from the regex; tests compare the two.

use super::{
    classes::{Class, class_of},
    cuts::Cuts,
    masks::{Masks, N_BLOCK},
    split::contraction,
};

/// Starts that are handed over at once; a block adds at most 64.
pub const N_STARTS: usize = 512;

/// One pattern of the family.
pub struct Scanner<'c> {
    /// Whether `\p{M}` counts as a letter.
    pub marks_are_letters: bool,
    /// Digits in one pre-token: 1 or 3.
    pub n_digits: u32,
    /// Where runs of three-byte letters are cut; `None` leaves them whole.
    pub cuts: Option<&'c Cuts>,
}

/// What a block needs to know of the byte before it: a bit each, at position 0.
#[derive(Default)]
struct Before {
    letter: u64,
    number: u64,
    space: u64,
    newline: u64,
    other: u64,
    blank: u64,
    /// A line end that belongs to an O.
    absorbed: u64,
    /// An O that starts a pre-token and is its run's first.
    lone: u64,
    /// Starts found behind the end of the block.
    pending: u64,
    n_numbers: u32,
}

impl Scanner<'_> {
    /// Hands over the boundaries of the pre-tokens, many at once: each slice ends with the first boundary of the next,
    /// so that neighbours in a slice are the start and the end of a pre-token. With `AVX2` the processor has to have it.
    #[inline(always)]
    pub fn scan<const AVX2: bool>(&self, text: &str, mut emit: impl FnMut(&[u32])) {
        let bytes = text.as_bytes();
        let mut starts = [0_u32; N_STARTS];
        let mut n_starts = 0;
        let mut before = Before::default();
        let mut at = 0;
        while at < bytes.len() {
            let mut padded = [0; N_BLOCK];
            let (block, n) = match bytes[at..].first_chunk::<N_BLOCK>() {
                Some(block) => (block, whole_characters(bytes, at)),
                None => {
                    let n = bytes.len() - at;
                    padded[..n].copy_from_slice(&bytes[at..]);
                    (&padded, n)
                }
            };
            let masks = Masks::new::<AVX2>(block, n, self.marks_are_letters);
            let mut bits = self.starts(text, at, n, &masks, &mut before);
            if let Some(cuts) = self.cuts
                && masks.three != 0
            {
                bits |= cut_bits(cuts, bytes, at, &masks);
            }
            // Eight at a time, what is too much overwritten by the next: how many there are is hard to guess.
            let mut written = n_starts;
            n_starts += bits.count_ones() as usize;
            while bits != 0 {
                for start in &mut starts[written..written + 8] {
                    *start = at as u32 + bits.trailing_zeros();
                    bits &= bits.wrapping_sub(1);
                }
                written += 8;
            }
            at += n;
            if n_starts > N_STARTS - N_BLOCK - 8 {
                emit(&starts[..n_starts]);
                starts[0] = starts[n_starts - 1];
                n_starts = 1;
            }
        }
        starts[n_starts] = bytes.len() as u32;
        emit(&starts[..=n_starts]);
    }

    /// The starts in the block of `n` bytes at `at`.
    #[inline(always)]
    fn starts(&self, text: &str, at: usize, n: usize, masks: &Masks, before: &mut Before) -> u64 {
        let valid = u64::MAX >> (N_BLOCK - n);
        let Masks { lead, letter, number, space, newline, blank, .. } = *masks;
        let other = masks.other(valid);
        let behind_other = other << 1 | before.other;
        let behind_newline = newline << 1 | before.newline;
        let behind_white = space << 1 | before.space | behind_newline;

        let other_first = other & lead & !behind_other & !(blank << 1 | before.blank);
        let mut lone = other_first;
        if masks.wide != 0 {
            // The rest of the bytes of that first character.
            for _ in 0..3 {
                lone |= lone << 1 & other & !lead;
            }
        }
        let behind_letter = letter << 1 | before.letter;
        let letters = letter & lead & !behind_letter & !(space << 1 | before.space) & !(lone << 1 | before.lone);
        let numbers =
            if self.n_digits == 1 { number & lead } else { self.number_starts(number & lead, number, before) };

        let first_absorbed = newline & (behind_other | before.absorbed);
        let absorbed = newline & !newline.wrapping_add(first_absorbed);
        let behind_absorbed = absorbed << 1 | before.absorbed;
        let mut white = (space & lead & (!behind_white | behind_absorbed)) | (newline & !behind_white & !behind_other);
        white |= self.after_newlines(text, at, n, masks, space & lead & behind_newline & !behind_absorbed);
        white |= last_spaces(text, at, n, masks);

        let mut starts = letters | numbers | other_first | white | before.pending;
        before.pending = 0;
        let mut quotes = other_first & masks.apostrophe;
        while quotes != 0 {
            let quote = quotes.trailing_zeros() as usize;
            quotes &= quotes - 1;
            if let Some(end) = contraction(text, at + quote).filter(|end| self.is_letter_at(text, *end)) {
                let bit = 1_u128 << (end - at);
                starts |= bit as u64 & valid;
                before.pending |= (bit >> n) as u64;
            }
        }
        let last = |mask: u64| mask >> (n - 1) & 1;
        before.letter = last(letter);
        before.number = last(number);
        before.space = last(space);
        before.newline = last(newline);
        before.other = last(other);
        before.blank = last(blank);
        before.absorbed = last(absorbed);
        before.lone = last(lone);
        starts
    }

    /// The first of each group of digits.
    fn number_starts(&self, mut leads: u64, number: u64, before: &mut Before) -> u64 {
        let mut starts = 0;
        let run_starts = number & !(number << 1 | before.number);
        while leads != 0 {
            let bit = leads & leads.wrapping_neg();
            leads &= leads - 1;
            if bit & run_starts != 0 {
                before.n_numbers = 0;
            }
            if before.n_numbers.is_multiple_of(self.n_digits) {
                starts |= bit;
            }
            before.n_numbers += 1;
        }
        starts
    }

    /// Of the spaces behind line ends, those whose run does not lead to another line end.
    #[inline(always)]
    fn after_newlines(&self, text: &str, at: usize, n: usize, masks: &Masks, candidates: u64) -> u64 {
        let ends = candidates.wrapping_add(masks.space) & !masks.space;
        let reaches_end = masks.space >> (n - 1) & 1 != 0;
        if candidates == 0 || (ends & masks.newline == 0 && !reaches_end) {
            return candidates;
        }
        let (mut rest, mut starts) = (candidates, 0);
        while rest != 0 {
            let i = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let end = i + (!masks.space >> i).trailing_zeros() as usize;
            let leads_to_newline = if end < n {
                masks.newline >> end & 1 != 0
            } else {
                let next = text[at + n..].chars().find(|c| class_of(*c) != Class::Space);
                next.is_some_and(|c| class_of(c) == Class::Newline)
            };
            starts |= u64::from(!leads_to_newline) << i;
        }
        starts
    }

    fn is_letter_at(&self, text: &str, at: usize) -> bool {
        text[at..].chars().next().is_some_and(|c| match class_of(c) {
            Class::Upper | Class::Lower | Class::Letter => true,
            Class::Mark => self.marks_are_letters,
            _ => false,
        })
    }
}

/// The last whitespace character (no line end) before anything but whitespace.
#[inline(always)]
fn last_spaces(text: &str, at: usize, n: usize, masks: &Masks) -> u64 {
    let top = 1 << (n - 1);
    let mut before_black = !(masks.space | masks.newline) >> 1 & (top - 1);
    if masks.space & top != 0 {
        let next = text[at + n..].chars().next().map(class_of);
        if next.is_some_and(|class| !matches!(class, Class::Space | Class::Newline)) {
            before_black |= top;
        }
    }
    let mut last = masks.space & before_black;
    if last & masks.wide != 0 {
        // From the last byte of the character back to its first.
        for _ in 0..3 {
            last = last & masks.lead | (last & !masks.lead) >> 1;
        }
    }
    last
}

/// Cuts between neighbouring letters of three bytes.
#[inline(always)]
fn cut_bits(cuts: &Cuts, bytes: &[u8], at: usize, masks: &Masks) -> u64 {
    let mut cut = 0;
    // The second of each pair; the first may lie in the block before.
    let mut seconds = masks.three & masks.three << 3;
    while seconds != 0 {
        let i = seconds.trailing_zeros();
        seconds &= seconds - 1;
        if let Some(pair) = bytes[at + i as usize - 3..].first_chunk::<8>() {
            cut |= u64::from(cuts.is_cut(u64::from_le_bytes(*pair))) << i;
        }
    }
    cut
}

/// How many of the 64 bytes at `at` are whole characters.
#[inline]
fn whole_characters(bytes: &[u8], at: usize) -> usize {
    let mut n = N_BLOCK;
    while bytes.get(at + n).is_some_and(|byte| byte & 0xc0 == 0x80) {
        n -= 1;
    }
    n
}
