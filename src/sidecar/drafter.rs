//! `drafter.safetensors`, written out of order: all sizes are known from shapes, so tiles from any thread go straight to
//! their place in the file, and memory holds only the tiles in flight.
//!
//! The header has sorted keys, and data lies by falling element size and then by name, so that every tensor is aligned
//! and the same inputs give the same bytes. It is written first: nothing in it depends on the weights' codes, so that the
//! file can be hashed while it grows.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result, bail};
use safetensors::Dtype;
use serde_json::{Map, Value, json};

use crate::{
    error::advise,
    output::{ScatteredFile, StagedDir},
};

/// The name of the file in a sidecar directory.
pub const DRAFTER_NAME: &str = "drafter.safetensors";

/// The element type and the dimensions of one output tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputTensor {
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
}

impl OutputTensor {
    /// Size in bytes. Sub-byte types are not written: codes are stored as U8.
    pub fn n_bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * (self.dtype.bitsize() / 8) as u64
    }
}

/// The file, with its whole length reserved and its header written.
#[derive(Debug)]
pub struct DrafterFile {
    file: ScatteredFile,
    /// First byte of each tensor in the file, and its size.
    places: BTreeMap<String, (u64, u64)>,
}

impl DrafterFile {
    /// Creates the file in `staged`.
    ///
    /// # Errors
    /// The disk has too little room, or the file cannot be created.
    pub fn create(
        staged: &StagedDir,
        tensors: &BTreeMap<String, OutputTensor>,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let mut places = place(tensors);
        let header = header(tensors, &places, metadata);
        let n_header_bytes = header.len() as u64;
        let n_bytes = n_header_bytes + tensors.values().map(OutputTensor::n_bytes).sum::<u64>();
        require_space(staged.path(), n_bytes)?;
        let file = staged.scattered(DRAFTER_NAME, n_bytes)?;
        file.write_at(&header, 0)?;
        places.values_mut().for_each(|(begin, _)| *begin += n_header_bytes);
        Ok(Self { file, places })
    }

    /// Writes `bytes` into tensor `name`, from byte `offset` of its data. Thread-safe.
    ///
    /// # Errors
    /// There is no such tensor, the bytes do not fit into it, or the disk is full.
    pub fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> Result<()> {
        let Some(&(begin, n_bytes)) = self.places.get(name) else {
            bail!("`{DRAFTER_NAME}`: tensor `{name}` was not planned");
        };
        if offset + bytes.len() as u64 > n_bytes {
            bail!("`{DRAFTER_NAME}`: tensor `{name}` has {n_bytes} bytes, got {} at {offset}", bytes.len());
        }
        self.file.write_at(bytes, begin + offset).with_context(|| format!("cannot write tensor `{name}`"))
    }

    /// Takes the digest of the file, for the list of the directory.
    ///
    /// # Errors
    /// A tensor was not written whole, or the disk fails.
    pub fn finish(self) -> Result<()> {
        self.file.finish().map(drop)
    }
}

/// Data offsets: by falling element size, then by name.
fn place(tensors: &BTreeMap<String, OutputTensor>) -> BTreeMap<String, (u64, u64)> {
    let mut order: Vec<_> = tensors.iter().collect();
    order.sort_by_key(|(name, tensor)| (usize::MAX - tensor.dtype.bitsize(), (*name).clone()));
    let mut begin = 0;
    let mut places = BTreeMap::new();
    for (name, tensor) in order {
        places.insert(name.clone(), (begin, tensor.n_bytes()));
        begin += tensor.n_bytes();
    }
    places
}

/// The length and the JSON, padded with spaces to a multiple of 8 bytes as the reference implementation does.
fn header(
    tensors: &BTreeMap<String, OutputTensor>,
    places: &BTreeMap<String, (u64, u64)>,
    metadata: &BTreeMap<String, String>,
) -> Vec<u8> {
    let mut object = Map::new();
    object.insert("__metadata__".to_owned(), json!(metadata));
    for (name, tensor) in tensors {
        let (begin, n_bytes) = places[name];
        let entry = json!({ "dtype": tensor.dtype.to_string(), "shape": tensor.shape, "data_offsets": [begin, begin + n_bytes] });
        object.insert(name.clone(), entry);
    }
    // `Map` is a BTreeMap: keys come out sorted.
    let mut json = Value::Object(object).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    header
}

/// # Errors
/// The disk that holds `dir` has less than `n_bytes` free.
fn require_space(dir: &Path, n_bytes: u64) -> Result<()> {
    let stat = rustix::fs::statvfs(dir).with_context(|| format!("`{}`: cannot ask for free space", dir.display()))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free < n_bytes {
        return Err(advise(
            anyhow::anyhow!("`{DRAFTER_NAME}` needs {n_bytes} bytes, and the disk has {free} free"),
            "free some space, or choose another place with `-o DIR`",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensors() -> BTreeMap<String, OutputTensor> {
        let tensor = |dtype, shape: &[usize]| OutputTensor { dtype, shape: shape.to_vec() };
        BTreeMap::from([
            ("a.weight".to_owned(), tensor(Dtype::U8, &[2, 3])),
            ("a.weight_scale_2".to_owned(), tensor(Dtype::F32, &[])),
            ("ids".to_owned(), tensor(Dtype::I64, &[2])),
        ])
    }

    #[test]
    fn the_reference_crate_reads_what_is_written_and_tensors_are_aligned() {
        let dir = tempfile::tempdir().unwrap();
        let staged = StagedDir::create(&dir.path().join("out"), false).unwrap();
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let file = DrafterFile::create(&staged, &tensors(), &metadata).unwrap();
        file.write_at("a.weight", 3, &[4, 5, 6]).unwrap();
        file.write_at("a.weight", 0, &[1, 2, 3]).unwrap();
        file.write_at("a.weight_scale_2", 0, &1.5f32.to_le_bytes()).unwrap();
        file.write_at("ids", 8, &9i64.to_le_bytes()).unwrap();
        file.write_at("ids", 0, &7i64.to_le_bytes()).unwrap();
        assert!(file.write_at("ids", 9, &[0; 8]).is_err(), "past the end of a tensor");
        file.finish().unwrap();
        let bytes = std::fs::read(staged.path().join(DRAFTER_NAME)).unwrap();
        assert_eq!(staged.digests().known()[DRAFTER_NAME], crate::output::sha256_hex(&bytes));

        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
        let parsed = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(parsed.tensor("a.weight").unwrap().data(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(parsed.tensor("ids").unwrap().data()[8..], 9i64.to_le_bytes());
        let begin = |name: &str| parsed.tensor(name).unwrap().data().as_ptr() as usize - bytes.as_ptr() as usize;
        assert_eq!((begin("ids") % 8, begin("a.weight_scale_2") % 4), (0, 0));
    }
}
