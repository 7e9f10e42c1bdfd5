//! What two vocabularies share, by rows and by the mass of counted text.

use serde::Serialize;

use super::{
    DraftVocab,
    coverage::{self, Coverage},
    rank::Domain,
};

/// The difference of two vocabularies.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diff {
    /// Ids in both.
    pub n_shared: usize,
    /// Ids of the first alone.
    pub only_a: Vec<u32>,
    /// Ids of the second alone.
    pub only_b: Vec<u32>,
    /// Shared ids over all ids.
    pub jaccard: f64,
    /// What each covers of each domain.
    pub domains: Vec<DomainDiff>,
}

/// What two vocabularies cover of one domain.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DomainDiff {
    /// By the first.
    pub a: Coverage,
    /// By the second.
    pub b: Coverage,
}

/// Compares the kept ids; `domains` may be empty.
pub fn diff(a: &DraftVocab, b: &DraftVocab, domains: &[Domain<'_>]) -> Diff {
    let without = |these: &DraftVocab, others: &DraftVocab| -> Vec<u32> {
        these.token_ids.iter().copied().filter(|id| others.token_ids.binary_search(id).is_err()).collect()
    };
    let (only_a, only_b) = (without(a, b), without(b, a));
    let n_shared = a.token_ids.len() - only_a.len();
    let n_all = n_shared + only_a.len() + only_b.len();
    let (by_a, by_b) = (coverage::coverage(domains, &a.token_ids), coverage::coverage(domains, &b.token_ids));
    let domains = by_a.into_iter().zip(by_b).map(|(a, b)| DomainDiff { a, b }).collect();
    Diff { n_shared, only_a, only_b, jaccard: n_shared as f64 / n_all as f64, domains }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_and_the_mass_are_told() {
        let vocab = |ids: &[u32]| DraftVocab::new(6, ids.to_vec()).unwrap();
        let domain = Domain { name: "en", counts: &[1, 2, 3, 4, 0, 0] };
        let found = diff(&vocab(&[0, 1, 3]), &vocab(&[1, 2, 5]), &[domain]);
        assert_eq!((found.n_shared, found.jaccard), (1, 0.2));
        assert_eq!((found.only_a, found.only_b), (vec![0, 3], vec![2, 5]));
        assert_eq!((found.domains[0].a.share, found.domains[0].b.share), (0.7, 0.5));
    }
}
