//! `draftfast vocab audit` and `draftfast vocab diff`.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use super::convert::read;
use crate::{
    cli::vocab::{Audit, Diff, Vocab},
    corpus::DEFAULT_DOMAIN,
    counts::{Counts, Tokenizer},
    report::Terminal,
    vocab::{
        build::text,
        diff::diff,
        evidence::domains,
        rank::Domain,
        retain::{Reason, retain},
    },
};

/// Differing tokens shown on each side.
const N_SHOWN: usize = 12;

/// # Errors
/// A file that cannot be read, or files that do not belong together.
pub fn run(args: &Vocab, terminal: &Terminal) -> Result<ExitCode> {
    match args {
        Vocab::Audit(args) => audit(args, terminal),
        Vocab::Diff(args) => show_diff(args, terminal).map(|()| ExitCode::SUCCESS),
    }
}

fn audit(args: &Audit, terminal: &Terminal) -> Result<ExitCode> {
    let tokenizer = Tokenizer::open(&args.tokenizer)?;
    let (vocab, detected) = read(&args.vocab, &args.reading, terminal)?;
    detected.check_tokenizer(&args.vocab, tokenizer.sha256())?;
    let retained = retain(&tokenizer)?;
    let rows: Vec<_> = retained
        .reasons()
        .map(|(id, reasons)| {
            let kept = vocab.token_ids.binary_search(&id).is_ok();
            let reasons: Vec<String> = reasons.iter().map(Reason::to_string).collect();
            (id, kept, reasons)
        })
        .collect();
    let n_missing = rows.iter().filter(|(_, kept, _)| !kept).count();
    let n_past =
        vocab.token_ids.iter().filter(|&&id| id as usize >= tokenizer.n_ids() && !retained.contains(id)).count();
    if terminal.is_json() {
        let items = rows.iter().map(
            |(id, kept, reasons)| json!({ "id": id, "token": text(&tokenizer, *id), "kept": kept, "reasons": reasons }),
        );
        terminal.json(&json!({
            "n_missing": n_missing, "n_past_the_tokenizer": n_past, "retained": items.collect::<Vec<_>>(),
        }))?;
    } else {
        for (id, kept, reasons) in &rows {
            let state = if *kept { "kept" } else { "MISSING" };
            terminal.data(format!("{id}\t{state}\t{}\t{:?}", reasons.join(", "), text(&tokenizer, *id)))?;
        }
    }
    if n_past > 0 {
        terminal.warn(format!("{n_past} kept ids are past the {} ids of the tokenizer", tokenizer.n_ids()));
    }
    terminal.say(format!("{} of {} always-kept ids are missing", n_missing, rows.len()));
    Ok(if n_missing + n_past == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show_diff(args: &Diff, terminal: &Terminal) -> Result<()> {
    let (a, _) = read(&args.a, &args.reading, terminal)?;
    let (b, _) = read(&args.b, &args.reading, terminal)?;
    let tokenizer = args.tokenizer.as_deref().map(Tokenizer::open).transpose()?;
    let counts =
        Counts::sum(args.counts.iter().map(|path| Counts::read_any(path, tokenizer.as_ref(), DEFAULT_DOMAIN)))?;
    counts.iter().flat_map(|counts| &counts.warnings).for_each(|warning| terminal.warn(warning));
    let domains: Vec<Domain<'_>> = counts.as_ref().map(domains).unwrap_or_default();
    let found = diff(&a, &b, &domains);
    if terminal.is_json() {
        return terminal.json(&found);
    }
    let (n_a, n_b) = (found.only_a.len(), found.only_b.len());
    terminal.data(format!("shared {}, only A {n_a}, only B {n_b}, Jaccard {:.4}", found.n_shared, found.jaccard))?;
    for domain in &found.domains {
        let (a, b) = (100.0 * domain.a.share, 100.0 * domain.b.share);
        terminal.data(format!("{:14} A {a:.2}%  B {b:.2}%  ({:+.2})", domain.a.domain, b - a))?;
    }
    for (side, ids) in [("A", found.only_a), ("B", found.only_b)] {
        terminal.data(format!("only {side}: {}", most_frequent(&ids, &domains, tokenizer.as_ref()).join(" ")))?;
    }
    Ok(())
}

/// The ids with the largest mass (by id where nothing is counted), spelled where a tokenizer is at hand.
fn most_frequent(ids: &[u32], domains: &[Domain<'_>], tokenizer: Option<&Tokenizer>) -> Vec<String> {
    let mass = |id: u32| domains.iter().map(|d| d.counts.get(id as usize).copied().unwrap_or(0)).sum::<u64>();
    let mut ids = ids.to_vec();
    ids.sort_by_key(|&id| (std::cmp::Reverse(mass(id)), id));
    let spell = |&id: &u32| tokenizer.map_or_else(|| id.to_string(), |t| format!("{id}:{:?}", text(t, id)));
    ids.iter().take(N_SHOWN).map(spell).collect()
}
