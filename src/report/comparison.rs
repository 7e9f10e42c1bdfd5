//! A comparison in tables.

use super::table::{
    Align::{Left, Right},
    grouped, table,
};
use crate::compare::{Comparison, Pair};

/// The lines to print: first what is kept, then each figure that both sides have.
pub fn lines(found: &Comparison) -> Vec<String> {
    let vocabulary = &found.vocabulary;
    let mut rows = vec![["", "A", "B", "B - A"].map(str::to_owned).to_vec()];
    let mut whole = |what: &str, pair: Pair<u64>| {
        let change = i128::from(pair.b) - i128::from(pair.a);
        let sign = if change < 0 { "-" } else { "+" };
        let change = format!("{sign}{}", grouped(u64::try_from(change.unsigned_abs()).unwrap_or(u64::MAX)));
        rows.push(vec![what.to_owned(), grouped(pair.a), grouped(pair.b), change]);
    };
    whole("rows", Pair { a: found.n_rows.a as u64, b: found.n_rows.b as u64 });
    whole("ids of its own", Pair { a: vocabulary.only_a.len() as u64, b: vocabulary.only_b.len() as u64 });
    if let Some(bytes) = found.draft_step_bytes {
        whole("bytes a draft step", bytes);
    }
    let mut share = |what: String, pair: Pair<f64>, digits: usize| {
        let percent = |share: f64| format!("{:.digits$} %", 100.0 * share);
        rows.push(vec![
            what,
            percent(pair.a),
            percent(pair.b),
            format!("{:+.digits$} points", 100.0 * (pair.b - pair.a)),
        ]);
    };
    for domain in &vocabulary.domains {
        share(format!("mass of {}", domain.a.domain), Pair { a: domain.a.share, b: domain.b.share }, 2);
    }
    for (domain, pair) in &found.coverage {
        share(format!("recorded coverage of {domain}"), *pair, 2);
    }
    for (name, pair) in &found.errors {
        share(format!("error of {name}"), *pair, 3);
    }
    if let Some(Pair { a, b }) = &found.planned {
        let text = |p: &crate::compare::Planned| format!("{:.1} tok/s", p.tokens_per_second);
        let change = format!("{:+.1} %", 100.0 * (b.tokens_per_second / a.tokens_per_second - 1.0));
        rows.push(vec!["planned".to_owned(), text(a), text(b), change]);
        let on = |p: &crate::compare::Planned| format!("{}, k = {}", p.machine, p.n_drafted);
        rows.push(vec!["planned for".to_owned(), on(a), on(b), String::new()]);
    }
    let mut lines = table(&[Left, Right, Right, Right], &rows);
    lines.push(format!("{} ids in both, Jaccard {:.4}", grouped(vocabulary.n_shared as u64), vocabulary.jaccard));
    if let Some(Pair { a, b }) = &found.measured
        && !found.coverage.is_empty()
        && a != b
    {
        lines.push(format!("coverage was recorded on different text: A {a}, B {b}"));
    }
    if found.same_target == Some(false) {
        lines.push("the two heads come from different targets".to_owned());
    }
    lines
}
