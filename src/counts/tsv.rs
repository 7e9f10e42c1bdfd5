//! `id<TAB>count` lines: the form that mappers, shells and spreadsheets add up.

use std::fmt::Write;

use anyhow::{Context, Result, bail, ensure};

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
