//! What a family table says: the tensors of an MTP module, their shapes, and what becomes of each.
//!
//! The tables themselves are in [`families`](super::families); `recipe` resolves one against a checkpoint, `synth`
//! writes tensors from it. The decision is in [`Role`]: a role is either quantized or kept for one stated reason.

use serde::Serialize;
use serde_json::Value;

use super::{
    families::FAMILIES,
    sizes::{Size, config_value},
};

/// A family of checkpoints whose MTP module has the same tensors.
#[derive(Debug)]
pub struct Family {
    /// The name that `synth` takes and `inspect` shows.
    pub name: &'static str,
    /// `model_type` values (of the config or its `text_config`) that belong to it.
    pub model_types: &'static [&'static str],
    /// How the names of its MTP tensors begin.
    pub module: &'static [&'static str],
    /// The symbols of the shapes.
    pub sizes: &'static [Size],
    /// The MTP module.
    pub rows: &'static [Row],
    /// The target's own layers: only for synthetic models, never needed to draft.
    pub target: &'static [Row],
}

/// One tensor, or one per layer or expert.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The name. `{i}` counts MTP layers from 0, `{L}` from the number of target layers, `{e}` counts experts; in
    /// `target`, `{all}` counts layers, `{linear}` and `{full}` those of that attention type.
    pub name: &'static str,
    /// Dimensions in the family's symbols; empty: not checked.
    pub shape: &'static str,
    /// What it is for.
    pub role: Role,
    /// The module that runtimes fuse it into, relative to its own parent: parts share one global scale.
    pub fused: &'static str,
    /// Elements that a step reads, where the runtime pads; empty: the shape.
    pub reads: &'static str,
    /// Whether a checkpoint may lack it.
    pub optional: bool,
}

/// A row that every checkpoint of the family has.
pub const fn row(name: &'static str, shape: &'static str, role: Role) -> Row {
    Row { name, shape, role, fused: "", reads: "", optional: false }
}

impl Row {
    /// Fused with the other parts of `module`.
    #[must_use]
    pub const fn fused(self, module: &'static str) -> Self {
        Self { fused: module, ..self }
    }

    /// Read as this many elements.
    #[must_use]
    pub const fn reads(self, elements: &'static str) -> Self {
        Self { reads: elements, ..self }
    }

    /// Absent in some checkpoints.
    #[must_use]
    pub const fn optional(self) -> Self {
        Self { optional: true, ..self }
    }
}

/// What a tensor of the draft path does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Joins the embedding and the hidden state.
    Combiner,
    /// Attention projections.
    Attention,
    /// A dense MLP.
    DenseMlp,
    /// The expert that every token uses.
    SharedExpert,
    /// Experts of which a token uses a few.
    RoutedExpert,
    /// Chooses the experts.
    Router,
    /// Chooses the keys of sparse attention.
    Indexer,
    /// Mixes the residual streams.
    HyperConnection,
    /// A projection that the runtime multiplies into others at load.
    Absorbed,
    /// Norms, biases, one-row gates: vectors.
    Small,
    /// A copy of the target's head or embedding, which the draft head replaces.
    SharedCopy,
    /// Not in the table.
    Other,
}

impl Role {
    /// Whether linears of this role become NVFP4.
    pub fn is_quantized(self) -> bool {
        matches!(self, Self::Combiner | Self::Attention | Self::DenseMlp | Self::SharedExpert)
    }

    /// Why tensors of this role are kept.
    pub fn keep_reason(self) -> &'static str {
        match self {
            Self::Combiner | Self::Attention | Self::DenseMlp | Self::SharedExpert => "not a linear",
            Self::RoutedExpert => "routed expert: a fused MoE kernel reads it in its own layout",
            Self::Router => "router: small, and it decides which experts run",
            Self::Indexer => "indexer: small, and it decides which keys attention sees",
            Self::HyperConnection => "hyper-connection mixer: all residual streams pass through it",
            Self::Absorbed => "absorbed into other projections when the runtime loads it",
            Self::Small => "norm, bias or one-row gate: too small to matter",
            Self::SharedCopy => "copy of the target's head or embedding, replaced by the draft head",
            Self::Other => "not in the table of this family",
        }
    }

    /// The line of the byte ledger.
    pub fn ledger_line(self) -> &'static str {
        match self {
            Self::Combiner => "combiner",
            Self::Attention => "attention q k v o",
            Self::DenseMlp => "dense MLP",
            Self::SharedExpert => "shared expert",
            Self::RoutedExpert => "routed experts",
            Self::Router => "router",
            Self::Indexer => "indexer",
            Self::HyperConnection => "hyper-connection mixers",
            Self::Absorbed => "absorbed projections",
            Self::Small => "norms, biases, gates",
            Self::SharedCopy => "shared copies",
            Self::Other => "other",
        }
    }
}

/// The family of a config: by the `model_type` of the text model, then of the whole.
pub fn detect(config: &Value) -> Option<&'static Family> {
    let outer = config.get("model_type").and_then(Value::as_str);
    let inner = config_value(config, "model_type").and_then(Value::as_str);
    [inner, outer]
        .into_iter()
        .flatten()
        .find_map(|model_type| FAMILIES.iter().copied().find(|family| family.model_types.contains(&model_type)))
}

/// The family with this name.
pub fn by_name(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().copied().find(|family| family.name == name)
}
