//! A small SVG writer: text, lines, boxes and a plot's axes.
//!
//! Our own, because what a picture needs here is little and the plotting crates miss it: every colour is a CSS variable
//! with a light and a dark value, which `plotters` and `charming` cannot say, and `poloto` draws no stacked bars. No
//! script, generic fonts, coordinates in tenths of a pixel: the same figures give the same bytes.

use std::{fmt::Write as _, ops::Range};

/// Colours of series that a reader can tell apart, also with the common colour blindnesses (after Okabe and Ito).
pub const N_COLOURS: usize = 8;

const STYLE: &str = "<style>\
    svg{--ground:#fff;--ink:#1c2024;--soft:#5c646c;--grid:#d9dde1;--c0:#0072b2;--c1:#d55e00;--c2:#008560;--c3:#a8478a;\
    --c4:#b07d00;--c5:#6650b8;--c6:#7a7a7a;--c7:#8c564b}\
    @media(prefers-color-scheme:dark){svg{--ground:#14181c;--ink:#e8ebee;--soft:#a4acb4;--grid:#343a41;--c0:#56b4e9;\
    --c1:#ff8c42;--c2:#2fc79a;--c3:#e08ac4;--c4:#e6b93c;--c5:#ab9df2;--c6:#b0b0b0;--c7:#c99a8c}}\
    text{font-family:system-ui,sans-serif;font-size:12px;fill:var(--ink)}\
    .title{font-size:15px;font-weight:600}.soft{fill:var(--soft)}.strong{font-weight:600}\
    .ground{fill:var(--ground)}.grid{stroke:var(--grid);stroke-width:1}.axis{stroke:var(--soft);stroke-width:1}\
    .mark{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:5 4;fill:none}.line{fill:none;stroke-width:2}\
    .thick{stroke-width:3.5}.dashed{stroke-dasharray:7 4}</style>";

/// Where a text is anchored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// It begins at x.
    Start,
    /// Its middle is at x.
    Middle,
    /// It ends at x.
    End,
}

/// A picture under construction.
#[derive(Debug, Clone)]
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    /// An empty picture with a title, which screen readers read as well.
    pub fn new(width: f64, height: f64, title: &str) -> Self {
        let mut svg = Self { width, height, body: format!("<title>{}</title>", escape(title)) };
        svg.text((16.0, 26.0), Anchor::Start, "title", title);
        svg
    }

    /// A text; `class` is of the style sheet, empty for plain ink.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        let _ = write!(
            self.body,
            "\n<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>"
        );
    }

    /// A straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = write!(
            self.body,
            "\n<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>"
        );
    }

    /// A filled box in the colour of a series.
    pub fn block(&mut self, (x, y): (f64, f64), width: f64, height: f64, colour: usize) {
        let colour = colour % N_COLOURS;
        let _ = write!(
            self.body,
            "\n<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" style=\"fill:var(--c{colour})\"/>"
        );
    }

    /// A line through points in the colour of a series.
    pub fn path(&mut self, points: &[(f64, f64)], colour: usize, class: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let (points, colour) = (points.join(" "), colour % N_COLOURS);
        let _ = write!(
            self.body,
            "\n<polyline points=\"{points}\" class=\"line {class}\" style=\"stroke:var(--c{colour})\"/>"
        );
    }

    /// A dot in the colour of a series.
    pub fn dot(&mut self, (x, y): (f64, f64), radius: f64, colour: usize) {
        let colour = colour % N_COLOURS;
        let _ = write!(
            self.body,
            "\n<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\" style=\"fill:var(--c{colour})\"/>"
        );
    }

    /// The file.
    pub fn finish(self) -> String {
        let (width, height) = (self.width, self.height);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\">{STYLE}\n<rect class=\"ground\" width=\"{width}\" height=\"{height}\"/>{}\n</svg>\n",
            self.body
        )
    }
}

/// Maps values of an axis to pixels.
#[derive(Debug, Clone)]
pub struct Axis {
    values: Range<f64>,
    pixels: Range<f64>,
    is_log: bool,
}

