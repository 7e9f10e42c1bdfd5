//! The split patterns by hand, a character at a time: the plain form, against which [`super::scan`] is tested, and the
//! working form of the patterns that have no faster one.
//!
//! Each function takes the segment and a position, and returns where the pre-token that starts there ends. The order
//! of the tests is the order of the alternatives in the regex; `\s+(?!\S)` gives one whitespace character back.

use super::{
    classes::{Class, class_of},
    pattern::Pattern,
};

/// Calls `emit` with the end of every pre-token of the segment, in order.
pub fn split(pattern: Pattern, text: &str, mut emit: impl FnMut(usize)) {
    match pattern {
        Pattern::Cl100k { marks_are_letters, n_digits } => {
            let mut at = 0;
            while at < text.len() {
                at = cl100k(text, at, marks_are_letters, n_digits);
                emit(at);
            }
        }
        Pattern::O200k => {
            let mut at = 0;
            while at < text.len() {
                at = o200k(text, at);
                emit(at);
            }
        }
        Pattern::DeepSeek => deepseek(text, emit),
    }
}

fn first(text: &str, at: usize) -> Option<char> {
    text[at..].chars().next()
}

/// Where the run of characters that satisfy `is_in` ends.
fn run(text: &str, at: usize, is_in: impl Fn(Class) -> bool) -> usize {
    text[at..].char_indices().find(|(_, c)| !is_in(class_of(*c))).map_or(text.len(), |(i, _)| at + i)
}

fn is_letter(class: Class) -> bool {
    matches!(class, Class::Upper | Class::Lower | Class::Letter)
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)`; the long s folds to s.
pub fn contraction(text: &str, at: usize) -> Option<usize> {
    let rest = text[at..].strip_prefix('\'')?;
    let bytes = rest.as_bytes();
    let first = bytes.first()?.to_ascii_lowercase();
    let second = bytes.get(1).map(u8::to_ascii_lowercase);
    match (first, second) {
        (b's' | b't' | b'm' | b'd', _) => Some(at + 2),
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(at + 3),
        _ => rest.starts_with('ſ').then_some(at + 3),
    }
}

fn cl100k(text: &str, at: usize, marks_are_letters: bool, n_digits: usize) -> usize {
    if let Some(end) = contraction(text, at) {
        return end;
    }
    let Some(c) = first(text, at) else { return at };
    let class = class_of(c);
    let next = at + c.len_utf8();
    let is_word = |class| is_letter(class) || (marks_are_letters && class == Class::Mark);
    if is_word(class) {
        return run(text, at, is_word);
    }
    if !matches!(class, Class::Newline | Class::Number) {
        let end = run(text, next, is_word);
        if end > next {
            return end;
        }
    }
    if class == Class::Number {
        return digits(text, at, n_digits);
    }
    let is_mark = |class| !(is_word(class) || matches!(class, Class::Number | Class::Space | Class::Newline));
    if let Some(end) = marks(text, at, is_mark) {
        return run(text, end, |class| class == Class::Newline);
    }
    whitespace(text, at)
}

/// `\p{N}{1,n}`.
fn digits(text: &str, at: usize, n: usize) -> usize {
    let end = text[at..].char_indices().enumerate().find(|(i, (_, c))| *i == n || class_of(*c) != Class::Number);
    end.map_or(text.len(), |(_, (i, _))| at + i)
}

/// ` ?[...]+` for the class that `is_mark` tells.
fn marks(text: &str, at: usize, is_mark: impl Fn(Class) -> bool) -> Option<usize> {
    let start = if text[at..].starts_with(' ') { at + 1 } else { at };
    let end = run(text, start, is_mark);
    (end > start).then_some(end)
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`.
fn whitespace(text: &str, at: usize) -> usize {
    let end = run(text, at, |class| matches!(class, Class::Space | Class::Newline));
    if let Some(newline) = text[at..end].rfind(['\r', '\n']) {
        return at + newline + 1;
    }
    let last = text[at..end].chars().next_back().map_or(0, char::len_utf8);
    if end == text.len() || end - last == at { end } else { end - last }
}

