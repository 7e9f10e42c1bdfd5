//! The only room that prints: data to stdout, everything else to stderr.

pub mod bench;
pub mod inspection;
pub mod page;
pub mod pictures;
pub mod plan;
mod sidecar;
pub mod svg;
pub mod table;
mod terminal;

pub use sidecar::{coverage_table, ledger_sentence, markdown, plan_text, tell_quantized};
pub use terminal::{Progress, Terminal, Unit};
