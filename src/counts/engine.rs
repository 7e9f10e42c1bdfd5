//! Which engine counts: the fast one where the tokenizer is known, else the reference.

use std::sync::Arc;

use anyhow::Result;

use super::{
    Tokenizer,
    fast::{Fast, Tally},
    reference::{ENGINE, Reference},
};
use crate::corpus::CutAt;

/// Which engine counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// The fast one where it knows the tokenizer, else the reference.
    #[default]
    Auto,
    /// The `tokenizers` crate.
    Reference,
}

/// The engine of one run.
pub enum Engine<'t> {
    /// Unique pre-tokens, merged once each.
    Fast(&'t Arc<Fast>),
    /// One encode a text.
    Reference(&'t Reference),
}

impl<'t> Engine<'t> {
    /// The engine for a tokenizer.
    ///
    /// # Errors
    /// The reference is asked for or needed, and refuses the tokenizer.
    pub fn of(tokenizer: &'t Tokenizer, choice: EngineChoice) -> Result<Self> {
        match tokenizer.fast() {
            Ok(fast) if choice == EngineChoice::Auto => Ok(Self::Fast(fast)),
            _ => Ok(Self::Reference(tokenizer.reference()?)),
        }
    }

    /// Its name in provenance.
    pub fn name(&self) -> String {
        match self {
            Self::Fast(fast) => format!("draftfast {} ({})", env!("CARGO_PKG_VERSION"), fast.name()),
            Self::Reference(_) => ENGINE.to_owned(),
        }
    }

    /// Counts one text.
    ///
    /// # Errors
    /// The reference cannot encode it.
    pub fn count(&self, text: &str, tally: &mut Tally) -> Result<()> {
        match self {
            Self::Fast(fast) => {
                fast.count(text, tally);
                Ok(())
            }
            Self::Reference(reference) => reference.count(text, tally.counts_mut()),
        }
    }

    /// Completes the dense counts of one tally, and empties its table.
    pub fn fold(&self, tally: &mut Tally) {
        if let Self::Fast(fast) = self {
            fast.fold(tally);
        }
    }

    /// The counts of all tallies together.
    pub fn fold_all(&self, tallies: Vec<Tally>) -> Vec<u64> {
        match self {
            Self::Fast(fast) => fast.fold_all(tallies),
            Self::Reference(_) => {
                let mut tallies = tallies.into_iter().map(Tally::into_counts);
                let mut sum = tallies.next().unwrap_or_default();
                tallies.for_each(|counts| sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count));
                sum
            }
        }
    }

    /// How long texts may be cut; `None` keeps them whole.
    pub fn cut(&self) -> Option<Arc<CutAt>> {
        match self {
            Self::Fast(fast) if fast.can_cut() => {
                let fast = Arc::clone(fast);
                Some(Arc::new(move |bytes| fast.cut_at(bytes)))
            }
            _ => None,
        }
    }
}
