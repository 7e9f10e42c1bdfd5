//! Counts that come with the program, so that a vocabulary needs no corpus: figures of openly licensed text (sources and
//! licences: `corpora/qwen3.8/PROVENANCE.md`), for the vocabulary that Qwen3.5 to 3.8 share.

use anyhow::Result;
use sha2::{Digest, Sha256};

use crate::counts::{Counts, Tokenizer};

/// One file a domain, compressed.
const QWEN: [&[u8]; 4] = [
    include_bytes!("../../corpora/qwen3.8/code.counts"),
    include_bytes!("../../corpora/qwen3.8/en.counts"),
    include_bytes!("../../corpora/qwen3.8/math.counts"),
    include_bytes!("../../corpora/qwen3.8/zh.counts"),
];
/// [`base_vocab_sha256`] of the tokenizer they were counted with.
const QWEN_BASE_VOCAB: &str = "3637b1a115b34b1791c6f639496208b558476d6cd0a8f4592040a8e4a6c6e925";

/// The shipped counts for a tokenizer, if there are any. The base vocabulary decides, not the file: releases differ in
/// added tokens and in the layout of the JSON, while the ids of all other tokens are the same.
///
/// # Errors
/// The embedded counts are damaged.
pub fn counts(tokenizer: &Tokenizer) -> Result<Option<Counts>> {
    if base_vocab_sha256(tokenizer) != QWEN_BASE_VOCAB {
        return Ok(None);
    }
    let mut sum: Option<Counts> = None;
    for bytes in QWEN {
        let mut counts = Counts::from_slice(bytes)?;
        counts.tokenizer_sha256 = tokenizer.sha256().to_owned();
        counts.n_ids = tokenizer.n_ids();
        counts.domains.iter_mut().for_each(|domain| domain.counts.resize(tokenizer.n_ids(), 0));
        match &mut sum {
            Some(sum) => drop(sum.merge(counts)?),
            None => sum = Some(counts),
        }
    }
    Ok(sum)
}

/// The identity of a vocabulary without its added tokens: sha256 over id, length and text of each token, in the order of
/// the ids, numbers as little-endian u32.
pub fn base_vocab_sha256(tokenizer: &Tokenizer) -> String {
    let first_added = tokenizer.added().next().map_or(u32::MAX, |(id, _)| id);
    let mut sha256 = Sha256::new();
    for id in (0..tokenizer.n_ids() as u32).take_while(|&id| id < first_added) {
        let Some(token) = tokenizer.token(id) else { continue };
        sha256.update(id.to_le_bytes());
        sha256.update((token.len() as u32).to_le_bytes());
        sha256.update(token.as_bytes());
    }
    crate::output::hex(&sha256.finalize())
}
