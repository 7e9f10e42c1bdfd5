//! One file, block by block.

use std::sync::Arc;

use anyhow::{Context, Result, bail};

use super::{
    array::Array,
    block::{Block, Content},
    decode::{Decoder, sha256_of},
    files::{CorpusFile, Format},
    parquet::ParquetReader,
};
use crate::error::Hint;

/// Decoded bytes a block aims at: large enough to hide the hand-over, small enough for many threads.
pub const BLOCK_BYTES: usize = 1 << 20;

/// The longest record that is held in memory; a longer one is skipped and counted.
pub const MAX_LINE_BYTES: usize = 64 << 20;

/// Finds the last place where a text can be cut without changing its tokens; `None` if there is none.
pub type CutAt = dyn Fn(&[u8]) -> Option<usize> + Send + Sync;

/// How files are read.
#[derive(Clone, Default)]
pub struct ReadOptions {
    /// The parquet column, or the JSON member, that holds the text; `None` looks for the usual names.
    pub field: Option<String>,
    /// Cuts long texts; `None` keeps each text file whole.
    pub cut: Option<Arc<CutAt>>,
}

/// A file being read.
pub struct FileReader<'f> {
    file: &'f CorpusFile,
    inner: Inner,
    array: Array,
    cut: Option<Arc<CutAt>>,
    rest: Vec<u8>,
    first_record: u64,
    first_byte: u64,
    n_file_bytes: u64,
}

enum Inner {
    Bytes(Box<Decoder>),
    Parquet(Box<ParquetReader>),
}

impl<'f> FileReader<'f> {
    /// Opens a file.
    ///
    /// # Errors
    /// The file cannot be opened, or is a parquet file without the column.
    pub fn open(file: &'f CorpusFile, options: &ReadOptions) -> Result<Self> {
        let inner = match file.format {
            Format::Parquet => {
                let reader =
                    ParquetReader::open(&file.path, file.field.as_ref().or(options.field.as_ref()).map(String::as_str));
                Inner::Parquet(Box::new(reader.with_context(|| format!("`{}`", file.path.display()))?))
            }
            Format::Text | Format::Lines => Inner::Bytes(Box::new(Decoder::open(&file.path)?)),
        };
        let cut = options.cut.clone();
        Ok(Self {
            file,
            inner,
            array: Array::default(),
            cut,
            rest: Vec::new(),
            first_record: 1,
            first_byte: 0,
            n_file_bytes: 0,
        })
    }

    /// The next block, `None` at the end of the file.
    ///
    /// # Errors
    /// Truncated or damaged compressed data, or a text that is too long to hold and cannot be cut.
    pub fn next_block(&mut self) -> Result<Option<Block>> {
        let block = match self.file.format {
            Format::Parquet => self.rows(),
            Format::Text => self.text(),
            Format::Lines => self.lines(),
        };
        block.with_context(|| format!("`{}`", self.file.path.display()))
    }

