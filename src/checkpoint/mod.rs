//! A model folder, read: which tensors there are, which ones a drafter needs, what a draft step costs.
//!
//! ```text
//! open (index, header)              a folder -> checked tensor entries
//! family, families, sizes, names    one table per model family
//! recipe (module, decide, heuristic) checkpoint + table -> quantized and kept tensors, with reasons
//! ledger                            recipe -> bytes of one draft step
//! synth                             a family's checkpoint with random weights
//! ```
//! Nothing here reads a weight unless [`Checkpoint::tensor`] is called.

mod decide;
mod families;
mod families_nextn;
mod families_qwen;
pub mod family;
mod header;
mod heuristic;
mod index;
pub mod ledger;
mod module;
mod names;
mod open;
mod random;
mod recipe;
mod sizes;
pub mod synth;
mod synth_config;
mod synth_tokenizer;

pub use header::{Header, TensorEntry};
pub use ledger::{Ledger, LedgerItem};
pub use open::{Checkpoint, Tensor};
pub use recipe::{Experts, HeadTensor, Kept, Linear, Overrides, PackedScales, Recipe, Source, recipe};
pub use safetensors::Dtype;
pub use sizes::config_value;
