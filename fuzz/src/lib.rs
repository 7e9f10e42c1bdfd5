//! What is fuzzed: each target takes bytes to a parser through the library's public functions, the way a run would, and
//! asserts what must hold when the bytes are accepted. A panic, an abort, more than 2 GiB or more than ten seconds is a
//! finding; an error is not.

mod lists;
mod pages;
mod scratch;
pub mod seeds;
mod text;
mod vocabulary;
mod weights;

/// A fuzz target.
pub type Target = fn(&[u8]);

/// Every target by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("safetensors", weights::safetensors),
    ("index", weights::index),
    ("config", weights::config),
    ("recipe", weights::recipe_of),
    ("sidecar", weights::sidecar),
    ("pt", vocabulary::pt),
    ("pickle", vocabulary::pickle),
    ("npy", vocabulary::npy),
    ("vocabulary", vocabulary::any),
    ("splitter", text::splitter),
    ("tokenizer", text::tokenizer),
    ("template", text::template),
    ("corpus", text::corpus),
    ("parquet", text::parquet),
    ("checksums", lists::checksums),
    ("pointers", lists::pointers),
    ("counts", lists::counts),
    ("plan", lists::plan),
    ("report", pages::report_of),
];
