//! tokenizer.json as it is written, parsed once and without copying its strings.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize,
    de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

/// An entry of `added_tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct AddedToken {
    /// The id that the file states.
    pub id: u32,
    /// The text.
    pub content: String,
    /// Matches only where no word character stands beside it.
    #[serde(default)]
    pub single_word: bool,
    /// Takes the whitespace to its left with it.
    #[serde(default)]
    pub lstrip: bool,
    /// Takes the whitespace to its right with it.
    #[serde(default)]
    pub rstrip: bool,
    /// Is looked for in the normalized text, not in the raw one.
    #[serde(default)]
    pub normalized: bool,
    /// Is left out of decoded text.
    #[serde(default)]
    pub special: bool,
}

/// The parts of tokenizer.json that counting needs.
#[derive(Deserialize)]
pub struct Spec<'a> {
    #[serde(default)]
    pub added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub normalizer: Value,
    #[serde(default)]
    pub pre_tokenizer: Value,
    #[serde(default)]
    pub decoder: Value,
    #[serde(borrow)]
    pub model: Model<'a>,
}

/// The `model` member. Only BPE keeps its vocabulary here; other models are left to the reference.
#[derive(Deserialize)]
pub struct Model<'a> {
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    #[serde(default)]
    pub dropout: Option<f64>,
    #[serde(default)]
    pub continuing_subword_prefix: Option<String>,
    #[serde(default)]
    pub end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub byte_fallback: bool,
    #[serde(default)]
    pub ignore_merges: bool,
    #[serde(borrow, default)]
    pub vocab: Vocab<'a>,
    #[serde(borrow, default)]
    pub merges: Merges<'a>,
}

/// The `vocab` object in file order; empty when `vocab` is not an object (Unigram).
#[derive(Default)]
pub struct Vocab<'a>(pub Vec<(Cow<'a, str>, u32)>);

/// The merges, lowest rank first, each as its left and right token.
#[derive(Default)]
pub struct Merges<'a>(pub Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Vocab<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Vocab<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a vocabulary")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Vocab<'de>, A::Error> {
                let mut vocab = Vec::with_capacity(1 << 18);
                while let Some((Text(token), id)) = entries.next_entry()? {
                    vocab.push((token, id));
                }
                Ok(Vocab(vocab))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vocab<'de>, A::Error> {
                while entries.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Vocab::default())
            }
        }
        deserializer.deserialize_any(Entries)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Merges<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Merges<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of merges")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Merges<'de>, A::Error> {
                let mut merges = Vec::with_capacity(1 << 18);
                while let Some(Merge(left, right)) = items.next_element()? {
                    merges.push((left, right));
                }
                Ok(Merges(merges))
            }
        }
        deserializer.deserialize_seq(Pairs)
    }
}

/// `"a b"` or `["a", "b"]`.
struct Merge<'a>(Cow<'a, str>, Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Merge<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = Merge<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge: \"a b\" or [\"a\", \"b\"]")
            }
            fn visit_borrowed_str<E: serde::de::Error>(self, text: &'de str) -> Result<Merge<'de>, E> {
                let (left, right) = text.split_once(' ').ok_or_else(|| E::custom("a merge without a space"))?;
                Ok(Merge(Cow::Borrowed(left), Cow::Borrowed(right)))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge<'de>, E> {
                let (left, right) = text.split_once(' ').ok_or_else(|| E::custom("a merge without a space"))?;
                Ok(Merge(Cow::Owned(left.to_owned()), Cow::Owned(right.to_owned())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Merge<'de>, A::Error> {
                let missing = || serde::de::Error::custom("a merge of fewer than two tokens");
                let Text(left) = items.next_element()?.ok_or_else(missing)?;
                let Text(right) = items.next_element()?.ok_or_else(missing)?;
                Ok(Merge(left, right))
            }
        }
        deserializer.deserialize_any(Pair)
    }
}

/// A string that borrows when it has no escapes.
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Strings;
        impl<'de> Visitor<'de> for Strings {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Strings)
    }
}