fn o200k(text: &str, at: usize) -> usize {
    let Some(c) = first(text, at) else { return at };
    let class = class_of(c);
    let next = at + c.len_utf8();
    let has_prefix = !(is_letter(class) || matches!(class, Class::Number | Class::Newline));
    let starts = [has_prefix.then_some(next), Some(at)];
    let word =
        |match_word: fn(&str, usize) -> Option<usize>| starts.into_iter().flatten().find_map(|s| match_word(text, s));
    if let Some(end) = word(lower_word).or_else(|| word(upper_word)) {
        return contraction(text, end).unwrap_or(end);
    }
    if class == Class::Number {
        return digits(text, at, 3);
    }
    let is_mark = |class| !(is_letter(class) || matches!(class, Class::Number | Class::Space | Class::Newline));
    if let Some(end) = marks(text, at, is_mark) {
        let tail = text[end..].find(|c| !matches!(c, '\r' | '\n' | '/'));
        return tail.map_or(text.len(), |n| end + n);
    }
    whitespace(text, at)
}

fn is_upper(class: Class) -> bool {
    matches!(class, Class::Upper | Class::Letter | Class::Mark)
}

fn is_lower(class: Class) -> bool {
    matches!(class, Class::Lower | Class::Letter | Class::Mark)
}

/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`: the first run gives back up to its last character
/// that the second one takes too.
fn lower_word(text: &str, at: usize) -> Option<usize> {
    let upper = run(text, at, is_upper);
    let lower = run(text, upper, is_lower);
    if lower > upper {
        return Some(lower);
    }
    let (i, c) = text[at..upper].char_indices().rfind(|(_, c)| is_lower(class_of(*c)))?;
    Some(at + i + c.len_utf8())
}

/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`.
fn upper_word(text: &str, at: usize) -> Option<usize> {
    let upper = run(text, at, is_upper);
    (upper > at).then(|| run(text, upper, is_lower))
}

/// Numbers first, then runs of kana and Han, then the third pattern inside what is left; each piece ends the text for
/// the pattern that sees it.
fn deepseek(text: &str, mut emit: impl FnMut(usize)) {
    let is_cjk = |c: char| matches!(c, '一'..='龥' | '\u{3040}'..='ヿ');
    let mut at = 0;
    while let Some(c) = first(text, at) {
        let end = if class_of(c) == Class::Number {
            digits(text, at, 3)
        } else {
            let differs = |c: char| class_of(c) == Class::Number || is_cjk(c) != is_cjk_first(text, at);
            text[at..].find(differs).map_or(text.len(), |n| at + n)
        };
        let piece = &text[..end];
        while at < end {
            at = deepseek_piece(piece, at);
            emit(at);
        }
    }

    fn is_cjk_first(text: &str, at: usize) -> bool {
        first(text, at).is_some_and(|c| matches!(c, '一'..='龥' | '\u{3040}'..='ヿ'))
    }
}

/// The end of the match at `at`, or, where nothing matches, of the gap up to the next match.
fn deepseek_piece(piece: &str, at: usize) -> usize {
    if let Some(end) = deepseek_match(piece, at) {
        return end;
    }
    let mut gap = at;
    while let Some(c) = first(piece, gap) {
        gap += c.len_utf8();
        if deepseek_match(piece, gap).is_some() {
            return gap;
        }
    }
    piece.len()
}

fn deepseek_match(piece: &str, at: usize) -> Option<usize> {
    let c = first(piece, at)?;
    let class = class_of(c);
    let next = at + c.len_utf8();
    if c.is_ascii_punctuation() {
        let n_letters = piece.as_bytes()[next..].iter().take_while(|b| b.is_ascii_alphabetic()).count();
        if n_letters > 0 {
            return Some(next + n_letters);
        }
    }
    let is_word = |class| is_letter(class) || class == Class::Mark;
    if !(is_letter(class) || matches!(class, Class::Newline | Class::Punctuation | Class::Symbol)) {
        let end = run(piece, next, is_word);
        if end > next {
            return Some(end);
        }
    }
    if is_word(class) {
        return Some(run(piece, at, is_word));
    }
    if let Some(end) = marks(piece, at, |class| matches!(class, Class::Punctuation | Class::Symbol)) {
        return Some(run(piece, end, |class| class == Class::Newline));
    }
    matches!(class, Class::Space | Class::Newline).then(|| whitespace(piece, at))
}
