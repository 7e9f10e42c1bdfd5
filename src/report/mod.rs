//! The only room that prints: data to stdout, everything else to stderr.

pub mod inspection;
pub mod table;
mod terminal;

pub use terminal::{Progress, Terminal, Unit};
