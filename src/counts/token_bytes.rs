//! The bytes of all tokens of a byte-level vocabulary.

use super::{spec::Vocab, tokenizer::byte_of_char};

/// Bytes by id, end to end; an id without a token has none.
pub struct TokenBytes {
    bytes: Vec<u8>,
    spans: Vec<(u32, u32)>,
}

impl TokenBytes {
    /// Undoes the spelling of every token.
    ///
    /// # Errors
    /// A token that is not spelled in the byte-level alphabet.
    pub fn new(vocab: &Vocab<'_>) -> Result<Self, String> {
        let alphabet: Vec<Option<u8>> = (0..0x144).map(|c| char::from_u32(c).and_then(byte_of_char)).collect();
        let n_ids = vocab.0.iter().map(|(_, id)| *id as usize + 1).max().unwrap_or(0);
        let mut tokens = Self { bytes: Vec::with_capacity(n_ids * 8), spans: vec![(0, 0); n_ids] };
        for (token, id) in &vocab.0 {
            let start = tokens.bytes.len() as u32;
            let spelled = token.chars().try_for_each(|c| {
                tokens.bytes.push(alphabet.get(c as usize).copied().flatten()?);
                Some(())
            });
            if spelled.is_none() {
                // Such a token (a special one, as a rule) is never made by merging bytes.
                tokens.bytes.truncate(start as usize);
            }
            tokens.spans[*id as usize] = (start, tokens.bytes.len() as u32);
        }
        if tokens.bytes.len() > u32::MAX as usize {
            return Err("the tokens are longer than 4 GiB together".to_owned());
        }
        Ok(tokens)
    }

    /// One more than the largest id.
    pub fn n_ids(&self) -> usize {
        self.spans.len()
    }

    /// The bytes of a token; empty if it has none.
    pub fn get(&self, id: u32) -> &[u8] {
        let (start, end) = self.spans[id as usize];
        &self.bytes[start as usize..end as usize]
    }

    /// All tokens that have bytes.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        (0..self.spans.len() as u32).map(|id| (id, self.get(id))).filter(|(_, bytes)| !bytes.is_empty())
    }
}
