//! Text in: paths become documents in a fixed order.
//!
//! A [`Source`] is what a person names (`zh:2=chats/`); [`expand`] turns sources into files, sorted, so that the order
//! never depends on the file system; [`FileReader`] decodes one file (gz, zst, parquet) into [`Block`]s of about a
//! mebibyte that end between documents, and [`Block::texts`] walks the texts of a block. Decoding is sequential and
//! cheap, parsing a block is the expensive part and may happen on any thread: that is why the two are apart.

mod array;
mod block;
mod decode;
mod files;
mod node;
mod parquet;
mod parquet_file;
mod read;
mod record;
mod response;
mod thrift;

pub use block::{Block, BlockTally, Content, TextError};
pub use decode::Decoder;
pub use files::{CorpusFile, DEFAULT_DOMAIN, Expanded, Format, Source, expand, refuse_stdin};
pub use node::Node;
pub use read::{BLOCK_BYTES, CutAt, FileReader, MAX_LINE_BYTES, ReadOptions};
pub use record::{Extract, Render, Rendered, Speakers, fixed_hash, without_thinking};
pub use response::responses;
