//! Scores and always-kept ids to a draft vocabulary of a given size.
//!
//! The size counts the most useful ids; always-kept ids that are not among them come on top, then rows up to a multiple
//! of the tile: the next-ranked ids, or (the seed's way) copies of the first kept row.

use anyhow::{Result, ensure};
use serde::Serialize;

use super::{DraftVocab, rank, retain::Retained};
use crate::error::Hint;

/// The size when none is asked for: the seed recipe's, a quarter of a vocabulary of 248,320.
pub const DEFAULT_SIZE: usize = 64_000;

/// How rows up to a multiple of [`SelectConfig::pad_to`] are filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PadMode {
    /// With the next-ranked ids: no row is a copy.
    #[default]
    Next,
    /// With copies of the first kept row, which no id list mentions.
    Repeat,
}

/// What to select.
#[derive(Debug, Clone)]
pub struct SelectConfig {
    /// How many of the most useful ids to keep.
    pub size: usize,
    /// V, the rows of `lm_head`.
    pub target_rows: usize,
    /// The number of rows becomes a multiple of this (NVFP4 kernels want 64, tiles 128).
    pub pad_to: usize,
    /// With what.
    pub pad_mode: PadMode,
}

/// A vocabulary and how it came about.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// The kept ids.
    pub vocab: DraftVocab,
    /// All ids of the tokenizer, most useful first.
    pub ranking: Vec<u32>,
    /// Always-kept ids that were not among the `size` most useful.
    pub n_retained_on_top: usize,
    /// Ids taken beyond those to fill the last tile.
    pub n_padding_ids: usize,
    /// Kept ids that the counts have never seen: filled in by id, earning nothing that is known.
    pub n_never_seen: usize,
}

/// Selects the kept ids; `scores` has one entry an id of the tokenizer (see [`rank::scores`]).
///
/// # Errors
/// A size of 0 or larger than the tokenizer, a tokenizer or an always-kept id past V, padding that the tokenizer has no
/// ids for.
pub fn select(scores: &[f64], retained: &Retained, config: &SelectConfig) -> Result<Selection> {
    check(scores.len(), retained, config)?;
    let ranking = rank::ranking(scores);
    let mut keep = vec![false; config.target_rows];
    for &id in &ranking[..config.size] {
        keep[id as usize] = true;
    }
    let n_retained_on_top = retained.ids().filter(|&id| !std::mem::replace(&mut keep[id as usize], true)).count();
    let n_kept = config.size + n_retained_on_top;
    let n_missing = n_kept.next_multiple_of(config.pad_to) - n_kept;
    let mut n_padding_ids = 0;
    if config.pad_mode == PadMode::Next {
        for &id in &ranking[config.size..] {
            if n_padding_ids < n_missing && !keep[id as usize] {
                keep[id as usize] = true;
                n_padding_ids += 1;
            }
        }
        ensure_padded(scores.len(), n_kept, n_padding_ids == n_missing, config)?;
    }
    let token_ids: Vec<u32> = (0u32..).zip(&keep).filter(|(_, kept)| **kept).map(|(id, _)| id).collect();
    let never_seen = |&id: &u32| !retained.contains(id) && scores[id as usize] == 0.0;
    let n_never_seen = token_ids.iter().copied().filter(never_seen).count();
    let mut vocab = DraftVocab::new(config.target_rows, token_ids)?;
    vocab.n_repeated = if config.pad_mode == PadMode::Repeat { n_missing } else { 0 };
    Ok(Selection { vocab, ranking, n_retained_on_top, n_padding_ids, n_never_seen })
}

fn check(n_ids: usize, retained: &Retained, config: &SelectConfig) -> Result<()> {
    let SelectConfig { size, target_rows, pad_to, .. } = *config;
    ensure!(size > 0, "the size is 0, expected at least 1");
    ensure!(pad_to > 0, "the number of rows cannot be a multiple of 0");
    if size > n_ids {
        return Err(anyhow::anyhow!("the size {size} is larger than the vocabulary, which has {n_ids} ids"))
            .hint(format!("give `--size` a number up to {n_ids}; 64000 is usual for a vocabulary of 248077"));
    }
    if n_ids > target_rows {
        return Err(anyhow::anyhow!("the tokenizer has {n_ids} ids, more than the {target_rows} rows of lm_head"))
            .hint("the tokenizer and V (`--target-rows`) belong to different models");
    }
    // Past the tokenizer is allowed: Qwen3.5 names some added tokens in tokenizer_config.json alone.
    if let Some(id) = retained.ids().find(|&id| id as usize >= target_rows) {
        anyhow::bail!("the always-kept id {id} is past the {target_rows} rows of lm_head");
    }
    Ok(())
}

