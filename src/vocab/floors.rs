//! Floors: the least coverage that each domain must reach on the measured text.
//!
//! First the weights are moved towards the domains below their floors, at the same size, as long as no other domain pays
//! more than a little; where that is not enough the size grows. Ids that the counts have never seen would be taken
//! blindly, so the size ends where they begin, and what is still below its floor is an error that says so.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use super::{
    coverage,
    evidence::{Evidence, Measured, domains},
    named::DomainValue,
    rank::{self, DEFAULT_WEIGHT, Domain},
    retain::Retained,
};
use crate::error::Hint;

/// One step of re-weighting; sixty of them are more than any sensible mixture needs.
const WEIGHT_STEP: f64 = 1.2;
const MAX_STEPS: usize = 60;
/// What a domain without a floor may lose by re-weighting, as a share of its tokens.
const MAX_LOSS: f64 = 0.005;

/// Weights and a size that meet the floors.
#[derive(Debug, Clone, PartialEq)]
pub struct Met {
    /// The weight of each domain.
    pub weights: BTreeMap<String, f64>,
    /// The size.
    pub size: usize,
    /// What was changed, for people; empty when the floors were met as it was.
    pub changes: Vec<String>,
}

/// # Errors
/// A floor outside 0 to 1, for a domain that is not measured, or that cannot be met.
pub fn meet(
    evidence: &Evidence,
    retained: &Retained,
    weights: &BTreeMap<String, f64>,
    size: usize,
    floors: &[DomainValue],
) -> Result<Met> {
    let (measured, on, fit) = evidence.measured();
    let (on, fit) = (domains(on), domains(fit));
    for DomainValue { domain, value } in floors {
        ensure!(*value > 0.0 && *value <= 1.0, "the floor of domain `{domain}` is {value}, expected a share up to 1");
        ensure!(on.iter().any(|d| d.name == domain), "a floor is given for domain `{domain}`, which is not measured");
    }
    let search = Search { fit, on, retained, floors };
    let start = search.shares(weights, size)?;
    if search.unmet(&start).is_empty() {
        return Ok(Met { weights: weights.clone(), size, changes: Vec::new() });
    }
    let mut changes = Vec::new();
    if measured == Measured::InSample {
        changes.push("the floors were checked on the text the ids are chosen from, which flatters".to_owned());
    }
    if let Some(weights) = search.reweigh(weights, size, &start)? {
        let shown: Vec<_> = weights.iter().map(|(domain, weight)| format!("{domain} {weight:.2}")).collect();
        changes.push(format!("the floors are met by weights: {}", shown.join(", ")));
        return Ok(Met { weights, size, changes });
    }
    let grown = search.grow(weights)?;
    changes.push(format!("the floors are met by a size of {grown} (asked for: {size})"));
    Ok(Met { weights: weights.clone(), size: grown, changes })
}

struct Search<'a> {
    fit: Vec<Domain<'a>>,
    on: Vec<Domain<'a>>,
    retained: &'a Retained,
    floors: &'a [DomainValue],
}

