//! numpy's `.npy`: a magic, a Python dict literal as header, raw elements.
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>

use anyhow::{Context, Result, bail, ensure};

use super::torch_pt::{Array, array_of};

const MAGIC: &[u8] = b"\x93NUMPY";
/// The data begin at a multiple of this.
const ALIGNMENT: usize = 64;

/// A one-dimensional array as numpy's own `save` writes it (version 1.0).
pub(super) fn encode(array: &Array) -> Vec<u8> {
    let (descr, n, data): (_, _, Vec<u8>) = match array {
        Array::Bool(values) => ("|b1", values.len(), values.iter().map(|&value| u8::from(value)).collect()),
        Array::Int(values, _) => ("<i8", values.len(), values.iter().flat_map(|value| value.to_le_bytes()).collect()),
    };
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({n},), }}");
    let n_unpadded = MAGIC.len() + 4 + header.len() + 1;
    header.extend(std::iter::repeat_n(' ', n_unpadded.next_multiple_of(ALIGNMENT) - n_unpadded));
    header.push('\n');
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&[1, 0]);
    bytes.extend_from_slice(&(header.len() as u16).to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&data);
    bytes
}

/// Reads a one-dimensional array of booleans or little-endian integers.
///
/// # Errors
/// Not an `.npy` file, a truncated one, another dtype (object arrays are pickles and are refused) or another shape.
pub(super) fn decode(bytes: &[u8]) -> Result<Array> {
    let rest = bytes.strip_prefix(MAGIC).context("not an .npy file (its magic is missing)")?;
    let (n_header_bytes, rest) = match rest {
        [1, _, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
        [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        _ => bail!("an .npy version other than 1, 2 and 3"),
    };
    let (header, data) = rest.split_at_checked(n_header_bytes).context("the .npy header is longer than the file")?;
    let header = std::str::from_utf8(header).context("the .npy header is not text")?;
    let dtype = match field(header, "descr")?.trim_matches(['\'', '"']) {
        "|b1" => "bool",
        "|u1" => "uint8",
        "<i4" => "int32",
        "<i8" => "int64",
        other => bail!("dtype `{other}`, expected `|b1`, `<i4` or `<i8`"),
    };
    let shape = field(header, "shape")?;
    let n: usize = shape
        .strip_suffix(',')
        .and_then(|n| n.trim().parse().ok())
        .with_context(|| format!("shape `({shape})`, expected one dimension"))?;
    let array = array_of(dtype, data)?;
    let n_found = match &array {
        Array::Bool(values) => values.len(),
        Array::Int(values, _) => values.len(),
    };
    let n_element_bytes = if matches!(dtype, "bool" | "uint8") {
        1
    } else if dtype == "int32" {
        4
    } else {
        8
    };
    let whole = n_found == n && data.len() == n * n_element_bytes;
    ensure!(whole, "the header promises {n} elements of {dtype}, the file holds {} bytes", data.len());
    Ok(array)
}

/// The text of one field of the header's dict literal; of a tuple, what is between its parentheses.
fn field<'a>(header: &'a str, key: &str) -> Result<&'a str> {
    let missing = || format!("the .npy header has no `{key}`");
    let (_, value) = header.split_once(&format!("'{key}':")).with_context(missing)?;
    let value = value.trim_start();
    let value = match value.strip_prefix('(') {
        Some(tuple) => tuple.split_once(')').with_context(missing)?.0,
        None => value.split_once(',').with_context(missing)?.0,
    };
    Ok(value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_numpy_save() {
        // numpy 2: np.save(f, np.array([1, 2], dtype=np.int64)), header padded with blanks to 128 bytes.
        let bytes = encode(&Array::Int(vec![1, 2], "int64"));
        let head = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }";
        assert_eq!(&bytes[..head.len()], head);
        assert_eq!(bytes.len(), 128 + 16);
        assert_eq!(bytes[127], b'\n');
        assert_eq!(decode(&bytes).unwrap(), Array::Int(vec![1, 2], "int64"));
        let mask = Array::Bool(vec![true, false]);
        assert_eq!(decode(&encode(&mask)).unwrap(), mask);
    }

    #[test]
    fn truncated_or_foreign_files_are_refused() {
        let bytes = encode(&Array::Int(vec![1, 2], "int64"));
        for n in 0..bytes.len() {
            assert!(decode(&bytes[..n]).is_err(), "cut at {n}");
        }
        let swap = |from: &str, to: &str| {
            let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
            let mut changed = bytes.clone();
            changed[at..at + to.len()].copy_from_slice(to.as_bytes());
            decode(&changed).unwrap_err().to_string()
        };
        assert!(swap("<i8", ">i8").contains("`>i8`"));
        assert!(swap("<i8", "|O8").contains("`|O8`"));
        assert!(swap("(2,)", "(9,)").contains("promises 9"));
        assert!(swap("(2,)", "(22)").contains("one dimension"));
    }
}
