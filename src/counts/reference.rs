//! The specification: Hugging Face `tokenizers`, one encode a text. Slow, and the fallback for every tokenizer that
//! the fast engine does not know.

use anyhow::{Result, anyhow};

use serde::Deserialize;
use serde_json::Value;

use super::growth;
use crate::error::contained;

/// The version of the crate, as provenance names it; a test compares it with Cargo.lock.
pub const ENGINE: &str = "tokenizers 0.23.2";

/// What a panic of the crate is called by.
const LIBRARY: &str = "tokenizers crate";

/// The tokenizer as the crate loads it.
pub struct Reference(tokenizers::Tokenizer);

#[derive(Deserialize)]
struct Normalized {
    #[serde(default)]
    normalizer: Value,
}

impl Reference {
    /// # Errors
    /// The crate refuses the file, or its normalizer makes texts absurdly long.
    pub fn new(json: &[u8]) -> Result<Self> {
        growth::check(&serde_json::from_slice::<Normalized>(json)?.normalizer)?;
        let load = || tokenizers::Tokenizer::from_bytes(json).map_err(|error| anyhow!("{error}"));
        let mut tokenizer = contained(LIBRARY, load)?;
        // Both are meant for batches of a model; counting wants every token.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| anyhow!("{error}"))?;
        Ok(Self(tokenizer))
    }

    /// Adds the tokens of `text` to `counts`; no special tokens are put around it.
    ///
    /// # Errors
    /// The crate cannot encode the text.
    pub fn count(&self, text: &str, counts: &mut [u64]) -> Result<()> {
        for id in self.encode(text)? {
            let count =
                counts.get_mut(id as usize).ok_or_else(|| anyhow!("token id {id} is outside the vocabulary"))?;
            *count += 1;
        }
        Ok(())
    }

    /// The ids of `text`.
    ///
    /// # Errors
    /// The crate cannot encode the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encode = || self.0.encode_fast(text, false).map_err(|error| anyhow!("cannot encode a text: {error}"));
        let encoding = contained(LIBRARY, encode)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// All tokens with their ids, added ones included.
    pub fn vocab(&self) -> impl Iterator<Item = (String, u32)> {
        self.0.get_vocab(true).into_iter()
    }
}
