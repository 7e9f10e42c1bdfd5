//! A file that threads write out of order. Whoever has written hashes what is whole from the beginning on, and the disk
//! writes meanwhile, so that at the end neither has much left.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result, ensure};
use rustix::{fs::FallocateFlags, io::Errno};
use sha2::{Digest, Sha256};

use super::Digests;
use crate::{
    input::{CHUNK_BYTES, Chunk},
    interrupt,
};

/// A file whose length is known before its bytes.
#[derive(Debug)]
pub struct ScatteredFile {
    name: String,
    file: File,
    n_bytes: u64,
    written: Mutex<Written>,
    /// Taken without waiting: one thread hashes, the others write on.
    hashed: Mutex<Hashed>,
    write_back: WriteBack,
    digests: Digests,
}

impl ScatteredFile {
    pub(super) fn create(path: &Path, name: &str, n_bytes: u64, digests: Digests) -> Result<Self> {
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(path);
        let file = file.with_context(|| format!("`{name}`: cannot create"))?;
        reserve(&file, n_bytes).with_context(|| format!("`{name}`: cannot reserve {n_bytes} bytes"))?;
        let write_back = WriteBack::default();
        let hashed = Mutex::new(Hashed { sha256: Sha256::new(), n_bytes: 0, chunk: Chunk::new() });
        Ok(Self { name: name.to_owned(), file, n_bytes, written: Mutex::default(), hashed, write_back, digests })
    }

    /// Writes bytes at their place. Every byte is written once.
    ///
    /// # Errors
    /// The disk is full, or the bytes reach beyond the end.
    pub fn write_at(&self, bytes: &[u8], begin: u64) -> Result<()> {
        let end = begin + bytes.len() as u64;
        ensure!(end <= self.n_bytes, "`{}` has {} bytes, got some up to {end}", self.name, self.n_bytes);
        self.file.write_all_at(bytes, begin).with_context(|| self.cannot("write"))?;
        self.lock_written().add(begin, end);
        self.write_back.add(&self.file, bytes.len() as u64);
        let Ok(mut hashed) = self.hashed.try_lock() else { return Ok(()) };
        if self.lock_written().front >= end && hashed.n_bytes <= begin {
            // The bytes are at hand: only what comes before them is read back.
            self.read_and_hash(&mut hashed, begin)?;
            hashed.add(bytes);
        }
        loop {
            let front = self.lock_written().front;
            // What is left at the end is for `finish`, beside which others have other work.
            if front < hashed.n_bytes + CHUNK_BYTES as u64 || front == self.n_bytes {
                return Ok(());
            }
            self.read_and_hash(&mut hashed, front)?;
        }
    }

    /// Hashes what is left; returns the sha256 in lower-case hexadecimal.
    ///
    /// # Errors
    /// A part was not written, the disk fails, or the run was interrupted.
    pub fn finish(self) -> Result<String> {
        let front = self.lock_written().front;
        begin_writing(&self.file);
        self.read_and_hash(&mut self.hashed.lock().unwrap_or_else(PoisonError::into_inner), front)?;
        let Self { name, hashed, digests, .. } = self;
        let Hashed { sha256, n_bytes, .. } = hashed.into_inner().unwrap_or_else(PoisonError::into_inner);
        ensure!(n_bytes == self.n_bytes, "`{name}`: byte {n_bytes} of {} was never written", self.n_bytes);
        Ok(digests.note(&name, sha256))
    }

    /// Reads back what was written up to `end` (from the page cache, where it has just been put) and hashes it.
    fn read_and_hash(&self, hashed: &mut Hashed, end: u64) -> Result<()> {
        while hashed.n_bytes < end {
            interrupt::check()?;
            let chunk = hashed.chunk.bytes_mut();
            let n = (end - hashed.n_bytes).min(chunk.len() as u64) as usize;
            self.file.read_exact_at(&mut chunk[..n], hashed.n_bytes).with_context(|| self.cannot("read"))?;
            hashed.sha256.update(&chunk[..n]);
            hashed.n_bytes += n as u64;
        }
        Ok(())
    }

