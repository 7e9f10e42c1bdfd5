//! A model folder, read: which tensors there are, which ones a drafter needs, what a draft step costs.
//!
//! `open` finds the shards and checks every header; `family` says, in one table per model family, which tensors make up
//! the MTP module; `recipe` resolves that table against a checkpoint; `ledger` counts bytes; `synth` writes checkpoints
//! of the same structure with random weights. Nothing here reads a weight unless [`Checkpoint::tensor`] is called.

mod header;
mod index;
mod open;

pub use header::{Header, TensorEntry};
pub use open::{Checkpoint, Tensor};
pub use safetensors::Dtype;
