//! The whole job: evidence to a vocabulary with its figures and provenance, and both to a directory.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    DraftVocab,
    coverage::{self, Coverage, Curve},
    evidence::{Evidence, Measured, domains},
    forms::{self, Form},
    rank,
    retain::{Retained, retain},
    select::{SelectConfig, Selection, select},
};
use crate::{counts::Tokenizer, input::read_beside, output::StagedDir};

/// Missed tokens listed a domain.
const N_MISSED: usize = 20;
/// Tensor-parallel sizes that rows per rank are shown for.
const RANKS: [usize; 3] = [2, 4, 8];

/// A vocabulary, why it is so, and what it is worth.
#[derive(Debug, Clone)]
pub struct Built {
    /// The kept ids.
    pub selection: Selection,
    /// The always-kept ids.
    pub retained: Retained,
    /// What was asked for.
    pub config: SelectConfig,
    /// The weight of each domain.
    pub weights: BTreeMap<String, f64>,
    /// What it covers.
    pub figures: Figures,
}

/// What a vocabulary covers, and how sure that is.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// On what text.
    pub measured: Measured,
    /// At the chosen size, by domain.
    pub coverage: Vec<Coverage>,
    /// At every size.
    pub curve: Curve,
    /// The Jaccard index of the tops of two halves at each size of the curve; absent for counts made before.
    pub stability: Option<Vec<f64>>,
    /// The most frequent missed tokens, by domain.
    pub missed: BTreeMap<String, Vec<MissedToken>>,
    /// Kept rows on each rank of a tensor-parallel group, by its size.
    pub rows_per_rank: BTreeMap<usize, Vec<usize>>,
}

/// A frequent token that is not kept.
#[derive(Debug, Clone, Serialize)]
pub struct MissedToken {
    /// Its id.
    pub id: u32,
    /// Its text, bytes that are no UTF-8 replaced.
    pub token: String,
    /// Its share of the domain's tokens.
    pub share: f64,
}

/// Selects a vocabulary and measures it.
///
/// # Errors
/// Counts of another tokenizer, or as [`rank::scores`] and [`select`].
pub fn build(
    tokenizer: &Tokenizer,
    evidence: &Evidence,
    weights: &BTreeMap<String, f64>,
    config: &SelectConfig,
) -> Result<Built> {
    for counts in [Some(&evidence.counts), evidence.heldout.as_ref()].into_iter().flatten() {
        counts.check_tokenizer(tokenizer)?;
    }
    let retained = retain(tokenizer)?;
    let ranked = domains(&evidence.counts);
    let selection = select(&rank::scores(&ranked, weights)?, &retained, config)?;
    let figures = measure(tokenizer, evidence, weights, config, &retained, &selection)?;
    let weight = |name: &str| (name.to_owned(), weights.get(name).copied().unwrap_or(rank::DEFAULT_WEIGHT));
    let weights = ranked.iter().map(|domain| weight(domain.name)).collect();
    Ok(Built { selection, retained, config: config.clone(), weights, figures })
}

fn measure(
    tokenizer: &Tokenizer,
    evidence: &Evidence,
    weights: &BTreeMap<String, f64>,
    config: &SelectConfig,
    retained: &Retained,
    selection: &Selection,
) -> Result<Figures> {
    let (measured, on, fit) = evidence.measured();
    let on = domains(on);
    let scores_of = |counts| {
        let domains = domains(counts);
        let present = |(name, _): &(&String, &f64)| domains.iter().any(|domain| domain.name == name.as_str());
        let weights = weights.iter().filter(present).map(|(name, weight)| (name.clone(), *weight)).collect();
        rank::scores(&domains, &weights)
    };
    let fit = select(&scores_of(fit)?, retained, config)?;
    let sizes = coverage::curve_sizes(fit.ranking.len());
    let halves = evidence.halves.as_ref().map(|[one, other]| (scores_of(one), scores_of(other)));
    let stability = match halves {
        Some((Ok(one), Ok(other))) => Some(coverage::stability(&one, &other, &sizes)),
        _ => None, // a corpus of one document has no two halves
    };
    let missed = |domain: &rank::Domain<'_>| {
        let n_tokens = domain.n_tokens() as f64;
        let missed = coverage::missed(domain, &fit.vocab.token_ids, N_MISSED).into_iter();
        let named =
            missed.map(|m| MissedToken { id: m.id, token: text(tokenizer, m.id), share: m.count as f64 / n_tokens });
        (domain.name.to_owned(), named.collect())
    };
    Ok(Figures {
        measured,
        coverage: coverage::coverage(&on, &fit.vocab.token_ids),
        curve: coverage::curve(&on, &fit.ranking, retained, &sizes),
        stability,
        missed: on.iter().map(missed).collect(),
        rows_per_rank: RANKS.into_iter().map(|n| (n, selection.vocab.rows_per_rank(n))).collect(),
    })
}

