//! The half of a build that reads weights: flags -> checkpoints, recipe, options.

use std::sync::OnceLock;

use anyhow::{Result, bail};

use crate::{
    checkpoint::{Checkpoint, Overrides, Recipe, config_value, recipe},
    checksum::sha256_file,
    cli::quantize::{RoundingChoice, Scale, WeightFlags},
    nvfp4::ScaleRule,
    quantize::{Activations, Importance, QuantizeOptions, Rounding, Sources},
    report::Progress,
};

/// The opened checkpoints and what is to be done with them.
#[derive(Debug)]
pub struct Weights {
    target: Checkpoint,
    mtp_from: Option<Checkpoint>,
    /// Which tensors are quantized and which kept.
    pub recipe: Recipe,
    tokenizer_sha256: OnceLock<Option<String>>,
}

impl Weights {
    /// Opens the model folder, and the one with the MTP tensors if there is one.
    ///
    /// # Errors
    /// The folder is damaged, or is no model that the tables know how to handle.
    pub fn open(model: &std::path::Path, flags: &WeightFlags) -> Result<Self> {
        let target = Checkpoint::open(model)?;
        let mtp_from = flags.mtp_from.as_deref().map(Checkpoint::open).transpose()?;
        let overrides = Overrides { quantize: flags.quantize.clone(), keep: flags.keep.clone() };
        let recipe = recipe(&target, mtp_from.as_ref(), &overrides)?;
        Ok(Self { target, mtp_from, recipe, tokenizer_sha256: OnceLock::new() })
    }

    /// The checkpoints.
    pub fn sources(&self) -> Sources<'_> {
        Sources { target: &self.target, mtp_from: self.mtp_from.as_ref() }
    }

    /// A row shift changes all logits of a state alike, which a cap then bends.
    ///
    /// # Errors
    /// The config caps logits.
    pub fn refuse_capped_logits(&self) -> Result<()> {
        for key in ["final_logit_softcapping", "logits_soft_cap", "logit_soft_cap"] {
            if let Some(cap) = config_value(self.target.config(), key) {
                bail!("`--row-shift` changes what this model drafts: its config caps logits, `{key}` is {cap}");
            }
        }
        Ok(())
    }

    /// sha256 of the target's tokenizer.json; `None` when the folder has none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn tokenizer_sha256(&self) -> Result<Option<String>> {
        if let Some(known) = self.tokenizer_sha256.get() {
            return Ok(known.clone());
        }
        let path = self.target.dir().join("tokenizer.json");
        let found = path.is_file().then(|| sha256_file(&path, &Progress::silent())).transpose()?;
        Ok(self.tokenizer_sha256.get_or_init(|| found).clone())
    }
}

/// The stage's options from the flags.
///
/// # Errors
/// The importance file cannot be read, or flags contradict each other.
pub fn options(flags: &WeightFlags) -> Result<QuantizeOptions> {
    let importance = match &flags.importance {
        None => Importance::Even,
        Some(path) if path.as_os_str() == "columns" => Importance::Columns,
        Some(path) => Importance::Measured(Activations::open(path)?),
    };
    let rounding = match flags.rounding {
        RoundingChoice::Nearest => Rounding::Nearest,
        RoundingChoice::Gptq => Rounding::Gptq,
    };
    let options = QuantizeOptions {
        head_scale: flags.scale.map(rule),
        linear_scale: flags.linear_scale.map(rule),
        importance,
        rounding,
        row_shift: flags.row_shift,
    };
    options.validate()?;
    Ok(options)
}

fn rule(scale: Scale) -> ScaleRule {
    match scale {
        Scale::Max => ScaleRule::Max,
        Scale::FourSix => ScaleRule::FourSix,
        Scale::FourSix1536 => ScaleRule::FourSix1536,
        Scale::Mse => ScaleRule::Mse,
    }
}
