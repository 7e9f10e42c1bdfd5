//! Files for parsers that take paths: a folder of this process in memory, or wherever TMPDIR says.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The folder of one target.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("draftfast-fuzz-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).expect("the scratch folder can be made");
        Self(dir)
    }

    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// Writes a file, replacing the last one's content; returns its path.
    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).expect("the scratch folder is writable");
        path
    }
}

/// The parts of an input of several files: they are separated by a byte that no JSON and no header has.
pub fn parts<const N: usize>(data: &[u8]) -> [&[u8]; N] {
    let mut parts = data.splitn(N, |byte| *byte == 0);
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}
