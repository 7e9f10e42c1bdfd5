//! Takes a vocabulary file apart by its first bytes, whatever its name: torch zip, numpy, safetensors, GGUF, JSON or text.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};

use super::{
    forms::{Form, Semantics},
    npy,
    torch_pt::{self, Array, Contents, array_of},
};
use crate::{
    error::Hint,
    gguf::{self, Gguf},
    input::{open_file, read_file},
};

/// Larger files are no vocabulary; safetensors are mapped and may be whole checkpoints.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// What kind of file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    Pt,
    PtDict,
    Npy,
    Safetensors,
    Gguf,
    Text,
    Json,
}

impl Container {
    pub(super) fn form(self, semantics: Semantics) -> Form {
        match (self, semantics) {
            (Self::Pt, Semantics::Mask) => Form::MaskPt,
            (Self::Pt, Semantics::Absolute) => Form::IdsPt,
            (Self::Pt, Semantics::Offset) => Form::D2tPt,
            (Self::PtDict, _) => Form::MappingPt,
            (Self::Npy, _) => Form::Npy,
            (Self::Safetensors, _) => Form::Safetensors,
            (Self::Gguf, _) => Form::Gguf,
            (Self::Text, _) => Form::IdsTxt,
            (Self::Json, _) => Form::IdsJson,
        }
    }
}

/// The arrays of a file, by what they claim to be.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// Claimed to be offsets.
    pub(super) d2t: Option<Vec<i64>>,
    /// Claimed to be a mask.
    pub(super) t2d: Option<Vec<bool>>,
    /// Claimed to be absolute ids.
    pub(super) ids: Option<Vec<i64>>,
    /// Integers that claim nothing.
    pub(super) bare: Option<Vec<i64>>,
    pub(super) target_rows: Option<usize>,
    pub(super) n_repeated: usize,
    pub(super) tokenizer_sha256: Option<String>,
    /// "`d2t` int64\[64000\]", for people.
    pub(super) arrays: Vec<String>,
}

impl Parts {
    /// Files one array under the key that names it.
    ///
    /// # Errors
    /// The dtype does not fit the name.
    fn take(&mut self, key: &str, array: Array) -> Result<()> {
        let shown = |dtype: &str, n: usize| format!("`{key}` {dtype}[{n}]");
        match (key, array) {
            ("t2d", Array::Int(_, dtype)) => bail!("`t2d` has dtype {dtype}, expected bool"),
            ("target_vocab_size", Array::Int(values, _)) => {
                self.target_rows = values.first().and_then(|&v| usize::try_from(v).ok());
            }
            (_, Array::Int(_, "uint8")) => bail!("`{key}` has dtype uint8, expected int64"),
            ("t2d" | "mask" | "tensor", Array::Bool(mask)) => {
                self.arrays.push(shown("bool", mask.len()));
                self.t2d = Some(mask);
            }
            (_, Array::Bool(_)) => bail!("`{key}` has dtype bool, expected int64"),
            (_, Array::Int(values, dtype)) => {
                self.arrays.push(shown(dtype, values.len()));
                match key {
                    "d2t" => self.d2t = Some(values),
                    "tensor" => self.bare = Some(values),
                    _ => self.ids = Some(values),
                }
            }
        }
        Ok(())
    }

    /// Draft heads repeat their first id to fill a tile: those rows are counted, not listed.
    fn strip_repeats(&mut self) {
        let Some(ids) = &mut self.ids else { return };
        while ids.len() > 1 && ids.last() == ids.first() {
            ids.pop();
            self.n_repeated += 1;
        }
    }
}

/// # Errors
/// Not a file of a known kind, broken, or without a vocabulary in it.
pub(super) fn take_apart(path: &Path) -> Result<(Container, Parts)> {
    let metadata = path.metadata().context("cannot open").hint("make one with `draftfast build-vocab MODEL -o DIR`")?;
    ensure!(metadata.is_file(), "cannot read: it is not a regular file");
    let n_bytes = metadata.len();
    let mut file = open_file(path)?;
    let mut head = [0; 9];
    let n_head = file.read(&mut head).context("cannot read")?;
    if n_head == 9 && head[8] == b'{' && u64::from_le_bytes(head[..8].try_into()?) <= n_bytes {
        return Ok((Container::Safetensors, safetensors(path)?));
    }
    if head.starts_with(gguf::MAGIC) {
        return Ok((Container::Gguf, gguf(path)?));
    }
    ensure!(n_bytes <= MAX_FILE_BYTES, "has {n_bytes} bytes, too many for a vocabulary");
    let bytes = read_file(path, MAX_FILE_BYTES)?;
    match bytes.as_slice() {
        [b'P', b'K', ..] => pt(&bytes),
        [0x93, b'N', b'U', b'M', ..] => Ok((Container::Npy, npy_pair(path, &bytes)?)),
        [0x80, 2..=5, ..] => Err(anyhow::anyhow!("a bare pickle (torch before 1.6), which is not read"))
            .hint("save it again with a current torch: `torch.save(torch.load(FILE), FILE)`"),
        _ => text(&bytes),
    }
}

fn pt(bytes: &[u8]) -> Result<(Container, Parts)> {
    let mut parts = Parts::default();
    let dict = match torch_pt::decode(bytes)? {
        Contents::Tensor(array) => {
            parts.take("tensor", array)?;
            return Ok((Container::Pt, parts));
        }
        Contents::List(ids) => {
            parts.take("ids", Array::Int(ids, "list"))?;
            return Ok((Container::Pt, parts));
        }
        Contents::Dict(dict) => dict,
    };
    let keys: Vec<_> = dict.keys().cloned().collect();
    for (key, array) in dict {
        if matches!(key.as_str(), "d2t" | "t2d" | "token_ids" | "selected_token_ids" | "target_vocab_size") {
            parts.take(&key, array)?;
        }
    }
    ensure!(!parts.arrays.is_empty(), "a dict with none of the keys `d2t`, `t2d`, `token_ids`, but {keys:?}");
    Ok((Container::PtDict, parts))
}

