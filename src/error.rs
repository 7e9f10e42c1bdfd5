//! Hints: what a person can do about an error, carried beside the sentence that says what is wrong.
//!
//! Messages are one sentence, lower case, no full stop, naming file and tensor, found and expected, with values in
//! backticks. A hint is attached with [`Hint::hint`] and printed once, below the error, by `main`.

use std::{error::Error, fmt};

/// An error with advice. Displays as the error alone; [`hints`] finds the advice.
#[derive(Debug)]
struct Advised {
    source: anyhow::Error,
    hint: String,
}

impl fmt::Display for Advised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source)
    }
}

impl Error for Advised {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.source()
    }
}

/// Attaches a hint to the error of a result, as `context` attaches a cause.
pub trait Hint<T> {
    /// `hint` is a sentence that says what to do, without a final full stop.
    ///
    /// # Errors
    /// The same error, advised.
    fn hint(self, hint: impl Into<String>) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> Hint<T> for Result<T, E> {
    fn hint(self, hint: impl Into<String>) -> anyhow::Result<T> {
        self.map_err(|error| advise(error.into(), hint))
    }
}

/// The same error with a hint.
pub fn advise(source: anyhow::Error, hint: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Advised { source, hint: hint.into() })
}

/// Runs a call into a library that panics where it meets input it did not expect; the panic becomes an error, as it
/// would be had the library returned one. What the call was working on must not be used again.
///
/// # Errors
/// Those of `call`, or its panic.
pub fn contained<T>(library: &str, call: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
        // The first line says it; some dump what they were given.
        let line: String = text.unwrap_or("no reason").lines().next().unwrap_or_default().chars().take(200).collect();
        Err(anyhow::anyhow!("the {library} gave up: {line}"))
    })
}

/// The hints of an error, outermost first.
pub fn hints(error: &anyhow::Error) -> Vec<&str> {
    // `downcast_ref` looks through anyhow's own contexts, and each advised error holds the next.
    let mut found = Vec::new();
    let mut error = error;
    while let Some(advised) = error.downcast_ref::<Advised>() {
        found.push(advised.hint.as_str());
        error = &advised.source;
    }
    found
}

/// A piece of an input in backticks, for an error: its beginning, as it may be long, without control characters.
pub fn quoted(text: &str) -> String {
    const N_SHOWN: usize = 80;
    let shown: String = text.chars().take(N_SHOWN).flat_map(|c| c.escape_debug()).collect();
    let more = if text.chars().nth(N_SHOWN).is_some() { "..." } else { "" };
    format!("`{shown}{more}`")
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn the_sentence_is_printed_once_and_every_hint_is_found() {
        let inner: Result<(), _> = Err(anyhow!("inner"));
        let error = inner.hint("try this").context("outer").hint("or that").unwrap_err();
        assert_eq!(format!("{error:#}"), "outer: inner");
        assert_eq!(hints(&error), ["or that", "try this"]);
    }

    #[test]
    fn what_is_quoted_is_short_and_printable() {
        assert_eq!(quoted("up 1"), "`up 1`");
        assert_eq!(quoted("a\0b"), "`a\\0b`");
        assert_eq!(quoted(&"x".repeat(81)), format!("`{}...`", "x".repeat(80)));
    }

    #[test]
    fn a_panic_of_a_library_is_an_error() {
        let error = contained::<()>("parser", || panic!("at {}\nsecond line", 5)).unwrap_err();
        assert_eq!(error.to_string(), "the parser gave up: at 5");
        assert_eq!(contained("parser", || Ok(1)).unwrap(), 1);
    }
}
