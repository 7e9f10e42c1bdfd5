//! What every picture of a report shares: the size, the palette, and the file around what `plotters` draws.
//!
//! `plotters` writes a colour as an attribute. A style sheet with attribute selectors has the last word over those, so
//! each light colour is named once with the dark one that stands in for it. Coordinates are half pixels, as `plotters`
//! rounds to whole ones: a picture is shown at half its size, and its lines are smooth. No script, generic fonts, nothing
//! looked up on the machine: the same figures give the same bytes.

use anyhow::Result;
use plotters::{
    coord::Shift,
    element::DashedPathElement,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::page::escape;

/// What a picture is drawn on; coordinates are half pixels.
pub type Sheet<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Width of every picture.
pub const WIDTH: i32 = 1_520;
/// From one line of text to the next, where lines stand close.
pub const LINE: i32 = 34;

/// Behind everything.
const GROUND: RGBColor = RGBColor(0xff, 0xff, 0xfe);
/// What is read first.
pub const INK: RGBColor = RGBColor(0x1c, 0x20, 0x24);
/// Axes and what explains.
pub const SOFT: RGBColor = RGBColor(0x5c, 0x64, 0x6c);
/// Lines of a grid.
pub const GRID: RGBColor = RGBColor(0xd9, 0xdd, 0xe1);
/// Each colour, and what stands in for it where the reader prefers dark. From the fifth on, the colours of series, which
/// a reader can tell apart, also with the common colour blindnesses (after Okabe and Ito).
const PALETTE: [(RGBColor, &str); 12] = [
    (GROUND, "#14181c"),
    (INK, "#e8ebee"),
    (SOFT, "#a4acb4"),
    (GRID, "#343a41"),
    (RGBColor(0x00, 0x72, 0xb2), "#56b4e9"),
    (RGBColor(0xd5, 0x5e, 0x00), "#ff8c42"),
    (RGBColor(0x00, 0x85, 0x60), "#2fc79a"),
    (RGBColor(0xa8, 0x47, 0x8a), "#e08ac4"),
    (RGBColor(0xb0, 0x7d, 0x00), "#e6b93c"),
    (RGBColor(0x66, 0x50, 0xb8), "#ab9df2"),
    (RGBColor(0x8c, 0x56, 0x4b), "#c99a8c"),
    (RGBColor(0x7a, 0x7a, 0x7a), "#b0b0b0"),
];

/// What a line stands for: a series by its number, or no series but a mark.
pub type Series = Option<usize>;
/// Series until their colours repeat.
const N_SERIES: usize = PALETTE.len() - 4;

/// The colour of a series; a mark has the colour of text.
pub fn colour(series: Series) -> RGBColor {
    series.map_or(INK, |series| PALETTE[4 + series % N_SERIES].0)
}

/// A picture of `height` under its title, which screen readers read as well.
pub fn picture(title: &str, height: i32, draw: impl FnOnce(&Sheet<'_>) -> Result<()>) -> Result<String> {
    let mut drawn = String::new();
    {
        let sheet = SVGBackend::with_string(&mut drawn, (WIDTH as u32, height as u32)).into_drawing_area();
        sheet.fill(&GROUND)?;
        let style = TextStyle::from(("sans-serif", 37.2, FontStyle::Bold)).color(&INK);
        sheet.draw(&Text::new(title, (32, 44), style.pos(Pos::new(HPos::Left, VPos::Center))))?;
        draw(&sheet)?;
        sheet.present()?;
    }
    let (_, shapes) = drawn.split_once('\n').unwrap_or_default();
    let dark = |&(RGBColor(red, green, blue), dark): &(RGBColor, &str)| {
        let light = format!("#{red:02X}{green:02X}{blue:02X}");
        format!("[fill=\"{light}\"]{{fill:{dark}}}[stroke=\"{light}\"]{{stroke:{dark}}}")
    };
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{}\" height=\"{}\" role=\"img\">\
         <title>{}</title><style>@media(prefers-color-scheme:dark){{{}}}</style>\n{shapes}",
        WIDTH / 2,
        height / 2,
        escape(title),
        PALETTE.iter().map(dark).collect::<String>(),
    ))
}

/// The plain text of pictures.
pub fn plain(colour: &RGBColor) -> TextStyle<'_> {
    TextStyle::from(("sans-serif", 29.76)).color(colour)
}

