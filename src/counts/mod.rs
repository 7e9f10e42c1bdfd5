//! Text becomes token counts: exactly those of Hugging Face `tokenizers`, id by id.
//!
//! [`Tokenizer`] is a loaded tokenizer.json, [`count`] reads corpora and returns [`Counts`]: a dense `u64` a token id
//! for each domain, unweighted, with the provenance of every file. Counts of disjoint shards add ([`Counts::merge`]),
//! and everything that is decided later (weights, sizes, floors) is decided from them.

mod added;
mod bpe;
mod chat;
mod classes;
mod cursor;
mod cuts;
mod engine;
mod fast;
mod file;
mod fold;
mod growth;
mod hash;
mod ids;
mod lanes;
mod masks;
mod pages;
mod pairs;
mod pattern;
mod perfect;
mod reference;
mod resume;
mod run;
mod scan;
mod slots;
mod spec;
mod split;
mod table;
mod token_bytes;
mod token_ids;
mod tokenizer;
mod tsv;
mod whole;

pub use chat::{ChatTemplate, chat_template};
pub use engine::EngineChoice;
pub use file::{Counts, DomainCounts, FORMAT, FileRecord};
pub use run::{CountOptions, check, count};
pub use spec::AddedToken;
pub use token_ids::{IdWidth, count_token_ids};
pub use tokenizer::Tokenizer;
pub use tsv::{read_tsv, write_tsv};
