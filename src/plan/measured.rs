//! A coverage curve from counts: ids ranked by some, measured on others.

use anyhow::Result;

use super::CoverageCurve;
use crate::{
    counts::Tokenizer,
    vocab::{
        coverage,
        evidence::{Measured, domains},
        make::Gathered,
        rank,
        retain::retain,
    },
};

/// Points of the curve.
const N_POINTS: usize = 128;

/// The curve of the mixture: each domain's coverage by its weight (1 where none is given). `None` when there is no token
/// to measure it on: of a few documents, the held-out tenth may be empty, and the shipped counts cover themselves better
/// than anybody's text.
///
/// # Errors
/// Counts of another tokenizer, no tokens, or weights that do not fit the domains.
pub fn curve(tokenizer: &Tokenizer, gathered: &Gathered) -> Result<Option<CoverageCurve>> {
    let Gathered { evidence, weights, .. } = gathered;
    let (measured, on, fit) = evidence.measured();
    if measured == Measured::InSample && gathered.is_shipped {
        return Ok(None);
    }
    for counts in [on, fit] {
        counts.check_tokenizer(tokenizer)?;
    }
    let (on, fit) = (domains(on), domains(fit));
    let known = |name: &str| fit.iter().any(|domain| domain.name == name);
    let fitting =
        weights.iter().filter(|(name, _)| known(name)).map(|(name, weight)| (name.clone(), *weight)).collect();
    let ranking = rank::ranking(&rank::scores(&fit, &fitting)?);
    let step = ranking.len().div_ceil(N_POINTS).max(1);
    let mut sizes: Vec<usize> = (step..ranking.len()).step_by(step).collect();
    sizes.push(ranking.len());
    let found = coverage::curve(&on, &ranking, &retain(tokenizer)?, &sizes);
    if found.domains.is_empty() {
        return Ok(None);
    }
    let weight = |name: &str| weights.get(name).copied().unwrap_or(1.0);
    let total: f64 = found.domains.keys().map(|name| weight(name)).sum();
    let mean = |at: usize| found.domains.iter().map(|(name, shares)| weight(name) * shares[at]).sum::<f64>() / total;
    let points = sizes.iter().enumerate().map(|(at, &size)| (size, mean(at).clamp(0.0, 1.0))).collect();
    let text = match measured {
        Measured::HeldOut => "held-out text",
        Measured::Split => "a held-out tenth of the documents",
        Measured::InSample => "the very text that ranks the ids, which FLATTERS",
    };
    let names: Vec<&str> = found.domains.keys().map(String::as_str).collect();
    let mut curve = CoverageCurve::new(points, format!("measured on {text} ({})", names.join(", ")))?;
    curve.is_assumed = measured == Measured::InSample;
    Ok(Some(curve))
}
