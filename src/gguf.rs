//! The GGUF container, version 3: key-value pairs, names and shapes of tensors, and their data, all little-endian.
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

/// The first bytes of a file.
pub const MAGIC: &[u8; 4] = b"GGUF";

/// Data begin at multiples of this, unless the file says otherwise.
pub const ALIGNMENT: usize = 32;

const VERSION: u32 = 3;

/// The key that says otherwise.
const ALIGNMENT_KEY: &str = "general.alignment";

/// Types of values (`gguf_type`).
const VALUE_U32: u32 = 4;
const VALUE_STRING: u32 = 8;
const VALUE_ARRAY: u32 = 9;

/// Arrays of arrays may go on so deep.
const MAX_DEPTH: usize = 4;

/// Types of numbers (`ggml_type`).
pub const F32: u32 = 0;
/// 32-bit integers.
pub const I32: u32 = 26;
/// 64-bit integers.
pub const I64: u32 = 27;

/// What the header says of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Innermost first.
    pub dimensions: Vec<u64>,
    /// The type of its numbers.
    pub ggml_type: u32,
}

/// Everything before the data, which follow in the order of the tensors, each filled up to [`ALIGNMENT`]; `n_bytes` says
/// how long each is.
pub fn header(
    texts: &[(&str, &str)],
    numbers: &[(&str, u32)],
    tensors: &[TensorInfo],
    n_bytes: impl Fn(usize) -> usize,
) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend(((texts.len() + numbers.len() + 1) as u64).to_le_bytes());
    for (key, text) in texts {
        push_text(&mut out, key);
        out.extend(VALUE_STRING.to_le_bytes());
        push_text(&mut out, text);
    }
    for (key, number) in numbers.iter().chain(&[(ALIGNMENT_KEY, ALIGNMENT as u32)]) {
        push_text(&mut out, key);
        out.extend(VALUE_U32.to_le_bytes());
        out.extend(number.to_le_bytes());
    }
    let mut offset = 0;
    for (i, tensor) in tensors.iter().enumerate() {
        push_text(&mut out, &tensor.name);
        out.extend((tensor.dimensions.len() as u32).to_le_bytes());
        tensor.dimensions.iter().for_each(|n| out.extend(n.to_le_bytes()));
        out.extend(tensor.ggml_type.to_le_bytes());
        out.extend((offset as u64).to_le_bytes());
        offset += n_bytes(i).next_multiple_of(ALIGNMENT);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    out
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A file taken apart: its texts, its unsigned numbers of 32 bits, and where its tensors are. Other values are passed over.
#[derive(Debug)]
pub struct Gguf<'a> {
    texts: BTreeMap<&'a str, &'a str>,
    numbers: BTreeMap<&'a str, u32>,
    /// Each with its offset.
    tensors: Vec<(TensorInfo, u64)>,
    data: &'a [u8],
}

impl<'a> Gguf<'a> {
    /// # Errors
    /// Not a GGUF file of version 2 or 3 in little-endian order, or one cut short.
    pub fn decode(file: &'a [u8]) -> Result<Self> {
        let mut rest = Rest(file.strip_prefix(MAGIC).context("not a GGUF file (its magic is missing)")?);
        let version = rest.u32()?;
        ensure!(matches!(version, 2 | 3), "GGUF version {version}, expected 2 or 3 (little-endian)");
        let (n_tensors, n_values) = (rest.u64()?, rest.u64()?);
        let (mut texts, mut numbers) = (BTreeMap::new(), BTreeMap::new());
        for _ in 0..n_values {
            let key = rest.text()?;
            match rest.u32()? {
                VALUE_STRING => drop(texts.insert(key, rest.text()?)),
                VALUE_U32 => drop(numbers.insert(key, rest.u32()?)),
                other => rest.skip_value(other, MAX_DEPTH).with_context(|| format!("the value of `{key}`"))?,
            }
        }
        let mut tensors = Vec::new();
        for _ in 0..n_tensors {
            let name = rest.text()?.to_owned();
            let n_dimensions = rest.u32()?;
            ensure!(n_dimensions <= 4, "tensor `{name}` has {n_dimensions} dimensions, expected at most 4");
            let dimensions = (0..n_dimensions).map(|_| rest.u64()).collect::<Result<_>>()?;
            let ggml_type = rest.u32()?;
            tensors.push((TensorInfo { name, dimensions, ggml_type }, rest.u64()?));
        }
        let alignment = numbers.get(ALIGNMENT_KEY).map_or(ALIGNMENT, |alignment| *alignment as usize);
        ensure!(alignment.is_power_of_two(), "`{ALIGNMENT_KEY}` is {alignment}, expected a power of two");
        let start = (file.len() - rest.0.len()).next_multiple_of(alignment);
        let data = file.get(start..).unwrap_or_default();
        Ok(Self { texts, numbers, tensors, data })
    }

    /// A text by its key.
    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.texts.get(key).copied()
    }

    /// A number by its key.
    pub fn number(&self, key: &str) -> Option<u32> {
        self.numbers.get(key).copied()
    }

    /// A list of integers, with their size in bytes; `None` if there is no such tensor.
    ///
    /// # Errors
    /// Another type or shape, or data beyond the end of the file.
    pub fn integers(&self, name: &str) -> Result<Option<(&'a [u8], usize)>> {
        let Some((tensor, offset)) = self.tensors.iter().find(|(tensor, _)| tensor.name == name) else {
            return Ok(None);
        };
        let n_number_bytes = match tensor.ggml_type {
            I32 => 4,
            I64 => 8,
            other => bail!("tensor `{name}` has ggml type {other}, expected I64 ({I64})"),
        };
        let [n] = *tensor.dimensions else {
            bail!("tensor `{name}` has dimensions {:?}, expected one", tensor.dimensions);
        };
        let data = || {
            let start = usize::try_from(*offset).ok()?;
            self.data.get(start..start.checked_add(usize::try_from(n).ok()?.checked_mul(n_number_bytes)?)?)
        };
        let data = data().with_context(|| format!("the file ends before the {n} numbers of tensor `{name}`"))?;
        Ok(Some((data, n_number_bytes)))
    }
}

