//! A coverage curve from a file: the `vocabulary.json` of `build-vocab`, or lines of `ROWS SHARE`.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result, anyhow, ensure};
use serde::Deserialize;

use super::CoverageCurve;
use crate::{
    error::{Hint, quoted},
    input::read_file,
};

/// A record of provenance with an audit list has a few megabytes.
const MAX_BYTES: u64 = 256 << 20;

/// The curve over the size, for every domain and for their mean, as `build-vocab` records it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RecordedCurve {
    /// Sizes, ascending.
    pub sizes: Vec<usize>,
    /// The share at each size, by domain.
    pub domains: BTreeMap<String, Vec<f64>>,
    /// The mean over domains.
    pub mean: Vec<f64>,
}

/// What a `vocabulary.json` says about coverage.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RecordedCoverage {
    /// `held-out`, `split` or `in-sample`.
    pub measured: String,
    /// At the chosen size, by domain.
    #[serde(default)]
    pub coverage: Vec<RecordedShare>,
    /// The curve.
    pub curve: RecordedCurve,
}

/// What is covered of a domain at the chosen size.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RecordedShare {
    /// The domain.
    pub domain: String,
    /// Tokens looked at.
    pub n_tokens: u64,
    /// The share covered.
    pub share: f64,
}

/// Reads a curve.
///
/// # Errors
/// The file is neither form, or its curve makes no sense.
pub fn read(path: &Path) -> Result<CoverageCurve> {
    let say = || format!("`{}`", path.display());
    let text = read_file(path, MAX_BYTES).with_context(say)?;
    let text = String::from_utf8(text).context("is not UTF-8").with_context(say)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if text.trim_start().starts_with('{') {
        let record: serde_json::Value = serde_json::from_str(&text).context("not valid JSON").with_context(say)?;
        let recorded = recorded(&record).with_context(say)?;
        return recorded.mean_curve(&name).with_context(say);
    }
    let points = text.lines().filter(|line| !line.trim().is_empty()).map(point).collect::<Result<Vec<_>>>();
    let points =
        points.with_context(say).hint("a curve has lines like `65536 0.963`: rows, and the share they cover")?;
    CoverageCurve::new(points, format!("the curve of `{name}`")).with_context(say)
}

/// The coverage of a vocabulary's record, wherever it stands in it.
///
/// # Errors
/// There is none, or it is incomplete.
pub fn recorded(record: &serde_json::Value) -> Result<RecordedCoverage> {
    let found = record.get("coverage").filter(|coverage| !coverage.is_null());
    let found =
        found.ok_or_else(|| anyhow!("there is no `coverage` in it")).hint("give a vocabulary.json of build-vocab");
    let coverage: RecordedCoverage = serde_json::from_value(found?.clone()).context("its `coverage` is incomplete")?;
    let n_sizes = coverage.curve.sizes.len();
    let fits = |shares: &Vec<f64>| shares.len() == n_sizes;
    ensure!(
        fits(&coverage.curve.mean) && coverage.curve.domains.values().all(fits),
        "its coverage curve has {n_sizes} sizes and another number of shares"
    );
    Ok(coverage)
}

impl RecordedCoverage {
    /// The mean over domains as a curve. Always-kept ids are among the rows, so it may start above 0.
    ///
    /// # Errors
    /// It was measured on nothing, or the shares fall or leave 0 to 1.
    pub fn mean_curve(&self, name: &str) -> Result<CoverageCurve> {
        ensure!(!self.curve.domains.is_empty(), "its coverage was measured on no text");
        let points = self.curve.sizes.iter().copied().zip(self.curve.mean.iter().copied()).collect();
        let flatters = self.measured == "in-sample";
        let said = if flatters { "in-sample, which FLATTERS" } else { &self.measured };
        let mut curve = CoverageCurve::new(points, format!("the mean over the domains of `{name}`, measured {said}"))?;
        curve.is_assumed = flatters;
        Ok(curve)
    }
}

fn point(line: &str) -> Result<(usize, f64)> {
    let mut words = line.split_whitespace();
    let pair = match (words.next(), words.next(), words.next()) {
        (Some(rows), Some(share), None) => rows.parse().ok().zip(share.parse().ok()),
        _ => None,
    };
    pair.with_context(|| format!("{} is not a number of rows and a share", quoted(line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<CoverageCurve> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path())
    }

    #[test]
    fn both_forms_give_the_curve() {
        let points = [(8_192, 0.81), (65_536, 0.97)];
        assert_eq!(read_text("8192 0.81\n\n65536 0.97\n").unwrap().points(), points);
        let record = r#"{"coverage": {"measured": "held-out", "curve": {
            "sizes": [8192, 65536], "domains": {"zh": [0.7, 0.95]}, "mean": [0.81, 0.97]}}}"#;
        let curve = read_text(record).unwrap();
        assert_eq!(curve.points(), points);
        assert!(curve.origin.contains("held-out"), "{}", curve.origin);
    }

    #[test]
    fn other_files_are_named_errors() {
        let empty = r#"{"coverage": {"measured": "split", "curve": {"sizes": [1], "domains": {}, "mean": [0.0]}}}"#;
        let lopsided = r#"{"coverage": {"measured": "split", "curve": {"sizes": [1], "domains": {}, "mean": []}}}"#;
        for text in ["", "hello", "8192", "8192 0.5 x", "8192 1.5", "{}", "{", "8192 0.9\n16384 0.8", empty, lopsided] {
            assert!(read_text(text).is_err(), "{text}");
        }
    }
}
