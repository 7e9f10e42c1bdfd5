//! The digest of one file: a thread reads ahead while another hashes, so that hashing waits neither for the disk nor for
//! the copy out of the page cache.

use std::{
    fs::File,
    io::{ErrorKind, Read},
    path::Path,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

use anyhow::{Context, Result, anyhow};
use sha2::{Digest, Sha256};

use crate::{
    input::{Chunk, open_file},
    interrupt,
    output::hex,
    report::Progress,
};

/// Chunks between the reader and the hasher of a file: four mebibytes of memory, whatever its size.
const N_CHUNKS: usize = 32;
/// Chunks that the hasher gives back at once. The reader sleeps when it is ahead, and to wake it costs the hasher as much as
/// to hash twenty kilobytes.
const N_RETURNED: usize = N_CHUNKS * 3 / 4;
/// A shorter file is hashed before a second thread would be up.
const MIN_AHEAD_BYTES: u64 = 4 << 20;
/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// By a thread of its own: fastest for the file, where a core is free.
    Ahead,
    /// By the thread that hashes, between chunks: fewest cycles, where every core has a file.
    InTurn,
}

/// The sha256 of a file in lower-case hexadecimal.
///
/// # Errors
/// The file cannot be read or is no regular file, or the run was interrupted.
pub fn sha256_file(path: &Path, progress: &Progress) -> Result<String> {
    sha256_read(path, Reading::Ahead, progress)
}

/// # Errors
/// As [`sha256_file`].
pub(super) fn sha256_read(path: &Path, reading: Reading, progress: &Progress) -> Result<String> {
    let say = || format!("`{}`", path.display());
    let file = open_file(path).with_context(say)?;
    let n_bytes = file.metadata().context("cannot read").with_context(say)?.len();
    // Asks the kernel for a longer read-ahead of its own.
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Sequential);
    let mut sha256 = Sha256::new();
    let hash = |chunk: &[u8]| {
        interrupt::check()?;
        sha256.update(chunk);
        progress.advance(chunk.len() as u64);
        Ok(())
    };
    let is_ahead = reading == Reading::Ahead && n_bytes >= MIN_AHEAD_BYTES;
    let hashed = if is_ahead { ahead(&file, hash) } else { in_turn(&file, hash) };
    hashed.with_context(say)?;
    Ok(hex(&sha256.finalize()))
}

/// Reads a chunk, hashes it, reads the next.
fn in_turn(file: &File, mut hash: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut chunk = Chunk::new();
    loop {
        match fill(file, chunk.bytes_mut())? {
            0 => return Ok(()),
            n => hash(&chunk.bytes_mut()[..n])?,
        }
    }
}

/// Reads until `chunk` is full or the file ends; returns the bytes read.
pub(super) fn fill(mut file: &File, chunk: &mut [u8]) -> Result<usize> {
    let mut n_read = 0;
    while n_read < chunk.len() {
        match file.read(&mut chunk[n_read..]) {
            Ok(0) => break,
            Ok(n) => n_read += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("cannot read"),
        }
    }
    Ok(n_read)
}

/// Hashes on this thread what another one reads.
fn ahead(file: &File, mut hash: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let (full, filled) = channel();
    let (empty, emptied) = channel();
    for _ in 0..N_CHUNKS {
        let _ = empty.send(Chunk::new());
    }
    thread::scope(|scope| {
        thread::Builder::new()
            .name("read-ahead".to_owned())
            .spawn_scoped(scope, move || read_all(file, &emptied, &full))
            .context("cannot start a thread")?;
        // Of both channels this thread holds one end: when it leaves with an error, the reader's next call fails.
        let empty = empty;
        let mut hashed = Vec::with_capacity(N_RETURNED);
        for filled in filled {
            let (chunk, n_bytes) = filled?;
            if n_bytes == 0 {
                return Ok(());
            }
            hash(&chunk.bytes()[..n_bytes])?;
            hashed.push(chunk);
            if hashed.len() == N_RETURNED {
                hashed.drain(..).for_each(|chunk| drop(empty.send(chunk)));
            }
        }
        Err(anyhow!("the reading thread ended early"))
    })
}

/// A chunk and how much of it is filled.
type Filled = Result<(Chunk, usize)>;

/// Fills empty chunks in the order of the file; one of 0 bytes is its end.
fn read_all(file: &File, emptied: &Receiver<Chunk>, full: &Sender<Filled>) {
    for mut chunk in emptied {
        let filled = fill(file, chunk.bytes_mut());
        let is_last = filled.as_ref().map_or(true, |n_bytes| *n_bytes == 0);
        if full.send(filled.map(|n_bytes| (chunk, n_bytes))).is_err() || is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{input::CHUNK_BYTES, output::sha256_hex};

    #[test]
    fn both_ways_give_the_digest_at_every_length_around_a_chunk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let bytes: Vec<u8> = (0..40 * CHUNK_BYTES + 7).map(|i| ((i * 31) >> 3) as u8).collect();
        let ends = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, N_CHUNKS * CHUNK_BYTES, bytes.len()];
        for n in ends {
            std::fs::write(&path, &bytes[..n]).unwrap();
            for is_ahead in [false, true] {
                let (file, mut found) = (File::open(&path).unwrap(), Sha256::new());
                let hash = |chunk: &[u8]| {
                    found.update(chunk);
                    Ok(())
                };
                if is_ahead { ahead(&file, hash) } else { in_turn(&file, hash) }.unwrap();
                assert_eq!(hex(&found.finalize()), sha256_hex(&bytes[..n]), "{n} bytes, read ahead: {is_ahead}");
            }
            assert_eq!(sha256_file(&path, &Progress::silent()).unwrap(), sha256_hex(&bytes[..n]));
        }
    }

    #[test]
    fn an_error_of_the_hasher_ends_the_reader() {
        let file = File::open("/dev/zero").unwrap();
        let mut n_chunks = 0;
        let stop = |_: &[u8]| {
            n_chunks += 1;
            if n_chunks < 9 { Ok(()) } else { Err(anyhow!("enough")) }
        };
        assert_eq!(ahead(&file, stop).unwrap_err().to_string(), "enough");
    }
}
