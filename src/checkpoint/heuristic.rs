//! A family without a table: the MTP module is guessed from names, and every guess is said aloud.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};

use super::{
    Checkpoint, TensorEntry,
    family::Role,
    module::{Found, Module},
    names::owner,
    recipe::Experts,
    sizes::config_value,
};
use crate::error::advise;

/// Path components that mark a tensor as part of an MTP module.
const MARKS: &[&str] = &["mtp", "mtp_layers", "mtp_block", "nextn", "nextn_predict_layers", "eh_proj"];

/// Last path components before `.weight`, and what they usually are.
const GUESSES: &[(&str, Role, Option<&str>)] = &[
    ("fc", Role::Combiner, None),
    ("eh_proj", Role::Combiner, None),
    ("input_proj", Role::Combiner, None),
    ("fc_embedding", Role::Combiner, None),
    ("fc_hidden", Role::Combiner, None),
    ("q_proj", Role::Attention, Some("qkv_proj")),
    ("k_proj", Role::Attention, Some("qkv_proj")),
    ("v_proj", Role::Attention, Some("qkv_proj")),
    ("o_proj", Role::Attention, None),
    ("gate_proj", Role::DenseMlp, Some("gate_up_proj")),
    ("up_proj", Role::DenseMlp, Some("gate_up_proj")),
    ("down_proj", Role::DenseMlp, None),
];

/// Collects what looks like an MTP module.
pub(super) fn find_module(holder: &Checkpoint) -> Result<Module> {
    let n_layers = config_value(holder.config(), "num_hidden_layers").and_then(serde_json::Value::as_u64);
    let model_type = config_value(holder.config(), "model_type").and_then(serde_json::Value::as_str);
    let mut tensors = BTreeMap::new();
    for (name, entry) in holder.entries() {
        if is_mtp(name, n_layers) {
            tensors.insert(name.clone(), guess(name, entry));
        }
    }
    if tensors.is_empty() {
        return Err(advise(
            anyhow!("`{}`: no tensor looks like part of an MTP module", holder.dir().display()),
            "quantizers often drop it at export: take it from the upstream release with `--mtp-from OTHER_MODEL_FOLDER`",
        ));
    }
    let notes = vec![format!(
        "no table for model type `{}`: tensors were chosen by name and shape; correct them with `--quantize GLOB` and \
         `--keep GLOB`",
        model_type.unwrap_or("(none)")
    )];
    let count = |keys: &[&str]| {
        keys.iter().find_map(|key| config_value(holder.config(), key)?.as_u64()).map(|number| number as usize)
    };
    let active = count(&["num_experts_per_tok", "moe_k", "top_k"]);
    let total = count(&["num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"]);
    let experts = active.zip(total).map(|(active, total)| Experts { active, total });
    Ok(Module { family: "unknown", tensors, experts, notes })
}

/// By a marked path component, or by a layer number past the target's last layer.
fn is_mtp(name: &str, n_layers: Option<u64>) -> bool {
    let parts: Vec<&str> = name.split('.').collect();
    let is_past_the_end = |pair: &[&str]| {
        pair[0] == "layers" && pair[1].parse::<u64>().is_ok_and(|layer| n_layers.is_some_and(|n| layer >= n))
    };
    parts.iter().any(|part| MARKS.contains(part)) || parts.windows(2).any(is_past_the_end)
}

fn guess(name: &str, entry: &TensorEntry) -> Found {
    let weight = owner(name);
    let stem = weight.as_deref().unwrap_or(name).trim_end_matches(".weight");
    let last = stem.rsplit('.').next().unwrap_or(stem);
    let found = |role, fused| Found { role, layer: None, fused, read_bytes: None, is_scale: weight.is_some() };
    if ["lm_head", "embed_tokens", "head"].contains(&last) {
        return found(Role::SharedCopy, None);
    }
    if entry.shape.len() < 2 {
        return found(Role::Small, None);
    }
    if stem.contains(".experts.") {
        return found(Role::RoutedExpert, None);
    }
    let guessed = GUESSES.iter().find(|(component, ..)| *component == last);
    let Some(&(_, role, fused)) = guessed else {
        return found(Role::Other, None);
    };
    if stem.contains("indexer") {
        return found(Role::Indexer, None);
    }
    let role = if stem.contains("shared_expert") { Role::SharedExpert } else { role };
    found(role, fused)
}
