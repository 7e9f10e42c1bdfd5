//! From a wish (texts or counts, a size, weights, floors) to a vocabulary: what `build-vocab` and `build` share.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Result, ensure};

use super::{
    build::{Built, build},
    evidence::{Evidence, domains},
    floors, mixture,
    named::DomainValue,
    retain::retain,
    select::SelectConfig,
    shipped,
};
use crate::{
    corpus::{DEFAULT_DOMAIN, Source},
    counts::{CountOptions, Counts, Tokenizer, count},
    error::{Hint, advise},
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

/// Counts, and how their domains weigh.
#[derive(Debug, Clone)]
pub struct Gathered {
    /// The counts.
    pub evidence: Evidence,
    /// The weight of each domain that has one.
    pub weights: BTreeMap<String, f64>,
    /// Whether they are the counts that come with draftfast, because none were given.
    pub is_shipped: bool,
    /// Sentences for the person.
    pub notes: Vec<String>,
}

/// Counts what a request names. Without text and counts the shipped counts are taken, if they fit the tokenizer.
///
/// # Errors
/// Nothing to count, input that cannot be read, or counts of another tokenizer.
pub fn gather(tokenizer: &Tokenizer, request: &Request, progress: &Progress) -> Result<Gathered> {
    let mut request = request.clone();
    if let Some(path) = &request.mixture {
        let mixture = mixture::read(path)?;
        request.sources.extend(mixture.sources);
        request.heldout.extend(mixture.heldout);
    }
    let mut notes = Vec::new();
    let mut weights = source_weights(&request.sources)?;
    weights.extend(request.weights.iter().map(|weight| (weight.domain.clone(), weight.value)));
    let evidence = count_all(tokenizer, &request, progress, &mut notes)?;
    let domains = domains(&evidence.counts);
    for domain in weights.keys() {
        if !domains.iter().any(|known| known.name == domain) {
            let error = anyhow::anyhow!("a weight is given for domain `{domain}`, which has no counts");
            let known: Vec<&str> = domains.iter().map(|known| known.name).collect();
            return Err(advise(error, format!("the domains are {}", known.join(", "))));
        }
    }
    let is_shipped = request.sources.is_empty() && request.counts.is_empty();
    Ok(Gathered { evidence, weights, is_shipped, notes })
}

/// Makes a vocabulary from counts: weights are moved and the size is raised until the domains' floors are met.
///
/// # Errors
/// Floors that cannot be met, or a size that does not fit.
pub fn make(tokenizer: &Tokenizer, gathered: Gathered, select: &SelectConfig, floors: &[DomainValue]) -> Result<Made> {
    let Gathered { evidence, mut weights, mut notes, .. } = gathered;
    let mut select = select.clone();
    if !floors.is_empty() {
        let met = floors::meet(&evidence, &retain(tokenizer)?, &weights, select.size, floors)?;
        notes.extend(met.changes);
        (weights, select.size) = (met.weights, met.size);
    }
    let built = build(tokenizer, &evidence, &weights, &select)?;
    Ok(Made { evidence, built, notes })
}

fn count_all(
    tokenizer: &Tokenizer,
    request: &Request,
    progress: &Progress,
    notes: &mut Vec<String>,
) -> Result<Evidence> {
    let Request { sources, heldout, options, .. } = request;
    let counts =
        Counts::sum(request.counts.iter().map(|path| Counts::read_any(path, Some(tokenizer), DEFAULT_DOMAIN)))?;
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
