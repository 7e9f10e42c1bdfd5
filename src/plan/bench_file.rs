//! Efficiencies as `bench --json` measured them, in place of a machine's stated ones.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::Hardware;
use crate::{
    error::{Hint, advise},
    input::read_text,
};

#[derive(Deserialize)]
struct Report {
    timings: Vec<Timing>,
}

#[derive(Deserialize)]
struct Timing {
    weights: String,
    m: usize,
    bytes: u64,
    median_us: f64,
}

/// The machine with the shares of its peak that its BF16 and NVFP4 products reached at `batch` vectors (or the most
/// that were timed below that), each product counting by its bytes.
///
/// # Errors
/// The file is no bench report, times none of these, or is faster than the machine's peak: then it is of another one.
pub fn measured(hardware: &Hardware, path: &Path, batch: usize) -> Result<Hardware> {
    let say = || format!("`{}`", path.display());
    let text = read_text(path).with_context(say)?;
    let report: Report = serde_json::from_str(&text)
        .context("not a bench report")
        .with_context(say)
        .hint("it is what `draftfast bench --json` prints")?;
    let m = report.timings.iter().map(|timing| timing.m).filter(|&m| m <= batch).max();
    let mut hardware = hardware.clone();
    let mut found = Vec::new();
    // Greedy drafting needs the id alone, so the product with the argmax in it is the one that counts.
    for kinds in [&["bf16"][..], &["nvfp4-argmax", "nvfp4"]] {
        let of = |kind: &str| -> Vec<&Timing> {
            report.timings.iter().filter(|t| t.weights == kind && Some(t.m) == m).collect()
        };
        let Some(timings) = kinds.iter().map(|kind| of(kind)).find(|timings| !timings.is_empty()) else { continue };
        let efficiency = efficiency(&timings, hardware.bandwidth_gb_s);
        if efficiency.is_nan() || efficiency <= 0.0 || efficiency > 1.0 {
            let error = anyhow::anyhow!(
                "{}: its {} products reach {efficiency:.2} of the peak of `{}`, {} GB/s",
                say(),
                kinds[0],
                hardware.name,
                hardware.bandwidth_gb_s
            );
            return Err(advise(error, "give the machine that the bench ran on"));
        }
        match kinds[0] {
            "bf16" => hardware.bf16_efficiency = efficiency,
            _ => hardware.nvfp4_efficiency = efficiency,
        }
        found.push(format!("{} {efficiency:.3}", timings[0].weights));
    }
    ensure!(!found.is_empty(), "{} times no product at {batch} vectors or fewer", say());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    hardware.source = format!("shares measured by bench, `{name}`: {}; else {}", found.join(", "), hardware.source);
    Ok(hardware)
}

fn efficiency(timings: &[&Timing], bandwidth_gb_s: f64) -> f64 {
    let bytes: f64 = timings.iter().map(|timing| timing.bytes as f64).sum();
    let time_us: f64 = timings.iter().map(|timing| timing.median_us).sum();
    bytes / time_us / 1e3 / bandwidth_gb_s
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Hardware> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        measured(&Hardware::named("h200").unwrap(), file.path(), 4)
    }

    fn timing(weights: &str, m: usize, bytes: u64, median_us: f64) -> String {
        format!(r#"{{"weights": "{weights}", "m": {m}, "bytes": {bytes}, "median_us": {median_us}, "name": "x"}}"#)
    }

    #[test]
    fn shares_are_of_the_bytes_at_the_largest_batch_that_fits() {
        let timings = [
            timing("bf16", 1, 4_800_000, 2.0),
            timing("bf16", 4, 4_800_000, 4.0),
            timing("bf16", 4, 2_400_000, 2.0),
            timing("nvfp4", 4, 4_800_000, 100.0),
            timing("nvfp4-argmax", 4, 4_800_000, 1.25),
            timing("bf16", 8, 4_800_000, 100.0),
        ];
        let found = read(&format!(r#"{{"timings": [{}]}}"#, timings.join(","))).unwrap();
        assert!((found.bf16_efficiency - 0.25).abs() < 1e-12 && (found.nvfp4_efficiency - 0.8).abs() < 1e-12);
        assert!(found.source.contains("measured by bench"), "{}", found.source);
    }

    #[test]
    fn reports_that_do_not_fit_are_named_errors() {
        let fast = format!(r#"{{"timings": [{}]}}"#, timing("bf16", 1, 48_000_000, 1.0));
        assert!(read(&fast).unwrap_err().to_string().contains("of the peak of `h200`"));
        let large = format!(r#"{{"timings": [{}]}}"#, timing("bf16", 8, 4_800_000, 2.0));
        assert!(read(&large).unwrap_err().to_string().contains("no product at 4 vectors"));
        for text in ["", "{}", "[]", r#"{"timings": [{"m": 1}]}"#] {
            assert!(format!("{:#}", read(text).unwrap_err()).contains("not a bench report"), "{text}");
        }
    }
}
