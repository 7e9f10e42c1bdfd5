//! The Unicode classes that split patterns speak of, as tables.
//!
//! They are built from `regex-syntax`, whose tables are those of the reference's regex engine: the two cannot drift
//! apart. The NFC properties come from the very crate that the reference normalizes with, for the same reason.

use std::{collections::HashMap, sync::LazyLock};

use unicode_normalization_alignments::{IsNormalized, char::canonical_combining_class, is_nfc_quick};

/// What a split pattern can tell of a character; a character has one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// None of the others: controls, format characters, unassigned ones.
    Other,
    /// `\p{Lu}` and `\p{Lt}`.
    Upper,
    /// `\p{Ll}`.
    Lower,
    /// `\p{Lm}` and `\p{Lo}`.
    Letter,
    /// `\p{M}`.
    Mark,
    /// `\p{N}`.
    Number,
    /// `\s` without the next.
    Space,
    /// Carriage return and line feed.
    Newline,
    /// `\p{P}`.
    Punctuation,
    /// `\p{S}`.
    Symbol,
}

/// A byte a character, pages of equal content stored once.
pub struct CharTable {
    pages: Vec<u16>,
    bytes: Vec<[u8; 256]>,
}

impl CharTable {
    /// The entry of `c`.
    #[inline]
    pub fn get(&self, c: u32) -> u8 {
        self.bytes[self.pages[(c >> 8) as usize] as usize][(c & 0xff) as usize]
    }

    fn new(value: &[u8]) -> Self {
        let mut found = HashMap::new();
        let mut table = Self { pages: Vec::new(), bytes: Vec::new() };
        for page in value.as_chunks::<256>().0 {
            let index = *found.entry(page).or_insert_with(|| {
                table.bytes.push(*page);
                table.bytes.len() - 1
            });
            table.pages.push(index as u16); // at most 0x1100 pages
        }
        table
    }
}

/// The class of every character.
pub static CLASSES: LazyLock<CharTable> = LazyLock::new(|| {
    let mut value = vec![Class::Other as u8; 0x11_0000];
    for (class, pattern) in [
        (Class::Upper, r"[\p{Lu}\p{Lt}]"),
        (Class::Lower, r"\p{Ll}"),
        (Class::Letter, r"[\p{Lm}\p{Lo}]"),
        (Class::Mark, r"\p{M}"),
        (Class::Number, r"\p{N}"),
        (Class::Punctuation, r"\p{P}"),
        (Class::Symbol, r"\p{S}"),
        (Class::Space, r"\s"),
        (Class::Newline, r"[\r\n]"),
    ] {
        ranges(pattern).for_each(|(first, last)| value[first..=last].fill(class as u8));
    }
    CharTable::new(&value)
});

/// 1 for `\w`, as the reference's `single_word` means it.
pub static WORD: LazyLock<CharTable> = LazyLock::new(|| {
    let mut value = vec![0; 0x11_0000];
    ranges(r"\w").for_each(|(first, last)| value[first..=last].fill(1));
    CharTable::new(&value)
});

/// 1 for characters that can make a text differ from its NFC: combining ones, and those that NFC replaces or joins.
pub static NFC_CARE: LazyLock<CharTable> = LazyLock::new(|| {
    // Above the CJK extensions the crate knows no decomposition; its own quick check decides there.
    const END: u32 = 0x4_0000;
    let mut value = vec![1; 0x11_0000];
    for (entry, c) in value.iter_mut().zip(0..END) {
        let is_plain =
            |c: char| canonical_combining_class(c) == 0 && is_nfc_quick(std::iter::once(c)) == IsNormalized::Yes;
        *entry = u8::from(!char::from_u32(c).is_some_and(is_plain));
    }
    CharTable::new(&value)
});

/// Builds the tables that counting reads, so that the first text does not wait for them.
pub fn prepare() {
    LazyLock::force(&CLASSES);
    LazyLock::force(&NFC_CARE);
}

/// The class of `c`.
#[inline]
pub fn class_of(c: char) -> Class {
    from_byte(CLASSES.get(c as u32))
}

/// The class whose number the table holds.
#[inline]
pub fn from_byte(byte: u8) -> Class {
    use Class::{Letter, Lower, Mark, Newline, Number, Other, Punctuation, Space, Symbol, Upper};
    const ALL: [Class; 10] = [Other, Upper, Lower, Letter, Mark, Number, Space, Newline, Punctuation, Symbol];
    ALL[byte as usize]
}

/// The character ranges of a one-character pattern.
fn ranges(pattern: &str) -> impl Iterator<Item = (usize, usize)> {
    use regex_syntax::hir::{Class, HirKind};
    let kind = regex_syntax::parse(pattern).map(|hir| hir.into_kind());
    let ranges: Vec<_> = match kind {
        Ok(HirKind::Class(Class::Unicode(class))) => {
            class.iter().map(|range| (range.start() as usize, range.end() as usize)).collect()
        }
        _ => unreachable!("`{pattern}` is one character of a Unicode class"),
    };
    ranges.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_have_the_classes_of_the_standard() {
        for (c, class) in [
            ('A', Class::Upper),
            ('ǅ', Class::Upper),
            ('ſ', Class::Lower),
            ('中', Class::Letter),
            ('ー', Class::Letter),
            ('\u{301}', Class::Mark),
            ('½', Class::Number),
            ('\u{3000}', Class::Space),
            ('\u{85}', Class::Space),
            ('\u{1c}', Class::Other),
            ('\n', Class::Newline),
            ('“', Class::Punctuation),
            ('+', Class::Symbol),
            ('\u{200b}', Class::Other),
        ] {
            assert_eq!(class_of(c), class, "{c:?}");
        }
    }

    #[test]
    fn nfc_care_covers_every_character_that_normalization_changes() {
        use unicode_normalization_alignments::UnicodeNormalization;
        for c in (0..0x11_0000).filter_map(char::from_u32) {
            let is_kept = std::iter::once(c).nfc().map(|(c, _)| c).eq(std::iter::once(c));
            assert!(is_kept || NFC_CARE.get(c as u32) == 1, "{c:?}");
        }
        assert!((0x4e00..=0x9fff).all(|c| NFC_CARE.get(c) == 0));
        assert_eq!(NFC_CARE.get('\u{301}' as u32), 1);
    }
}
