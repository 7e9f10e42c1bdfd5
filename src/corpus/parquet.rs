//! A column of a parquet file: a string column gives texts, a column of messages gives JSON lines.

use std::{collections::VecDeque, fs::File, path::Path};

use anyhow::{Context, Result, bail, ensure};
use parquet::{
    basic::{Repetition, Type as PhysicalType},
    column::reader::{ColumnReader, ColumnReaderImpl},
    data_type::{ByteArray, ByteArrayType},
    file::reader::{FileReader as _, SerializedFileReader},
    record::{Field, reader::RowIter},
    schema::types::GroupTypeBuilder,
};
use serde_json::Value;

use super::{
    block::{Block, Content},
    parquet_file::ParquetFile,
    read::{BLOCK_BYTES, MAX_LINE_BYTES},
};
use crate::{
    error::{Hint, contained},
    input::open_file,
};

/// What a panic of the crate is called by: it asserts what a damaged file denies.
const LIBRARY: &str = "parquet reader";

/// Rows that are decoded at once.
const N_BATCH_ROWS: usize = 256;

/// Rows of a block at most: nulls take no bytes, and two billion of them are a few bytes of a page.
const MAX_BLOCK_ROWS: usize = 1 << 17;

/// A parquet file being read, row group by row group.
pub struct ParquetReader {
    column: Column,
    n_rows: u64,
    n_rows_read: u64,
    first_byte: u64,
}

enum Column {
    Strings(Box<Strings>),
    Nested(Box<RowIter<'static>>),
}

/// A top-level string column.
struct Strings {
    file: SerializedFileReader<ParquetFile>,
    /// Position among the leaf columns.
    leaf: usize,
    next_group: usize,
    reader: Option<ColumnReaderImpl<ByteArrayType>>,
    /// Rows that are decoded and not handed over yet; `None` is a null.
    decoded: VecDeque<Option<ByteArray>>,
}

impl ParquetReader {
    /// Opens the file and finds the column: `field`, or the first of the usual names.
    ///
    /// # Errors
    /// No parquet file, or no such column.
    pub fn open(path: &Path, field: Option<&str>) -> Result<Self> {
        let file = open_file(path)?;
        contained(LIBRARY, || Self::of(file, field))
    }

    fn of(file: File, field: Option<&str>) -> Result<Self> {
        let file = SerializedFileReader::new(ParquetFile::open(file)?).context("not a parquet file")?;
        let schema = file.metadata().file_metadata().schema();
        let usual = ["text", "content", "messages", "conversations"];
        let wanted = field.map_or(usual.to_vec(), |field| vec![field]);
        let find = |name: &&str| schema.get_fields().iter().find(|column| column.name() == *name).cloned();
        let Some(column) = wanted.iter().find_map(find) else {
            let found: Vec<&str> = schema.get_fields().iter().map(|column| column.name()).collect();
            let error = anyhow::anyhow!("no column `{}`, found `{}`", wanted.join("` or `"), found.join("`, `"));
            return Err(error).hint("name the column with `--field`");
        };
        let n_rows = file.metadata().file_metadata().num_rows().max(0) as u64;
        let column = if column.is_primitive() {
            let is_text = column.get_physical_type() == PhysicalType::BYTE_ARRAY
                && column.get_basic_info().repetition() != Repetition::REPEATED;
            ensure!(is_text, "column `{}` is {}, expected strings", column.name(), column.get_physical_type());
            let leaves = file.metadata().file_metadata().schema_descr_ptr();
            let leaf = leaves.columns().iter().position(|leaf| leaf.path().parts() == [column.name()]);
            let leaf = leaf.with_context(|| format!("column `{}` has no leaf", column.name()))?;
            Column::Strings(Box::new(Strings { file, leaf, next_group: 0, reader: None, decoded: VecDeque::new() }))
        } else {
            let projection = GroupTypeBuilder::new(schema.name()).with_fields(vec![column]).build()?;
            Column::Nested(Box::new(RowIter::from_file_into(Box::new(file)).project(Some(projection))?))
        };
        Ok(Self { column, n_rows, n_rows_read: 0, first_byte: 0 })
    }

    /// Rows read so far, as a share of all.
    pub fn share_read(&self) -> f64 {
        self.n_rows_read as f64 / self.n_rows.max(1) as f64
    }

