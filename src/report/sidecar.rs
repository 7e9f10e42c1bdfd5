//! What a sidecar is, in words: the lines of `quantize`, the plan of `--dry-run`, and REPORT.md.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{
    Terminal,
    table::{grouped, human_bytes},
};
use crate::{
    checkpoint::{Recipe, ledger::Ledger},
    plan::PlanRecord,
    sidecar::{Manifest, NVFP4, TensorRecord},
};

/// One line a tensor with `-v`, and a summary.
pub fn tell_quantized(manifest: &Manifest, terminal: &Terminal) {
    for (name, record) in &manifest.tensors {
        terminal.detail(tensor_line(name, record));
    }
    let quantized: Vec<_> = manifest.tensors.values().filter_map(|record| record.error.as_ref()).collect();
    let worst = quantized.iter().map(|error| error.relative_error).fold(0.0, f64::max);
    let mut rules: Vec<_> = quantized.iter().map(|error| error.scale.as_str()).collect();
    rules.sort_unstable();
    rules.dedup();
    terminal.say(format!(
        "quantized: {} matrices to NVFP4 ({}), relative error at most {worst:.4}; {} tensors kept as they are",
        quantized.len(),
        rules.join(", "),
        manifest.tensors.len() - quantized.len()
    ));
}

fn tensor_line(name: &str, record: &TensorRecord) -> String {
    let figures = match (&record.error, &record.kept_because) {
        (Some(error), _) => format!("relative error {:.4}", error.relative_error),
        (None, Some(reason)) => reason.clone(),
        (None, None) => String::new(),
    };
    format!("{name:60} {:>14} {:>5} -> {:8} {figures}", shape(record), record.from, record.to)
}

fn shape(record: &TensorRecord) -> String {
    record.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ")
}

/// Bytes of a draft step, before and after, in one sentence.
pub fn ledger_sentence(ledger: &Ledger) -> String {
    format!(
        "A draft step reads {} instead of {}: {:.1}x fewer bytes",
        human_bytes(ledger.after_bytes),
        human_bytes(ledger.before_bytes),
        ledger.before_bytes as f64 / ledger.after_bytes.max(1) as f64
    )
}

/// What `--dry-run` prints: each tensor's fate and the ledger.
pub fn plan_text(recipe: &Recipe, ledger: &Ledger) -> String {
    let mut text = String::new();
    let head = &recipe.head;
    let _ = writeln!(text, "draft head: {} of {} rows of `{}` to NVFP4", ledger.n_rows, recipe.target_rows, head.name);
    for linear in &recipe.linears {
        let _ = writeln!(text, "quantize  {} [{}, {}] {} -> NVFP4", linear.name, linear.n, linear.k, linear.dtype);
    }
    for kept in &recipe.kept {
        let _ = writeln!(text, "keep      {} {}: {}", kept.name, kept.dtype, kept.reason);
    }
    text + &ledger_sentence(ledger)
}

/// REPORT.md: coverage (its section as Markdown), byte ledger, plan, errors, what was kept and why.
pub fn markdown(manifest: &Manifest, coverage: Option<&str>, plan: Option<&PlanRecord>) -> String {
    let ledger = &manifest.ledger;
    let target = &manifest.target;
    let vocabulary = &manifest.vocabulary;
    let mut text = format!(
        "# Drafter sidecar\n\nMade by {} for a `{}` target with {} rows of {} columns in its head.\n\n{}.\n\n\
         The draft head keeps {} of {} token ids in {} rows. The target is not touched: it verifies every drafted token, \
         so its outputs stay its own.\n\n",
        manifest.tool,
        target.family,
        grouped(target.target_rows as u64),
        grouped(target.hidden_size as u64),
        ledger_sentence(ledger),
        grouped(vocabulary.n_real_rows as u64),
        grouped(target.target_rows as u64),
        grouped(vocabulary.n_rows as u64),
    );
    if let Some(coverage) = coverage {
        let _ = write!(text, "## Coverage\n\n{coverage}\n");
    }
    ledger_table(&mut text, ledger);
    if let Some(record) = plan {
        plan_section(&mut text, record, vocabulary.n_rows);
    }
    error_table(&mut text, manifest);
    kept_table(&mut text, manifest);
    text.push_str(
        "## Check it\n\n```\nsha256sum -c sha256sums.txt\ndraftfast verify . --model MODEL\n```\n\n\
         Provenance and every figure are in `manifest.json`.\n",
    );
    text
}

