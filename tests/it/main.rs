//! The integration tests: one binary, a module a feature, sentence names.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod cli;