    /// The next block, `None` at the end.
    ///
    /// # Errors
    /// Damaged pages.
    pub fn next_block(&mut self) -> Result<Option<Block>> {
        let first_record = self.n_rows_read + 1;
        let mut bytes = Vec::new();
        let column = &mut self.column;
        let read = contained(LIBRARY, || match column {
            Column::Strings(strings) => strings.read(&mut bytes).map(|ends| (ends.len(), Content::Texts(ends))),
            Column::Nested(rows) => read_rows(rows, &mut bytes).map(|n_rows| (n_rows, Content::Lines)),
        });
        let (n_rows, content) = read.with_context(|| format!("the rows from {first_record} on cannot be read"))?;
        if n_rows == 0 {
            return Ok(None);
        }
        self.n_rows_read += n_rows as u64;
        let first_byte = self.first_byte;
        self.first_byte += bytes.len() as u64;
        Ok(Some(Block { content, bytes, first_record, first_byte, n_file_bytes: 0, n_overlong: 0 }))
    }
}

impl Strings {
    /// Reads about a block of rows; returns where each text ends. A null row is an empty text.
    fn read(&mut self, bytes: &mut Vec<u8>) -> Result<Vec<usize>> {
        let mut ends = Vec::new();
        while bytes.len() < BLOCK_BYTES && ends.len() < MAX_BLOCK_ROWS {
            let Some(row) = self.decoded.pop_front() else {
                if self.decode()? || self.open_group()? {
                    continue;
                }
                break;
            };
            let text = row.as_ref().map_or(&[][..], ByteArray::data);
            ensure!(text.len() <= MAX_LINE_BYTES, "a text is longer than {} MiB", MAX_LINE_BYTES >> 20);
            bytes.extend_from_slice(text);
            ends.push(bytes.len());
        }
        Ok(ends)
    }

    /// Decodes some rows of the open group; they share the memory of their page, so that a page whose rows all name one
    /// long entry of its dictionary stays small until the rows are handed over. False at the end of the group.
    fn decode(&mut self) -> Result<bool> {
        let Some(reader) = &mut self.reader else { return Ok(false) };
        let (mut definitions, mut values) = (Vec::new(), Vec::new());
        let (n_records, _, _) = reader.read_records(N_BATCH_ROWS, Some(&mut definitions), None, &mut values)?;
        let mut values = values.into_iter();
        // A required column has no definition levels: every row has a value.
        let is_value = |row: usize| definitions.get(row).is_none_or(|level| *level > 0);
        self.decoded.extend((0..n_records).map(|row| is_value(row).then(|| values.next()).flatten()));
        Ok(n_records > 0)
    }

    /// Opens the column in the next row group. False at the end of the file.
    fn open_group(&mut self) -> Result<bool> {
        if self.next_group == self.file.num_row_groups() {
            return Ok(false);
        }
        let group = self.file.get_row_group(self.next_group)?;
        self.next_group += 1;
        match group.get_column_reader(self.leaf)? {
            ColumnReader::ByteArrayColumnReader(reader) => self.reader = Some(reader),
            _ => bail!("the column changes its type between row groups"),
        }
        Ok(true)
    }
}

/// Appends about a block of rows as JSON lines; returns how many.
fn read_rows(rows: &mut RowIter<'static>, bytes: &mut Vec<u8>) -> Result<usize> {
    let mut n_rows = 0;
    while bytes.len() < BLOCK_BYTES {
        let Some(row) = rows.next() else { break };
        let row = row?;
        let object: serde_json::Map<_, _> = row.get_column_iter().map(|(k, field)| (k.clone(), json(field))).collect();
        serde_json::to_writer(&mut *bytes, &Value::Object(object)).context("a row cannot be written as JSON")?;
        bytes.push(b'\n');
        n_rows += 1;
    }
    Ok(n_rows)
}

/// The strings, lists and groups of a row; other values do not matter to a chat and become their printed form.
fn json(field: &Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Bool(value) => Value::Bool(*value),
        Field::Str(text) => Value::String(text.clone()),
        Field::Bytes(bytes) => Value::String(String::from_utf8_lossy(bytes.data()).into_owned()),
        Field::ListInternal(list) => Value::Array(list.elements().iter().map(json).collect()),
        Field::Group(row) => Value::Object(row.get_column_iter().map(|(k, field)| (k.clone(), json(field))).collect()),
        other => Value::String(other.to_string()),
    }
}