/// A text whose middle line is at y.
pub fn write(sheet: &Sheet<'_>, at: (i32, i32), anchor: HPos, colour: RGBColor, text: &str) -> Result<()> {
    Ok(sheet.draw(&Text::new(text, at, plain(&colour).pos(Pos::new(anchor, VPos::Center))))?)
}

/// A filled box between two corners.
pub fn block(sheet: &Sheet<'_>, corners: [(i32, i32); 2], colour: RGBColor) -> Result<()> {
    Ok(sheet.draw(&Rectangle::new(corners, colour.filled()))?)
}

/// A line through points, with gaps for marks and where colours repeat.
pub fn line(sheet: &Sheet<'_>, points: Vec<(i32, i32)>, series: Series, width: u32) -> Result<()> {
    let style = ShapeStyle::from(&colour(series)).stroke_width(width);
    if series.is_some_and(|series| series < N_SERIES) {
        sheet.draw(&PathElement::new(points, style))?;
    } else {
        sheet.draw(&DashedPathElement::new(points, 12, 8, style))?;
    }
    Ok(())
}

/// Moves labels apart to at least `gap`, each as near to its place as the others allow, none past `bottom`.
pub fn spread(places: &[i32], gap: i32, bottom: i32) -> Vec<i32> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|&i| (places[i], i));
    let mut spread = places.to_vec();
    for pair in order.windows(2) {
        spread[pair[1]] = spread[pair[1]].max(spread[pair[0]] + gap);
    }
    let mut most = bottom;
    for &i in order.iter().rev() {
        spread[i] = spread[i].min(most);
        most = spread[i] - gap;
    }
    spread
}

/// A name as it fits into `width`, its end kept; what XML cannot write and what turns a line around is replaced.
pub fn fitted(name: &str, width: i32) -> String {
    let is_bad = |c: char| {
        c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
    };
    let name: String = name.chars().map(|c| if is_bad(c) { '\u{fffd}' } else { c }).collect();
    if text_width(&name) <= width {
        return name;
    }
    let mut left = width - text_width("…");
    let fits = |&(_, c): &(usize, char)| {
        left -= char_width(c);
        left >= 0
    };
    let begin = name.char_indices().rev().take_while(fits).last().map_or(name.len(), |(at, _)| at);
    format!("…{}", &name[begin..])
}

/// Half pixels that a plain text takes, roughly and rather too many.
pub fn text_width(text: &str) -> i32 {
    text.chars().map(char_width).sum()
}

fn char_width(c: char) -> i32 {
    match c {
        'm' | 'w' | '@' | '%' => 24,
        'A'..='Z' => 20,
        'f' | 'i' | 'j' | 'l' | 'r' | 't' | ' ' | '.' | ',' | ';' | ':' | '-' => 10,
        c if c.is_ascii() => 16,
        _ => 26,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_keep_their_distance_and_their_order() {
        let spread = spread(&[50, 51, 49, 95, 96], 10, 100);
        let mut sorted = spread.clone();
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= 10), "{spread:?}");
        assert!(spread[2] < spread[0] && spread[0] < spread[1] && sorted[4] <= 100);
    }

    #[test]
    fn names_fit_their_place_and_can_be_written() {
        assert_eq!(fitted("short", 200), "short");
        assert_eq!(fitted("a\u{0}\nb", 200), "a\u{fffd}\u{fffd}b");
        for name in ["mtp.layers.0.mlp.experts.gate_up_proj.weight", "领域领域领域领域领域"] {
            let short = fitted(name, 200);
            assert!(text_width(&short) <= 200 && short.starts_with('…') && name.ends_with(&short['…'.len_utf8()..]));
        }
    }

    #[test]
    fn every_colour_has_a_dark_one_and_texts_are_escaped() {
        let drawn = picture("a < b & \"c\"", 100, |sheet| {
            write(sheet, (0, 0), HPos::Left, INK, "<script>")?;
            (0..8).try_for_each(|series| line(sheet, vec![(0, 0), (9, 9)], Some(series), 2))
        });
        let drawn = drawn.unwrap();
        assert!(!drawn.contains("<script") && drawn.contains("<title>a &lt; b &amp; &quot;c&quot;</title>"));
        let colours = drawn.split(['"']).filter(|value| value.len() == 7 && value.starts_with('#'));
        for colour in colours {
            assert!(drawn.contains(&format!("[stroke=\"{colour}\"]{{")), "{colour} stays as it is in the dark");
        }
    }
}
