//! From counts to kept token ids: a draft vocabulary, chosen by what it earns and written in every form a runtime reads.
//!
//! The one canonical form is ascending absolute ids over V, the rows of `lm_head` (not the tokenizer's size, which is
//! smaller); masks, offsets and files are derived from it. Ascending, because then mask order, id order and offset order
//! agree, and a consumer that gathers rows by mask cannot misalign them.

pub mod build;
mod containers;
pub mod coverage;
pub mod dataset;
pub mod diff;
pub mod evidence;
pub mod floors;
pub mod forms;
pub mod make;
pub mod mixture;
pub mod named;
mod npy;
mod pickle;
pub mod rank;
mod recognise;
pub mod retain;
pub mod select;
pub mod shipped;
mod stored_zip;
pub mod summary;
pub mod target;
mod template;
mod torch_pt;

use anyhow::{Result, bail, ensure};
use sha2::{Digest, Sha256};

/// The largest V that is believed: no published vocabulary has a tenth of it, and memory is allotted by it.
pub const MAX_TARGET_ROWS: usize = 1 << 24;
/// The most rows that repeat the first one: they fill a tile.
pub const MAX_REPEATED_ROWS: usize = 1 << 16;

/// # Errors
/// V is 0 or larger than [`MAX_TARGET_ROWS`].
pub fn check_target_rows(target_rows: usize) -> Result<usize> {
    ensure!(
        (1..=MAX_TARGET_ROWS).contains(&target_rows),
        "V, the rows of lm_head, is {target_rows}, expected 1 to {MAX_TARGET_ROWS}"
    );
    Ok(target_rows)
}

/// Which rows of `lm_head` the draft head keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftVocab {
    /// V: the rows of `lm_head`.
    pub target_rows: usize,
    /// The kept ids, strictly ascending, each below `target_rows`.
    pub token_ids: Vec<u32>,
    /// Rows of the draft head that repeat `token_ids[0]` to fill up a tile; 0 unless padding by repetition was asked for.
    pub n_repeated: usize,
}

impl DraftVocab {
    /// A checked vocabulary without repeated rows.
    ///
    /// # Errors
    /// `token_ids` is empty, not strictly ascending, or reaches past `target_rows`.
    pub fn new(target_rows: usize, token_ids: Vec<u32>) -> Result<Self> {
        let vocab = Self { target_rows, token_ids, n_repeated: 0 };
        vocab.validate()?;
        Ok(vocab)
    }

    /// # Errors
    /// As [`DraftVocab::new`].
    pub fn validate(&self) -> Result<()> {
        check_target_rows(self.target_rows)?;
        ensure!(
            self.n_repeated <= MAX_REPEATED_ROWS,
            "{} rows repeat the first, expected at most {MAX_REPEATED_ROWS}",
            self.n_repeated
        );
        let Some(&last) = self.token_ids.last() else { bail!("the draft vocabulary is empty") };
        if let Some(pair) = self.token_ids.windows(2).find(|pair| pair[0] >= pair[1]) {
            bail!("the kept ids are not strictly ascending: `{}` stands before `{}`", pair[0], pair[1]);
        }
        ensure!(
            (last as usize) < self.target_rows,
            "the kept id `{last}` is not below the {} rows of lm_head",
            self.target_rows
        );
        Ok(())
    }

    /// Rows of the draft head: kept ids and repeated rows.
    pub fn n_rows(&self) -> usize {
        self.token_ids.len() + self.n_repeated
    }

    /// The id of each row of the draft head, repeated rows last.
    pub fn row_ids(&self) -> impl Iterator<Item = u32> + '_ {
        let repeated = self.token_ids.first().copied().into_iter().cycle().take(self.n_repeated);
        self.token_ids.iter().copied().chain(repeated)
    }

    /// bool\[V\]: which ids are kept (`t2d`).
    pub fn mask(&self) -> Vec<bool> {
        let mut mask = vec![false; self.target_rows];
        for &id in &self.token_ids {
            mask[id as usize] = true;
        }
        mask
    }

    /// int64\[N\]: target id minus draft id (`d2t` in the sense of EAGLE-3).
    pub fn offsets(&self) -> Vec<i64> {
        self.token_ids.iter().zip(0i64..).map(|(&id, row)| i64::from(id) - row).collect()
    }

    /// The identity of the vocabulary whatever file it came from: sha256 of V, the number of repeated rows and the kept
    /// ids, each as a little-endian u64.
    pub fn sha256(&self) -> String {
        let mut sha256 = Sha256::new();
        sha256.update((self.target_rows as u64).to_le_bytes());
        sha256.update((self.n_repeated as u64).to_le_bytes());
        let ids: Vec<[u8; 8]> = self.token_ids.iter().map(|&id| u64::from(id).to_le_bytes()).collect();
        sha256.update(ids.as_flattened());
        crate::output::hex(&sha256.finalize())
    }

    /// Rows that each rank of a tensor-parallel group of `n_ranks` gets when the target's rows are split evenly. Low ids
    /// are frequent ones, so rank 0 usually gets nearly all.
    pub fn rows_per_rank(&self, n_ranks: usize) -> Vec<usize> {
        let shard = self.target_rows.div_ceil(n_ranks.max(1)).max(1);
        let mut rows = vec![0; n_ranks.max(1)];
        for &id in &self.token_ids {
            rows[id as usize / shard] += 1;
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_mask_and_rows_describe_the_same_ids() {
        let mut vocab = DraftVocab::new(10, vec![1, 2, 5, 9]).unwrap();
        assert_eq!(vocab.offsets(), [1, 1, 3, 6]);
        let kept: Vec<usize> = vocab.mask().iter().enumerate().filter(|(_, kept)| **kept).map(|(id, _)| id).collect();
        assert_eq!(kept, [1, 2, 5, 9]);
        vocab.n_repeated = 2;
        assert_eq!(vocab.row_ids().collect::<Vec<_>>(), [1, 2, 5, 9, 1, 1]);
        assert_eq!(vocab.n_rows(), 6);
        assert_eq!(vocab.rows_per_rank(2), [2, 2]);
        assert_eq!(vocab.rows_per_rank(4), [2, 1, 0, 1]);
    }

    #[test]
    fn bad_vocabularies_are_refused() {
        for (ids, said) in
            [(vec![], "empty"), (vec![3, 3], "ascending"), (vec![4, 3], "ascending"), (vec![1, 10], "below")]
        {
            let error = DraftVocab::new(10, ids).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
