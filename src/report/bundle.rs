//! The report of a sidecar: REPORT.md and its pictures, made from what the sidecar itself holds, so that `build` and
//! `report` write the same bytes.

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use anyhow::{Context, Result};
use serde::Serialize;

use super::{
    page,
    pictures::{Figures, pictures},
    sidecar::markdown,
    table::grouped,
};
use crate::{
    input::read_beside,
    plan::{
        PLAN_NAME, PlanRecord,
        coverage_file::{RecordedCoverage, recorded},
    },
    sidecar::Manifest,
    vocab::build::RECORD,
};

/// The file that people read.
pub const REPORT_NAME: &str = "REPORT.md";

/// Names and bytes of the report's files for the sidecar in `dir`, REPORT.md first.
///
/// # Errors
/// The vocabulary's record or the plan is there and damaged.
pub fn files(dir: &Path, manifest: &Manifest) -> Result<Vec<(String, Vec<u8>)>> {
    let (text, drawn) = report(dir, manifest)?;
    let drawn = drawn.into_iter().map(|(name, bytes)| (name.to_owned(), bytes));
    Ok([(REPORT_NAME.to_owned(), text.into_bytes())].into_iter().chain(drawn).collect())
}

/// The report as one HTML page that needs no other file.
///
/// # Errors
/// As [`files`].
pub fn html(dir: &Path, manifest: &Manifest) -> Result<String> {
    let (text, drawn) = report(dir, manifest)?;
    let text_of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let drawn: BTreeMap<_, _> = drawn.iter().map(|(name, bytes)| ((*name).to_owned(), text_of(bytes))).collect();
    Ok(page::html(&format!("Drafter sidecar for {}", manifest.target.family), &text, &drawn))
}

/// JSON in one line: a plan has thousands of figures.
///
/// # Errors
/// The value has no JSON.
pub fn json_line(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec(value).context("cannot encode as JSON")?;
    text.push(b'\n');
    Ok(text)
}

/// Names and bytes of pictures.
type Drawn = Vec<(&'static str, Vec<u8>)>;

/// The text of the report, and its pictures.
fn report(dir: &Path, manifest: &Manifest) -> Result<(String, Drawn)> {
    let coverage = match read_beside(dir, RECORD)? {
        Some(bytes) => {
            let record = serde_json::from_slice(&bytes).with_context(|| format!("`{RECORD}` is not valid JSON"))?;
            Some(recorded(&record).with_context(|| format!("`{RECORD}`"))?)
        }
        None => None,
    };
    let plan: Option<PlanRecord> = match read_beside(dir, PLAN_NAME)? {
        Some(bytes) => Some(PlanRecord::from_json(&bytes)?),
        None => None,
    };
    let error = |(name, record): (&String, &crate::sidecar::TensorRecord)| {
        record.error.as_ref().map(|error| (name.clone(), error.relative_error))
    };
    let drawn = pictures(&Figures {
        coverage: coverage.as_ref().map(|coverage| (coverage, manifest.vocabulary.n_rows)),
        ledger: Some(&manifest.ledger),
        plan: plan.as_ref().map(|record| (&record.plan, record.at_rows(manifest.vocabulary.n_rows))),
        errors: &manifest.tensors.iter().filter_map(error).collect::<Vec<_>>(),
    })?;
    let has_curve = drawn.iter().any(|(name, _)| *name == "coverage.svg");
    let coverage = coverage.map(|coverage| coverage_section(&coverage, has_curve));
    Ok((markdown(manifest, coverage.as_deref(), plan.as_ref()), drawn))
}

fn coverage_section(coverage: &RecordedCoverage, has_curve: bool) -> String {
    let on = match coverage.measured.as_str() {
        "held-out" => "held-out text",
        "split" => "a held-out tenth of the documents, by the other nine",
        _ => "the text it was chosen from, which flatters it",
    };
    let mut text = format!("Share of the tokens that the draft vocabulary covers, measured on {on}.\n\n");
    if has_curve {
        text.push_str("![Coverage over the rows of the draft head](coverage.svg)\n\n");
    }
    text.push_str("| domain | tokens | covered |\n|---|---:|---:|\n");
    for domain in &coverage.coverage {
        let (tokens, share) = (grouped(domain.n_tokens), 100.0 * domain.share);
        let _ = writeln!(text, "| {} | {tokens} | {share:.2} % |", domain.domain.replace('|', "\\|"));
    }
    text
}
