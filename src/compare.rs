//! Two drafters side by side: kept ids, what they cover, bytes of a draft step, quantization errors, plans.
//!
//! A side is a sidecar, a folder of `build-vocab`, or a vocabulary file; what one side lacks is not compared.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::{
    input::read_beside,
    plan::{PLAN_NAME, PlanRecord, coverage_file},
    sidecar::{Manifest, Sidecar},
    vocab::{
        DraftVocab,
        build::RECORD,
        diff::{self, Diff},
        rank::Domain,
    },
};

/// What is known of one side.
#[derive(Debug, Clone)]
pub struct Side {
    vocab: DraftVocab,
    manifest: Option<Manifest>,
    coverage: BTreeMap<String, f64>,
    measured: Option<String>,
    plan: Option<PlanRecord>,
}

/// A figure of both sides.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pair<T> {
    /// Of the first.
    pub a: T,
    /// Of the second.
    pub b: T,
}

/// The difference of two sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Rows of the draft head.
    pub n_rows: Pair<usize>,
    /// Kept ids, and the mass of counted text that they cover.
    pub vocabulary: Diff,
    /// The recorded coverage of each domain that both record, each on text of its own.
    pub coverage: BTreeMap<String, Pair<f64>>,
    /// What that text was, when both record it: `held-out`, `split` or `in-sample`.
    pub measured: Option<Pair<String>>,
    /// Bytes of a draft step, when both sides are sidecars.
    pub draft_step_bytes: Option<Pair<u64>>,
    /// Whether both heads come from the same target, when both sides are sidecars.
    pub same_target: Option<bool>,
    /// Relative error of each tensor that both quantized.
    pub errors: BTreeMap<String, Pair<f64>>,
    /// Tokens a second of the plans, when both have one.
    pub planned: Option<Pair<Planned>>,
}

/// What a plan promises.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Planned {
    /// For which machine.
    pub machine: String,
    /// Draft tokens a step.
    pub n_drafted: usize,
    /// Tokens a second.
    pub tokens_per_second: f64,
}

impl Side {
    /// What lies at `path` beside the vocabulary that was read from it.
    ///
    /// # Errors
    /// A sidecar's files do not belong together, or a record is damaged.
    pub fn open(path: &Path, vocab: DraftVocab) -> Result<Self> {
        let manifest = match Sidecar::is_at(path) {
            true => Some(Sidecar::open(path)?.manifest),
            false => None,
        };
        let say = |name: &str| format!("`{}`", path.join(name).display());
        let (coverage, measured) = match read_beside(path, RECORD)? {
            Some(text) => {
                let record = serde_json::from_slice(&text).with_context(|| say(RECORD))?;
                let recorded = coverage_file::recorded(&record).with_context(|| say(RECORD))?;
                let shares = recorded.coverage.into_iter().map(|domain| (domain.domain, domain.share));
                (shares.collect(), Some(recorded.measured))
            }
            None => (BTreeMap::new(), None),
        };
        let plan = match read_beside(path, PLAN_NAME)? {
            Some(text) => Some(PlanRecord::from_json(&text).with_context(|| format!("`{}`", path.display()))?),
            None => None,
        };
        Ok(Self { vocab, manifest, coverage, measured, plan })
    }

    fn errors(&self) -> BTreeMap<&str, f64> {
        let tensors = self.manifest.iter().flat_map(|manifest| &manifest.tensors);
        tensors.filter_map(|(name, t)| t.error.as_ref().map(|e| (name.as_str(), e.relative_error))).collect()
    }

    fn planned(&self) -> Option<Planned> {
        let PlanRecord { question, plan, .. } = self.plan.as_ref()?;
        Some(Planned {
            machine: question.costs.hardware.name.clone(),
            n_drafted: plan.best.n_drafted,
            tokens_per_second: plan.best.tokens_per_second,
        })
    }
}

/// Compares two sides; `domains`, which may be empty, are counts to weigh ids by.
///
/// # Errors
/// The vocabularies are of heads with different numbers of rows.
pub fn compare(a: &Side, b: &Side, domains: &[Domain<'_>]) -> Result<Comparison> {
    if a.vocab.target_rows != b.vocab.target_rows {
        bail!("A is for a head of {} rows, B for one of {}", a.vocab.target_rows, b.vocab.target_rows);
    }
    let (errors_a, errors_b) = (a.errors(), b.errors());
    let manifests = a.manifest.as_ref().zip(b.manifest.as_ref());
    Ok(Comparison {
        n_rows: Pair { a: a.vocab.n_rows(), b: b.vocab.n_rows() },
        vocabulary: diff::diff(&a.vocab, &b.vocab, domains),
        coverage: pairs(&a.coverage, &b.coverage),
        measured: a.measured.clone().zip(b.measured.clone()).map(|(a, b)| Pair { a, b }),
        draft_step_bytes: manifests.map(|(a, b)| Pair { a: a.ledger.after_bytes, b: b.ledger.after_bytes }),
        same_target: manifests.map(|(a, b)| a.target.head_tree_sha256 == b.target.head_tree_sha256),
        errors: pairs(&errors_a, &errors_b),
        planned: a.planned().zip(b.planned()).map(|(a, b)| Pair { a, b }),
    })
}

/// What stands on both sides.
fn pairs<K: Ord + ToString>(a: &BTreeMap<K, f64>, b: &BTreeMap<K, f64>) -> BTreeMap<String, Pair<f64>> {
    a.iter().filter_map(|(name, &a)| Some((name.to_string(), Pair { a, b: *b.get(name)? }))).collect()
}
