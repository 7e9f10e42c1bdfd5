//! The place in a domain that is being read: which file, and how many of its blocks are handed out.

use std::{
    sync::{Arc, mpsc::SyncSender},
    time::Instant,
};

use anyhow::{Context, Result};

use super::FileRecord;
use crate::{
    corpus::{Block, CorpusFile, CutAt, FileReader, ReadOptions},
    interrupt,
};

/// Reads the files of a domain in order.
pub struct Cursor<'f> {
    files: &'f [CorpusFile],
    options: ReadOptions,
    /// The file being read, or the next one.
    at: usize,
    reader: Option<FileReader<'f>>,
    n_blocks: u64,
    records: Vec<FileRecord>,
}

impl<'f> Cursor<'f> {
    /// Starts behind `n_blocks` blocks of file `at`; what lies before is read again, but not handed out.
    ///
    /// # Errors
    /// The file is shorter than that, or cannot be read.
    pub fn new(
        files: &'f [CorpusFile],
        field: Option<String>,
        cut: Option<Arc<CutAt>>,
        at: usize,
        n_blocks: u64,
    ) -> Result<Self> {
        let mut cursor =
            Self { files, options: ReadOptions { field, cut }, at, reader: None, n_blocks: 0, records: Vec::new() };
        while cursor.n_blocks < n_blocks {
            interrupt::check()?;
            let file = files.get(at).context("the saved state is of other files")?;
            let block = cursor.next_of(file)?;
            block.with_context(|| format!("`{}` is shorter than when the run was saved", file.path.display()))?;
        }
        Ok(cursor)
    }

    /// The files of the domain.
    pub fn files(&self) -> &'f [CorpusFile] {
        self.files
    }

    /// Blocks of the file being read that were handed out.
    pub fn n_blocks(&self) -> u64 {
        self.n_blocks
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
            self.n_blocks = 0;
        }
        Ok(true)
    }

    fn next_of(&mut self, file: &'f CorpusFile) -> Result<Option<Block>> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            None => self.reader.insert(FileReader::open(file, &self.options)?),
        };
        let block = reader.next_block()?;
        self.n_blocks += u64::from(block.is_some());
        Ok(block)
    }
}