/// An `.npy` file, and the other half of the pair (`d2t*.npy`, `t2d*.npy`) where it lies beside.
fn npy_pair(path: &Path, bytes: &[u8]) -> Result<Parts> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut parts = Parts::default();
    let array = npy::decode(bytes)?;
    let (key, sibling): (_, Option<PathBuf>) = match &array {
        Array::Bool(_) => ("t2d", name.strip_prefix("t2d").map(|rest| path.with_file_name(format!("d2t{rest}")))),
        Array::Int(..) if name.starts_with("d2t") => {
            ("d2t", name.strip_prefix("d2t").map(|rest| path.with_file_name(format!("t2d{rest}"))))
        }
        Array::Int(..) => ("tensor", None),
    };
    parts.take(key, array)?;
    if let Some(sibling) = sibling.filter(|sibling| sibling.is_file()) {
        let other = if key == "t2d" { "d2t" } else { "t2d" };
        let read = || npy::decode(&read_file(&sibling, MAX_FILE_BYTES)?);
        let array = read().with_context(|| format!("`{}` beside it", sibling.display()))?;
        parts.take(other, array)?;
    }
    Ok(parts)
}

fn map(path: &Path) -> Result<Mmap> {
    let file = open_file(path)?;
    #[expect(unsafe_code, reason = "a read-only map of a file that may be a whole checkpoint")]
    // SAFETY: the map is private and read-only; a file cut short by another process while it is read ends this process
    // with SIGBUS, as for every mapped checkpoint.
    unsafe { Mmap::map(&file) }.context("cannot map")
}

fn safetensors(path: &Path) -> Result<Parts> {
    let map = map(path)?;
    let (_, header) = SafeTensors::read_metadata(&map).context("not a safetensors file")?;
    let tensors = SafeTensors::deserialize(&map).context("not a safetensors file")?;
    let mut parts = Parts::default();
    for name in ["d2t", "t2d", "token_ids", "draft_head.token_ids"] {
        let Ok(tensor) = tensors.tensor(name) else { continue };
        let dtype = match tensor.dtype() {
            Dtype::I64 => "int64",
            Dtype::I32 => "int32",
            Dtype::BOOL => "bool",
            other => bail!("tensor `{name}` has dtype {other:?}, expected I64 (or BOOL for `t2d`)"),
        };
        ensure!(tensor.shape().len() == 1, "tensor `{name}` has shape {:?}, expected one dimension", tensor.shape());
        parts.take(name, array_of(dtype, tensor.data()).with_context(|| format!("tensor `{name}`"))?)?;
    }
    ensure!(!parts.arrays.is_empty(), "holds none of the tensors `d2t`, `t2d`, `token_ids`, `draft_head.token_ids`");
    if tensors.tensor("draft_head.token_ids").is_ok() {
        parts.strip_repeats();
    }
    if let Some(metadata) = header.metadata() {
        let number = |key: &str| metadata.get(key).and_then(|value| value.parse().ok());
        parts.target_rows = number("draftfast.target_rows");
        parts.n_repeated = number("draftfast.n_repeated").unwrap_or(parts.n_repeated);
        parts.tokenizer_sha256 = metadata.get("draftfast.tokenizer_sha256").cloned();
    }
    Ok(parts)
}

/// llama.cpp's `d2t` holds absolute ids, whatever the name promises elsewhere.
fn gguf(path: &Path) -> Result<Parts> {
    let map = map(path)?;
    let gguf = Gguf::decode(&map)?;
    let (data, n_bytes) = gguf.integers("d2t")?.context("holds no tensor `d2t`")?;
    let dtype = if n_bytes == 4 { "int32" } else { "int64" };
    let mut parts = Parts::default();
    parts.arrays.push(format!("`d2t` {dtype}[{}]", data.len() / n_bytes));
    if let Array::Int(ids, _) = array_of(dtype, data)? {
        parts.ids = Some(ids);
    }
    parts.target_rows = gguf.number("draftfast.target_rows").map(|n_rows| n_rows as usize);
    parts.n_repeated = gguf.number("draftfast.n_repeated").map_or(0, |n_rows| n_rows as usize);
    parts.tokenizer_sha256 = gguf.text("draftfast.tokenizer_sha256").map(str::to_owned);
    Ok(parts)
}

/// A JSON list, or one id a line. Both are absolute ids by their consumers' definition.
fn text(bytes: &[u8]) -> Result<(Container, Parts)> {
    let text = std::str::from_utf8(bytes).context("not a vocabulary file of a known form")?;
    let mut parts = Parts::default();
    if text.trim_start().starts_with('[') {
        let ids: Vec<i64> = serde_json::from_str(text).context("not a JSON list of integers")?;
        parts.take("ids", Array::Int(ids, "list"))?;
        return Ok((Container::Json, parts));
    }
    let mut ids = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let id = line.trim().parse::<i64>();
        ids.push(
            id.with_context(|| format!("line {number} is no id: `{}`", line.chars().take(40).collect::<String>()))?,
        );
    }
    ensure!(!ids.is_empty(), "the file is empty");
    parts.take("ids", Array::Int(ids, "list"))?;
    Ok((Container::Text, parts))
}
