//! Coverage over the size of the draft vocabulary, c(N): known at a few sizes, interpolated between them.
//!
//! Between two sizes the share is taken as linear in the logarithm of N, which token frequencies follow closely; past the
//! last size it runs up to 1 at V, where nothing is missed.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

/// Share of a text's tokens that the N most useful ids cover.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoverageCurve {
    /// (N, share), ascending in both.
    points: Vec<(usize, f64)>,
    /// Where the shares come from, in words.
    pub origin: String,
    /// Whether it was not measured on held-out text: then it is said loudly.
    pub is_assumed: bool,
}

/// Published for Qwen3.6 (248,320 rows) by ninfer: tokens that the model wrote and its MTP proposed, held out, five strata
/// together.
const ASSUMED: [(usize, f64); 6] =
    [(16_384, 0.857), (32_768, 0.917), (49_152, 0.946), (65_536, 0.963), (98_304, 0.982), (131_072, 0.992)];

impl CoverageCurve {
    /// A curve through measured points, in any order.
    ///
    /// # Errors
    /// No point, a size of 0, the same size twice, a share outside 0 to 1 or one that falls as the size grows.
    pub fn new(mut points: Vec<(usize, f64)>, origin: impl Into<String>) -> Result<Self> {
        ensure!(!points.is_empty(), "the coverage curve has no point");
        points.sort_by_key(|&(n_rows, _)| n_rows);
        let mut before = (0, 0.0);
        for &(n_rows, share) in &points {
            ensure!(n_rows > before.0, "the coverage curve has the size {n_rows} twice, or the size 0");
            ensure!((0.0..=1.0).contains(&share), "coverage at {n_rows} rows is {share}, expected 0 to 1");
            ensure!(share >= before.1, "coverage falls from {} to {share} at {n_rows} rows", before.1);
            before = (n_rows, share);
        }
        Ok(Self { points, origin: origin.into(), is_assumed: false })
    }

    /// What is taken when there are no counts; callers must say so. Scaled to a head of `target_rows` rows.
    pub fn assumed(target_rows: usize) -> Self {
        let scale = |n_rows: usize| (n_rows * target_rows).div_ceil(248_320);
        Self {
            points: ASSUMED.iter().map(|&(n_rows, share)| (scale(n_rows), share)).collect(),
            origin: "ASSUMED: the published held-out curve of another server's mixed traffic".to_owned(),
            is_assumed: true,
        }
    }

    /// The known points, ascending.
    pub fn points(&self) -> &[(usize, f64)] {
        &self.points
    }

    /// The share that `n_rows` cover, when `target_rows` cover all.
    pub fn at(&self, n_rows: usize, target_rows: usize) -> f64 {
        if n_rows >= target_rows {
            return 1.0;
        }
        let mut low = (1, 0.0);
        for &point in self.points.iter().chain(&[(target_rows, 1.0)]) {
            if n_rows <= point.0 {
                return between(low, point, n_rows);
            }
            low = point;
        }
        low.1
    }

    /// Every share moved by `delta`, within 0 to 1.
    #[must_use]
    pub fn shifted(&self, delta: f64) -> Self {
        let points = self.points.iter().map(|&(n_rows, share)| (n_rows, (share + delta).clamp(0.0, 1.0))).collect();
        Self { points, ..self.clone() }
    }
}

fn between(low: (usize, f64), high: (usize, f64), n_rows: usize) -> f64 {
    let log = |n: usize| (n.max(1) as f64).ln();
    let span = log(high.0) - log(low.0);
    if span <= 0.0 {
        return high.1;
    }
    low.1 + (high.1 - low.1) * (log(n_rows) - log(low.0)) / span
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_goes_through_its_points_and_ends_at_one() {
        let curve = CoverageCurve::new(vec![(64, 0.9), (16, 0.7)], "test").unwrap();
        assert_eq!([16, 64, 256, 300].map(|n| curve.at(n, 256)), [0.7, 0.9, 1.0, 1.0]);
        assert!((curve.at(32, 256) - 0.8).abs() < 1e-12, "linear in the logarithm");
        let rows: Vec<f64> = (1..=256).map(|n| curve.at(n, 256)).collect();
        assert!(rows.windows(2).all(|pair| pair[0] <= pair[1]));
    }

    #[test]
    fn nonsense_curves_are_refused() {
        for points in [vec![], vec![(0, 0.5)], vec![(4, 0.5), (4, 0.6)], vec![(4, 1.5)], vec![(4, 0.6), (8, 0.5)]] {
            assert!(CoverageCurve::new(points, "test").is_err());
        }
    }

    #[test]
    fn shifting_stays_within_bounds() {
        let curve = CoverageCurve::new(vec![(16, 0.7), (64, 0.995)], "test").unwrap().shifted(0.01);
        assert_eq!(curve.points(), [(16, 0.71), (64, 1.0)]);
    }
}