impl Axis {
    /// Equal steps for equal differences.
    pub fn linear(values: Range<f64>, pixels: Range<f64>) -> Self {
        Self { values, pixels, is_log: false }
    }

    /// Equal steps for equal ratios; both ends above 0.
    pub fn log(values: Range<f64>, pixels: Range<f64>) -> Self {
        Self { values, pixels, is_log: true }
    }

    /// The pixel of a value.
    pub fn at(&self, value: f64) -> f64 {
        let place = |value: f64| if self.is_log { value.ln() } else { value };
        let (low, high) = (place(self.values.start), place(self.values.end));
        let share = if high > low { (place(value) - low) / (high - low) } else { 0.5 };
        self.pixels.start + share * (self.pixels.end - self.pixels.start)
    }

    /// About `n` round values within the axis.
    pub fn ticks(&self, n: usize) -> Vec<f64> {
        let Range { start, end } = self.values;
        let step = round_step((end - start) / n.max(1) as f64);
        let first = (start / step - 1e-9).ceil() as i64;
        (first..).map(|i| i as f64 * step).take_while(|tick| *tick <= end + step * 1e-9).collect()
    }
}

/// The next of 1, 2, 5 times a power of ten.
pub fn round_step(least: f64) -> f64 {
    if !least.is_finite() || least <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powi(least.log10().floor() as i32);
    [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= least * (1.0 - 1e-9))
        .unwrap_or(power)
}

/// Moves labels apart to at least `gap`, each as near to its place as the others allow, within `bounds`.
pub fn spread(places: &[f64], gap: f64, bounds: Range<f64>) -> Vec<f64> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|&a, &b| places[a].total_cmp(&places[b]).then(a.cmp(&b)));
    let mut spread = places.to_vec();
    let mut least = bounds.start;
    for &i in &order {
        spread[i] = spread[i].max(least);
        least = spread[i] + gap;
    }
    let mut most = bounds.end;
    for &i in order.iter().rev() {
        spread[i] = spread[i].min(most);
        most = spread[i] - gap;
    }
    spread
}

/// Pixels that a text of the plain size takes, roughly and rather too many.
pub fn text_width(text: &str) -> f64 {
    text.chars().map(|c| if c.is_ascii() { 7.0 } else { 13.0 }).sum()
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML 1.0 has no way to write the others.
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(Axis::linear(0.0..48.4, 0.0..100.0).ticks(5), [0.0, 10.0, 20.0, 30.0, 40.0]);
        assert_eq!(Axis::linear(0.7..1.0, 0.0..100.0).ticks(3).len(), 4);
        assert_eq!([0.3, 2.0, 21.0, 0.0].map(round_step), [0.5, 2.0, 50.0, 1.0]);
    }

    #[test]
    fn axes_map_their_ends_to_their_ends() {
        let axis = Axis::log(4.0..64.0, 10.0..90.0);
        assert_eq!([4.0, 16.0, 64.0].map(|value| axis.at(value).round()), [10.0, 50.0, 90.0]);
        assert_eq!(Axis::linear(3.0..3.0, 0.0..10.0).at(3.0), 5.0);
    }

    #[test]
    fn labels_keep_their_distance_and_their_order() {
        let spread = spread(&[50.0, 51.0, 49.0, 95.0, 96.0], 10.0, 0.0..100.0);
        let mut sorted = spread.clone();
        sorted.sort_by(f64::total_cmp);
        assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= 10.0 - 1e-9), "{spread:?}");
        assert!(spread[2] < spread[0] && spread[0] < spread[1] && sorted[4] <= 100.0);
    }

    #[test]
    fn text_is_escaped() {
        let mut svg = Svg::new(10.0, 10.0, "a < b & \"c\"");
        svg.text((0.0, 0.0), Anchor::Start, "", "\u{0}<script>");
        let file = svg.finish();
        assert!(!file.contains("<script") && !file.contains('\u{0}') && file.contains("a &lt; b &amp; &quot;c&quot;"));
    }
}
