//! torch's `.pt` files, written and read without torch: a stored zip of a small pickle and one raw storage a tensor.
//! What is written loads with `torch.load(weights_only=True)` and is the same bytes every time: torch's own random
//! `serialization_id` and its optional records are left out.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

use super::{
    pickle::{Node, Pickle, Value},
    stored_zip,
};

/// A one-dimensional array of a vocabulary file.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Array {
    Bool(Vec<bool>),
    /// Any integer dtype, widened; the dtype's name in the file.
    Int(Vec<i64>, &'static str),
}

/// What a `.pt` file holds.
#[derive(Debug, PartialEq)]
pub(super) enum Contents {
    Tensor(Array),
    /// A plain Python list of integers.
    List(Vec<i64>),
    /// Tensors, lists and plain integers (an integer is an array of one) by key.
    Dict(BTreeMap<String, Array>),
}

/// Longer pickles are no vocabulary: 250,000 listed ids take about a megabyte.
const MAX_PICKLE_BYTES: usize = 16 << 20;

/// A file with one tensor: `torch.save(tensor, path)`.
pub(super) fn encode_tensor(tensor: &Array) -> Vec<u8> {
    let mut pickle = b"\x80\x02".to_vec();
    put_tensor(&mut pickle, 0, tensor);
    pickle.push(b'.');
    archive(&pickle, &[tensor])
}

/// A file with a dict of tensors: `torch.save({"key": tensor, ...}, path)`.
pub(super) fn encode_dict(tensors: &[(&str, Array)]) -> Vec<u8> {
    let mut pickle = b"\x80\x02}(".to_vec();
    for (key, (name, tensor)) in tensors.iter().enumerate() {
        put_string(&mut pickle, name);
        put_tensor(&mut pickle, key, tensor);
    }
    pickle.extend_from_slice(b"u.");
    archive(&pickle, &tensors.iter().map(|(_, tensor)| tensor).collect::<Vec<_>>())
}

fn archive(pickle: &[u8], tensors: &[&Array]) -> Vec<u8> {
    let storages: Vec<(String, Vec<u8>)> = tensors
        .iter()
        .enumerate()
        .map(|(key, tensor)| (format!("archive/data/{key}"), storage_bytes(tensor)))
        .collect();
    let mut entries: Vec<(&str, &[u8])> = vec![("archive/data.pkl", pickle), ("archive/byteorder", b"little")];
    entries.extend(storages.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())));
    entries.push(("archive/version", b"3\n"));
    stored_zip::write(&entries)
}

