//! The ids of tokens by their strings as tokenizer.json spells them.

use super::{hash, perfect::Perfect, spec::Vocab};

/// No place in the vocabulary.
const NOWHERE: u32 = u32::MAX;

/// A vocabulary, searched.
pub struct Ids<'v> {
    vocab: &'v Vocab<'v>,
    hash: Perfect,
    /// Where in the vocabulary the token of each slot stands; of one listed twice, the last place.
    places: Vec<u32>,
    n_tokens: usize,
}

impl<'v> Ids<'v> {
    /// # Errors
    /// The tokens cannot be hashed.
    pub fn new(vocab: &'v Vocab<'v>) -> Result<Self, String> {
        let hashes: Vec<u64> = vocab.0.iter().map(|(token, _)| hash::of_bytes(token.as_bytes())).collect();
        let (hash, slots) = Perfect::new(&hashes)?;
        let (mut places, mut n_tokens) = (vec![NOWHERE; hash.n_slots()], 0);
        for (slot, place) in slots.into_iter().zip(0..) {
            let before = std::mem::replace(&mut places[slot as usize], place);
            n_tokens += usize::from(before == NOWHERE);
            if before != NOWHERE && vocab.0[before as usize].0 != vocab.0[place as usize].0 {
                return Err("it has tokens that no hash keeps apart".to_owned());
            }
        }
        Ok(Self { vocab, hash, places, n_tokens })
    }

    /// How many different tokens there are.
    pub fn len(&self) -> usize {
        self.n_tokens
    }

    /// The id of a token.
    pub fn get(&self, token: &str) -> Option<u32> {
        let place = self.places[self.hash.slot(hash::of_bytes(token.as_bytes())) as usize];
        let (found, id) = self.vocab.0.get(place as usize)?;
        (found == token).then_some(*id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_place_of_a_token_counts_and_strangers_have_none() {
        let tokens = (0..1000).map(|n| (format!("t{}", n % 900).into(), n));
        let vocab = Vocab(tokens.collect());
        let ids = Ids::new(&vocab).unwrap();
        assert_eq!((ids.len(), ids.get("t99"), ids.get("t100")), (900, Some(999), Some(100)));
        assert!((900..5000).all(|n| ids.get(&format!("t{n}")).is_none()) && ids.get("").is_none());
    }
}
