//! `id<TAB>count` lines: the form that mappers, shells and spreadsheets add up.

use std::{fmt::Write, path::Path};

use anyhow::{Context, Result, bail, ensure};

use super::{Counts, DomainCounts, FileRecord, Tokenizer};
use crate::{error::Hint, input::read_file, output::sha256_hex};

impl Counts {
    /// Reads a counts file, or lines of `id<TAB>count`: counts of `domain`, in the ids of `tokenizer`.
    ///
    /// # Errors
    /// As [`Counts::read`] and [`read_tsv`], another tokenizer, or lines without a tokenizer.
    pub fn read_any(path: &Path, tokenizer: Option<&Tokenizer>, domain: &str) -> Result<Self> {
        let say = || format!("`{}`", path.display());
        let bytes = read_file(path, super::file::MAX_COUNTS_BYTES).with_context(say)?;
        if !is_tsv(&bytes) {
            return tokenizer.map_or_else(|| Self::read(path), |tokenizer| Self::read_for(path, tokenizer));
        }
        let tokenizer = tokenizer.with_context(|| format!("`{}` holds lines of counts", path.display()));
        let tokenizer =
            tokenizer.hint("say which tokenizer counted them: `draftfast merge FILE --tokenizer MODEL -o OUT`")?;
        let text = std::str::from_utf8(&bytes).context("not UTF-8").with_context(say)?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let n_bytes = bytes.len() as u64;
        let file = FileRecord { name, sha256: sha256_hex(&bytes), n_bytes, n_documents: 0, n_skipped: 0 };
        let domain = DomainCounts {
            domain: domain.to_owned(),
            counts: read_tsv(text, tokenizer.n_ids()).with_context(say)?,
            texts: "lines of counts".to_owned(),
            files: vec![file],
            ..DomainCounts::default()
        };
        Ok(Self {
            tokenizer_sha256: tokenizer.sha256().to_owned(),
            n_ids: tokenizer.n_ids(),
            engines: vec!["lines of counts".to_owned()],
            domains: vec![domain],
            warnings: Vec::new(),
        })
    }
}

/// Whether these are lines of `ID<TAB>COUNT`. A counts file begins with the length of its header, whose lowest byte may
/// well be a digit, and then a brace.
fn is_tsv(bytes: &[u8]) -> bool {
    let is_safetensors = bytes.get(8) == Some(&b'{');
    let has_digits = bytes.first().is_some_and(u8::is_ascii_digit) && bytes.contains(&b'\t');
    bytes.is_empty() || bytes.starts_with(b"id\t") || (has_digits && !is_safetensors)
}

/// The non-zero counts as lines, ids ascending, without a header.
pub fn write_tsv(counts: &[u64]) -> String {
    let mut text = String::new();
    for (id, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let _ = writeln!(text, "{id}\t{count}"); // writing to a string cannot fail
    }
    text
}

/// Reads lines of `id<TAB>count` into `n_ids` counts; a header line `id<TAB>count` may stand first.
///
/// # Errors
/// A line that is no such pair, a negative or too large number, an id outside the vocabulary or twice.
pub fn read_tsv(text: &str, n_ids: usize) -> Result<Vec<u64>> {
    let mut counts = vec![0_u64; n_ids];
    let mut total = 0_u64;
    for (i, line) in text.lines().enumerate() {
        if line.is_empty() || (i == 0 && line == "id\tcount") {
            continue;
        }
        let say = || format!("line {}", i + 1);
        let Some((id, count)) = line.split_once('\t') else {
            bail!("line {} is `{}`, expected `id<TAB>count`", i + 1, line.chars().take(40).collect::<String>());
        };
        ensure!(!count.trim_start().starts_with('-'), "line {}: the count `{count}` is negative", i + 1);
        let id: usize = id.parse().with_context(|| format!("the id `{id}`")).with_context(say)?;
        let count: u64 = count.trim_end().parse().with_context(|| format!("the count `{count}`")).with_context(say)?;
        let n_ids = counts.len();
        let Some(slot) = counts.get_mut(id) else {
            bail!("line {}: id {id} is outside the vocabulary of {n_ids} ids", i + 1);
        };
        ensure!(*slot == 0, "line {}: id {id} stands twice", i + 1);
        total = total.checked_add(count).with_context(|| format!("line {}: the counts overflow 64 bits", i + 1))?;
        *slot = count;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counts_file_whose_first_byte_is_a_digit_is_no_tsv() {
        assert!(!is_tsv(b"8\0\0\0\0\0\0\0{\"a\": 1} \t"));
        for text in ["", "id\tcount\n1\t2\n", "7\t1\n", "123456789\t1\n"] {
            assert!(is_tsv(text.as_bytes()), "{text:?}");
        }
        assert!(!is_tsv(b"\x28\xb5\x2f\xfd\t"));
    }

    #[test]
    fn lines_round_trip_and_bad_ones_are_refused() {
        let counts = vec![3, 0, u64::MAX - 3];
        assert_eq!(read_tsv(&write_tsv(&counts), 3).unwrap(), counts);
        assert_eq!(read_tsv("id\tcount\n1\t5\n", 2).unwrap(), [0, 5]);
        for (bad, why) in [
            ("0\t-1", "negative"),
            ("0 1", "expected `id<TAB>count`"),
            ("9\t1", "outside the vocabulary of 3 ids"),
            ("0\t1\n0\t1", "twice"),
            ("0\t18446744073709551616", "the count"),
            ("0\t18446744073709551615\n1\t1", "overflow"),
        ] {
            let error = format!("{:#}", read_tsv(bad, 3).unwrap_err());
            assert!(error.contains(why), "{bad:?}: {error}");
        }
    }
}
