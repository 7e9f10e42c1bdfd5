//! The only room that prints: data to stdout, everything else to stderr.

pub mod inspection;
pub mod table;
pub mod numbers;
mod sidecar;
mod terminal;

pub use sidecar::{ledger_sentence, markdown, plan_text, tell_quantized};
pub use terminal::{Progress, Terminal, Unit};
