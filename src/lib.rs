//! draftfast turns a model checkpoint into a cheaper, lossless drafter for MTP speculative decoding.
//!
//! The pipeline, in the order in which the rooms stand here:
//!
//! ```text
//! corpus -> counts -> vocab                       text to kept token ids
//! checkpoint -> quantize (nvfp4, gpu) -> sidecar  weights to a directory
//! checksum, bench, plan                           checked, measured, predicted
//! ```
//!
//! Arrows run one way: `commands` joins stages, stages use formats, and only `report` writes to a terminal.

pub mod cli;
pub mod commands;

pub mod corpus;
pub mod counts;
pub mod vocab;

pub mod checkpoint;
pub mod nvfp4;
pub mod quantize;
pub mod sidecar;

pub mod bench;
pub mod checksum;
pub mod compare;
pub mod demo;
pub mod export;
pub mod gpu;
pub mod plan;

pub mod inspect;

pub mod error;
pub mod gguf;
pub mod input;
pub mod interrupt;
pub mod output;
pub mod report;