fn storage_bytes(tensor: &Array) -> Vec<u8> {
    match tensor {
        Array::Bool(values) => values.iter().map(|&value| u8::from(value)).collect(),
        Array::Int(values, _) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

/// `_rebuild_tensor_v2(storage, offset 0, size (n,), stride (1,), requires_grad False, OrderedDict())`.
fn put_tensor(pickle: &mut Vec<u8>, key: usize, tensor: &Array) {
    let (storage, n) = match tensor {
        Array::Bool(values) => ("BoolStorage", values.len()),
        Array::Int(values, _) => ("LongStorage", values.len()),
    };
    pickle.extend_from_slice(b"ctorch._utils\n_rebuild_tensor_v2\n((");
    put_string(pickle, "storage");
    pickle.extend_from_slice(format!("ctorch\n{storage}\n").as_bytes());
    put_string(pickle, &key.to_string());
    put_string(pickle, "cpu");
    put_integer(pickle, n);
    pickle.extend_from_slice(b"tQK\x00");
    put_integer(pickle, n);
    pickle.extend_from_slice(b"\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR");
}

fn put_string(pickle: &mut Vec<u8>, text: &str) {
    pickle.push(b'X');
    pickle.extend_from_slice(&(text.len() as u32).to_le_bytes());
    pickle.extend_from_slice(text.as_bytes());
}

fn put_integer(pickle: &mut Vec<u8>, n: usize) {
    pickle.push(b'J');
    pickle.extend_from_slice(&(n as i32).to_le_bytes());
}

/// Reads a `.pt` file.
///
/// # Errors
/// Not torch's zip format, a pickle outside the subset, or something that is no array of booleans or integers.
pub(super) fn decode(bytes: &[u8]) -> Result<Contents> {
    let entries = stored_zip::read(bytes)?;
    // torch names the folder inside after the file; it is the one that holds data.pkl.
    let folder =
        entries.keys().find_map(|name| name.strip_suffix("data.pkl")).context("the zip holds no `data.pkl`")?;
    if let Some(order) = entries.get(&format!("{folder}byteorder")) {
        ensure!(*order == b"little", "byte order `{}` is not `little`", String::from_utf8_lossy(order));
    }
    let pickle = entries[&format!("{folder}data.pkl")];
    ensure!(pickle.len() <= MAX_PICKLE_BYTES, "`data.pkl` has {} bytes, too many for a vocabulary", pickle.len());
    let pickle = Pickle::read(pickle)?;
    Reader { pickle: &pickle, folder, entries: &entries }.contents()
}

struct Reader<'a> {
    pickle: &'a Pickle,
    folder: &'a str,
    entries: &'a BTreeMap<String, &'a [u8]>,
}

impl Reader<'_> {
    fn contents(&self) -> Result<Contents> {
        match self.pickle.value(self.pickle.root) {
            Value::List(items) => Ok(Contents::List(self.integers(items)?)),
            Value::Dict(pairs) => {
                let mut arrays = BTreeMap::new();
                for &(key, value) in pairs {
                    let Value::Str(key) = self.pickle.value(key) else { bail!("a key of the dict is no string") };
                    let array = self.array(value).with_context(|| format!("key `{key}`"))?;
                    ensure!(arrays.insert(key.clone(), array).is_none(), "the dict holds key `{key}` twice");
                }
                Ok(Contents::Dict(arrays))
            }
            _ => Ok(Contents::Tensor(self.array(self.pickle.root)?)),
        }
    }

    fn array(&self, node: Node) -> Result<Array> {
        match self.pickle.value(node) {
            Value::Int(value) => Ok(Array::Int(vec![*value], "int")),
            Value::List(items) => Ok(Array::Int(self.integers(items)?, "list")),
            Value::Call(name, arguments) if name == "torch._utils._rebuild_tensor_v2" => self.tensor(*arguments),
            _ => bail!("holds neither a tensor nor a list of integers"),
        }
    }

    fn integers(&self, items: &[Node]) -> Result<Vec<i64>> {
        let integer = |&item: &Node| match self.pickle.value(item) {
            Value::Int(value) => Ok(*value),
            _ => bail!("the list holds something that is no integer"),
        };
        items.iter().map(integer).collect()
    }

    fn tensor(&self, arguments: Node) -> Result<Array> {
        let arguments = self.tuple(arguments)?;
        let [storage, offset, size, stride, ..] = arguments else { bail!("a tensor with too few arguments") };
        let [n] = self.integers(self.tuple(*size)?)?[..] else { bail!("a tensor that is not one-dimensional") };
        let [stride] = self.integers(self.tuple(*stride)?)?[..] else { bail!("a tensor with a broken stride") };
        let [offset] = self.integers(&[*offset])?[..] else { bail!("a tensor with a broken offset") };
        ensure!(stride == 1 || n <= 1, "a tensor with stride {stride}, expected 1");
        let Value::Persistent(id) = self.pickle.value(*storage) else { bail!("a tensor without a storage") };
        let [_, kind, key, ..] = self.tuple(*id)? else { bail!("a storage with too few arguments") };
        let (Value::Global(kind), Value::Str(key)) = (self.pickle.value(*kind), self.pickle.value(*key)) else {
            bail!("a storage without a type or a key");
        };
        let name = format!("{}data/{key}", self.folder);
        let bytes = self.entries.get(&name).with_context(|| format!("storage `{name}` is missing"))?;
        slice(bytes, kind, offset, n).with_context(|| format!("storage `{name}`"))
    }

    fn tuple(&self, node: Node) -> Result<&[Node]> {
        match self.pickle.value(node) {
            Value::Tuple(items) => Ok(items),
            _ => bail!("a tensor with arguments that are no tuple"),
        }
    }
}