/// A token as people read it.
pub fn text(tokenizer: &Tokenizer, id: u32) -> String {
    tokenizer.token_bytes(id).map_or_else(String::new, |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

impl Built {
    /// The vocabulary.
    pub fn vocab(&self) -> &DraftVocab {
        &self.selection.vocab
    }

    /// Provenance, audit list and figures: what `vocabulary.json` holds. The same inputs give the same bytes.
    pub fn record(&self, tokenizer: &Tokenizer, evidence: &Evidence) -> Value {
        let Selection { vocab, n_retained_on_top, n_padding_ids, n_never_seen, .. } = &self.selection;
        let top: std::collections::BTreeSet<u32> = self.selection.ranking[..self.config.size].iter().copied().collect();
        let retained = self.retained.reasons().map(|(id, reasons)| {
            json!({ "id": id, "token": text(tokenizer, id), "reasons": reasons, "earned_its_rank": top.contains(&id) })
        });
        let counted = evidence.counts.domains.iter().map(|domain| {
            json!({
                "domain": domain.domain, "texts": domain.texts, "n_documents": domain.n_documents,
                "n_bytes": domain.n_bytes, "n_tokens": domain.counts.iter().sum::<u64>(), "files": domain.files,
            })
        });
        json!({
            "format": 1,
            "draftfast": env!("CARGO_PKG_VERSION"),
            "vocab_sha256": vocab.sha256(),
            "target_rows": vocab.target_rows,
            "n_rows": vocab.n_rows(),
            "n_kept": vocab.token_ids.len(),
            "n_repeated": vocab.n_repeated,
            "tokenizer": { "sha256": tokenizer.sha256(), "n_ids": tokenizer.n_ids() },
            "selection": {
                "size": self.config.size, "pad_to": self.config.pad_to, "pad_mode": self.config.pad_mode,
                "weights": self.weights, "n_retained_on_top": n_retained_on_top, "n_padding_ids": n_padding_ids,
                "n_never_seen": n_never_seen,
            },
            "counts": { "engines": evidence.counts.engines, "domains": counted.collect::<Vec<_>>() },
            "coverage": self.figures,
            "retained": retained.collect::<Vec<_>>(),
        })
    }

    /// Writes the forms and `vocabulary.json` into a staged directory; returns the names of the files.
    ///
    /// # Errors
    /// The disk is full, or a form cannot hold the vocabulary.
    pub fn write(
        &self,
        tokenizer: &Tokenizer,
        evidence: &Evidence,
        forms: &[Form],
        dir: &StagedDir,
    ) -> Result<Vec<String>> {
        ensure!(!forms.is_empty(), "no form was asked for");
        let mut names = Vec::new();
        for &form in forms {
            for (name, bytes) in forms::encode(form, self.vocab(), Some(tokenizer.sha256()))? {
                dir.write(name, &bytes)?;
                names.push(name.to_owned());
            }
        }
        let mut record = serde_json::to_string_pretty(&self.record(tokenizer, evidence))?;
        record.push('\n');
        dir.write(RECORD, record.as_bytes())?;
        names.push(RECORD.to_owned());
        Ok(names)
    }
}

/// What of a record belongs into a manifest: the long lists stand in `vocabulary.json` alone.
pub fn provenance(mut record: Value) -> Value {
    if let Some(members) = record.as_object_mut() {
        members.retain(|key, _| !matches!(key.as_str(), "retained" | "coverage"));
    }
    record
}

/// The record of this vocabulary that lies with its file, or in its folder: its bytes and what they say. `None` when
/// there is none, or one of other ids.
///
/// # Errors
/// It cannot be read.
pub fn record_beside(path: &Path, vocab: &DraftVocab) -> Result<Option<(Vec<u8>, Value)>> {
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
    let Some(bytes) = read_beside(folder, RECORD)? else { return Ok(None) };
    let say = || format!("`{}`: not JSON", folder.join(RECORD).display());
    let record: Value = serde_json::from_slice(&bytes).with_context(say)?;
    Ok((record["vocab_sha256"] == vocab.sha256()).then_some((bytes, record)))
}

/// The file with provenance, audit list and figures.
pub const RECORD: &str = "vocabulary.json";
