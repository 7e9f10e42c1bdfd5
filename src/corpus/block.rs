//! A block of a decoded file, and the walk over its texts.

use std::fmt;

use anyhow::Result;

use super::record::Extract;

/// How the bytes of a block are laid out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A text document, or a piece of one; `starts` on its first piece.
    Text {
        /// Whether a document starts here.
        starts: bool,
    },
    /// JSON objects, a line each.
    Lines,
    /// Texts end to end; each ends at one of these offsets.
    Texts(Vec<usize>),
}

/// About a mebibyte of a decoded file, ending between documents (or at a safe place inside a long text).
#[derive(Debug, Clone)]
pub struct Block {
    /// How the bytes are laid out.
    pub content: Content,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Number of the first line or row of the block in the file, counted from 1.
    pub first_record: u64,
    /// Where the block starts in the decoded file.
    pub first_byte: u64,
    /// How many bytes of the file itself were read for it, for progress.
    pub n_file_bytes: u64,
    /// Records that were too long to hold and are counted as skipped.
    pub n_overlong: u64,
}

/// What a walk over a block saw; tallies of the blocks of a file add up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockTally {
    /// Documents whose texts were visited.
    pub n_documents: u64,
    /// Bytes of those texts.
    pub n_bytes: u64,
    /// Records that could not be read.
    pub n_skipped: u64,
    /// The first of them, in file order.
    pub first_error: Option<TextError>,
}

/// Why a record cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextError {
    /// Line or row, from 1; for a text file, 0.
    pub record: u64,
    /// What is wrong, without the file's name.
    pub reason: String,
    /// Whether the file as a whole is unusable (a text file that is not UTF-8), not just this record.
    pub fatal: bool,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Block {
    /// Visits the texts of the block in order. Unreadable records are tallied, not returned as errors.
    ///
    /// # Errors
    /// Only what `visit` returns.
    pub fn texts(&self, extract: &Extract, mut visit: impl FnMut(&str) -> Result<()>) -> Result<BlockTally> {
        let mut tally = BlockTally::default();
        if self.n_overlong > 0 {
            let record = self.first_record;
            let reason = format!("the record at line {record} is longer than {} MiB", super::MAX_LINE_BYTES >> 20);
            tally.skip(TextError { record, reason, fatal: false });
            tally.n_skipped = self.n_overlong;
        }
        match &self.content {
            Content::Text { starts } => self.whole(*starts, extract, &mut tally, &mut visit)?,
            Content::Lines => self.lines(extract, &mut tally, &mut visit)?,
            Content::Texts(ends) => self.rows(ends, extract, &mut tally, &mut visit)?,
        }
        Ok(tally)
    }

    fn whole(
        &self,
        starts: bool,
        extract: &Extract,
        tally: &mut BlockTally,
        visit: &mut impl FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        match std::str::from_utf8(&self.bytes) {
            Ok(text) if extract.takes(&self.bytes) => {
                tally.n_documents += u64::from(starts);
                tally.n_bytes += text.len() as u64;
                visit(text)
            }
            Ok(_) => Ok(()),
            Err(error) => {
                let at = self.first_byte + error.valid_up_to() as u64;
                tally.skip(TextError { record: 0, reason: format!("is not UTF-8 at byte {at}"), fatal: true });
                Ok(())
            }
        }
    }

    fn lines(
        &self,
        extract: &Extract,
        tally: &mut BlockTally,
        visit: &mut impl FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        for (i, line) in self.bytes.split(|b| *b == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || !extract.takes(line) {
                continue;
            }
            let mut visit_text = |text: &str| {
                tally.n_bytes += text.len() as u64;
                visit(text)
            };
            match extract.line(line, &mut visit_text) {
                Ok(visited) => {
                    visited?;
                    tally.n_documents += 1;
                }
                Err(reason) => {
                    let record = self.first_record + i as u64;
                    tally.skip(TextError { record, reason: format!("line {record} {reason}"), fatal: false });
                }
            }
        }
        Ok(())
    }

    fn rows(
        &self,
        ends: &[usize],
        extract: &Extract,
        tally: &mut BlockTally,
        visit: &mut impl FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        let mut start = 0;
        for (i, end) in ends.iter().enumerate() {
            let bytes = &self.bytes[start..*end];
            start = *end;
            if !extract.takes(bytes) {
                continue;
            }
            match std::str::from_utf8(bytes) {
                Ok(text) => {
                    tally.n_documents += 1;
                    tally.n_bytes += text.len() as u64;
                    visit(text)?;
                }
                Err(error) => {
                    let record = self.first_record + i as u64;
                    let reason = format!("row {record} is not UTF-8 at byte {} of its text", error.valid_up_to());
                    tally.skip(TextError { record, reason, fatal: false });
                }
            }
        }
        Ok(())
    }
}

impl BlockTally {
    /// Adds the tally of another block of the same file; the order does not matter.
    pub fn add(&mut self, other: Self) {
        self.n_documents += other.n_documents;
        self.n_bytes += other.n_bytes;
        self.n_skipped += other.n_skipped;
        let earlier = |a: &TextError, b: &TextError| (!a.fatal, a.record) <= (!b.fatal, b.record);
        self.first_error = match (self.first_error.take(), other.first_error) {
            (Some(a), Some(b)) => Some(if earlier(&a, &b) { a } else { b }),
            (a, b) => a.or(b),
        };
    }

    fn skip(&mut self, error: TextError) {
        self.n_skipped += 1;
        self.first_error.get_or_insert(error);
    }
}
