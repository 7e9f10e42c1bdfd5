//! A parquet file whose headers are walked before the `parquet` crate reads them.
//!
//! The crate passes over members that it does not know as fast as their counts say, and two counts cost nothing to claim:
//! a list of two billion booleans, which it takes to have no bytes, and bytes behind the end of the file. Nor does it look
//! at the types of those it knows, which makes something else of the bytes behind them. 260 bytes kept it busy for
//! minutes. Below are the members of the format's `parquet.thrift`, where no list has booleans.

use std::{
    fs::File,
    io::{BufReader, Read},
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use parquet::{
    errors::{ParquetError, Result as ParquetResult},
    file::reader::{ChunkReader, Length},
};

use super::thrift::{
    Shape,
    Type::{self, Binary, Bool, Double, I8, I16, I32, I64, List, Struct},
    walk_struct,
};

const EMPTY: Type = Struct(&[]);

const STATISTICS: Shape =
    &[(1, Binary), (2, Binary), (3, I64), (4, I64), (5, Binary), (6, Binary), (7, Bool), (8, Bool)];

const DATA_PAGE: Shape = &[(1, I32), (2, I32), (3, I32), (4, I32), (5, Struct(STATISTICS))];
const DATA_PAGE_V2: Shape =
    &[(1, I32), (2, I32), (3, I32), (4, I32), (5, I32), (6, I32), (7, Bool), (8, Struct(STATISTICS))];
const PAGE_HEADER: Shape = &[
    (1, I32),
    (2, I32),
    (3, I32),
    (4, I32),
    (5, Struct(DATA_PAGE)),
    (6, EMPTY),
    (7, Struct(&[(1, I32), (2, I32), (3, Bool)])),
    (8, Struct(DATA_PAGE_V2)),
];

const TIME: Type = Struct(&[(1, Bool), (2, Struct(&[(1, EMPTY), (2, EMPTY), (3, EMPTY)]))]);
const LOGICAL_TYPE: Shape = &[
    (1, EMPTY),
    (2, EMPTY),
    (3, EMPTY),
    (4, EMPTY),
    (5, Struct(&[(1, I32), (2, I32)])),
    (6, EMPTY),
    (7, TIME),
    (8, TIME),
    (10, Struct(&[(1, I8), (2, Bool)])),
    (11, EMPTY),
    (12, EMPTY),
    (13, EMPTY),
    (14, EMPTY),
    (15, EMPTY),
    (16, Struct(&[(1, I8)])),
    (17, Struct(&[(1, Binary)])),
    (18, Struct(&[(1, Binary), (2, I32)])),
];
const SCHEMA_ELEMENT: Shape = &[
    (1, I32),
    (2, I32),
    (3, I32),
    (4, Binary),
    (5, I32),
    (6, I32),
    (7, I32),
    (8, I32),
    (9, I32),
    (10, Struct(LOGICAL_TYPE)),
];
const KEY_VALUES: Type = List(&Struct(&[(1, Binary), (2, Binary)]));
const BOUNDING_BOX: Shape =
    &[(1, Double), (2, Double), (3, Double), (4, Double), (5, Double), (6, Double), (7, Double), (8, Double)];
const COLUMN_METADATA: Shape = &[
    (1, I32),
    (2, List(&I32)),
    (3, List(&Binary)),
    (4, I32),
    (5, I64),
    (6, I64),
    (7, I64),
    (8, KEY_VALUES),
    (9, I64),
    (10, I64),
    (11, I64),
    (12, Struct(STATISTICS)),
    (13, List(&Struct(&[(1, I32), (2, I32), (3, I32)]))),
    (14, I64),
    (15, I32),
    (16, Struct(&[(1, I64), (2, List(&I64)), (3, List(&I64))])),
    (17, Struct(&[(1, Struct(BOUNDING_BOX)), (2, List(&I32))])),
];
const COLUMN_CHUNK: Shape =
    &[(1, Binary), (2, I64), (3, Struct(COLUMN_METADATA)), (4, I64), (5, I32), (6, I64), (7, I32), (9, Binary)];
const ROW_GROUP: Shape = &[
    (1, List(&Struct(COLUMN_CHUNK))),
    (2, I64),
    (3, I64),
    (4, List(&Struct(&[(1, I32), (2, Bool), (3, Bool)]))),
    (5, I64),
    (6, I64),
    (7, I16),
];
const FILE_METADATA: Shape = &[
    (1, I32),
    (2, List(&Struct(SCHEMA_ELEMENT))),
    (3, I64),
    (4, List(&Struct(ROW_GROUP))),
    (5, KEY_VALUES),
    (6, Binary),
    (7, List(&Struct(&[(1, EMPTY)]))),
    (9, Binary),
];

/// The length of the metadata and `PAR1`, at the end of the file.
const FOOTER_BYTES: u64 = 8;

/// A file that hands out page headers only when they can be walked.
pub struct ParquetFile(File);

impl ParquetFile {
    /// Walks the footer's metadata.
    ///
    /// # Errors
    /// No footer, or one that cannot be walked.
    pub fn open(file: File) -> Result<Self> {
        let at = file.len().checked_sub(FOOTER_BYTES).context("not a parquet file: it has no footer")?;
        let mut footer = [0; FOOTER_BYTES as usize];
        file.get_read(at)?.read_exact(&mut footer)?;
        let [a, b, c, d, magic @ ..] = footer;
        ensure!(&magic == b"PAR1", "not a parquet file: it does not end with `PAR1`");
        let n_metadata_bytes = u64::from(u32::from_le_bytes([a, b, c, d]));
        let start = at.checked_sub(n_metadata_bytes).context("not a parquet file: its footer is longer than it is")?;
        let mut metadata = file.get_read(start)?.take(n_metadata_bytes);
        walk_struct(&mut metadata, FILE_METADATA).context("not a parquet file: its footer cannot be read")?;
        Ok(Self(file))
    }
}

impl Length for ParquetFile {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl ChunkReader for ParquetFile {
    type T = BufReader<File>;

    /// The crate reads page headers and the last eight bytes this way, everything else by [`ChunkReader::get_bytes`].
    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        if start.checked_add(FOOTER_BYTES) != Some(self.len()) {
            let say = |error| ParquetError::General(format!("the page header at byte {start}: {error:#}"));
            walk_struct(&mut self.0.get_read(start)?, PAGE_HEADER).map_err(say)?;
        }
        self.0.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        self.0.get_bytes(start, length)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn what_ends_unlike_a_parquet_file_is_refused() {
        let said = |bytes: &[u8]| format!("{:#}", ParquetFile::open(file(bytes)).err().unwrap());
        assert!(said(b"PAR1").contains("no footer"));
        assert!(said(b"PAR1\0\0\0\0PAR2").contains("does not end with `PAR1`"));
        assert!(said(b"PAR1\x09\0\0\0PAR1").contains("longer than it is"));
        assert!(said(b"PAR1\x19\xfc\xff\x03\0\0\0PAR1").contains("member 1: it has type 9 where 5 is expected"));
        assert!(said(b"PAR1\x29\xfc\xff\x03\0\0\0PAR1").contains("cut off"));
    }

    #[test]
    fn a_page_header_that_claims_what_costs_nothing_is_refused() {
        // Member 9, which no version has: two billion booleans.
        let header = [0x15, 0, 0x15, 0, 0x15, 0, 0x69, 0xf1, 0xff, 0xff, 0xff, 0xff, 7, 0];
        let file = ParquetFile(file(&[&header[..], b"\0\0\0\0\0\0\0\0PAR1"].concat()));
        let error = file.get_read(0).err().unwrap().to_string();
        assert!(error.contains("the page header at byte 0") && error.contains("2147483647 booleans"), "{error}");
        assert!(file.get_read(header.len() as u64 + 4).is_ok(), "the footer is no header");
    }
}
