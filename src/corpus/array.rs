//! A file that is one JSON array of records, as data sets are often published: made into a record a line as it is read.

/// Where in the file the reader is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Array {
    /// Before its first value.
    #[default]
    Before,
    /// Inside the array.
    Inside {
        /// Open brackets and braces below the array's own.
        depth: u32,
        /// Whether a string is open.
        in_string: bool,
        /// Whether the next character of it is escaped.
        is_escaped: bool,
    },
    /// Behind the array, or in a file that is none: lines stay as they are.
    Lines,
}

impl Array {
    /// Turns the array's own brackets and commas into ends of lines, and ends of lines inside a record into blanks; no
    /// byte moves. Pieces of a file are given one after the other.
    pub fn split(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            match self {
                Self::Lines => return,
                Self::Before => self.begin(byte),
                Self::Inside { in_string: true, is_escaped: is_escaped @ true, .. } => *is_escaped = false,
                Self::Inside { in_string: in_string @ true, is_escaped, .. } => match *byte {
                    b'\\' => *is_escaped = true,
                    b'"' => *in_string = false,
                    _ => {}
                },
                Self::Inside { depth, in_string, .. } => match *byte {
                    b'"' => *in_string = true,
                    b'{' | b'[' => *depth += 1,
                    b',' if *depth == 0 => *byte = b'\n',
                    b'\n' | b'\r' => *byte = b' ',
                    b']' | b'}' if *depth == 0 => {
                        *byte = b'\n';
                        *self = Self::Lines;
                    }
                    b']' | b'}' => *depth -= 1,
                    _ => {}
                },
            }
        }
    }

    fn begin(&mut self, byte: &mut u8) {
        match *byte {
            b' ' | b'\t' | b'\n' | b'\r' | 0xef | 0xbb | 0xbf => {} // blanks, or a byte order mark
            b'[' => {
                *byte = b' ';
                *self = Self::Inside { depth: 0, in_string: false, is_escaped: false };
            }
            _ => *self = Self::Lines,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str, piece_bytes: usize) -> Vec<String> {
        let mut bytes = text.as_bytes().to_vec();
        let mut array = Array::default();
        bytes.chunks_mut(piece_bytes).for_each(|piece| array.split(piece));
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
    }

    #[test]
    fn records_of_an_array_become_lines_wherever_it_is_cut() {
        let text = "\u{feff} [\n  {\"text\": \"a],\\\"{\",\n   \"n\": [1, {\"m\": []}]}\n,{\"text\": \"\\\\\"}, 3]\n{\"text\": \"b\"}\n";
        let expected =
            ["{\"text\": \"a],\\\"{\",    \"n\": [1, {\"m\": []}]}", "{\"text\": \"\\\\\"}", "3", "{\"text\": \"b\"}"];
        for piece_bytes in 1..text.len() {
            assert_eq!(split(&text.replace('\u{feff}', ""), piece_bytes), expected);
            assert!(split(text, piece_bytes)[1..] == expected[1..]);
        }
    }

    #[test]
    fn lines_stay_lines() {
        for text in ["{\"a\": [1,\n2]}\n[1]\n", "", "x"] {
            let mut bytes = text.as_bytes().to_vec();
            Array::default().split(&mut bytes);
            assert_eq!(bytes, text.as_bytes());
        }
    }
}
