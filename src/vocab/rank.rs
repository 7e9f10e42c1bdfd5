//! The order in which ids earn a row: each domain's counts as shares of its tokens, weighted, summed; ties by id.
//!
//! Shares, so that a domain with more text does not count for more; weights say what the traffic is.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};

use crate::error::advise;

/// The counts of one domain, as selection sees them.
#[derive(Debug, Clone, Copy)]
pub struct Domain<'a> {
    /// Its name.
    pub name: &'a str,
    /// Occurrences of each id; the length is the tokenizer's number of ids.
    pub counts: &'a [u64],
}

impl Domain<'_> {
    /// All occurrences.
    pub fn n_tokens(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// What a domain without a weight of its own gets.
pub(super) const DEFAULT_WEIGHT: f64 = 1.0;

/// The expected share of each id in traffic that has the domains in proportion to their weights: `[n_ids]`, sum 1.
///
/// # Errors
/// No domain, no token in any, domains of different lengths, weights that are negative, all zero, or for a domain that is
/// not there.
pub fn scores(domains: &[Domain<'_>], weights: &BTreeMap<String, f64>) -> Result<Vec<f64>> {
    let weighted = weigh(domains, weights)?;
    let n_ids = weighted[0].0.counts.len();
    let total_weight: f64 = weighted.iter().map(|(_, weight)| weight).sum();
    let mut scores = vec![0.0; n_ids];
    for (domain, weight) in weighted {
        ensure!(
            domain.counts.len() == n_ids,
            "domain `{}` counts {} ids, expected {n_ids} as the others",
            domain.name,
            domain.counts.len()
        );
        let per_token = weight / total_weight / domain.n_tokens() as f64;
        for (score, &count) in scores.iter_mut().zip(domain.counts) {
            *score += per_token * count as f64;
        }
    }
    Ok(scores)
}

/// The domains that have tokens and a weight above 0, by name: the sum must not depend on the order of files.
fn weigh<'a>(domains: &[Domain<'a>], weights: &BTreeMap<String, f64>) -> Result<Vec<(Domain<'a>, f64)>> {
    let names: Vec<_> = domains.iter().map(|domain| domain.name).collect();
    for (name, weight) in weights {
        if !names.contains(&name.as_str()) {
            let error = anyhow::anyhow!("a weight is given for domain `{name}`, which has no counts");
            return Err(advise(error, format!("the domains are {}", names.join(", "))));
        }
        ensure!(weight.is_finite() && *weight >= 0.0, "the weight of domain `{name}` is {weight}, expected 0 or more");
    }
    let mut weighted: Vec<_> = domains
        .iter()
        .map(|domain| (*domain, weights.get(domain.name).copied().unwrap_or(DEFAULT_WEIGHT)))
        .filter(|(domain, weight)| *weight > 0.0 && domain.n_tokens() > 0)
        .collect();
    weighted.sort_by_key(|(domain, _)| domain.name);
    if weighted.is_empty() {
        let error = anyhow::anyhow!("no token was counted in any domain with a weight above 0");
        return Err(advise(error, "check that `--corpus` names files with text in them"));
    }
    if let Some(pair) = weighted.windows(2).find(|pair| pair[0].0.name == pair[1].0.name) {
        bail!("domain `{}` is given twice", pair[0].0.name);
    }
    Ok(weighted)
}

/// All ids from the most to the least useful; equal scores by id.
pub fn ranking(scores: &[f64]) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..scores.len() as u32).collect();
    ids.sort_unstable_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]).then(a.cmp(&b)));
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(pairs: &[(&str, f64)]) -> BTreeMap<String, f64> {
        pairs.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect()
    }

    const SMALL: Domain<'_> = Domain { name: "small", counts: &[0, 3, 1, 0] };
    const LARGE: Domain<'_> = Domain { name: "large", counts: &[800, 0, 100, 100] };

    #[test]
    fn shares_count_not_sizes() {
        let scores = scores(&[SMALL, LARGE], &BTreeMap::new()).unwrap();
        assert_eq!(scores, [0.4, 0.375, 0.175, 0.05]);
        assert_eq!(ranking(&scores), [0, 1, 2, 3]);
    }

    #[test]
    fn weights_change_the_order_and_a_zero_weight_leaves_a_domain_out() {
        let ranked = |pairs: &[(&str, f64)]| ranking(&scores(&[SMALL, LARGE], &weights(pairs)).unwrap());
        assert_eq!(ranked(&[("small", 2.0)]), [1, 0, 2, 3]);
        assert_eq!(ranked(&[("large", 0.0)]), [1, 2, 0, 3]);
    }

    #[test]
    fn the_order_of_domains_does_not_matter_and_ties_go_to_the_lower_id() {
        let third = Domain { name: "third", counts: &[1, 1, 1, 7] };
        let one = scores(&[SMALL, LARGE, third], &BTreeMap::new()).unwrap();
        let other = scores(&[third, LARGE, SMALL], &BTreeMap::new()).unwrap();
        assert_eq!(one, other);
        assert_eq!(ranking(&[0.1, 0.2, 0.1, 0.2]), [1, 3, 0, 2]);
    }

    #[test]
    fn what_cannot_be_ranked_is_refused() {
        let said =
            |domains: &[Domain<'_>], pairs: &[(&str, f64)]| scores(domains, &weights(pairs)).unwrap_err().to_string();
        let empty = Domain { name: "empty", counts: &[0, 0, 0, 0] };
        assert!(said(&[empty], &[]).contains("no token was counted"));
        assert!(said(&[], &[]).contains("no token was counted"));
        assert!(said(&[SMALL], &[("zh", 1.0)]).contains("domain `zh`, which has no counts"));
        assert!(said(&[SMALL], &[("small", -1.0)]).contains("expected 0 or more"));
        assert!(said(&[SMALL], &[("small", f64::NAN)]).contains("expected 0 or more"));
        assert!(said(&[SMALL, SMALL], &[]).contains("given twice"));
        assert!(said(&[SMALL, Domain { name: "b", counts: &[1] }], &[]).contains("counts 4 ids"));
    }
}
