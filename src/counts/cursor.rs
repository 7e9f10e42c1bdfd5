//! The place in a domain that is being read: which file, and how many of its blocks are handed out.

use std::{
    sync::{Arc, mpsc::SyncSender},
    time::Instant,
};

use anyhow::{Context, Result, anyhow};

use super::FileRecord;
use crate::{
    corpus::{Block, CorpusFile, CutAt, FileReader, ReadOptions, fixed_hash},
    error::Hint,
    interrupt,
};

/// Bytes of each block's end that are hashed: whether a file is the one that was counted must cost nothing.
const HASHED_BYTES: usize = 4096;

/// Reads the files of a domain in order.
pub struct Cursor<'f> {
    files: &'f [CorpusFile],
    options: ReadOptions,
    /// The file being read, or the next one.
    at: usize,
    reader: Option<FileReader<'f>>,
    n_blocks: u64,
    /// What tells the blocks handed out from those of another file: their lengths and ends.
    blocks_hash: u64,
    records: Vec<FileRecord>,
}

impl<'f> Cursor<'f> {
    /// Starts at file `at`.
    pub fn new(files: &'f [CorpusFile], field: Option<String>, cut: Option<Arc<CutAt>>, at: usize) -> Self {
        let options = ReadOptions { field, cut };
        Self { files, options, at, reader: None, n_blocks: 0, blocks_hash: 0, records: Vec::new() }
    }

    /// Goes on behind `n_blocks` blocks of the file; what lies before is read again, but not handed out.
    ///
    /// # Errors
    /// The file cannot be read, or what is read is not what was counted.
    pub fn go_on(&mut self, n_blocks: u64, blocks_hash: u64) -> Result<()> {
        while self.n_blocks < n_blocks {
            interrupt::check()?;
            let file = self.files.get(self.at).context("the saved state is of other files")?;
            if self.next_of(file)?.is_none() {
                break;
            }
        }
        if (self.n_blocks, self.blocks_hash) != (n_blocks, blocks_hash) {
            let file = self.files.get(self.at).map(|file| file.path.display().to_string()).unwrap_or_default();
            return Err(anyhow!("`{file}` has changed where an earlier run had counted it"))
                .hint("remove the saved state (`.resume`, beside the output) to count from the beginning");
        }
        Ok(())
    }

    /// The files of the domain.
    pub fn files(&self) -> &'f [CorpusFile] {
        self.files
    }

    /// How many blocks of the file being read were handed out, and a hash of them: what [`Self::go_on`] takes.
    pub fn place(&self) -> (u64, u64) {
        (self.n_blocks, self.blocks_hash)
    }

    /// The files finished since the last call.
    pub fn take_records(&mut self) -> Vec<FileRecord> {
        std::mem::take(&mut self.records)
    }

    /// Hands out blocks until the end (true) or the deadline (false).
    ///
    /// # Errors
    /// A file that cannot be read, or an interrupt; all blocks up to there are handed out.
    pub fn feed(&mut self, sender: SyncSender<(usize, Block)>, deadline: Option<Instant>) -> Result<bool> {
        let files = self.files;
        while let Some(file) = files.get(self.at) {
            interrupt::check()?;
            if let Some(block) = self.next_of(file)? {
                // The workers leave early only with an error of their own, which is the one to report.
                if sender.send((self.at, block)).is_err() {
                    return Ok(true);
                }
                // Looked at behind a block: a round always gets somewhere.
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Ok(false);
                }
                continue;
            }
            if let Some(reader) = self.reader.take() {
                let (sha256, n_bytes) = reader.finish()?;
                self.records.push(FileRecord {
                    name: file.name.clone(),
                    sha256,
                    n_bytes,
                    n_documents: 0,
                    n_skipped: 0,
                });
            }
            self.at += 1;
            (self.n_blocks, self.blocks_hash) = (0, 0);
        }
        Ok(true)
    }

    fn next_of(&mut self, file: &'f CorpusFile) -> Result<Option<Block>> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            None => self.reader.insert(FileReader::open(file, &self.options)?),
        };
        let block = reader.next_block()?;
        if let Some(block) = &block {
            self.n_blocks += 1;
            let end = &block.bytes[block.bytes.len().saturating_sub(HASHED_BYTES)..];
            let words = [self.blocks_hash, block.bytes.len() as u64, fixed_hash(end)].map(u64::to_le_bytes);
            self.blocks_hash = fixed_hash(words.as_flattened());
        }
        Ok(block)
    }
}
