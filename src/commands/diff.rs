//! `draftfast diff`: two sidecars or vocabularies to the table of their differences.

use anyhow::Result;

use super::convert::read;
use crate::{
    cli::diff::Diff,
    compare::{Side, compare},
    corpus::DEFAULT_DOMAIN,
    counts::Counts,
    report::{Terminal, comparison},
    vocab::{evidence::domains, rank::Domain},
};

/// # Errors
/// A side cannot be read, or the sides are of different models.
pub fn run(args: &Diff, terminal: &Terminal) -> Result<()> {
    let [a, b] = [&args.a, &args.b].map(|path| {
        let (vocab, _) = read(path, &args.reading, terminal)?;
        Side::open(path, vocab)
    });
    let counts = Counts::sum(args.counts.iter().map(|path| Counts::read_any(path, None, DEFAULT_DOMAIN)))?;
    counts.iter().flat_map(|counts| &counts.warnings).for_each(|warning| terminal.warn(warning));
    let domains: Vec<Domain<'_>> = counts.as_ref().map(domains).unwrap_or_default();
    let found = compare(&a?, &b?, &domains)?;
    if terminal.is_json() {
        return terminal.json(&found);
    }
    terminal.data(comparison::lines(&found).join("\n"))
}
