//! The pictures of a report: coverage over rows, bytes of a draft step, the plan's surface, quantization errors.
//!
//! Each is a function from plain figures to the text of an SVG file; [`pictures`] makes all that there are figures for.

use std::ops::Range;

use anyhow::{Result, ensure};
use plotters::{
    coord::{
        combinators::WithKeyPoints,
        ranged1d::{AsRangedCoord, ValueFormatter},
        types::RangedCoordf64,
    },
    prelude::*,
    style::text_anchor::HPos,
};

use super::{
    svg::{
        GRID, INK, LINE, SOFT, Series, Sheet, WIDTH, block, colour, fitted, line, picture, plain, spread, text_width,
        write,
    },
    table::{grouped, human_bytes},
};
use crate::{
    checkpoint::Ledger,
    error::contained,
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
///
/// # Errors
/// Figures that no axis can hold: they are read back from files.
pub fn pictures(figures: &Figures<'_>) -> Result<Vec<(&'static str, Vec<u8>)>> {
    contained("drawing of the pictures", || {
        let Figures { coverage: covered, ledger: bytes, plan: planned, errors: found } = *figures;
        let drawn = [
            ("coverage.svg", covered.filter(|(recorded, _)| !recorded.coverage.is_empty()).map(coverage)),
            ("ledger.svg", bytes.map(ledger)),
            ("plan.svg", planned.map(plan)),
            ("errors.svg", (!found.is_empty()).then(|| errors(found))),
        ];
        drawn.into_iter().filter_map(|(name, text)| Some(text?.map(|text| (name, text.into_bytes())))).collect()
    })
}

const MARGIN: i32 = 20;
const TOP: i32 = 124;
const BOTTOM: i32 = 680;
const LEFT: i32 = 140;
const RIGHT: i32 = 1_120;
const HEIGHT: i32 = 774; // with rows as an axis

/// What the values of an axis are, and how one is written.
type Axis<'a> = (&'a str, &'a dyn Fn(&f64) -> String);

/// A plot over a linear y.
type Plot<'a, X> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, RangedCoordf64>>;

/// A range that an axis can hold.
fn held(range: Range<f64>) -> Result<Range<f64>> {
    let most = range.start.abs() + range.end.abs();
    ensure!(most < 1e20, "there are figures of {most:e}, which no picture can show");
    Ok(range)
}

/// A plot with its grid and the names of its axes, between the pixels `top` to `bottom` and `left` to `right`; without
/// `y_axis`, y has no figures.
fn plot<'a, X>(
    sheet: &Sheet<'a>,
    ([top, bottom], [left, right]): ([i32; 2], [i32; 2]),
    (x, x_axis): (X, Axis<'_>),
    (y, y_axis): (Range<f64>, Option<Axis<'_>>),
) -> Result<Plot<'a, X::CoordDescType>>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
{
    let (width, height) = sheet.dim_in_pixel();
    let mut chart = ChartBuilder::on(sheet)
        .margin_top(top)
        .margin_right(width as i32 - right)
        .margin_left(MARGIN)
        .margin_bottom(MARGIN)
        .x_label_area_size(height as i32 - MARGIN - bottom)
        .y_label_area_size(left - MARGIN)
        .build_cartesian_2d(x, held(y)?)?;
    let (y_name, y_text) = y_axis.unwrap_or(("", &|_| String::new()));
    chart
        .configure_mesh()
        .bold_line_style(ShapeStyle::from(&GRID).stroke_width(2))
        .light_line_style(TRANSPARENT)
        .axis_style(ShapeStyle::from(&SOFT).stroke_width(2))
        .label_style(plain(&SOFT))
        .axis_desc_style(plain(&SOFT))
        .x_labels(7)
        .x_label_formatter(&x_axis.1)
        .x_desc(x_axis.0)
        .y_labels(if y_axis.is_some() { 7 } else { 0 })
        .y_label_formatter(&y_text)
        .y_desc(y_name)
        .draw()?;
    Ok(chart)
}

/// A plot over the rows of the draft head, which are chosen in powers of two.
fn over_rows<'a>(
    sheet: &Sheet<'a>,
    rows: Range<f64>,
    y: Range<f64>,
    y_axis: Axis<'_>,
) -> Result<Plot<'a, WithKeyPoints<LogCoord<f64>>>> {
    // `64k`: in units of 1,024, as sizes of vocabularies are said.
    let text = |rows: &f64| if *rows < 1_024.0 { rows.to_string() } else { format!("{}k", rows / 1_024.0) };
    let powers = (0..32).map(|bit| f64::from(1u32 << bit));
    let powers = powers.filter(|power| *power >= rows.start && *power <= rows.end).collect();
    let axis: Axis<'_> = ("rows of the draft head (k = 1,024; logarithmic)", &text);
    let x = (rows.log_scale().with_key_points(powers), axis);
    plot(sheet, ([TOP, BOTTOM], [LEFT, RIGHT]), x, (y, Some(y_axis)))
}

