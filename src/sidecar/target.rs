//! The files of a model folder, pinned: small ones by their whole digest, shards by size and header.

use std::{collections::BTreeMap, fs::File, io::Read, path::Path};

use anyhow::{Context, Result};

use super::FileRecord;
use crate::{checkpoint::Checkpoint, checksum::sha256_file, output::sha256_hex, report::Progress};

/// Files that say how the weights are used.
const SMALL_FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
];

/// What is written about the files of a checkpoint.
///
/// # Errors
/// A file cannot be read.
pub fn file_records(checkpoint: &Checkpoint) -> Result<BTreeMap<String, FileRecord>> {
    let mut records = BTreeMap::new();
    for name in SMALL_FILES {
        let path = checkpoint.dir().join(name);
        if let Ok(metadata) = path.metadata() {
            let sha256 = sha256_file(&path, &Progress::silent())?;
            records.insert(name.to_owned(), FileRecord { n_bytes: metadata.len(), sha256, covers: "file".to_owned() });
        }
    }
    for path in checkpoint.shard_files() {
        let name = path.strip_prefix(checkpoint.dir()).unwrap_or(path).to_string_lossy().into_owned();
        let (n_bytes, sha256) = header_digest(path)?;
        records.insert(name, FileRecord { n_bytes, sha256, covers: "header".to_owned() });
    }
    Ok(records)
}

/// The size of a safetensors file, and the digest of its length field and header.
fn header_digest(path: &Path) -> Result<(u64, String)> {
    let say = || format!("`{}`: cannot read the header", path.display());
    let mut file = File::open(path).with_context(say)?;
    let n_bytes = file.metadata().with_context(say)?.len();
    let mut header = vec![0; 8];
    file.read_exact(&mut header).with_context(say)?;
    let length = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i: usize| header[i]));
    file.take(length.min(n_bytes)).read_to_end(&mut header).with_context(say)?;
    Ok((n_bytes, sha256_hex(&header)))
}
