//! Numbers as people read them.

/// `1234567` as `1,234,567`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A size in bytes, decimal units, three digits: `423 MB`.
pub fn bytes(n: u64) -> String {
    let (mut value, mut unit) = (n as f64, "B");
    for next in ["kB", "MB", "GB", "TB"] {
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1000.0, next);
    }
    let digits = if unit == "B" || value >= 99.95 { 0 } else { 1 + usize::from(value < 9.995) };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_rounded_to_three_digits() {
        assert_eq!([0, 999, 1000, 3_392_143_360].map(grouped), ["0", "999", "1,000", "3,392,143,360"]);
        assert_eq!(
            [12, 1_000, 9_994, 99_940, 423_383_040, 3_392_143_360, 999_600].map(bytes),
            ["12 B", "1.00 kB", "9.99 kB", "99.9 kB", "423 MB", "3.39 GB", "1.00 MB"]
        );
    }
}