fn ensure_padded(n_ids: usize, n_kept: usize, padded: bool, config: &SelectConfig) -> Result<()> {
    let said = || {
        ensure!(
            padded,
            "{n_kept} kept ids cannot be padded to a multiple of {}: the vocabulary has only {n_ids} ids",
            config.pad_to
        );
        Ok(())
    };
    said().hint("choose a smaller `--size`, or fill up with copies: `--pad-mode repeat`")
}

#[cfg(test)]
mod tests {
    use super::{super::retain::Reason, *};

    fn config(size: usize, pad_to: usize, pad_mode: PadMode) -> SelectConfig {
        SelectConfig { size, target_rows: 12, pad_to, pad_mode }
    }

    /// Ids 9, 8, 7 ... 0 from the most to the least useful.
    const SCORES: [f64; 10] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

    fn retained() -> Retained {
        let mut retained = Retained::default();
        retained.add(9, Reason::Special);
        retained.add(1, Reason::Byte);
        retained
    }

    #[test]
    fn the_size_counts_useful_ids_and_retained_ids_come_on_top() {
        let selection = select(&SCORES, &retained(), &config(3, 1, PadMode::Next)).unwrap();
        assert_eq!(selection.vocab.token_ids, [1, 7, 8, 9]);
        assert_eq!((selection.n_retained_on_top, selection.n_padding_ids), (1, 0));
    }

    #[test]
    fn padding_takes_the_next_ranked_ids() {
        let selection = select(&SCORES, &retained(), &config(3, 6, PadMode::Next)).unwrap();
        assert_eq!(selection.vocab.token_ids, [1, 5, 6, 7, 8, 9]);
        assert_eq!((selection.n_padding_ids, selection.vocab.n_repeated), (2, 0));
    }

    #[test]
    fn padding_by_repetition_adds_rows_and_no_ids() {
        let selection = select(&SCORES, &retained(), &config(3, 6, PadMode::Repeat)).unwrap();
        assert_eq!(selection.vocab.token_ids, [1, 7, 8, 9]);
        assert_eq!(selection.vocab.row_ids().collect::<Vec<_>>(), [1, 7, 8, 9, 1, 1]);
    }

    #[test]
    fn a_configured_token_past_the_tokenizer_is_kept() {
        let mut retained = retained();
        retained.add(11, Reason::Special);
        let selection = select(&SCORES, &retained, &config(3, 1, PadMode::Next)).unwrap();
        assert_eq!(selection.vocab.token_ids, [1, 7, 8, 9, 11]);
    }

    #[test]
    fn never_seen_ids_are_counted() {
        let selection = select(&SCORES, &Retained::default(), &config(10, 1, PadMode::Next)).unwrap();
        assert_eq!(selection.n_never_seen, 1);
        assert_eq!(selection.vocab.token_ids.len(), 10);
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let said = |size, pad_to, retained: &Retained| {
            select(&SCORES, retained, &config(size, pad_to, PadMode::Next)).unwrap_err().to_string()
        };
        let none = Retained::default();
        assert!(said(0, 1, &none).contains("expected at least 1"));
        assert!(said(11, 1, &none).contains("the size 11 is larger than the vocabulary, which has 10 ids"));
        assert!(said(9, 8, &none).contains("cannot be padded to a multiple of 8"));
        assert!(said(1, 0, &none).contains("multiple of 0"));
        let mut past = Retained::default();
        past.add(12, Reason::Eos);
        assert!(said(1, 1, &past).contains("always-kept id 12 is past the 12 rows"));
        let small = SelectConfig { target_rows: 9, ..config(1, 1, PadMode::Next) };
        assert!(select(&SCORES, &none, &small).unwrap_err().to_string().contains("more than the 9 rows"));
    }
}
