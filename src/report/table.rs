//! Aligned plain-text tables and numbers for people.

/// How a column is aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Lines of a table, columns two spaces apart, nothing after the last visible character.
pub fn table(align: &[Align], rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..align.len()).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(align).zip(&widths).map(|((cell, align), &width)| match align {
            Align::Left => format!("{cell:<width$}"),
            Align::Right => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// `3,392,143,360`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `3.39 GB`: decimal units, as bandwidths are given, and three figures.
pub fn human_bytes(n_bytes: u64) -> String {
    let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    let found = units.into_iter().find(|(_, size)| n_bytes as f64 >= *size);
    let Some((unit, size)) = found else { return format!("{n_bytes} B") };
    let value = n_bytes as f64 / size;
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a", "1", ""], ["bcd", "100", "x"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&[Align::Left, Align::Right, Align::Left], &rows), ["a      1", "bcd  100  x"]);
    }

    #[test]
    fn numbers_are_grouped_by_three() {
        assert_eq!([0, 999, 1000, 3_392_143_360].map(grouped), ["0", "999", "1,000", "3,392,143,360"]);
    }

    #[test]
    fn bytes_have_three_figures() {
        let shown = [0, 999, 1_500, 99_960_000, 3_392_143_360].map(human_bytes);
        assert_eq!(shown, ["0 B", "999 B", "1.50 kB", "100 MB", "3.39 GB"]);
    }
}
