//! Files that are hashed as they are written.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::hex;

/// The sha256 of each finished file of a directory, by name.
#[derive(Debug, Clone, Default)]
pub struct Digests(Arc<Mutex<BTreeMap<String, String>>>);

impl Digests {
    /// Those known by now, in hexadecimal.
    pub fn known(&self) -> BTreeMap<String, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn note(&self, name: &str, sha256: Sha256) -> String {
        let sha256 = hex(&sha256.finalize());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), sha256.clone());
        sha256
    }
}

/// A file that hashes what is written to it.
#[derive(Debug)]
pub struct HashingFile {
    name: String,
    file: BufWriter<File>,
    sha256: Sha256,
    n_bytes: u64,
    digests: Digests,
}

impl HashingFile {
    pub(super) fn create(path: &Path, name: &str, digests: Digests) -> Result<Self> {
        let file = File::create_new(path).with_context(|| format!("`{name}`: cannot create"))?;
        Ok(Self {
            name: name.to_owned(),
            file: BufWriter::with_capacity(1 << 20, file),
            sha256: Sha256::new(),
            n_bytes: 0,
            digests,
        })
    }

    /// Bytes written so far.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Flushes (the directory's [`StagedDir::commit`] syncs); returns the sha256 in lower-case hexadecimal.
    ///
    /// # Errors
    /// The disk is full.
    pub fn finish(self) -> Result<String> {
        let say = || format!("`{}`: cannot write", self.name);
        self.file.into_inner().map_err(io::IntoInnerError::into_error).with_context(say)?;
        Ok(self.digests.note(&self.name, self.sha256))
    }
}

impl Write for HashingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.file.write(bytes)?;
        self.sha256.update(&bytes[..n]);
        self.n_bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
