//! The header of one safetensors file, read without trusting it.
//!
//! The format (<https://github.com/huggingface/safetensors>): 8 bytes little-endian header length, a JSON object from
//! tensor name to `{dtype, shape, data_offsets}`, then the data. We parse it ourselves because the reference crate
//! refuses a whole file over one dtype that it does not know, and because its errors do not name tensors.

use std::{borrow::Cow, collections::BTreeMap, fmt, fs::File, os::unix::fs::FileExt};

use anyhow::{Context, Result, anyhow, bail, ensure};
use safetensors::Dtype;
use serde::{
    Deserialize, Deserializer,
    de::{
        Error as _, IntoDeserializer, MapAccess, Visitor,
        value::{self, StrDeserializer},
    },
};

use crate::error::{Hint, advise, quoted};

/// The longest header the format allows, in bytes; the reference implementation has the same limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;

const DOWNLOAD_AGAIN: &str = "the download is incomplete or damaged: fetch this file again";

/// Where one tensor lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// Index of its file in [`Checkpoint::shard_files`](super::Checkpoint::shard_files).
    pub shard: usize,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// First byte, counted from the start of the file.
    pub begin: u64,
    /// One past the last byte, counted from the start of the file.
    pub end: u64,
}

impl TensorEntry {
    /// Size in bytes.
    pub fn n_bytes(&self) -> u64 {
        self.end - self.begin
    }
}

/// What one safetensors file contains.
#[derive(Debug, Default)]
pub struct Header {
    /// Tensors by name.
    pub entries: BTreeMap<String, TensorEntry>,
    /// Tensors whose dtype this version does not know, with the dtype's name: they may be there, but not be read.
    pub unknown: BTreeMap<String, String>,
    /// `__metadata__`, empty when absent or null.
    pub metadata: BTreeMap<String, String>,
}

impl Header {
    /// Reads and validates the header of `file`; `file_name` is for errors, `shard` goes into the entries.
    ///
    /// # Errors
    /// The file is not safetensors, is truncated, or its offsets overlap, leave holes or disagree with a shape.
    pub fn read(file: &File, file_name: &str, shard: usize) -> Result<Self> {
        let n_file_bytes = file.metadata().with_context(|| format!("`{file_name}`: cannot read its size"))?.len();
        let json = read_json(file, file_name, n_file_bytes)?;
        let raw: RawHeader = serde_json::from_slice(&json)
            .map_err(|error| anyhow!("`{file_name}`: the safetensors header is not valid: {error}"))
            .hint(DOWNLOAD_AGAIN)?;
        let data_begin = 8 + json.len() as u64;
        check_layout(&raw, file_name, data_begin, n_file_bytes)?;
        let mut entries = Vec::with_capacity(raw.tensors.len());
        let mut unknown = BTreeMap::new();
        for (name, tensor) in raw.tensors {
            let (begin, end) = (data_begin + tensor.data_offsets.0, data_begin + tensor.data_offsets.1);
            match tensor.dtype {
                RawDtype::Known(dtype) => {
                    entries.push((name, TensorEntry { shard, dtype, shape: tensor.shape, begin, end }));
                }
                RawDtype::Unknown(dtype) => drop(unknown.insert(name, dtype)),
            }
        }
        // Collecting a sorted list builds the tree in one go.
        Ok(Self { entries: entries.into_iter().collect(), unknown, metadata: raw.metadata })
    }
}

/// The JSON bytes of the header.
fn read_json(file: &File, file_name: &str, n_file_bytes: u64) -> Result<Vec<u8>> {
    let say = || format!("`{file_name}`: cannot read the safetensors header");
    let truncated = |what: String| advise(anyhow!("`{file_name}`: {what}"), DOWNLOAD_AGAIN);
    if n_file_bytes < 8 {
        return Err(truncated(format!(
            "the file has {n_file_bytes} bytes, expected a safetensors header of at least 8"
        )));
    }
    let mut length = [0; 8];
    file.read_exact_at(&mut length, 0).with_context(say)?;
    if &length == b"version " {
        return Err(advise(
            anyhow!("`{file_name}`: this is a git-lfs pointer, not the weights"),
            "fetch the real file with `git lfs pull` or `hf download`",
        ));
    }
    let n_header_bytes = u64::from_le_bytes(length);
    if n_header_bytes > MAX_HEADER_BYTES {
        return Err(truncated(format!(
            "the header is said to be {n_header_bytes} bytes long, expected at most {MAX_HEADER_BYTES}"
        )));
    }
    if n_header_bytes > n_file_bytes - 8 {
        return Err(truncated(format!(
            "the header is said to be {n_header_bytes} bytes long, but the file has only {n_file_bytes} bytes"
        )));
    }
    let mut json = vec![0; n_header_bytes as usize];
    file.read_exact_at(&mut json, 8).with_context(say)?;
    Ok(json)
}