impl Search<'_> {
    fn scores(&self, weights: &BTreeMap<String, f64>) -> Result<Vec<f64>> {
        let present = |name: &String| self.fit.iter().any(|domain| domain.name == name);
        let weights = weights.iter().filter(|(name, _)| present(name)).map(|(name, w)| (name.clone(), *w)).collect();
        rank::scores(&self.fit, &weights)
    }

    /// The coverage of each measured domain.
    fn shares(&self, weights: &BTreeMap<String, f64>, size: usize) -> Result<BTreeMap<String, f64>> {
        let ranking = rank::ranking(&self.scores(weights)?);
        let curve = coverage::curve(&self.on, &ranking, self.retained, &[size]);
        Ok(curve.domains.into_iter().map(|(domain, shares)| (domain, shares[0])).collect())
    }

    fn unmet(&self, shares: &BTreeMap<String, f64>) -> Vec<&DomainValue> {
        self.floors.iter().filter(|floor| shares[&floor.domain] < floor.value).collect()
    }

    /// Weights that meet the floors at this size, if others need not pay for it.
    fn reweigh(
        &self,
        weights: &BTreeMap<String, f64>,
        size: usize,
        start: &BTreeMap<String, f64>,
    ) -> Result<Option<BTreeMap<String, f64>>> {
        let mut weights = weights.clone();
        let has_floor = |domain: &String| self.floors.iter().any(|floor| floor.domain == *domain);
        for _ in 0..MAX_STEPS {
            let shares = self.shares(&weights, size)?;
            let unmet = self.unmet(&shares);
            let others_pay =
                shares.iter().any(|(domain, share)| !has_floor(domain) && *share < start[domain] - MAX_LOSS);
            if others_pay {
                return Ok(None);
            }
            if unmet.is_empty() {
                return Ok(Some(weights));
            }
            for floor in unmet {
                *weights.entry(floor.domain.clone()).or_insert(DEFAULT_WEIGHT) *= WEIGHT_STEP;
            }
        }
        Ok(None)
    }

    /// The smallest size that meets the floors with these weights.
    fn grow(&self, weights: &BTreeMap<String, f64>) -> Result<usize> {
        let scores = self.scores(weights)?;
        let ranking = rank::ranking(&scores);
        let n_seen = scores.iter().filter(|&&score| score > 0.0).count();
        let sizes: Vec<usize> = (1..=n_seen).collect();
        let curve = coverage::curve(&self.on, &ranking, self.retained, &sizes);
        let mut size = 1;
        for DomainValue { domain, value } in self.floors {
            let shares = &curve.domains[domain];
            let met = shares.partition_point(|share| share < value);
            if met == n_seen {
                let most = 100.0 * shares.last().copied().unwrap_or(0.0);
                let error = anyhow::anyhow!(
                    "domain `{domain}` cannot reach {:.2}%: all {n_seen} ids that the counts have seen cover {most:.2}%",
                    100.0 * value
                );
                return Err(error).hint(format!("give more text of domain `{domain}`, or a lower `--floor`"));
            }
            size = size.max(met + 1);
        }
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::{Counts, DomainCounts};

    fn counts(domains: &[(&str, &[u64])]) -> Counts {
        let domain = |(name, counts): &(&str, &[u64])| DomainCounts {
            domain: (*name).to_owned(),
            counts: counts.to_vec(),
            n_documents: 1,
            ..DomainCounts::default()
        };
        Counts {
            tokenizer_sha256: "aa".into(),
            n_ids: domains[0].1.len(),
            engines: Vec::new(),
            domains: domains.iter().map(domain).collect(),
            warnings: Vec::new(),
        }
    }

    fn floor(domain: &str, value: f64) -> DomainValue {
        DomainValue { domain: domain.to_owned(), value }
    }

    fn met(counts: Counts, size: usize, floors: &[DomainValue]) -> Result<Met> {
        meet(&Evidence::from_counts(counts, None), &Retained::default(), &BTreeMap::new(), size, floors)
    }

    #[test]
    fn floors_that_are_met_change_nothing() {
        let found = met(counts(&[("en", &[9, 1]), ("zh", &[8, 2])]), 1, &[floor("en", 0.9)]).unwrap();
        assert_eq!((found.size, found.changes.len()), (1, 0));
    }

    #[test]
    fn weights_move_while_others_do_not_pay() {
        // Id 2 is worth 0.003 to en and id 1 is worth 0.002 to zh: one row, and en wins it until zh weighs more.
        let counts = counts(&[("en", &[997, 0, 3, 0]), ("zh", &[998, 2, 0, 0])]);
        let found = met(counts, 2, &[floor("zh", 1.0)]).unwrap();
        assert_eq!(found.size, 2);
        assert!(found.weights["zh"] > 1.5, "{found:?}");
        assert!(found.changes.last().unwrap().contains("by weights"));
    }

    #[test]
    fn the_size_grows_where_weights_would_cost_others() {
        let counts = counts(&[("en", &[60, 0, 40, 0]), ("zh", &[70, 30, 0, 0])]);
        let found = met(counts, 2, &[floor("zh", 0.99)]).unwrap();
        assert_eq!((found.size, found.weights.len()), (3, 0));
        assert!(found.changes.last().unwrap().contains("a size of 3 (asked for: 2)"));
    }

    #[test]
    fn what_no_seen_id_can_reach_is_said() {
        let train = counts(&[("zh", &[9, 1, 0, 0])]);
        let heldout = counts(&[("zh", &[8, 1, 0, 1])]);
        let evidence = Evidence::from_counts(train, Some(heldout));
        let error = meet(&evidence, &Retained::default(), &BTreeMap::new(), 1, &[floor("zh", 0.95)]).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("`zh` cannot reach 95.00%: all 2 ids that the counts have seen cover 90.00%"), "{said}");
    }

    #[test]
    fn senseless_floors_are_refused() {
        let said = |floors: &[DomainValue]| met(counts(&[("en", &[1, 1])]), 1, floors).unwrap_err().to_string();
        assert!(said(&[floor("en", 1.5)]).contains("expected a share up to 1"));
        assert!(said(&[floor("zh", 0.5)]).contains("`zh`, which is not measured"));
    }
}
