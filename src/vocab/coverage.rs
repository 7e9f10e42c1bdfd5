//! What a vocabulary covers of a text: the share of its tokens that the draft head can propose. On held-out text where
//! there is some; on the text that the ids were chosen from it flatters.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    rank::{self, Domain},
    retain::Retained,
};

/// The coverage of one domain.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Coverage {
    /// The domain.
    pub domain: String,
    /// Tokens looked at.
    pub n_tokens: u64,
    /// Tokens whose id is kept.
    pub n_covered: u64,
    /// Kept ids that occur.
    pub n_ids_used: usize,
    /// `n_covered / n_tokens`.
    pub share: f64,
}

/// The coverage of each domain by the kept ids.
pub fn coverage(domains: &[Domain<'_>], token_ids: &[u32]) -> Vec<Coverage> {
    let one = |domain: &Domain<'_>| {
        let count = |id: &u32| domain.counts.get(*id as usize).copied().unwrap_or(0);
        let n_covered = token_ids.iter().map(count).sum();
        let n_tokens = domain.n_tokens();
        Coverage {
            domain: domain.name.to_owned(),
            n_tokens,
            n_covered,
            n_ids_used: token_ids.iter().filter(|id| count(id) > 0).count(),
            share: share(n_covered, n_tokens),
        }
    };
    domains.iter().map(one).collect()
}

/// Coverage at growing sizes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Curve {
    /// Sizes: most useful ids, with the always-kept ones on top.
    pub sizes: Vec<usize>,
    /// The share covered at each size, by domain.
    pub domains: BTreeMap<String, Vec<f64>>,
    /// The mean over domains (unweighted) at each size.
    pub mean: Vec<f64>,
}

/// The sizes of a curve: 4k to 128k in steps that people choose between (of a small vocabulary, powers of two), and the
/// whole ranking.
pub fn curve_sizes(n_ids: usize) -> Vec<usize> {
    const SMALL: [usize; 6] = [64, 128, 256, 512, 1_024, 2_048];
    const STEPS: [usize; 11] = [4_096, 8_192, 16_384, 24_576, 32_768, 40_960, 49_152, 65_536, 81_920, 98_304, 131_072];
    let small = SMALL.into_iter().filter(|_| n_ids < 8_192);
    small.chain(STEPS).filter(|&size| size < n_ids).chain([n_ids]).collect()
}

/// The curve of a ranking on `domains`, for ascending `sizes`.
pub fn curve(domains: &[Domain<'_>], ranking: &[u32], retained: &Retained, sizes: &[usize]) -> Curve {
    let mut shares = BTreeMap::new();
    for domain in domains {
        let count = |id: u32| domain.counts.get(id as usize).copied().unwrap_or(0);
        let n_tokens = domain.n_tokens();
        let mut n_covered: u64 = retained.ids().map(count).sum();
        let mut ranked = ranking.iter().copied();
        let mut n_taken = 0;
        let mut at_sizes = Vec::new();
        for &size in sizes {
            let step = ranked.by_ref().take(size.saturating_sub(n_taken));
            n_covered += step.filter(|&id| !retained.contains(id)).map(count).sum::<u64>();
            n_taken = n_taken.max(size);
            at_sizes.push(share(n_covered, n_tokens));
        }
        shares.insert(domain.name.to_owned(), at_sizes);
    }
    let mean_at =
        |at: usize| shares.values().map(|shares: &Vec<f64>| shares[at]).sum::<f64>() / shares.len().max(1) as f64;
    let mean = (0..sizes.len()).map(mean_at).collect();
    Curve { sizes: sizes.to_vec(), domains: shares, mean }
}

/// How much of the top is the same when it is ranked from one half of the text or from the other: the Jaccard index at
/// each size. Far below 1 says that the tail is noise and that more text, not more rows, is missing.
pub fn stability(one: &[f64], other: &[f64], sizes: &[usize]) -> Vec<f64> {
    let (one, other) = (rank::ranking(one), rank::ranking(other));
    let jaccard = |&size: &usize| {
        let mut top = vec![false; one.len().max(other.len())];
        one.iter().take(size).for_each(|&id| top[id as usize] = true);
        let n_shared = other.iter().take(size).filter(|&&id| top[id as usize]).count();
        let n_union = size.min(one.len()) + size.min(other.len()) - n_shared;
        share(n_shared as u64, n_union as u64)
    };
    sizes.iter().map(jaccard).collect()
}

/// A token that the vocabulary misses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Missed {
    /// Its id.
    pub id: u32,
    /// How often it occurs.
    pub count: u64,
}

/// The `n` most frequent tokens of a domain that are not kept; ties by id.
pub fn missed(domain: &Domain<'_>, token_ids: &[u32], n: usize) -> Vec<Missed> {
    let mut kept = vec![false; domain.counts.len()];
    for &id in token_ids {
        if let Some(kept) = kept.get_mut(id as usize) {
            *kept = true;
        }
    }
    let mut missed: Vec<_> = (0u32..)
        .zip(domain.counts)
        .filter(|(id, count)| **count > 0 && !kept[*id as usize])
        .map(|(id, &count)| Missed { id, count })
        .collect();
    missed.sort_unstable_by(|a, b| b.count.cmp(&a.count).then(a.id.cmp(&b.id)));
    missed.truncate(n);
    missed
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::{super::retain::Reason, *};

    const DOMAIN: Domain<'_> = Domain { name: "zh", counts: &[10, 0, 30, 40, 20] };

    #[test]
    fn coverage_is_the_share_of_tokens_not_of_ids() {
        let found = &coverage(&[DOMAIN], &[1, 2, 3])[0];
        assert_eq!((found.n_tokens, found.n_covered, found.n_ids_used, found.share), (100, 70, 2, 0.7));
    }

    #[test]
    fn the_curve_equals_the_coverage_of_each_selection() {
        let ranking = [3, 2, 4, 0, 1];
        let mut retained = Retained::default();
        retained.add(4, Reason::Eos);
        let curve = curve(&[DOMAIN], &ranking, &retained, &[1, 2, 3, 5]);
        assert_eq!(curve.domains["zh"], [0.6, 0.9, 0.9, 1.0]);
        assert_eq!(curve.mean, curve.domains["zh"]);
        for (size, share) in curve.sizes.iter().zip(&curve.domains["zh"]) {
            let kept: std::collections::BTreeSet<u32> = ranking[..*size].iter().copied().chain([4]).collect();
            assert_eq!(coverage(&[DOMAIN], &kept.into_iter().collect::<Vec<_>>())[0].share, *share);
        }
    }

    #[test]
    fn stability_is_one_for_equal_halves_and_falls_with_the_tail() {
        let one = [0.4, 0.3, 0.2, 0.1];
        assert_eq!(stability(&one, &one, &[1, 4]), [1.0, 1.0]);
        let other = [0.4, 0.1, 0.2, 0.3];
        assert_eq!(stability(&one, &other, &[1, 2, 4]), [1.0, 1.0 / 3.0, 1.0]);
    }

    #[test]
    fn missed_tokens_come_by_mass() {
        let found = missed(&DOMAIN, &[3], 2);
        assert_eq!(found, [Missed { id: 2, count: 30 }, Missed { id: 4, count: 20 }]);
    }

    #[test]
    fn curve_sizes_end_with_everything() {
        assert_eq!(curve_sizes(5_000), [64, 128, 256, 512, 1_024, 2_048, 4_096, 5_000]);
        assert_eq!(curve_sizes(10_000), [4_096, 8_192, 10_000]);
        assert_eq!(curve_sizes(248_077).last(), Some(&248_077));
    }
}
