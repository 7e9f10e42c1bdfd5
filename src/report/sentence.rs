//! An error as one line. Names and pieces of files stand in it: they may neither write to a terminal nor fill it.

/// Characters of a line; of a longer one the middle is left out.
const MAX_CHARS: usize = 1_000;

/// An error and its causes, `outer: inner`. A cause whose words stand at the end already is not said twice.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain() {
        let words = cause.to_string();
        if said.ends_with(&words) {
            continue;
        }
        if !said.is_empty() {
            said.push_str(": ");
        }
        said.push_str(&words);
    }
    one_line(&said)
}

/// `text` in one line of bounded length.
pub fn one_line(text: &str) -> String {
    let line = printable(text).replace('\n', "\\n");
    let n_chars = line.chars().count();
    if n_chars <= MAX_CHARS {
        return line;
    }
    // The beginning says which file, the end why.
    let head = line.chars().take(MAX_CHARS * 2 / 3);
    let tail = line.chars().skip(n_chars - MAX_CHARS / 4);
    head.chain("...".chars()).chain(tail).collect()
}

/// `text` with its control characters, apart from the ends of lines, written out.
pub fn printable(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
        if c != '\n' && (c.is_control() || turns_text_around(c)) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
        shown
    })
}

/// Marks that change the order in which a line is shown, so that it seems to say something else.
fn turns_text_around(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let error = Err::<(), _>(anyhow!("no digit")).context("line 3: no digit").context("`x`").unwrap_err();
        assert_eq!(sentence(&error), "`x`: line 3: no digit");
    }

    #[test]
    fn what_a_file_says_stays_in_its_line() {
        assert_eq!(sentence(&anyhow!("`a\nb\u{1b}[2J\u{202e}c` é")), "`a\\nb\\u{1b}[2J\\u{202e}c` é");
        assert_eq!(printable("a\nb\r"), "a\nb\\u{d}");
        let long = sentence(&anyhow!("`x`: {}: at line 7", "y".repeat(100_000)));
        assert!(long.len() < 1_000 && long.starts_with("`x`: yy") && long.ends_with("yy: at line 7"), "{long}");
    }
}
