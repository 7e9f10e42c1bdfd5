//! The decoded bytes of a file: plain, gz or zst, hashed as they lie on disk.

use std::{
    io::{self, BufReader, Read},
    path::Path,
};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::{input::open_file, output::hex};

/// Reads a file from start to end, undoing compression, and remembers what went through.
pub struct Decoder {
    stream: Stream,
    n_decoded_bytes: u64,
}

enum Stream {
    Plain(Hashed),
    Gzip(Box<flate2::bufread::MultiGzDecoder<BufReader<Hashed>>>),
    Zstd(Box<zstd::stream::read::Decoder<'static, BufReader<Hashed>>>),
}

/// The bytes on disk, hashed as they are read.
struct Hashed {
    file: Box<dyn Read + Send>,
    sha256: Sha256,
    n_bytes: u64,
}

impl Read for Hashed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(buffer)?;
        self.sha256.update(&buffer[..n]);
        self.n_bytes += n as u64;
        Ok(n)
    }
}

impl Decoder {
    /// Opens a file, or stdin when `path` is `-`. Compression is told by the extension.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        let name = || format!("`{}`", path.display());
        let say = || format!("`{}`: cannot read", path.display());
        let file: Box<dyn Read + Send> =
            if path == Path::new("-") { Box::new(io::stdin()) } else { Box::new(open_file(path).with_context(name)?) };
        let hashed = Hashed { file, sha256: Sha256::new(), n_bytes: 0 };
        let buffered = |hashed| BufReader::with_capacity(1 << 17, hashed);
        let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        let stream = match extension.as_str() {
            "gz" => Stream::Gzip(Box::new(flate2::bufread::MultiGzDecoder::new(buffered(hashed)))),
            "zst" | "zstd" => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(buffered(hashed)).with_context(say)?;
                // Files made with `--long=31` are legal; the window is the file's choice, 2 GiB at most.
                decoder.window_log_max(31).with_context(say)?;
                Stream::Zstd(Box::new(decoder))
            }
            _ => Stream::Plain(hashed),
        };
        Ok(Self { stream, n_decoded_bytes: 0 })
    }

    /// Appends at most `n` decoded bytes to `buffer`; fewer only at the end of the file.
    ///
    /// # Errors
    /// The compressed data ends early or is damaged; the message says after how many decoded bytes.
    pub fn fill(&mut self, buffer: &mut Vec<u8>, n: usize) -> Result<usize> {
        let start = buffer.len();
        let read = match &mut self.stream {
            Stream::Plain(file) => file.take(n as u64).read_to_end(buffer),
            Stream::Gzip(file) => file.take(n as u64).read_to_end(buffer),
            Stream::Zstd(file) => file.take(n as u64).read_to_end(buffer),
        };
        let n_read = buffer.len() - start;
        self.n_decoded_bytes += n_read as u64;
        read.with_context(|| {
            let (what, at) = match &self.stream {
                Stream::Plain(_) => ("the file cannot be read", "bytes"),
                _ => ("the compressed data is truncated or damaged", "decoded bytes"),
            };
            format!("{what} after {} {at} ({} bytes of the file)", self.n_decoded_bytes, self.n_file_bytes())
        })
    }

    /// Bytes of the file itself consumed so far.
    pub fn n_file_bytes(&self) -> u64 {
        self.hashed().n_bytes
    }

    /// The sha256 of the file itself, once it has been read to its end.
    ///
    /// # Errors
    /// Bytes behind the compressed data cannot be read.
    pub fn finish(mut self) -> Result<(String, u64)> {
        // What stands behind the last frame is part of the file, not of the text.
        io::copy(self.hashed_mut(), &mut io::sink()).context("the end of the file cannot be read")?;
        let hashed = self.hashed();
        Ok((hex(&hashed.sha256.clone().finalize()), hashed.n_bytes))
    }

    fn hashed(&self) -> &Hashed {
        match &self.stream {
            Stream::Plain(file) => file,
            Stream::Gzip(file) => file.get_ref().get_ref(),
            Stream::Zstd(file) => file.get_ref().get_ref(),
        }
    }

    fn hashed_mut(&mut self) -> &mut Hashed {
        match &mut self.stream {
            Stream::Plain(file) => file,
            Stream::Gzip(file) => file.get_mut().get_mut(),
            Stream::Zstd(file) => file.get_mut().get_mut(),
        }
    }
}

/// The sha256 of a whole file and its length.
///
/// # Errors
/// The file cannot be read.
pub fn sha256_of(path: &Path) -> Result<(String, u64)> {
    let file = Box::new(open_file(path).with_context(|| format!("`{}`", path.display()))?);
    let plain = Stream::Plain(Hashed { file, sha256: Sha256::new(), n_bytes: 0 });
    Decoder { stream: plain, n_decoded_bytes: 0 }.finish()
}