/// The least and the greatest of `rows`, as an axis has them.
fn extent(rows: impl Iterator<Item = usize>) -> Range<f64> {
    rows.fold(f64::MAX..1.0, |all, rows| all.start.min(rows.max(1) as f64)..all.end.max(rows as f64))
}

/// The names of lines right of the plot: never on each other, but near the place that each speaks of.
fn keys(sheet: &Sheet<'_>, head: &str, keys: &[(i32, String, Series)]) -> Result<()> {
    write(sheet, (RIGHT + 20, TOP - LINE), HPos::Left, SOFT, head)?;
    let places: Vec<i32> = keys.iter().map(|key| key.0).collect();
    for ((_, text, series), at) in keys.iter().zip(spread(&places, LINE, BOTTOM)) {
        line(sheet, vec![(RIGHT + 20, at), (RIGHT + 46, at)], *series, 6)?;
        write(sheet, (RIGHT + 56, at), HPos::Left, INK, text)?;
    }
    Ok(())
}

/// A text beside a place, on the side that has room.
fn beside(sheet: &Sheet<'_>, (x, y): (i32, i32), text: &str) -> Result<()> {
    let (x, anchor) = if x < i32::midpoint(LEFT, RIGHT) { (x + 14, HPos::Left) } else { (x - 14, HPos::Right) };
    write(sheet, (x, y), anchor, INK, text)
}

/// Domains that a picture has room for.
const N_DOMAINS: usize = 14;

/// Share of tokens covered over rows, a line a domain through what was measured at the chosen rows, which are marked.
fn coverage((recorded, n_rows): (&RecordedCoverage, usize)) -> Result<String> {
    let curve = &recorded.curve;
    let through = |share: f64, shares: &[f64]| {
        let mut points: Vec<_> =
            curve.sizes.iter().copied().zip(shares.iter().copied()).chain([(n_rows, share)]).collect();
        points.sort_by_key(|point| point.0);
        (share, points)
    };
    let line_of = |(name, shares): (&'_ String, &Vec<f64>)| {
        let measured = recorded.coverage.iter().find(|domain| domain.domain == *name)?;
        Some((name.clone(), through(measured.share, shares)))
    };
    let mut drawn: Vec<_> = curve.domains.iter().filter_map(line_of).collect();
    let mut title = "Coverage: share of tokens that the draft head can propose".to_owned();
    let n_domains = drawn.len();
    let mean = drawn.iter().map(|(_, (share, _))| share).sum::<f64>() / n_domains.max(1) as f64;
    if n_domains > N_DOMAINS {
        drawn.sort_by(|(_, (a, _)), (_, (b, _))| a.total_cmp(b));
        drawn.truncate(N_DOMAINS);
        title = format!("Coverage: the {N_DOMAINS} least covered of {n_domains} domains");
    }
    if n_domains > 1 {
        drawn.push(("mean".to_owned(), through(mean, &curve.mean)));
    }
    let points = || drawn.iter().flat_map(|(_, (_, points))| points);
    let rows = extent(points().map(|point| point.0));
    let least = points().map(|point| point.1).fold(0.99, f64::min);
    picture(&title, HEIGHT, |sheet| {
        let y = (least * 10.0).floor() / 10.0..1.0;
        let chart = over_rows(sheet, rows, y, ("tokens covered", &|share| format!("{:.0} %", 100.0 * share)))?;
        let at = |(n_rows, share): (usize, f64)| chart.backend_coord(&(n_rows.max(1) as f64, share));
        let chosen = at((n_rows, 1.0)).0;
        line(sheet, vec![(chosen, TOP), (chosen, BOTTOM)], None, 3)?;
        beside(sheet, (chosen, BOTTOM - 24), &format!("{} rows chosen", grouped(n_rows as u64)))?;
        let mut named = Vec::new();
        for (series, (name, (share, points))) in drawn.into_iter().enumerate() {
            let series = (series < n_domains.min(N_DOMAINS)).then_some(series);
            line(sheet, points.into_iter().map(at).collect(), series, 4)?;
            sheet.draw(&Circle::new(at((n_rows, share)), 7, colour(series).filled()))?;
            let percent = format!(" {:.2} %", 100.0 * share);
            let name = fitted(&name, WIDTH - RIGHT - 70 - text_width(&percent));
            named.push((at((n_rows, share)).1, name + &percent, series));
        }
        keys(sheet, "at the chosen rows", &named)
    })
}

