//! Flags of `build`.

use std::path::PathBuf;

use clap::Args;

use super::{
    build_vocab::ChoiceFlags,
    quantize::{WeightFlags, WritingFlags},
};

/// Make a drafter from a model and text: the whole job, from counting to a verified sidecar
///
/// Counts the tokens of the text, keeps the most useful ids, quantizes their rows of the head and the MTP linears to
/// NVFP4, verifies every row against the model, and writes one directory with checksums. The model is not touched.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  draftfast build --demo -o out\n  draftfast build model/ --corpus zh=chats.jsonl --corpus code:2=src/ -o artifacts/drafter"
)]
pub struct Build {
    /// A model folder: config.json, tokenizer.json, model*.safetensors
    #[arg(value_name = "MODEL", required_unless_present = "demo")]
    pub model: Option<PathBuf>,
    /// Make a tiny model with random weights and use the sample texts: a look at the whole job in seconds
    #[arg(long, conflicts_with = "model")]
    pub demo: bool,
    /// Where to write the sidecar [default: artifacts/MODEL-drafter]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Which ids are kept
    #[command(flatten)]
    pub choice: ChoiceFlags,
    /// How and from what
    #[command(flatten)]
    pub weights: WeightFlags,
    /// Where and whether to write
    #[command(flatten)]
    pub writing: WritingFlags,
}