/// `n` elements of a storage from element `offset` on.
fn slice(bytes: &[u8], storage: &str, offset: i64, n: i64) -> Result<Array> {
    let (dtype, n_element_bytes) = match storage {
        "torch.BoolStorage" => ("bool", 1),
        "torch.ByteStorage" => ("uint8", 1),
        "torch.IntStorage" => ("int32", 4),
        "torch.LongStorage" => ("int64", 8),
        _ => bail!("holds `{storage}`, expected booleans or integers"),
    };
    let range = || {
        let begin = usize::try_from(offset).ok()?.checked_mul(n_element_bytes)?;
        let end = begin.checked_add(usize::try_from(n).ok()?.checked_mul(n_element_bytes)?)?;
        bytes.get(begin..end)
    };
    let bytes = range().with_context(|| format!("has {} bytes, too few for {n} elements of {dtype}", bytes.len()))?;
    array_of(dtype, bytes)
}

/// Little-endian elements of a named dtype as an array.
pub(super) fn array_of(dtype: &str, bytes: &[u8]) -> Result<Array> {
    match dtype {
        "bool" => {
            ensure!(bytes.iter().all(|&byte| byte <= 1), "a boolean is neither 0 nor 1");
            Ok(Array::Bool(bytes.iter().map(|&byte| byte == 1).collect()))
        }
        "uint8" => Ok(Array::Int(bytes.iter().map(|&byte| i64::from(byte)).collect(), "uint8")),
        "int32" => Ok(Array::Int(elements(bytes, i32::from_le_bytes).map(i64::from).collect(), "int32")),
        "int64" => Ok(Array::Int(elements(bytes, i64::from_le_bytes).collect(), "int64")),
        _ => bail!("dtype `{dtype}` is neither boolean nor integer"),
    }
}

fn elements<T, const N: usize>(bytes: &[u8], from: fn([u8; N]) -> T) -> impl Iterator<Item = T> {
    bytes.as_chunks::<N>().0.iter().map(move |&chunk| from(chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_and_dicts_come_back() {
        let ids = Array::Int(vec![0, 5, 248_076], "int64");
        let mask = Array::Bool(vec![true, false, true]);
        assert_eq!(decode(&encode_tensor(&ids)).unwrap(), Contents::Tensor(ids.clone()));
        let dict = decode(&encode_dict(&[("d2t", ids.clone()), ("t2d", mask.clone())])).unwrap();
        let expected = [("d2t".to_owned(), ids), ("t2d".to_owned(), mask)];
        assert_eq!(dict, Contents::Dict(expected.into_iter().collect()));
    }

    #[test]
    fn the_bytes_of_a_mask_are_pinned() {
        // The layout found by probing torch 2.13: names, order, alignment, a 131-byte pickle.
        let bytes = encode_tensor(&Array::Bool(vec![true; 3]));
        let entries = stored_zip::read(&bytes).unwrap();
        assert_eq!(entries["archive/data.pkl"].len(), 131);
        let expected = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nBoolStorage\n\
            X\x01\x00\x00\x000X\x03\x00\x00\x00cpuJ\x03\x00\x00\x00tQK\x00J\x03\x00\x00\x00\x85K\x01\x85\x89\
            ccollections\nOrderedDict\n)RtR.";
        assert_eq!(entries["archive/data.pkl"], expected);
        assert_eq!(entries["archive/data/0"], [1, 1, 1]);
    }

    #[test]
    fn sizes_that_the_storage_does_not_have_are_refused() {
        for (offset, n) in [(0, 4), (3, 1), (-1, 1), (0, -1), (0, i64::MAX), (i64::MAX, 1)] {
            assert!(slice(&[1, 1, 1], "torch.BoolStorage", offset, n).is_err(), "{offset} {n}");
        }
        assert!(slice(&[2], "torch.BoolStorage", 0, 1).is_err());
        assert!(slice(&[0; 8], "torch.DoubleStorage", 0, 1).is_err());
    }
}