/// Bytes of a draft step before and after as two stacked bars, and what the colours are.
fn ledger(ledger: &Ledger) -> Result<String> {
    const BARS: i32 = 354;
    let ratio = ledger.before_bytes as f64 / ledger.after_bytes.max(1) as f64;
    let title = format!("Bytes that one draft step reads: {ratio:.1} times fewer");
    picture(&title, BARS + 70 + LINE * ledger.items.len() as i32, |sheet| {
        let (top, table) = sheet.split_vertically(BARS);
        let most = ledger.before_bytes.max(ledger.after_bytes).max(1) as f64;
        let axis: Axis<'_> = ("read by a draft step", &|bytes| human_bytes(*bytes as u64));
        let chart = plot(&top, ([80, 254], [LEFT, 1_320]), (0.0..most, axis), (2.0..0.0, None))?;
        for (row, name, sum) in [(0.0, "before", ledger.before_bytes), (1.0, "after", ledger.after_bytes)] {
            let at = |bytes: f64, y: f64| chart.backend_coord(&(bytes, row + y));
            let mut from = 0.0;
            for (part, item) in ledger.items.iter().enumerate() {
                let to = from + if row == 0.0 { item.before_bytes } else { item.after_bytes } as f64;
                block(sheet, [at(from, 0.15), at(to, 0.85)], colour(Some(part)))?;
                from = to;
            }
            write(sheet, (LEFT - 14, at(0.0, 0.5).1), HPos::Right, SOFT, name)?;
            write(sheet, (at(sum as f64, 0.5).0 + 14, at(0.0, 0.5).1), HPos::Left, INK, &human_bytes(sum))?;
        }
        parts(&table, ledger)
    })
}

/// The parts of the bars in words and numbers.
fn parts(sheet: &Sheet<'_>, ledger: &Ledger) -> Result<()> {
    const COLUMNS: [i32; 4] = [72, 620, 800, 840];
    write(sheet, (COLUMNS[1], 10), HPos::Right, SOFT, "before")?;
    write(sheet, (COLUMNS[2], 10), HPos::Right, SOFT, "after")?;
    for (part, item) in ledger.items.iter().enumerate() {
        let y = 10 + LINE * (part as i32 + 1);
        block(sheet, [(32, y - 12), (56, y + 12)], colour(Some(part)))?;
        write(sheet, (COLUMNS[0], y), HPos::Left, INK, &fitted(&item.name, COLUMNS[1] - COLUMNS[0] - 130))?;
        write(sheet, (COLUMNS[1], y), HPos::Right, INK, &human_bytes(item.before_bytes))?;
        write(sheet, (COLUMNS[2], y), HPos::Right, INK, &human_bytes(item.after_bytes))?;
        write(sheet, (COLUMNS[3], y), HPos::Left, SOFT, &fitted(&item.note, WIDTH - COLUMNS[3] - 20))?;
    }
    Ok(())
}

/// At most this many lines of k: more cannot be told apart.
const N_LINES: usize = 7;

