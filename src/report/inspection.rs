//! What `inspect` says to a person.

use super::table::{Align::*, grouped, human_bytes, table};
use crate::{
    checkpoint::{Kept, Recipe, ledger::Ledger},
    inspect::{Contents, Inspection, ModelInspection, SidecarInspection, VocabularyInspection},
};

/// The lines to print.
pub fn lines(inspection: &Inspection) -> Vec<String> {
    match inspection {
        Inspection::Model(model) => model_lines(model),
        Inspection::Sidecar(sidecar) => sidecar_lines(sidecar),
        Inspection::Safetensors(contents) => vec![format!("safetensors file: {}", contents_line(contents))],
        Inspection::Vocabulary(vocabulary) => vocabulary_lines(vocabulary),
    }
}

/// The byte ledger as a table with a total.
pub fn ledger_lines(ledger: &Ledger) -> Vec<String> {
    let cells = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
    let mut rows = vec![cells(["one draft step, bytes", "before", "after", ""])];
    for item in &ledger.items {
        rows.push(cells([&item.name, &grouped(item.before_bytes), &grouped(item.after_bytes), &item.note]));
    }
    let ratio = ledger.before_bytes as f64 / ledger.after_bytes.max(1) as f64;
    let note = format!("{} -> {}, {ratio:.2}x less", human_bytes(ledger.before_bytes), human_bytes(ledger.after_bytes));
    rows.push(cells(["total", &grouped(ledger.before_bytes), &grouped(ledger.after_bytes), &note]));
    let mut lines = table(&[Left, Right, Right, Left], &rows);
    lines.extend(ledger.not_counted.iter().map(|what| format!("not counted: {what}")));
    lines
}

fn model_lines(model: &ModelInspection) -> Vec<String> {
    let recipe = &model.recipe;
    let head = &recipe.head;
    let tied = if head.tied { ", the embedding that the head is tied to" } else { "" };
    let mut lines = vec![
        format!("{} checkpoint: {}", recipe.family, contents_line(&model.contents)),
        format!(
            "head: {} [{}, {}] {}{tied}",
            head.name,
            grouped(recipe.target_rows as u64),
            grouped(recipe.hidden_size as u64),
            head.dtype
        ),
    ];
    lines.extend(recipe.notes.iter().map(|note| format!("note: {note}")));
    lines.push(String::new());
    lines.extend(linear_lines(recipe));
    lines.push(String::new());
    lines.extend(kept_lines("kept as they are", &recipe.kept));
    if !recipe.replaced.is_empty() {
        lines.push(String::new());
        lines.extend(kept_lines("left out", &recipe.replaced));
    }
    lines.push(String::new());
    lines.extend(ledger_lines(&model.ledger));
    lines
}

fn contents_line(contents: &Contents) -> String {
    let dtypes: Vec<String> =
        contents.dtypes.iter().map(|(dtype, count)| format!("{} {dtype}", grouped(*count as u64))).collect();
    let files = if contents.n_files == 1 { "file" } else { "files" };
    format!(
        "{} tensors ({}) in {} {files}, {}",
        grouped(contents.n_tensors as u64),
        dtypes.join(", "),
        contents.n_files,
        human_bytes(contents.n_bytes)
    )
}

fn linear_lines(recipe: &Recipe) -> Vec<String> {
    let mut rows = vec![["to NVFP4", "N", "K", "dtype", "one global scale with"].map(str::to_owned).to_vec()];
    for linear in &recipe.linears {
        let fused = linear.fused.as_deref().and_then(|fused| fused.rsplit('.').next()).unwrap_or("");
        rows.push(vec![
            linear.name.clone(),
            grouped(linear.n as u64),
            grouped(linear.k as u64),
            linear.dtype.to_string(),
            fused.to_owned(),
        ]);
    }
    table(&[Left, Right, Right, Left, Left], &rows)
}

/// Experts differ only in a number, so equal lines are folded into one.
fn kept_lines(title: &str, kept: &[Kept]) -> Vec<String> {
    let mut folded: Vec<(String, &Kept, usize, u64)> = Vec::new();
    for tensor in kept {
        let pattern = without_expert_number(&tensor.name);
        match folded.iter_mut().find(|(name, first, ..)| *name == pattern && first.shape == tensor.shape) {
            Some((_, _, count, bytes)) => {
                *count += 1;
                *bytes += tensor.bytes;
            }
            None => folded.push((pattern, tensor, 1, tensor.bytes)),
        }
    }
    let mut rows = vec![[title, "", "shape", "bytes", "why"].map(str::to_owned).to_vec()];
    for (name, first, count, bytes) in folded {
        let times = if count > 1 { format!("x{}", grouped(count as u64)) } else { String::new() };
        let shape = format!("{:?} {}", first.shape, first.dtype);
        rows.push(vec![name, times, shape, grouped(bytes), without_expert_number(&first.reason)]);
    }
    table(&[Left, Right, Left, Right, Left], &rows)
}

fn without_expert_number(name: &str) -> String {
    let Some((before, rest)) = name.split_once(".experts.") else { return name.to_owned() };
    let after = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    if after.len() == rest.len() { name.to_owned() } else { format!("{before}.experts.*{after}") }
}

fn sidecar_lines(sidecar: &SidecarInspection) -> Vec<String> {
    let of = sidecar.target_rows.map_or_else(String::new, |rows| format!(" of {}", grouped(rows)));
    let mut lines = vec![
        format!("draftfast sidecar: {}", contents_line(&sidecar.contents)),
        format!("draft head: {}{of} rows of {}", grouped(sidecar.n_rows as u64), grouped(sidecar.hidden_size as u64)),
        String::new(),
    ];
    let mut rows = vec![["NVFP4", "N", "K"].map(str::to_owned).to_vec()];
    for (name, n, k) in &sidecar.nvfp4 {
        rows.push(vec![name.clone(), grouped(*n as u64), grouped(*k as u64)]);
    }
    lines.extend(table(&[Left, Right, Right], &rows));
    lines.push(String::new());
    lines.push(format!("{} tensors are copies of the target's", sidecar.kept.len()));
    lines
}

fn vocabulary_lines(vocabulary: &VocabularyInspection) -> Vec<String> {
    let mut lines = vec![
        format!("draft vocabulary ({}): {}", vocabulary.form, vocabulary.arrays.join(", ")),
        format!("numbers are {}", vocabulary.semantics),
        format!(
            "keeps {} of {} rows, and {} that repeat the first",
            grouped(vocabulary.n_kept as u64),
            grouped(vocabulary.target_rows as u64),
            vocabulary.n_repeated
        ),
    ];
    lines.extend(vocabulary.id_range.map(|(first, last)| format!("ids from {first} to {last}")));
    lines.push(format!("sha256 {}", vocabulary.sha256));
    lines.extend(vocabulary.tokenizer_sha256.iter().map(|sha256| format!("made for tokenizer {sha256}")));
    lines.extend(vocabulary.notes.iter().map(|note| format!("note: {note}")));
    lines
}