    fn lock_written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cannot(&self, what: &str) -> String {
        format!("`{}`: cannot {what}", self.name)
    }
}

#[derive(Debug)]
struct Hashed {
    sha256: Sha256,
    n_bytes: u64,
    chunk: Chunk,
}

impl Hashed {
    fn add(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        self.n_bytes += bytes.len() as u64;
    }
}

/// Which bytes are written.
#[derive(Debug, Default)]
struct Written {
    /// All before this one are.
    front: u64,
    /// Ends of the stretches beyond, by where they begin.
    ahead: BTreeMap<u64, u64>,
}

impl Written {
    fn add(&mut self, begin: u64, end: u64) {
        self.ahead.insert(begin, end);
        while let Some(next) = self.ahead.first_entry()
            && *next.key() <= self.front
        {
            self.front = self.front.max(next.remove());
        }
    }
}

/// Has the disk write what gathers in the page cache, so that little is left for the sync at the end; that sync is also what
/// hears of the disk's errors.
#[derive(Debug, Default)]
struct WriteBack {
    /// Bytes since the disk was last told.
    n_gathered: AtomicU64,
}

impl WriteBack {
    /// Gathered before the disk is bothered.
    const N_BYTES: u64 = 4 << 20;

    fn add(&self, file: &File, n_bytes: u64) {
        let before = self.n_gathered.fetch_add(n_bytes, Ordering::Relaxed);
        if before + n_bytes >= Self::N_BYTES {
            self.n_gathered.store(0, Ordering::Relaxed);
            begin_writing(file);
        }
    }
}

/// Has the disk write all there is, without waiting: a sync would hold up those who write on, for its journal.
pub(super) fn begin_writing(file: &File) {
    #[expect(unsafe_code, reason = "rustix has no such call")]
    // SAFETY: the descriptor is open; no memory is passed.
    unsafe {
        libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE);
    }
}

/// Takes the room on the disk at once: less to do for each write, and a full disk is found before the work.
fn reserve(file: &File, n_bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, n_bytes) {
        // Not every file system can.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(n_bytes),
        done => Ok(done?),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::output::sha256_hex;

    fn create(dir: &Path, n_bytes: u64) -> (ScatteredFile, Digests) {
        let digests = Digests::default();
        (ScatteredFile::create(&dir.join("x"), "x", n_bytes, digests.clone()).unwrap(), digests)
    }

    #[test]
    fn the_digest_is_that_of_the_file_in_whatever_order_it_was_written() {
        let bytes: Vec<u8> = (0..35_000_003u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let pieces: Vec<_> = bytes.chunks(70_001).enumerate().collect();
        for step in [1, 7, 499] {
            let dir = tempfile::tempdir().unwrap();
            let (file, digests) = create(dir.path(), bytes.len() as u64);
            thread::scope(|scope| {
                for half in 0..2 {
                    let (file, pieces) = (&file, &pieces);
                    scope.spawn(move || {
                        for i in (half..pieces.len()).step_by(2) {
                            let (i, piece) = pieces[i * step % pieces.len()];
                            file.write_at(piece, i as u64 * 70_001).unwrap();
                        }
                    });
                }
            });
            assert_eq!(file.finish().unwrap(), sha256_hex(&bytes));
            assert_eq!(digests.known()["x"], sha256_hex(&bytes));
            assert!(std::fs::read(dir.path().join("x")).unwrap() == bytes);
        }
    }

    #[test]
    fn what_was_never_written_or_does_not_fit_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let (file, _) = create(dir.path(), 10);
        file.write_at(&[1; 4], 6).unwrap();
        assert!(file.write_at(&[1; 4], 7).unwrap_err().to_string().contains("up to 11"));
        file.write_at(&[1; 5], 0).unwrap();
        assert_eq!(file.finish().unwrap_err().to_string(), "`x`: byte 5 of 10 was never written");
    }
}
