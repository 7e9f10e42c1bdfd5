//! The pictures of a report: coverage over rows, bytes of a draft step, the plan's surface, quantization errors.
//!
//! Each is a function from plain figures to the text of an SVG file; [`pictures`] makes all that there are figures for.

use super::{
    svg::{Anchor, Axis, Svg, spread, text_width},
    table::{grouped, human_bytes},
};
use crate::{
    checkpoint::Ledger,
    plan::{Plan, Point, coverage_file::RecordedCoverage},
};

/// What the pictures show; what is missing is not drawn.
#[derive(Debug, Clone, Copy, Default)]
pub struct Figures<'a> {
    /// Coverage over the size, and the rows that were chosen.
    pub coverage: Option<(&'a RecordedCoverage, usize)>,
    /// Bytes of a draft step.
    pub ledger: Option<&'a Ledger>,
    /// The plan, and what it says of the rows that were built.
    pub plan: Option<(&'a Plan, Point)>,
    /// Relative error of each quantized tensor, by name.
    pub errors: &'a [(String, f64)],
}

/// File names and bytes of the pictures; the same figures give the same bytes.
pub fn pictures(figures: &Figures<'_>) -> Vec<(&'static str, Vec<u8>)> {
    let mut files = Vec::new();
    if let Some((recorded, n_rows)) = figures.coverage
        && recorded.curve.sizes.len() > 1
        && !recorded.curve.domains.is_empty()
    {
        files.push(("coverage.svg", coverage(recorded, n_rows).into_bytes()));
    }
    files.extend(figures.ledger.map(|bytes| ("ledger.svg", ledger(bytes).into_bytes())));
    files.extend(figures.plan.map(|(found, built)| ("plan.svg", plan(found, &built).into_bytes())));
    if !figures.errors.is_empty() {
        files.push(("errors.svg", errors(figures.errors).into_bytes()));
    }
    files
}

const WIDTH: f64 = 760.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 340.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 600.0;

/// Powers of two between two sizes: what people choose rows in.
fn row_ticks(first: usize, last: usize) -> Vec<usize> {
    (0..usize::BITS).map(|bit| 1usize << bit).filter(|rows| (first..=last).contains(rows)).collect()
}

/// `64k`: in units of 1,024, as sizes of vocabularies are said.
fn short(n_rows: usize) -> String {
    if n_rows < 1_024 { n_rows.to_string() } else { format!("{}k", n_rows / 1_024) }
}

/// Grid, ticks and names of both axes; values of y as `y_text` says.
fn frame(svg: &mut Svg, x: &Axis, rows: &[usize], y: &Axis, y_text: impl Fn(f64) -> String, y_name: &str) {
    for &n_rows in rows {
        let at = x.at(n_rows as f64);
        svg.line((at, TOP), (at, BOTTOM), "grid");
        svg.text((at, BOTTOM + 18.0), Anchor::Middle, "soft", &short(n_rows));
    }
    for tick in y.ticks(6) {
        let at = y.at(tick);
        svg.line((LEFT, at), (RIGHT, at), "grid");
        svg.text((LEFT - 8.0, at + 4.0), Anchor::End, "soft", &y_text(tick));
    }
    svg.line((LEFT, BOTTOM), (RIGHT, BOTTOM), "axis");
    svg.text(
        (f64::midpoint(LEFT, RIGHT), BOTTOM + 38.0),
        Anchor::Middle,
        "soft",
        "rows of the draft head (k = 1,024; logarithmic)",
    );
    svg.text((LEFT - 44.0, TOP - 10.0), Anchor::Start, "soft", y_name);
}

/// Labels right of the plot, at the places they speak of but never on each other.
fn end_labels(svg: &mut Svg, labels: &[(f64, String, Option<usize>)]) {
    let places: Vec<f64> = labels.iter().map(|(y, ..)| *y).collect();
    for ((y, text, colour), at) in labels.iter().zip(spread(&places, 17.0, TOP + 6.0..BOTTOM)) {
        if let Some(colour) = colour {
            svg.path(&[(RIGHT + 2.0, *y), (RIGHT + 12.0, at), (RIGHT + 22.0, at)], *colour, "");
        }
        svg.text((RIGHT + 27.0, at + 4.0), Anchor::Start, "", text);
    }
}

/// Share of tokens covered over rows, a line a domain, the chosen rows marked.
fn coverage(recorded: &RecordedCoverage, n_rows: usize) -> String {
    let curve = &recorded.curve;
    let mut svg = Svg::new(WIDTH, 400.0, "Coverage: share of tokens that the draft head can propose");
    let (first, last) = (curve.sizes[0].max(1), curve.sizes[curve.sizes.len() - 1]);
    let x = Axis::log(first as f64..last as f64, LEFT..RIGHT);
    let least = curve.domains.values().chain([&curve.mean]).flatten().copied().fold(1.0, f64::min);
    let y = Axis::linear((least * 10.0).floor() / 10.0..1.0, BOTTOM..TOP);
    frame(&mut svg, &x, &row_ticks(first, last), &y, |share| format!("{:.0} %", 100.0 * share), "covered");
    let chosen = (n_rows as f64).clamp(first as f64, last as f64);
    svg.line((x.at(chosen), TOP - 4.0), (x.at(chosen), BOTTOM), "mark");
    svg.text((x.at(chosen), TOP - 10.0), Anchor::Middle, "strong", &format!("{} rows", grouped(n_rows as u64)));
    let mut labels = Vec::new();
    let mut draw = |name: &str, shares: &[f64], colour, class| {
        let points: Vec<(usize, f64)> = curve.sizes.iter().copied().zip(shares.iter().copied()).collect();
        let path: Vec<_> = points.iter().map(|&(size, share)| (x.at(size.max(1) as f64), y.at(share))).collect();
        svg.path(&path, colour, class);
        // As measured where that is recorded; the mean, and old records, as the line is drawn.
        let measured = recorded.coverage.iter().find(|domain| domain.domain == name).map(|domain| domain.share);
        let share = measured.unwrap_or_else(|| share_at(&points, n_rows));
        svg.dot((x.at(chosen), y.at(share)), 3.5, colour);
        labels.push((y.at(share), format!("{name} {:.2} %", 100.0 * share), colour));
    };
    for (colour, (name, shares)) in curve.domains.iter().enumerate() {
        draw(name, shares, colour, "");
    }
    if curve.domains.len() > 1 {
        draw("mean", &curve.mean, 6, "dashed");
    }
    let places: Vec<f64> = labels.iter().map(|(y, ..)| *y).collect();
    for ((_, text, colour), at) in labels.iter().zip(spread(&places, 17.0, TOP + 6.0..BOTTOM)) {
        svg.block((RIGHT + 10.0, at - 5.0), 10.0, 10.0, *colour);
        svg.text((RIGHT + 27.0, at + 4.0), Anchor::Start, "", text);
    }
    svg.text((RIGHT + 27.0, TOP - 10.0), Anchor::Start, "soft", "at the chosen rows");
    svg.finish()
}

/// The share at a size between two of the curve, linear in the logarithm as the line is drawn.
fn share_at(points: &[(usize, f64)], n_rows: usize) -> f64 {
    let after = points.iter().position(|&(size, _)| size >= n_rows).unwrap_or(points.len() - 1);
    let (high, low) = (points[after], points[after.saturating_sub(1)]);
    if high.0 <= low.0 || n_rows >= high.0 {
        return high.1;
    }
    let log = |n: usize| (n.max(1) as f64).ln();
    low.1 + (high.1 - low.1) * (log(n_rows.max(low.0)) - log(low.0)) / (log(high.0) - log(low.0))
}

/// Bytes of a draft step before and after as two stacked bars, and what the colours are.
fn ledger(ledger: &Ledger) -> String {
    const BARS: f64 = 150.0;
    let height = BARS + 68.0 + 20.0 * ledger.items.len() as f64;
    let ratio = ledger.before_bytes as f64 / ledger.after_bytes.max(1) as f64;
    let title = format!("Bytes that one draft step reads: {ratio:.1} times fewer");
    let mut svg = Svg::new(WIDTH, height, &title);
    let most = ledger.before_bytes.max(ledger.after_bytes).max(1) as f64;
    let x = Axis::linear(0.0..most, 74.0..640.0);
    for tick in x.ticks(6) {
        svg.line((x.at(tick), 44.0), (x.at(tick), BARS - 6.0), "grid");
        svg.text((x.at(tick), BARS + 10.0), Anchor::Middle, "soft", &human_bytes(tick as u64));
    }
    let sums = [("before", ledger.before_bytes, 52.0), ("after", ledger.after_bytes, 98.0)];
    for (name, sum, y) in sums {
        svg.text((66.0, y + 21.0), Anchor::End, "", name);
        let mut from = 0.0;
        for (colour, item) in ledger.items.iter().enumerate() {
            let bytes = if name == "before" { item.before_bytes } else { item.after_bytes } as f64;
            svg.block((x.at(from), y), x.at(from + bytes) - x.at(from), 32.0, colour);
            from += bytes;
        }
        svg.text((x.at(sum as f64) + 8.0, y + 21.0), Anchor::Start, "strong", &human_bytes(sum));
    }
    let top = BARS + 44.0;
    for (at, text) in [(250.0, "before"), (360.0, "after")] {
        svg.text((at, top - 4.0), Anchor::End, "soft", text);
    }
    for (row, item) in ledger.items.iter().enumerate() {
        let y = top + 16.0 + 20.0 * row as f64;
        svg.block((16.0, y - 11.0), 12.0, 12.0, row);
        svg.text((36.0, y), Anchor::Start, "", &item.name);
        svg.text((250.0, y), Anchor::End, "", &human_bytes(item.before_bytes));
        svg.text((360.0, y), Anchor::End, "", &human_bytes(item.after_bytes));
        svg.text((376.0, y), Anchor::Start, "soft", &item.note);
    }
    svg.finish()
}

/// At most this many lines of k: more cannot be told apart.
const N_LINES: usize = 7;

/// Tokens a second over rows, a line a k, the best point and the built rows marked.
fn plan(plan: &Plan, built: &Point) -> String {
    let best = &plan.best;
    let rows_text = grouped(best.design.n_rows as u64);
    let title = format!("Plan: {:.1} tok/s with {rows_text} rows and k = {}", best.tokens_per_second, best.n_drafted);
    let mut svg = Svg::new(WIDTH, 400.0, &title);
    let rows = || plan.surface.iter().flat_map(|line| line.points.iter().map(|point| point.0));
    let (first, last) = (rows().min().unwrap_or(1).max(1), rows().max().unwrap_or(2));
    let speeds = plan.surface.iter().flat_map(|line| line.points.iter().map(|point| point.1));
    let x = Axis::log(first as f64..last as f64, LEFT..RIGHT);
    let y = Axis::linear(0.0..speeds.fold(plan.native.tokens_per_second, f64::max) * 1.05, BOTTOM..TOP);
    frame(&mut svg, &x, &row_ticks(first, last), &y, |speed| format!("{speed:.0}"), "tokens/s");
    built_mark(&mut svg, x.at(built.design.n_rows.clamp(first, last) as f64), y.at(built.tokens_per_second), built);
    let native = y.at(plan.native.tokens_per_second);
    svg.line((LEFT, native), (RIGHT, native), "mark");
    let mut labels = vec![(native, format!("native MTP: {:.1}", plan.native.tokens_per_second), None)];
    for (colour, line) in shown(plan).into_iter().enumerate() {
        let path: Vec<_> = line.points.iter().map(|&(rows, speed)| (x.at(rows as f64), y.at(speed))).collect();
        let is_best = line.n_drafted == best.n_drafted;
        svg.path(&path, colour, if is_best { "thick" } else { "" });
        let (end, speed) = (path.last().map_or(TOP, |point| point.1), line.points.last().map_or(0.0, |point| point.1));
        labels.push((end, format!("k = {}: {speed:.1}", line.n_drafted), Some(colour)));
        if is_best {
            let at = (x.at(best.design.n_rows as f64), y.at(best.tokens_per_second));
            svg.dot(at, 6.0, colour);
            svg.text((at.0, at.1 - 12.0), Anchor::Middle, "strong", &format!("{:.1}", best.tokens_per_second));
        }
    }
    end_labels(&mut svg, &labels);
    svg.text((RIGHT + 27.0, TOP - 10.0), Anchor::Start, "soft", "tok/s, all rows");
    svg.finish()
}

/// A line from what the sidecar's own rows give down to the axis, with the figures on the side that has room.
fn built_mark(svg: &mut Svg, at: f64, top: f64, built: &Point) {
    svg.line((at, top), (at, BOTTOM), "mark");
    let (from, anchor) = match at < f64::midpoint(LEFT, RIGHT) {
        true => (at + 8.0, Anchor::Start),
        false => (at - 8.0, Anchor::End),
    };
    let rows = grouped(built.design.n_rows as u64);
    svg.text((from, BOTTOM - 24.0), anchor, "", &format!("this sidecar: {rows} rows"));
    let speed = format!("{:.1} tok/s at k = {}", built.tokens_per_second, built.n_drafted);
    svg.text((from, BOTTOM - 8.0), anchor, "", &speed);
}

/// The lines that are drawn: evenly over k, the best among them.
fn shown(plan: &Plan) -> Vec<&crate::plan::Line> {
    let n = plan.surface.len();
    let step = n.div_ceil(N_LINES).max(1);
    let best = plan.surface.iter().position(|line| line.n_drafted == plan.best.n_drafted).unwrap_or(0);
    plan.surface.iter().enumerate().filter(|(i, _)| i % step == best % step).map(|(_, line)| line).collect()
}

/// Tensors that an error picture has room for.
const N_TENSORS: usize = 32;

/// Relative error of each quantized tensor as bars, the largest first where there are too many.
fn errors(errors: &[(String, f64)]) -> String {
    let mut drawn: Vec<&(String, f64)> = errors.iter().collect();
    let mut title = "Quantization error of each tensor".to_owned();
    if drawn.len() > N_TENSORS {
        drawn.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        drawn.truncate(N_TENSORS);
        title = format!("Quantization error: the {N_TENSORS} largest of {} tensors", errors.len());
    }
    let bottom = 46.0 + 22.0 * drawn.len() as f64;
    let mut svg = Svg::new(WIDTH, bottom + 52.0, &title);
    let left = drawn.iter().map(|(name, _)| text_width(name)).fold(0.0, f64::max).min(380.0) + 24.0;
    let most = drawn.iter().map(|(_, error)| *error).fold(0.0, f64::max).max(1e-6);
    let x = Axis::linear(0.0..most, left..WIDTH - 80.0);
    for tick in x.ticks(5) {
        svg.line((x.at(tick), 42.0), (x.at(tick), bottom), "grid");
        svg.text((x.at(tick), bottom + 16.0), Anchor::Middle, "soft", &format!("{:.1} %", 100.0 * tick));
    }
    for (row, (name, error)) in drawn.into_iter().enumerate() {
        let y = 46.0 + 22.0 * row as f64;
        svg.text((left - 8.0, y + 13.0), Anchor::End, "", &shortened(name));
        svg.block((left, y + 2.0), x.at(*error) - left, 15.0, 0);
        svg.text((x.at(*error) + 6.0, y + 13.0), Anchor::Start, "", &format!("{:.2} %", 100.0 * error));
    }
    svg.line((left, 42.0), (left, bottom), "axis");
    let middle = f64::midpoint(left, WIDTH - 80.0);
    svg.text(
        (middle, bottom + 36.0),
        Anchor::Middle,
        "soft",
        "relative error: |decoded - source| / |source|, Euclidean norms",
    );
    svg.finish()
}

/// The end of a name that is too long for its place.
fn shortened(name: &str) -> String {
    const N_SHOWN: usize = 52;
    let n_chars = name.chars().count();
    if n_chars <= N_SHOWN {
        name.to_owned()
    } else {
        format!("…{}", name.chars().skip(n_chars - N_SHOWN).collect::<String>())
    }
}
