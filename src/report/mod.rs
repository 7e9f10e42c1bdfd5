//! The only room that prints: data to stdout, everything else to stderr.

mod terminal;

pub use terminal::{Progress, Terminal, Unit};
