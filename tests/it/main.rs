//! The integration tests: one binary, a module a feature, sentence names.

mod cli;
