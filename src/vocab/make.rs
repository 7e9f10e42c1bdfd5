//! From a wish (texts or counts, a size, weights, floors) to a vocabulary: what `build-vocab` and `build` share.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Result, ensure};

use super::{
    build::{Built, build},
    evidence::Evidence,
    floors, mixture,
    named::DomainValue,
    retain::retain,
    select::SelectConfig,
    shipped,
};
use crate::{
    corpus::Source,
    counts::{CountOptions, Counts, Tokenizer, count},
    error::Hint,
    report::Progress,
};

/// What a vocabulary is to be made from, and how.
#[derive(Debug, Clone)]
pub struct Request {
    /// Text to count.
    pub sources: Vec<Source>,
    /// Text to measure coverage on; without it a tenth of the documents is held out.
    pub heldout: Vec<Source>,
    /// A mixture file with more of both.
    pub mixture: Option<PathBuf>,
    /// Counts made before.
    pub counts: Vec<PathBuf>,
    /// Weights of domains, before those of the sources.
    pub weights: Vec<DomainValue>,
    /// The least coverage of domains.
    pub floors: Vec<DomainValue>,
    /// Size and padding.
    pub select: SelectConfig,
    /// How text is counted.
    pub options: CountOptions,
}

/// A vocabulary, what it rests on, and what should be said about it.
#[derive(Debug, Clone)]
pub struct Made {
    /// The counts.
    pub evidence: Evidence,
    /// The vocabulary.
    pub built: Built,
    /// Sentences for the person: shipped counts, changed weights or sizes.
    pub notes: Vec<String>,
}

/// Makes a vocabulary. Without text and counts the shipped counts are taken, if they fit the tokenizer.
///
/// # Errors
/// Nothing to count, input that cannot be read, counts of another tokenizer, floors that cannot be met, a size that does
/// not fit.
pub fn make(tokenizer: &Tokenizer, request: &Request, progress: &Progress) -> Result<Made> {
    let mut request = request.clone();
    if let Some(path) = &request.mixture {
        let mixture = mixture::read(path)?;
        request.sources.extend(mixture.sources);
        request.heldout.extend(mixture.heldout);
    }
    let mut notes = Vec::new();
    let mut weights = source_weights(&request.sources)?;
    weights.extend(request.weights.iter().map(|weight| (weight.domain.clone(), weight.value)));
    let evidence = gather(tokenizer, &request, progress, &mut notes)?;
    let mut select = request.select.clone();
    if !request.floors.is_empty() {
        let met = floors::meet(&evidence, &retain(tokenizer)?, &weights, select.size, &request.floors)?;
        notes.extend(met.changes);
        (weights, select.size) = (met.weights, met.size);
    }
    let built = build(tokenizer, &evidence, &weights, &select)?;
    Ok(Made { evidence, built, notes })
}

fn gather(tokenizer: &Tokenizer, request: &Request, progress: &Progress, notes: &mut Vec<String>) -> Result<Evidence> {
    let Request { sources, heldout, options, .. } = request;
    let mut counts: Option<Counts> = None;
    for path in &request.counts {
        let more = Counts::read_for(path, tokenizer)?;
        match &mut counts {
            Some(counts) => drop(counts.merge(more)?),
            None => counts = Some(more),
        }
    }
    if !sources.is_empty() {
        let mut evidence = Evidence::count(tokenizer, sources, heldout, options, progress)?;
        counts.map_or(Ok(()), |counts| evidence.add(counts))?;
        return Ok(evidence);
    }
    let counts = match counts {
        Some(counts) => counts,
        None => {
            let shipped = shipped::counts(tokenizer)?.ok_or_else(|| anyhow::anyhow!("nothing to count was given"));
            notes.push(
                "no corpus was given: chosen from the counts that come with draftfast (openly licensed zh, en, code and \
                 math); text that the model itself wrote serves better, give it with `--corpus`"
                    .to_owned(),
            );
            shipped.hint("give text with `--corpus PATH`, or counts with `--counts FILE`")?
        }
    };
    let heldout = if heldout.is_empty() { None } else { Some(count(tokenizer, heldout, options, progress)?) };
    Ok(Evidence::from_counts(counts, heldout))
}

/// The weights in `DOMAIN:WEIGHT=PATH`.
fn source_weights(sources: &[Source]) -> Result<BTreeMap<String, f64>> {
    let mut weights = BTreeMap::new();
    for source in sources {
        let given = weights.insert(source.domain.clone(), source.weight);
        ensure!(
            given.is_none_or(|given| given == source.weight),
            "the corpora of domain `{}` are given different weights",
            source.domain
        );
    }
    Ok(weights)
}
