//! Added tokens: found in the text before it is split, leftmost and longest first, as the reference finds them.

use std::collections::BTreeMap;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use unicode_normalization_alignments::UnicodeNormalization;

use super::{
    classes::{Class, WORD, class_of},
    ids::Ids,
    spec::AddedToken,
};

/// The added tokens that are looked for in the same text (raw or normalized).
pub struct AddedTokens {
    /// `None` without tokens.
    search: Option<AhoCorasick>,
    /// By pattern number.
    tokens: Vec<AddedToken>,
}

impl AddedTokens {
    /// The tokens of the raw text and those of the normalized text.
    ///
    /// # Errors
    /// The ids stated are not the ones the reference would assign, or the tokens cannot be searched for.
    pub fn new(tokens: &[AddedToken], ids: &Ids<'_>, nfc: bool) -> Result<(Self, Self), String> {
        check_ids(tokens, ids)?;
        // Of two entries with one id the reference keeps the later.
        let by_id: BTreeMap<u32, &AddedToken> = tokens.iter().map(|token| (token.id, token)).collect();
        let pick = |normalized: bool| {
            let tokens = by_id.values().filter(|token| token.normalized == normalized);
            Self::search_for(tokens.map(|token| (*token).clone()).collect(), normalized && nfc)
        };
        Ok((pick(false)?, pick(true)?))
    }

    fn search_for(tokens: Vec<AddedToken>, nfc: bool) -> Result<Self, String> {
        if tokens.is_empty() {
            return Ok(Self { search: None, tokens });
        }
        let pattern = |token: &AddedToken| -> String {
            if nfc { token.content.nfc().map(|(c, _)| c).collect() } else { token.content.clone() }
        };
        let mut patterns: Vec<String> = tokens.iter().map(pattern).collect();
        let search = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .kind((tokens.len() <= 64).then_some(AhoCorasickKind::DFA))
            .build(&patterns)
            .map_err(|error| format!("the added tokens cannot be searched for: {error}"))?;
        patterns.sort();
        if patterns.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err("two added tokens have the same text".to_owned());
        }
        Ok(Self { search: Some(search), tokens })
    }

    /// Whether there is no token to look for.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Walks the text: `found` for each added token, `between` for each non-empty stretch between them.
    pub fn walk<'t>(&self, text: &'t str, mut found: impl FnMut(u32), mut between: impl FnMut(&'t str)) {
        let mut done = 0;
        if let Some(search) = &self.search {
            for hit in search.find_iter(text) {
                let token = &self.tokens[hit.pattern().as_usize()];
                let (mut start, mut end) = (hit.start(), hit.end());
                if token.single_word
                    && (is_word(text[..start].chars().next_back()) || is_word(text[end..].chars().next()))
                {
                    continue;
                }
                if token.lstrip {
                    // Whitespace that the previous token took is not taken twice.
                    start = done.max(text[..start].trim_end_matches(is_space).len());
                }
                if token.rstrip {
                    end = text.len() - text[end..].trim_start_matches(is_space).len();
                }
                if done < start {
                    between(&text[done..start]);
                }
                found(token.id);
                done = end;
            }
        }
        if done < text.len() {
            between(&text[done..]);
        }
    }
}

fn is_word(c: Option<char>) -> bool {
    c.is_some_and(|c| WORD.get(c as u32) == 1)
}

fn is_space(c: char) -> bool {
    matches!(class_of(c), Class::Space | Class::Newline)
}

/// The reference gives an added token the id of the same string in the vocabulary, else the next free one, whatever
/// the file states; the two must agree.
fn check_ids(tokens: &[AddedToken], ids: &Ids<'_>) -> Result<(), String> {
    let n_base = ids.len() as u32;
    let mut given: BTreeMap<&str, u32> = BTreeMap::new();
    for token in tokens {
        let known = given.get(token.content.as_str()).copied().or_else(|| ids.get(token.content.as_str()));
        let next = given.values().max().map_or(n_base, |max| n_base.max(max + 1));
        let id = known.unwrap_or(next);
        if id != token.id || token.content.is_empty() {
            return Err(format!("the added token `{}` states id {}, but is given {id}", token.content, token.id));
        }
        given.insert(&token.content, id);
    }
    Ok(())
}
