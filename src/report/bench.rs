//! A benchmark as a table, Markdown or CSV.

use std::fmt::Write;

use super::table::{Align, grouped, human_bytes, table};
use crate::bench::{BenchReport, Case, Timing, Weights};

const HEADINGS: [&str; 10] =
    ["product", "weights", "rows x columns", "m", "bytes", "us", "+-", "GB/s", "of floor", "seed"];

/// What would be timed, and its bytes.
pub fn plan_lines(cases: &[Case]) -> Vec<String> {
    let row = |case: &Case| {
        let shape = format!("{} x {}", case.n, case.k);
        vec![case.name.clone(), weights(case.weights).to_owned(), shape, grouped(case.bytes)]
    };
    let heading = ["product", "weights", "rows x columns", "bytes"].map(str::to_owned).to_vec();
    let rows: Vec<_> = std::iter::once(heading).chain(cases.iter().map(row)).collect();
    table(&[Align::Left, Align::Left, Align::Right, Align::Right], &rows)
}

/// The run for people.
pub fn lines(report: &BenchReport) -> Vec<String> {
    let heading = HEADINGS.map(str::to_owned).to_vec();
    let rows: Vec<_> = std::iter::once(heading).chain(report.timings.iter().map(cells)).collect();
    let align = std::array::from_fn::<_, 10, _>(|i| if i < 2 { Align::Left } else { Align::Right });
    let mut lines = vec![device_line(report), String::new()];
    lines.extend(table(&align, &rows));
    lines.push(String::new());
    lines.extend(step_lines(report));
    lines
}

/// The run as Markdown.
pub fn markdown(report: &BenchReport, command: &str) -> String {
    let mut text = format!("{}\n\n`{command}`\n\n", device_line(report));
    let _ = writeln!(text, "| {} |", HEADINGS.join(" | "));
    let _ = writeln!(text, "|---|---|{}", "---:|".repeat(HEADINGS.len() - 2));
    for timing in &report.timings {
        let _ = writeln!(text, "| {} |", cells(timing).join(" | "));
    }
    let _ = writeln!(text);
    for line in step_lines(report) {
        let _ = writeln!(text, "- {line}");
    }
    text
}

/// The run as comma-separated values, without the samples.
pub fn csv(report: &BenchReport) -> String {
    let mut text =
        String::from("product,weights,side,n,k,m,bytes,median_us,min_us,max_us,spread,gb_per_s,floor_us,floor_share\n");
    for t in &report.timings {
        let side = serde_json::to_value(t.case.side).unwrap_or_default();
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{:.3},{:.3},{:.3},{:.4},{:.1},{:.3},{:.4}",
            t.case.name.replace(',', ";"),
            weights(t.case.weights),
            side.as_str().unwrap_or_default(),
            t.case.n,
            t.case.k,
            t.m,
            t.case.bytes,
            t.median_us,
            t.min_us,
            t.max_us,
            t.spread,
            t.gb_per_s,
            t.floor_us,
            t.floor_share
        );
    }
    text
}

fn weights(weights: Weights) -> &'static str {
    match weights {
        Weights::Bf16 => "BF16",
        Weights::Nvfp4 => "NVFP4",
        Weights::Nvfp4Argmax => "NVFP4, argmax",
    }
}

fn cells(t: &Timing) -> Vec<String> {
    vec![
        t.case.name.clone(),
        weights(t.case.weights).to_owned(),
        format!("{} x {}", t.case.n, t.case.k),
        t.m.to_string(),
        human_bytes(t.case.bytes),
        format!("{:.2}", t.median_us),
        format!("{:.1} %", t.spread * 100.0),
        format!("{:.0}", t.gb_per_s),
        format!("{:.1} %", t.floor_share * 100.0),
        t.seed_us.map(|us| format!("{us:.0} us on GB10")).unwrap_or_default(),
    ]
}

fn device_line(report: &BenchReport) -> String {
    let device = &report.device;
    let driver = device.driver.as_ref().map(|version| format!(", driver {version}")).unwrap_or_default();
    format!(
        "{}, compute capability {}{driver}, CUDA {}, clocks up to {} MHz (memory {} MHz); medians of {} graph replays",
        device.name, device.capability, device.cuda, device.max_clocks_mhz.0, device.max_clocks_mhz.1, report.n_replays
    )
}

fn step_lines(report: &BenchReport) -> Vec<String> {
    let line = |step: &crate::bench::Step| {
        format!(
            "m = {}: the products of a draft step take {:.1} us before ({}), {:.1} us after ({}): {:.2} times as fast; \
             after, as one graph, {:.1} us",
            step.m,
            step.before_us,
            human_bytes(step.before_bytes),
            step.after_us,
            human_bytes(step.after_bytes),
            step.before_us / step.after_us,
            step.after_chain_us
        )
    };
    report.steps.iter().map(line).collect()
}