/// Every tensor's bytes must match its shape, and together they must cover the data exactly once.
fn check_layout(raw: &RawHeader, file_name: &str, data_begin: u64, n_file_bytes: u64) -> Result<()> {
    let mut spans = Vec::with_capacity(raw.tensors.len());
    for (name, tensor) in &raw.tensors {
        // Names stand in errors, on terminals and in reports.
        let is_plain = !name.contains(|c: char| c.is_control() || c == '`');
        ensure!(is_plain, "`{file_name}`: the tensor name {} has characters that no name needs", quoted(name));
        let (begin, end) = tensor.data_offsets;
        ensure!(begin <= end, "`{file_name}`: tensor `{name}` ends at byte {end}, before its first byte {begin}");
        if let Some(n_bits) = n_bits(tensor) {
            let n_bits = n_bits.with_context(|| {
                format!("`{file_name}`: tensor `{name}` has shape {:?}, which is too large to be true", tensor.shape)
            })?;
            ensure!(
                n_bits.is_multiple_of(8),
                "`{file_name}`: tensor `{name}` ({}, shape {:?}) has {n_bits} bits, expected whole bytes",
                tensor.dtype,
                tensor.shape
            );
            let expected = n_bits / 8;
            ensure!(
                end - begin == expected,
                "`{file_name}`: tensor `{name}` ({}, shape {:?}) occupies {} bytes, expected {expected}",
                tensor.dtype,
                tensor.shape,
                end - begin
            );
        }
        spans.push((begin, end, name));
    }
    spans.sort_unstable();
    let mut covered = 0;
    for (begin, end, name) in spans {
        ensure!(
            begin >= covered,
            "`{file_name}`: tensor `{name}` overlaps the one before it (bytes {begin}..{covered})"
        );
        ensure!(
            begin == covered,
            "`{file_name}`: bytes {covered}..{begin}, before tensor `{name}`, belong to no tensor"
        );
        covered = end;
    }
    let expected = data_begin.saturating_add(covered);
    if expected > n_file_bytes {
        let sentence =
            format!("`{file_name}`: the file is truncated: it has {n_file_bytes} bytes, expected {expected}");
        return Err(advise(anyhow!(sentence), DOWNLOAD_AGAIN));
    }
    if expected < n_file_bytes {
        bail!("`{file_name}`: the file has {n_file_bytes} bytes, but its tensors end at byte {expected}");
    }
    Ok(())
}

/// Bits that dtype and shape ask for: `None` for an unknown dtype, `Some(None)` on overflow.
fn n_bits(tensor: &RawTensor) -> Option<Option<u64>> {
    let RawDtype::Known(dtype) = tensor.dtype else { return None };
    Some(tensor.shape.iter().try_fold(dtype.bitsize() as u64, |product, &n| product.checked_mul(n as u64)))
}

/// The header as it is written, sorted by name.
#[derive(Default)]
struct RawHeader {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, RawTensor)>,
}

#[derive(Deserialize)]
struct RawTensor {
    dtype: RawDtype,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

enum RawDtype {
    Known(Dtype),
    Unknown(String),
}

impl fmt::Display for RawDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(dtype) => dtype.fmt(f),
            Self::Unknown(name) => f.write_str(name),
        }
    }
}

impl<'de> Deserialize<'de> for RawDtype {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<str>::deserialize(deserializer)?;
        let known: StrDeserializer<'_, value::Error> = name.as_ref().into_deserializer();
        Ok(Dtype::deserialize(known).map_or_else(|_| Self::Unknown(name.clone().into_owned()), Self::Known))
    }
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RawHeaderVisitor)
    }
}

/// A visitor, because serde's maps keep the last of two equal keys in silence.
struct RawHeaderVisitor;

impl<'de> Visitor<'de> for RawHeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from tensor names to dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut header = RawHeader::default();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                // Some writers put null here.
                header.metadata = map.next_value::<Option<_>>()?.unwrap_or_default();
                continue;
            }
            header.tensors.push((name, map.next_value()?));
        }
        header.tensors.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        if let Some(twice) = header.tensors.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(A::Error::custom(format!("tensor `{}` is listed twice", twice[0].0)));
        }
        Ok(header)
    }
}
