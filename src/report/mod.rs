//! The only room that prints: data to stdout, everything else to stderr.

pub mod bench;
mod bundle;
pub mod comparison;
pub mod inspection;
pub mod page;
pub mod pictures;
pub mod plan;
mod sentence;
mod sidecar;
mod svg;
pub mod table;
mod terminal;

pub use bundle::{REPORT_NAME, files, html, json_line};
pub use sidecar::{ledger_sentence, plan_text, tell_quantized};
pub use terminal::{Progress, Terminal, Unit};
