//! Small files from elsewhere, read whole: never a device or a FIFO, never more than a stated number of bytes.
//!
//! Weights are mapped and corpora stream; everything else (configs, tokenizers, vocabularies, counts) is small when it is
//! what it says it is, and these two functions are how it is read.

use std::{fs::OpenOptions, io::Read, os::unix::fs::OpenOptionsExt, path::Path};

use anyhow::{Context, Result, ensure};

/// Reads a regular file of at most `max_bytes`.
///
/// # Errors
/// It is missing, is a FIFO, device or folder, or is larger. Sentences do not name the file: the caller knows what it is.
pub fn read_file(path: &Path, max_bytes: u64) -> Result<Vec<u8>> {
    // Without O_NONBLOCK, opening a FIFO waits for a writer for ever.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).context("cannot read")?;
    let metadata = file.metadata().context("cannot read")?;
    ensure!(metadata.is_file(), "cannot read: it is not a regular file");
    ensure!(metadata.len() <= max_bytes, "has {} bytes, expected at most {max_bytes}", metadata.len());
    read_at_most(file, max_bytes).context("cannot read")
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
}
