//! Bytes of one draft step, before and after, line by line: at batch size 1 a drafter's speed is these bytes over the
//! memory bandwidth.
//!
//! NVFP4 costs half a byte a weight and one byte a block of 16. Scalars, norms, caches and the one embedding row are
//! left out of the lines and named in `not_counted`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    family::Role,
    recipe::{Experts, Recipe},
};

/// Rows of the draft head unless another number is given: a multiple of 128.
pub const DEFAULT_ROWS: usize = 64_000;

/// The ledger of one draft step at batch size 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Rows of the draft head afterwards.
    pub n_rows: usize,
    /// One line per part, in the order of the forward pass: what is quantized, then what is kept.
    pub items: Vec<LedgerItem>,
    /// The head, before.
    pub head_before_bytes: u64,
    /// The head, after.
    pub head_after_bytes: u64,
    /// All linears that are quantized, before.
    pub linears_before_bytes: u64,
    /// All linears that are quantized, after.
    pub linears_after_bytes: u64,
    /// Sum of the items, before.
    pub before_bytes: u64,
    /// Sum of the items, after.
    pub after_bytes: u64,
    /// What the lines leave out, in words.
    pub not_counted: Vec<String>,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerItem {
    /// What it is.
    pub name: String,
    /// Bytes that the original reads.
    pub before_bytes: u64,
    /// Bytes that the drafter reads.
    pub after_bytes: u64,
    /// Why, in a few words.
    pub note: String,
}

/// Bytes of `n_weights` weights in NVFP4: codes and block scales.
pub fn nvfp4_bytes(n_weights: u64) -> u64 {
    n_weights / 2 + n_weights / 16
}

/// Counts the bytes; `n_rows` is cut to the rows that the target has.
pub fn ledger(recipe: &Recipe, n_rows: usize) -> Ledger {
    let n_rows = n_rows.min(recipe.target_rows);
    let row_bytes = |n: usize| n as u64 * recipe.hidden_size as u64;
    let head_before_bytes = match recipe.head.packed {
        Some(_) => nvfp4_bytes(row_bytes(recipe.target_rows)),
        None => row_bytes(recipe.target_rows) * recipe.head.dtype.bitsize() as u64 / 8,
    };
    let head_after_bytes = nvfp4_bytes(row_bytes(n_rows));
    let mut items = vec![LedgerItem {
        name: "head".to_owned(),
        before_bytes: head_before_bytes,
        after_bytes: head_after_bytes,
        note: format!("{n_rows} of {} rows", recipe.target_rows),
    }];
    let linears = quantized_lines(recipe);
    let linears_before_bytes = linears.iter().map(|item| item.before_bytes).sum();
    let linears_after_bytes = linears.iter().map(|item| item.after_bytes).sum();
    items.extend(linears);
    let (kept, not_counted) = kept_lines(recipe);
    items.extend(kept);
    Ledger {
        n_rows,
        head_before_bytes,
        head_after_bytes,
        linears_before_bytes,
        linears_after_bytes,
        before_bytes: items.iter().map(|item| item.before_bytes).sum(),
        after_bytes: items.iter().map(|item| item.after_bytes).sum(),
        items,
        not_counted,
    }
}

fn quantized_lines(recipe: &Recipe) -> Vec<LedgerItem> {
    let mut by_role: BTreeMap<Role, (u64, u64)> = BTreeMap::new();
    for linear in recipe.linears.iter().filter(|linear| is_first(linear.layer)) {
        let n_weights = linear.n as u64 * linear.k as u64;
        let (before, after) = by_role.entry(linear.role).or_default();
        *before += n_weights * linear.dtype.bitsize() as u64 / 8;
        *after += nvfp4_bytes(n_weights);
    }
    let line = |(role, (before, after)): (Role, (u64, u64))| LedgerItem {
        name: role.ledger_line().to_owned(),
        before_bytes: share(role, before, recipe.experts),
        after_bytes: share(role, after, recipe.experts),
        note: "to NVFP4".to_owned(),
    };
    by_role.into_iter().map(line).collect()
}

fn kept_lines(recipe: &Recipe) -> (Vec<LedgerItem>, Vec<String>) {
    let mut by_role: BTreeMap<Role, (u64, u64)> = BTreeMap::new();
    for kept in recipe.kept.iter().filter(|kept| kept.read_each_step && is_first(kept.layer)) {
        let (read, stored) = by_role.entry(kept.role).or_default();
        *read += kept.read_bytes;
        *stored += kept.bytes;
    }
    let mut not_counted = Vec::new();
    if let Some((small, _)) = by_role.remove(&Role::Small) {
        not_counted.push(format!("norms, biases and one-row gates: {small} bytes"));
    }
    let n_layers = recipe.linears.iter().filter_map(|linear| linear.layer).max().map_or(1, |last| last + 1);
    if n_layers > 1 {
        not_counted.push(format!("MTP layers after the first: a step runs one of {n_layers}"));
    }
    not_counted.push("caches of keys, values and indexer, and one row of the embedding".to_owned());
    let line = |(role, (read, stored)): (Role, (u64, u64))| {
        let bytes = share(role, read, recipe.experts);
        let note = match (role, recipe.experts) {
            (Role::RoutedExpert, Some(Experts { active, total })) => format!("kept; {active} of {total} a token"),
            _ if read > stored => format!("kept; {} bytes of it are runtime padding", read - stored),
            _ => "kept".to_owned(),
        };
        LedgerItem { name: role.ledger_line().to_owned(), before_bytes: bytes, after_bytes: bytes, note }
    };
    (by_role.into_iter().map(line).collect(), not_counted)
}

/// Step `i` of a draft runs MTP layer `i`, so the first stands for all.
fn is_first(layer: Option<usize>) -> bool {
    layer.is_none_or(|layer| layer == 0)
}

/// A token reads only its own experts.
fn share(role: Role, bytes: u64, experts: Option<Experts>) -> u64 {
    match (role, experts) {
        (Role::RoutedExpert, Some(Experts { active, total })) if total > 0 => {
            (u128::from(bytes) * active as u128 / total as u128) as u64
        }
        _ => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_bytes_hold_sixteen_weights() {
        assert_eq!(nvfp4_bytes(16), 9);
    }
}