/// Tokens a second over rows, a line a k, the best point and the built rows marked.
fn plan((plan, built): (&Plan, Point)) -> Result<String> {
    let best = &plan.best;
    let rows_text = grouped(best.design.n_rows as u64);
    let title = format!("Plan: {:.1} tok/s with {rows_text} rows and k = {}", best.tokens_per_second, best.n_drafted);
    let points = || plan.surface.iter().flat_map(|line| line.points.iter());
    let rows = extent(points().map(|point| point.0).chain([best.design.n_rows, built.design.n_rows]));
    let fastest = points().map(|point| point.1).fold(plan.native.tokens_per_second, f64::max);
    picture(&title, HEIGHT, |sheet| {
        let chart = over_rows(sheet, rows, 0.0..fastest * 1.05, ("tokens/s", &f64::to_string))?;
        let at = |(n_rows, speed): (usize, f64)| chart.backend_coord(&(n_rows.max(1) as f64, speed));
        let (x, y) = at((built.design.n_rows, built.tokens_per_second));
        line(sheet, vec![(x, y), (x, BOTTOM)], None, 3)?;
        let rows = grouped(built.design.n_rows as u64);
        beside(sheet, (x, BOTTOM - 24 - LINE), &format!("this sidecar: {rows} rows"))?;
        beside(sheet, (x, BOTTOM - 24), &format!("{:.1} tok/s at k = {}", built.tokens_per_second, built.n_drafted))?;
        let native = at((1, plan.native.tokens_per_second)).1;
        line(sheet, vec![(LEFT, native), (RIGHT, native)], None, 3)?;
        let mut named = vec![(native, format!("native MTP: {:.1}", plan.native.tokens_per_second), None)];
        for (series, drawn) in shown(plan).into_iter().enumerate() {
            let is_best = drawn.n_drafted == best.n_drafted;
            let series = Some(series);
            line(sheet, drawn.points.iter().copied().map(at).collect(), series, if is_best { 7 } else { 4 })?;
            let speed = drawn.points.last().map_or(0.0, |point| point.1);
            named.push((at((1, speed)).1, format!("k = {}: {speed:.1}", drawn.n_drafted), series));
            if is_best {
                let (x, y) = at((best.design.n_rows, best.tokens_per_second));
                sheet.draw(&Circle::new((x, y), 12, colour(series).filled()))?;
                write(sheet, (x, y - 32), HPos::Center, INK, &format!("{:.1}", best.tokens_per_second))?;
            }
        }
        keys(sheet, "tok/s, all rows", &named)
    })
}

/// The lines that are drawn: evenly over k, the best among them.
fn shown(plan: &Plan) -> Vec<&crate::plan::Line> {
    let step = plan.surface.len().div_ceil(N_LINES).max(1);
    let best = plan.surface.iter().position(|line| line.n_drafted == plan.best.n_drafted).unwrap_or(0);
    plan.surface.iter().enumerate().filter(|(i, _)| i % step == best % step).map(|(_, line)| line).collect()
}

/// Tensors that an error picture has room for.
const N_TENSORS: usize = 32;

/// Relative error of each quantized tensor as bars, the largest first where there are too many.
fn errors(errors: &[(String, f64)]) -> Result<String> {
    let mut drawn: Vec<&(String, f64)> = errors.iter().collect();
    let mut title = "Quantization error of each tensor".to_owned();
    if drawn.len() > N_TENSORS {
        drawn.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        drawn.truncate(N_TENSORS);
        title = format!("Quantization error: the {N_TENSORS} largest of {} tensors", errors.len());
    }
    let names: Vec<String> = drawn.iter().map(|(name, _)| fitted(name, WIDTH / 2)).collect();
    let widest = names.iter().map(|name| text_width(name)).fold(0, i32::max);
    let most = drawn.iter().map(|(_, error)| *error).fold(0.0, f64::max).max(1e-6);
    picture(&title, 180 + 44 * drawn.len() as i32, |sheet| {
        let (left, bottom) = (widest + 60, 80 + 44 * drawn.len() as i32);
        let name = "relative error: |decoded - source| / |source|, Euclidean norms";
        let axis: Axis<'_> = (name, &|error| format!("{:.1} %", 100.0 * error));
        let y = (drawn.len() as f64..0.0, None);
        let chart = plot(sheet, ([80, bottom], [left, WIDTH - 170]), (held(0.0..most)?, axis), y)?;
        for (row, ((_, error), name)) in drawn.iter().zip(&names).enumerate() {
            let at = |error: f64, y: f64| chart.backend_coord(&(error, row as f64 + y));
            block(sheet, [at(0.0, 0.15), at(*error, 0.85)], colour(Some(0)))?;
            let (x, y) = at(*error, 0.5);
            write(sheet, (left - 14, y), HPos::Right, SOFT, name)?;
            write(sheet, (x + 12, y), HPos::Left, INK, &format!("{:.2} %", 100.0 * error))?;
        }
        Ok(())
    })
}
