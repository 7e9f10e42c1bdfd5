//! Opens a model folder: config, shards, headers. Weights are mapped when a tensor is first asked for.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use anyhow::{Context, Result, anyhow, bail};
use half::bf16;
use memmap2::Mmap;
use safetensors::Dtype;
use serde_json::Value;

use super::{
    header::{Header, TensorEntry},
    index::find_shards,
};
use crate::{
    error::{Hint, advise},
    input::{open_file, read_file},
};

/// A checkpoint whose headers have been read and found consistent.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    config: Value,
    shards: Vec<Shard>,
    entries: BTreeMap<String, TensorEntry>,
    unknown: BTreeMap<String, String>,
    metadata: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Shard {
    name: String,
    path: PathBuf,
    file: File,
    n_bytes: u64,
    map: OnceLock<Mmap>,
}

/// One tensor, mapped.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// The name of its file, for errors.
    pub file: &'a str,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
    /// The elements, little-endian, row-major.
    pub data: &'a [u8],
}

impl Checkpoint {
    /// Opens a folder with `config.json` and safetensors shards. Reads headers only.
    ///
    /// # Errors
    /// Names the file and the tensor that is missing, truncated or inconsistent.
    pub fn open(dir: &Path) -> Result<Self> {
        if !dir.is_dir() {
            return Err(advise(
                anyhow!("`{}` is not a folder", dir.display()),
                "MODEL is a Hugging Face model folder with config.json and safetensors weights",
            ));
        }
        let config = read_config(&dir.join("config.json"))?;
        let list = find_shards(dir)?;
        let mut checkpoint = Self {
            dir: dir.to_owned(),
            config,
            shards: Vec::with_capacity(list.files.len()),
            entries: BTreeMap::new(),
            unknown: BTreeMap::new(),
            metadata: BTreeMap::new(),
        };
        for name in list.files {
            checkpoint.add_shard(name)?;
        }
        for (tensor, file) in &list.claims {
            checkpoint.check_claim(tensor, file)?;
        }
        Ok(checkpoint)
    }

    /// A single safetensors file, without a config.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open_file(path: &Path) -> Result<Self> {
        let name = path.file_name().with_context(|| format!("`{}` is not a file", path.display()))?;
        let dir = path.parent().map_or_else(|| PathBuf::from("."), Path::to_owned);
        let mut checkpoint = Self {
            dir,
            config: Value::Object(serde_json::Map::new()),
            shards: Vec::new(),
            entries: BTreeMap::new(),
            unknown: BTreeMap::new(),
            metadata: BTreeMap::new(),
        };
        checkpoint.add_shard(name.to_string_lossy().into_owned())?;
        Ok(checkpoint)
    }

    /// The folder, as it was given.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// `config.json`, as it is.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// Every readable tensor, by name.
    pub fn entries(&self) -> &BTreeMap<String, TensorEntry> {
        &self.entries
    }

    /// Tensors whose dtype this version does not know, with the dtype's name.
    pub fn unknown(&self) -> &BTreeMap<String, String> {
        &self.unknown
    }

    /// `__metadata__` of the shards together; of a key that several have, the last shard's value.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The name of the file that holds a tensor, relative to the folder.
    pub fn file_of(&self, entry: &TensorEntry) -> &str {
        &self.shards[entry.shard].name
    }

    /// Paths of the shards, sorted by name; [`TensorEntry::shard`] counts along them.
    pub fn shard_files(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|shard| shard.path.as_path())
    }

    /// Size of all shards in bytes.
    pub fn n_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.n_bytes).sum()
    }

    /// A tensor's bytes. The first call for a shard maps it; pages are read when touched.
    ///
    /// # Errors
    /// There is no such tensor, its dtype is unknown, or its shard changed since it was opened.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        let Some((name, entry)) = self.entries.get_key_value(name) else {
            return match self.unknown.get(name) {
                Some(dtype) => Err(anyhow!("tensor `{name}` has dtype `{dtype}`, which draftfast does not know")),
                None => Err(anyhow!("`{}`: there is no tensor `{name}`", self.dir.display())),
            };
        };
        let shard = &self.shards[entry.shard];
        let data = &shard.map()?[entry.begin as usize..entry.end as usize];
        Ok(Tensor { name, file: &shard.name, dtype: entry.dtype, shape: &entry.shape, data })
    }

    fn add_shard(&mut self, name: String) -> Result<()> {
        let path = self.dir.join(&name);
        let file = open_file(&path).with_context(|| format!("`{name}`"))?;
        let n_bytes = file.metadata().with_context(|| format!("`{name}`: cannot read its size"))?.len();
        let header = Header::read(&file, &name, self.shards.len())?;
        let mut entries = header.entries;
        if let Some((tensor, other)) = entries.keys().find_map(|tensor| self.entries.get_key_value(tensor)) {
            bail!("`{name}`: tensor `{tensor}` is already in `{}`", self.file_of(other));
        }
        self.entries.append(&mut entries);
        self.metadata.extend(header.metadata);
        for (tensor, dtype) in header.unknown {
            if self.entries.contains_key(&tensor) || self.unknown.insert(tensor.clone(), dtype).is_some() {
                bail!("`{name}`: tensor `{tensor}` is already in another shard");
            }
        }
        self.shards.push(Shard { name, path, file, n_bytes, map: OnceLock::new() });
        Ok(())
    }

    fn check_claim(&self, tensor: &str, file: &str) -> Result<()> {
        if self.unknown.contains_key(tensor) {
            return Ok(());
        }
        let found = self.entries.get(tensor).map(|entry| self.file_of(entry));
        if found == Some(file) {
            return Ok(());
        }
        let found = found.map_or_else(|| "in no shard".to_owned(), |other| format!("in `{other}`"));
        Err(anyhow!("the index says that tensor `{tensor}` is in `{file}`, found it {found}"))
            .hint("index and shards come from different downloads: fetch the folder again")
    }
}

