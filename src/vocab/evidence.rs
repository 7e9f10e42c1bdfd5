//! The texts behind a vocabulary, counted in parts: what ids are chosen from, what coverage is measured on, and two
//! halves that show how much of the ranking is noise.
//!
//! Documents fall into parts by a hash of their bytes, so the parts are the same whatever the order of files, and a
//! document that stands twice is never on both sides.

use anyhow::{Result, ensure};

use super::rank::Domain;
use crate::{
    corpus::{Source, refuse_stdin},
    counts::{CountOptions, Counts, Tokenizer, count},
    report::Progress,
};

/// The share of documents that is held out when no held-out text is given.
const HELDOUT_SHARE: f64 = 0.1;

/// What text the coverage was measured on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measured {
    /// Text given for the purpose.
    HeldOut,
    /// A tenth of the corpus, by a ranking made from the other nine; the vocabulary itself is chosen from all of it.
    Split,
    /// The very text the ids were chosen from, because there was no other: it flatters.
    InSample,
}

/// Counts of all texts and of their parts.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// Everything that ids are chosen from.
    pub counts: Counts,
    /// The part of it that coverage is predicted from, where it is not all.
    pub fit: Option<Counts>,
    /// What coverage is measured on.
    pub heldout: Option<Counts>,
    /// Two disjoint halves of what is ranked.
    pub halves: Option<[Counts; 2]>,
}

impl Evidence {
    /// Counts that were made before, with or without held-out ones.
    pub fn from_counts(counts: Counts, heldout: Option<Counts>) -> Self {
        Self { counts, fit: None, heldout, halves: None }
    }

    /// Counts the sources in parts; without `heldout` sources a tenth of the documents is held out.
    ///
    /// # Errors
    /// As [`count`], or the sources are stdin.
    pub fn count(
        tokenizer: &Tokenizer,
        sources: &[Source],
        heldout: &[Source],
        options: &CountOptions,
        progress: &Progress,
    ) -> Result<Self> {
        refuse_stdin(sources)?;
        let part = |sources: &[Source], from: f64, to: f64| {
            let mut options = options.clone();
            let whole = (1u64 << 32) as f64;
            options.extract.share = ((from * whole) as u64, (to * whole) as u64);
            count(tokenizer, sources, &options, progress)
        };
        let n_fit = if heldout.is_empty() { 1.0 - HELDOUT_SHARE } else { 1.0 };
        let halves = [part(sources, 0.0, n_fit / 2.0)?, part(sources, n_fit / 2.0, n_fit)?];
        let fit = join(&halves)?;
        if !heldout.is_empty() {
            refuse_empty(&fit)?;
            let heldout = Some(part(heldout, 0.0, 1.0)?);
            return Ok(Self { counts: fit, fit: None, heldout, halves: Some(halves) });
        }
        let last = part(sources, n_fit, 1.0)?;
        let counts = join(&[fit.clone(), last.clone()])?;
        refuse_empty(&counts)?;
        Ok(Self { counts, fit: Some(fit), heldout: Some(last), halves: Some(halves) })
    }

    /// Adds counts that were made before to what ids are chosen from.
    ///
    /// # Errors
    /// Another tokenizer.
    pub fn add(&mut self, more: Counts) -> Result<()> {
        if let Some(fit) = &mut self.fit {
            fit.merge(more.clone())?;
        }
        self.counts.merge(more).map(drop)
    }

    /// What the coverage is measured on, and what it is predicted from.
    pub fn measured(&self) -> (Measured, &Counts, &Counts) {
        match (&self.heldout, &self.fit) {
            (Some(heldout), Some(fit)) => (Measured::Split, heldout, fit),
            (Some(heldout), None) => (Measured::HeldOut, heldout, &self.counts),
            (None, _) => (Measured::InSample, &self.counts, &self.counts),
        }
    }
}

/// The domains as selection sees them; those without a token (a part may have such) are left out.
pub fn domains(counts: &Counts) -> Vec<Domain<'_>> {
    let counted = counts.domains.iter().filter(|domain| domain.counts.iter().any(|&count| count > 0));
    counted.map(|domain| Domain { name: &domain.domain, counts: &domain.counts }).collect()
}

/// A part may be empty, a domain may not.
fn refuse_empty(counts: &Counts) -> Result<()> {
    for domain in &counts.domains {
        let n_files = domain.files.len();
        ensure!(
            domain.n_documents > 0,
            "the corpus of domain `{}` holds no document ({n_files} files read)",
            domain.domain
        );
    }
    Ok(())
}

/// Adds parts of the same files up: each file stands once, with the documents of all parts.
fn join(parts: &[Counts]) -> Result<Counts> {
    let mut sum = parts[0].clone();
    for part in &parts[1..] {
        sum.merge(part.clone())?;
    }
    for domain in &mut sum.domains {
        domain.files.dedup_by(|next, file| {
            let same = (&next.name, &next.sha256) == (&file.name, &file.sha256);
            if same {
                file.n_documents += next.n_documents;
                // Records that cannot be read have no hash: every part has met them.
                file.n_skipped = file.n_skipped.max(next.n_skipped);
            }
            same
        });
    }
    sum.warnings.sort();
    sum.warnings.dedup();
    Ok(sum)
}
