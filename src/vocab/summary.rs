//! What a person reads after a vocabulary was built.

use super::{
    build::{Built, Figures},
    evidence::Measured,
};

/// Lines of the curve that are shown.
const SHOWN_SIZES: [usize; 6] = [8_192, 16_384, 32_768, 65_536, 98_304, 131_072];
/// Missed tokens shown a domain.
const N_SHOWN_MISSED: usize = 8;
/// Shares below this would be shown as 0.000 %.
const LEAST_SHOWN: f64 = 0.000_005;

/// The lines: what was kept and why, what it covers, the curve, what is missed.
pub fn lines(built: &Built) -> Vec<String> {
    let selection = &built.selection;
    let mut lines = vec![format!(
        "kept {} of {} rows: {} most useful, {} always kept on top, {} to fill the tile, {} repeated",
        selection.vocab.token_ids.len(),
        selection.vocab.target_rows,
        built.config.size,
        selection.n_retained_on_top,
        selection.n_padding_ids,
        selection.vocab.n_repeated,
    )];
    let reasons: Vec<_> = built.retained.tally().into_iter().map(|(reason, n)| format!("{reason} {n}")).collect();
    lines.push(format!("always kept: {}", reasons.join(", ")));
    if selection.n_never_seen > 0 {
        lines.push(format!(
            "{} kept ids were never seen in the counts: more text, or a smaller `--size`, would serve better",
            selection.n_never_seen
        ));
    }
    lines.extend(table(&built.figures));
    lines.extend(missed(&built.figures));
    let ranks = built.figures.rows_per_rank.iter().map(|(n, rows)| {
        let rows: Vec<_> = rows.iter().map(usize::to_string).collect();
        format!("TP {n}: {}", rows.join(" "))
    });
    lines.push(format!("rows per rank  {}", ranks.collect::<Vec<_>>().join("   ")));
    lines
}

fn table(figures: &Figures) -> Vec<String> {
    let on = match figures.measured {
        Measured::HeldOut => "held-out text",
        Measured::Split => "a held-out tenth of the documents, by the other nine",
        Measured::InSample => "the text it was chosen from (flattering; give `--heldout`)",
    };
    if figures.coverage.is_empty() {
        return vec![format!("no coverage was measured: {on}, has no token; give `--heldout`")];
    }
    let shown = |size: &usize| SHOWN_SIZES.contains(size);
    let columns: Vec<usize> = (0..figures.curve.sizes.len()).filter(|&at| shown(&figures.curve.sizes[at])).collect();
    let mut heads = format!("{:14} {:>12} {:>9}", "domain", "tokens", "covered");
    for &at in &columns {
        heads.push_str(&format!(" {:>8}", format!("{}k", figures.curve.sizes[at] >> 10)));
    }
    let mut lines = vec![format!("coverage of {on}:"), heads];
    for coverage in &figures.coverage {
        let mut line = format!("{:14} {:>12} {:>8.2}%", coverage.domain, coverage.n_tokens, 100.0 * coverage.share);
        let shares = &figures.curve.domains[&coverage.domain];
        columns.iter().for_each(|&at| line.push_str(&format!(" {:>7.2}%", 100.0 * shares[at])));
        lines.push(line);
    }
    if let Some(stability) = figures.stability.as_ref().filter(|_| !columns.is_empty()) {
        let mut line = format!("{:37}", "same ids from either half (Jaccard)");
        columns.iter().for_each(|&at| line.push_str(&format!(" {:>8.2}", stability[at])));
        lines.push(line);
    }
    lines
}

fn missed(figures: &Figures) -> Vec<String> {
    let line = |(domain, missed): (&String, &Vec<super::build::MissedToken>)| {
        let shown = missed.iter().take(N_SHOWN_MISSED).filter(|token| token.share >= LEAST_SHOWN);
        let tokens: Vec<_> = shown.map(|m| format!("{:?} {:.3}%", m.token, 100.0 * m.share)).collect();
        format!("most missed in {domain}: {}", tokens.join(", "))
    };
    let is_told = |missed: &[super::build::MissedToken]| missed.first().is_some_and(|token| token.share >= LEAST_SHOWN);
    figures.missed.iter().filter(|(_, missed)| is_told(missed)).map(line).collect()
}