impl Shard {
    fn map(&self) -> Result<&Mmap> {
        if let Some(map) = self.map.get() {
            return Ok(map);
        }
        let say = || format!("`{}`: cannot map", self.name);
        #[expect(unsafe_code, reason = "a checkpoint is larger than memory; it must be mapped")]
        // SAFETY: the map is private and read-only. A process that truncates a model under us makes the access fail
        // with SIGBUS, as for every reader of mapped weights.
        let map = unsafe { Mmap::map(&self.file) }.with_context(say)?;
        if map.len() as u64 != self.n_bytes {
            bail!("`{}`: the file had {} bytes when it was opened, and has {} now", self.name, self.n_bytes, map.len());
        }
        Ok(self.map.get_or_init(|| map))
    }
}

impl<'a> Tensor<'a> {
    /// Elements `range` (row-major) as BF16: borrowed when the file is aligned, as every common writer does, else copied.
    ///
    /// # Errors
    /// The tensor is not BF16, or is shorter than `range`.
    pub fn bf16(&self, range: Range<usize>) -> Result<Cow<'a, [bf16]>> {
        let Self { file, name, dtype, .. } = self;
        if *dtype != Dtype::BF16 {
            bail!("`{file}`: tensor `{name}` has dtype {dtype}, expected BF16");
        }
        let (begin, end) = (range.start * 2, range.end * 2);
        let bytes = self.data.get(begin..end).with_context(|| {
            format!("`{file}`: tensor `{name}` has {} elements, expected {}", self.data.len() / 2, range.end)
        })?;
        Ok(bf16_of(bytes))
    }
}

fn bf16_of(bytes: &[u8]) -> Cow<'_, [bf16]> {
    #[expect(unsafe_code, reason = "a view of mapped weights must not copy them")]
    // SAFETY: every bit pattern is a valid `bf16`, which is a transparent `u16`; `align_to` checks the alignment.
    let (head, middle, tail) = unsafe { bytes.align_to::<bf16>() };
    if cfg!(target_endian = "little") && head.is_empty() && tail.is_empty() {
        return Cow::Borrowed(middle);
    }
    Cow::Owned(bytes.chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]])).collect())
}

fn read_config(path: &Path) -> Result<Value> {
    /// A config is a few kilobytes.
    const MAX_CONFIG_BYTES: u64 = 64 << 20;
    let text = read_file(path, MAX_CONFIG_BYTES)
        .with_context(|| format!("`{}`", path.display()))
        .hint("MODEL is a Hugging Face model folder with config.json and safetensors weights")?;
    let config: Value =
        serde_json::from_slice(&text).map_err(|error| anyhow!("`{}`: not valid JSON: {error}", path.display()))?;
    if !config.is_object() {
        bail!("`{}`: expected a JSON object", path.display());
    }
    Ok(config)
}
