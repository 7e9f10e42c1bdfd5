//! Files from elsewhere: never a device or a FIFO, and the small ones never more than a stated number of bytes.
//!
//! Weights are mapped and corpora stream; everything else (configs, tokenizers, vocabularies, counts) is small when it is
//! what it says it is, and is read whole.

use std::{
    fs::{File, OpenOptions},
    io::Read,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use anyhow::{Context, Result, anyhow, ensure};
use serde::de::DeserializeOwned;

/// What a file for people or for configuration takes at most.
pub const MAX_TEXT_BYTES: u64 = 64 << 20;

/// Bytes of a [`Chunk`]: large enough that the calls cost nothing, small enough that they stay in the cache of a core; from
/// a mebibyte on, copying them costs three times as much.
pub const CHUNK_BYTES: usize = 128 << 10;

/// [`CHUNK_BYTES`] to read into, where the kernel copies fast.
#[derive(Debug)]
pub struct Chunk {
    allocated: Vec<u8>,
    begin: usize,
}

impl Chunk {
    /// The kernel copies with `rep movsb`, which on Zen 3 takes three times as long to an address a few bytes beyond a
    /// page's beginning; and that is where `malloc` puts what is large.
    const ALIGN_BYTES: usize = 4096;

    /// A chunk of zeros.
    pub fn new() -> Self {
        let allocated = vec![0; CHUNK_BYTES + Self::ALIGN_BYTES];
        let begin = allocated.as_ptr().align_offset(Self::ALIGN_BYTES);
        Self { allocated, begin }
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        &self.allocated[self.begin..][..CHUNK_BYTES]
    }

    /// All of it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.allocated[self.begin..][..CHUNK_BYTES]
    }
}

impl Default for Chunk {
    fn default() -> Self {
        Self::new()
    }
}

/// Opens a regular file for reading.
///
/// # Errors
/// It is missing, or is a FIFO, device or folder: those may never end, and may never begin. Sentences do not name the
/// file: the caller knows what it is.
pub fn open_file(path: &Path) -> Result<File> {
    // Without O_NONBLOCK, opening a FIFO waits for a writer for ever.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).context("cannot read")?;
    ensure!(file.metadata().context("cannot read")?.is_file(), "cannot read: it is not a regular file");
    Ok(file)
}

/// Reads a regular file of at most `max_bytes`.
///
/// # Errors
/// As [`open_file`], or it is larger.
pub fn read_file(path: &Path, max_bytes: u64) -> Result<Vec<u8>> {
    let file = open_file(path)?;
    let n_bytes = file.metadata().context("cannot read")?.len();
    ensure!(n_bytes <= max_bytes, "has {n_bytes} bytes, expected at most {max_bytes}");
    read_at_most(file, max_bytes).context("cannot read")
}

/// Reads `name` in the folder `dir`, a regular file of at most [`MAX_TEXT_BYTES`]; `None` when there is none.
///
/// # Errors
/// As [`read_file`], naming the file.
pub fn read_beside(dir: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let path = dir.join(name);
    let read = || read_file(&path, MAX_TEXT_BYTES).with_context(|| format!("`{}`", path.display()));
    path.exists().then(read).transpose()
}

/// Reads a regular file of at most [`MAX_TEXT_BYTES`] as UTF-8.
///
/// # Errors
/// As [`read_file`], or it is not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read_file(path, MAX_TEXT_BYTES)?).context("is not UTF-8")
}

/// # Errors
/// `text` is no TOML, or not of the members that are wanted: says the line.
pub fn parse_toml<T: DeserializeOwned>(text: &str) -> Result<T> {
    toml::from_str(text).map_err(|error| {
        let begin = error.span().map_or(0, |span| span.start);
        let line = 1 + text.as_bytes()[..begin.min(text.len())].iter().filter(|&&byte| byte == b'\n').count();
        anyhow!("line {line}: {}", error.message().replace('\n', ", "))
    })
}

/// Reads to the end, or fails when there is more than `max_bytes`: what decompresses to more is a bomb.
///
/// # Errors
/// The reader fails, or has more.
pub fn read_at_most(reader: impl Read, max_bytes: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= max_bytes, "has more than {max_bytes} bytes");
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_large_files_are_refused_at_once() {
        assert!(read_file(Path::new("/dev/zero"), 10).unwrap_err().to_string().contains("not a regular file"));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, [7; 11]).unwrap();
        assert_eq!(read_file(&path, 11).unwrap(), [7; 11]);
        assert!(read_file(&path, 10).unwrap_err().to_string().contains("11 bytes"));
        assert!(read_at_most(std::io::repeat(0), 100).is_err());
    }

    #[test]
    fn an_error_in_toml_is_one_line_that_names_its_own() {
        let said = |text: &str| parse_toml::<std::collections::BTreeMap<String, f64>>(text).unwrap_err().to_string();
        assert_eq!(said("a = 1.0\nb = \"x\""), "line 2: invalid type: string \"x\", expected f64");
        assert!(said("a = 1.0\n\nb = [").starts_with("line 3: ") && !said("b = [").contains('\n'), "{}", said("b = ["));
        assert!(said("a = 1\u{7}").starts_with("line 1: "), "{}", said("a = 1\u{7}"));
    }
}