/// What is still to be read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, n: u64) -> Result<&'a [u8]> {
        let split = usize::try_from(n).ok().and_then(|n| self.0.split_at_checked(n));
        let (taken, rest) = split.context("the file ends within its header")?;
        self.0 = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into()?))
    }

    fn text(&mut self) -> Result<&'a str> {
        let n_bytes = self.u64()?;
        std::str::from_utf8(self.take(n_bytes)?).context("a text of its header is not UTF-8")
    }

    fn skip_value(&mut self, value_type: u32, depth: usize) -> Result<()> {
        let n_bytes = |of: u32| match of {
            0 | 1 | 7 => Ok(1),
            2 | 3 => Ok(2),
            4..=6 => Ok(4),
            10..=12 => Ok(8),
            other => bail!("has the unknown type {other}"),
        };
        match value_type {
            VALUE_STRING => drop(self.text()?),
            VALUE_ARRAY => {
                let (of, n) = (self.u32()?, self.u64()?);
                if matches!(of, VALUE_STRING | VALUE_ARRAY) {
                    ensure!(depth > 0, "is an array of arrays that go too deep");
                    (0..n).try_for_each(|_| self.skip_value(of, depth - 1))?;
                } else {
                    let n_bytes = n.checked_mul(n_bytes(of)?).context("is too long")?;
                    self.take(n_bytes)?;
                }
            }
            single => drop(self.take(n_bytes(single)?)?),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(name: &str, n: u64, ggml_type: u32) -> TensorInfo {
        TensorInfo { name: name.to_owned(), dimensions: vec![n], ggml_type }
    }

    /// A file with a number list and, before the pairs that we write, one pair of each type that is passed over.
    fn file() -> Vec<u8> {
        let ours = header(&[("a", "text")], &[("b", 7)], &[list("c", 2, I32), list("d", 2, I64)], |i| [8, 16][i]);
        let mut foreign = Vec::new();
        let mut pair = |value_type: u32, value: &[u8]| {
            push_text(&mut foreign, "foreign");
            foreign.extend(value_type.to_le_bytes());
            foreign.extend(value);
        };
        for (value_type, n_bytes) in [(0, 1), (1, 1), (2, 2), (3, 2), (5, 4), (6, 4), (7, 1), (10, 8), (11, 8), (12, 8)]
        {
            pair(value_type, &[9; 8][..n_bytes]);
        }
        let array = |of: u32, n: u64, items: &[u8]| [&of.to_le_bytes()[..], &n.to_le_bytes(), items].concat();
        let text = [&1_u64.to_le_bytes()[..], b"x"].concat();
        pair(VALUE_ARRAY, &array(2, 3, &[0; 6]));
        pair(VALUE_ARRAY, &array(VALUE_STRING, 2, &text.repeat(2)));
        pair(VALUE_ARRAY, &array(VALUE_ARRAY, 1, &array(0, 2, &[0; 2])));
        let mut file = [&ours[..16], &16_u64.to_le_bytes(), &foreign, &ours[24..]].concat();
        let n_unpadded = ours.iter().rposition(|byte| *byte != 0).unwrap();
        file.truncate(24 + foreign.len() + n_unpadded - 24 + 8);
        file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
        file.extend([1, 0, 0, 0, 2, 0, 0, 0].into_iter().chain([0; 24]));
        file.extend([3_u64, 4].iter().flat_map(|number| number.to_le_bytes()));
        file
    }

    #[test]
    fn what_is_written_is_read_and_foreign_values_are_passed_over() {
        let file = file();
        let gguf = Gguf::decode(&file).unwrap();
        assert_eq!((gguf.text("a"), gguf.number("b"), gguf.number("a")), (Some("text"), Some(7), None));
        assert_eq!(gguf.integers("c").unwrap(), Some((&[1, 0, 0, 0, 2, 0, 0, 0][..], 4)));
        assert_eq!(gguf.integers("d").unwrap().unwrap().0[8], 4);
        assert_eq!(gguf.integers("e").unwrap(), None);
    }

    #[test]
    fn broken_files_are_refused() {
        let file = file();
        for n in 0..file.len() {
            let read = Gguf::decode(&file[..n]).and_then(|gguf| gguf.integers("d").map(|_| ()));
            assert!(read.is_err(), "cut at {n}");
        }
        let said = |file: &[u8]| format!("{:#}", Gguf::decode(file).unwrap_err());
        assert!(said(b"GGUF\x00\x00\x00\x03").contains("version 50331648"));
        let deep = |n: usize| [9_u32.to_le_bytes().as_slice(), &1_u64.to_le_bytes()].concat().repeat(n);
        let nested =
            [&b"GGUF\x03\x00\x00\x00"[..], &[0; 8], &1_u64.to_le_bytes(), &[0; 8], &9_u32.to_le_bytes(), &deep(9)];
        assert!(said(&nested.concat()).contains("too deep"));
    }
}