fn ledger_table(text: &mut String, ledger: &Ledger) {
    text.push_str("## Bytes of one draft step\n\n![Bytes of one draft step before and after](ledger.svg)\n\n| part | before | after | note |\n|---|---:|---:|---|\n");
    for item in &ledger.items {
        let (before, after) = (grouped(item.before_bytes), grouped(item.after_bytes));
        let _ = writeln!(text, "| {} | {before} | {after} | {} |", item.name, item.note);
    }
    let (before, after) = (grouped(ledger.before_bytes), grouped(ledger.after_bytes));
    let _ = writeln!(text, "| **sum** | **{before}** | **{after}** | |\n");
    if !ledger.not_counted.is_empty() {
        let _ = writeln!(text, "Not counted: {}.\n", ledger.not_counted.join("; "));
    }
}

fn plan_section(text: &mut String, record: &PlanRecord, n_rows: usize) {
    text.push_str("## Plan\n\nA prediction from bytes and bandwidth, not a measurement.\n\n");
    text.push_str("![Tokens a second over the rows of the draft head](plan.svg)\n\n");
    let built = record.at_rows(n_rows);
    let _ = writeln!(
        text,
        "The {} rows of this sidecar: {:.1} tok/s at k = {}. The best of all plans: {:.1} tok/s with {} rows at k = {}.\n",
        grouped(n_rows as u64),
        built.tokens_per_second,
        built.n_drafted,
        record.plan.best.tokens_per_second,
        grouped(record.plan.best.design.n_rows as u64),
        record.plan.best.n_drafted
    );
    for assumption in &record.assumptions {
        let _ = writeln!(text, "- {assumption}");
    }
    let _ = writeln!(text, "\n```\n{}\n```\n", super::plan::lines(&record.question, &record.plan).join("\n"));
}

fn error_table(text: &mut String, manifest: &Manifest) {
    text.push_str(
        "## Quantization error\n\nRelative error is the norm of (decoded - source) over the norm of the source; weighted, with each \
         column counted by the energy of its inputs.\n\n![Relative error of each tensor](errors.svg)\n\n\
         | tensor | shape | scale rule | relative error | weighted | worst row | flushed blocks | saturated |\n\
         |---|---:|---|---:|---:|---:|---:|---:|\n",
    );
    for (name, record) in &manifest.tensors {
        let Some(error) = &record.error else { continue };
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {:.4} | {} | {:.4} (row {}) | {} | {} |",
            name.replace('|', "\\|"),
            shape(record),
            error.scale,
            error.relative_error,
            error.weighted_relative_error.map_or_else(|| "-".to_owned(), |weighted| format!("{weighted:.4}")),
            error.worst_row_relative_error,
            error.worst_row,
            error.n_flushed_blocks,
            error.n_saturated
        );
    }
    text.push('\n');
}

fn kept_table(text: &mut String, manifest: &Manifest) {
    let kept: Vec<_> = manifest.tensors.iter().filter(|(_, record)| record.to != NVFP4).collect();
    if kept.is_empty() {
        return;
    }
    text.push_str("## Kept as they are\n\n| tensor | number | shape | dtype | why |\n|---|---:|---:|---|---|\n");
    let mut rows: BTreeMap<_, usize> = BTreeMap::new();
    for (name, record) in kept {
        let why = record.kept_because.as_deref().unwrap_or_default();
        let [name, why] = [&of_any_expert(name), why].map(|text| text.replace('|', "\\|"));
        *rows.entry((name, shape(record), &record.to, why)).or_default() += 1;
    }
    for ((name, shape, dtype, why), n_tensors) in rows {
        let _ = writeln!(text, "| `{name}` | {n_tensors} | {shape} | {dtype} | {why} |");
    }
    text.push('\n');
}

/// The name with `*` for the number of a routed expert: hundreds of them have one fate.
fn of_any_expert(name: &str) -> String {
    match name.split_once(".experts.") {
        Some((before, rest)) => {
            let after = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            let number = if after.len() < rest.len() { "*" } else { "" };
            format!("{before}.experts.{number}{after}")
        }
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_share_a_line_and_other_names_stay() {
        assert_eq!(
            of_any_expert("mtp.layers.0.mlp.experts.17.up_proj.weight"),
            "mtp.layers.0.mlp.experts.*.up_proj.weight"
        );
        for name in ["mtp.layers.0.input_layernorm.weight", "mtp.layers.0.mlp.experts.gate_up_proj"] {
            assert_eq!(of_any_expert(name), name);
        }
    }
}