    /// The sha256 and the length of the file itself; to be called at its end.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn finish(self) -> Result<(String, u64)> {
        match self.inner {
            Inner::Bytes(decoder) => decoder.finish().with_context(|| format!("`{}`", self.file.path.display())),
            Inner::Parquet(_) => sha256_of(&self.file.path),
        }
    }

    fn rows(&mut self) -> Result<Option<Block>> {
        let Inner::Parquet(reader) = &mut self.inner else { return Ok(None) };
        let Some(mut block) = reader.next_block()? else { return Ok(None) };
        // Rows have no place in the file: the bar advances by the share of rows.
        let n_file_bytes = (self.file.n_bytes as f64 * reader.share_read()) as u64;
        block.n_file_bytes = n_file_bytes.saturating_sub(self.n_file_bytes);
        self.n_file_bytes = n_file_bytes;
        Ok(Some(block))
    }

    fn text(&mut self) -> Result<Option<Block>> {
        let mut bytes = std::mem::take(&mut self.rest);
        let mut n_wanted = BLOCK_BYTES;
        loop {
            let missing = n_wanted.saturating_sub(bytes.len());
            // One byte more than wanted tells the end of the file from a file of just this length.
            let is_end = self.fill(&mut bytes, missing + 1)? <= missing;
            if is_end {
                return Ok(
                    (!bytes.is_empty()).then(|| self.block(Content::Text { starts: self.first_byte == 0 }, bytes))
                );
            }
            if let Some(cut) = self.cut.as_ref().and_then(|cut| cut(&bytes)).filter(|cut| *cut > 0) {
                self.rest = bytes.split_off(cut);
                return Ok(Some(self.block(Content::Text { starts: self.first_byte == 0 }, bytes)));
            }
            if n_wanted >= MAX_LINE_BYTES {
                let limit = MAX_LINE_BYTES >> 20;
                return Err(anyhow::anyhow!(
                    "more than {limit} MiB of text at byte {} have no place to cut",
                    self.first_byte
                ))
                .hint("give it as .jsonl, a document a line");
            }
            n_wanted *= 2;
        }
    }

    fn lines(&mut self) -> Result<Option<Block>> {
        let mut bytes = std::mem::take(&mut self.rest);
        let mut n_searched = 0;
        let mut n_overlong = 0;
        loop {
            let missing = BLOCK_BYTES.saturating_sub(bytes.len()).max(BLOCK_BYTES / 4);
            let is_end = self.fill(&mut bytes, missing)? < missing;
            if is_end {
                return Ok((!bytes.is_empty() || n_overlong > 0).then(|| self.line_block(bytes, n_overlong)));
            }
            if let Some(newline) = bytes[n_searched..].iter().rposition(|b| *b == b'\n') {
                self.rest = bytes.split_off(n_searched + newline + 1);
                return Ok(Some(self.line_block(bytes, n_overlong)));
            }
            n_searched = bytes.len();
            if bytes.len() > MAX_LINE_BYTES {
                n_overlong += 1;
                bytes = self.skip_line()?;
                n_searched = 0;
                if bytes.len() >= BLOCK_BYTES / 4 {
                    // What follows may hold whole lines already: hand it over as the start of the next block.
                    self.rest = std::mem::take(&mut bytes);
                    return Ok(Some(self.line_block(bytes, n_overlong)));
                }
            }
        }
    }

    /// Reads up to the next newline, dropping what stands before it; returns what was read behind it.
    fn skip_line(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let is_end = self.fill(&mut bytes, BLOCK_BYTES)? < BLOCK_BYTES;
            if let Some(newline) = bytes.iter().position(|b| *b == b'\n') {
                return Ok(bytes.split_off(newline)); // with its newline, so that the line numbers stay right
            }
            if is_end {
                return Ok(Vec::new());
            }
        }
    }

    fn line_block(&mut self, mut bytes: Vec<u8>, n_overlong: u64) -> Block {
        if self.first_byte == 0 && bytes.starts_with(b"\xef\xbb\xbf") {
            bytes.drain(..3); // a byte order mark is no part of the first record
        }
        let n_lines = bytes.iter().filter(|b| **b == b'\n').count() as u64;
        let mut block = self.block(Content::Lines, bytes);
        block.n_overlong = n_overlong;
        self.first_record += n_lines;
        block
    }

    fn block(&mut self, content: Content, bytes: Vec<u8>) -> Block {
        let (first_record, first_byte) = (self.first_record, self.first_byte);
        self.first_byte += bytes.len() as u64;
        let n_file_bytes = match &self.inner {
            Inner::Bytes(decoder) => decoder.n_file_bytes(),
            Inner::Parquet(_) => 0,
        };
        let n_new = n_file_bytes - self.n_file_bytes;
        self.n_file_bytes = n_file_bytes;
        Block { content, bytes, first_record, first_byte, n_file_bytes: n_new, n_overlong: 0 }
    }

    fn fill(&mut self, bytes: &mut Vec<u8>, n: usize) -> Result<usize> {
        let Inner::Bytes(decoder) = &mut self.inner else { bail!("a parquet file has no lines") };
        let begin = bytes.len();
        let n_read = decoder.fill(bytes, n)?;
        if self.file.format == Format::Lines {
            self.array.split(&mut bytes[begin..]);
        }
        Ok(n_read)
    }
}
