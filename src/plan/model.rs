//! The numbers of the cost model, read from a checkpoint's headers and config.

use std::collections::BTreeSet;

use anyhow::{Result, anyhow, bail};
use serde_json::Value;

use super::{
    Acceptance, CoverageCurve, Hardware, Question,
    choose::row_choices,
    cost::{Costs, Drafter, Load, RoutedExperts, Target},
};
use crate::{
    checkpoint::{Checkpoint, Dtype, Recipe, TensorEntry, config_value, family::Role},
    error::Hint,
};

/// Bytes of a cached element, BF16.
const CACHE_ELEMENT_BYTES: f64 = 2.0;

/// Parts of a model that decoding a token of text does not read.
const UNREAD: [&str; 6] = ["visual.", "vision", "audio", "mm_projector", "embed_tokens.", "embeddings."];

/// What a plan needs beside the checkpoint.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// The machine.
    pub hardware: Hardware,
    /// Acceptance of the full head by position; `None`: assumed.
    pub acceptance: Option<Acceptance>,
    /// Coverage over N; `None`: assumed.
    pub coverage: Option<CoverageCurve>,
    /// The numbers of draft tokens to consider.
    pub drafted: Vec<usize>,
    /// The traffic.
    pub load: Load,
    /// Measured tokens a second of one request without speculation; `None`: predicted from the checkpoint.
    pub baseline: Option<f64>,
    /// Rows are multiples of this.
    pub pad_to: usize,
}

/// The question that a checkpoint and its machine pose: `question(..)?.answer()` holds the best (N, k), which is what
/// `--size auto` takes. `mtp_from` is the checkpoint that the MTP tensors come from, when it is another.
///
/// # Errors
/// No k that the family's runtime can be started with, a baseline that is no speed, or, without a baseline, a
/// checkpoint that lacks the target's layers.
pub fn question(
    checkpoint: &Checkpoint,
    mtp_from: Option<&Checkpoint>,
    recipe: &Recipe,
    inputs: &Inputs,
) -> Result<Question> {
    let (drafted, refused) = bootable(recipe.family, &inputs.drafted);
    if drafted.is_empty() {
        return Err(anyhow!(refused.unwrap_or("there is no number of draft tokens to choose from")))
            .hint("give `--k 1..4`");
    }
    let measured_step_us = match inputs.baseline {
        Some(speed) if speed.is_finite() && speed > 0.0 => Some(1e6 / speed),
        Some(speed) => bail!("the speed without speculation is {speed}, expected tokens a second above 0"),
        None => None,
    };
    let drafter = drafter(recipe, mtp_from.unwrap_or(checkpoint).config());
    let mut target = target(checkpoint, recipe, measured_step_us)?;
    let missing = stand_in(&mut target, &drafter, layers_held(checkpoint, recipe), inputs.load);
    let refused = refused.map(|why| format!("{why}; they are left out"));
    Ok(Question {
        costs: Costs { hardware: inputs.hardware.clone(), target, drafter, load: inputs.load },
        acceptance: inputs.acceptance.clone().unwrap_or_else(Acceptance::assumed),
        coverage: inputs.coverage.clone().unwrap_or_else(|| CoverageCurve::assumed(recipe.target_rows)),
        drafted,
        rows: sizes(recipe.target_rows, inputs.pad_to),
        notes: refused.into_iter().chain(missing).collect(),
    })
}

/// What a draft step of `recipe` reads.
pub fn drafter(recipe: &Recipe, config: &Value) -> Drafter {
    let weights = |n: usize, k: usize| n as f64 * k as f64;
    let kept = |is_routed: bool| -> f64 {
        let read =
            recipe.kept.iter().filter(|kept| kept.read_each_step && (kept.role == Role::RoutedExpert) == is_routed);
        read.map(|kept| kept.read_bytes as f64).sum()
    };
    Drafter {
        hidden_size: recipe.hidden_size,
        target_rows: recipe.target_rows,
        n_linear_weights: recipe.linears.iter().map(|linear| weights(linear.n, linear.k)).sum(),
        linear_source_bytes: recipe
            .linears
            .iter()
            .map(|linear| weights(linear.n, linear.k) * linear.dtype.bitsize() as f64 / 8.0)
            .sum(),
        kept_bytes: kept(false),
        routed: recipe.experts.map(|experts| RoutedExperts {
            all_bytes: kept(true),
            n_active: experts.active,
            n_total: experts.total,
        }),
        cache_bytes_per_token: layer_cache_bytes(config),
    }
}

/// What a step of the target reads. With `measured_step_us` the checkpoint need not hold the target's layers.
///
/// # Errors
/// Layers are missing and nothing was measured.
pub fn target(checkpoint: &Checkpoint, recipe: &Recipe, measured_step_us: Option<f64>) -> Result<Target> {
    let config = checkpoint.config();
    let (n_held, n_layers) = layers_held(checkpoint, recipe);
    let mut target = Target {
        dense_bytes: 0.0,
        routed: None,
        n_active_weights: 0.0,
        cache_bytes_per_token: layer_cache_bytes(config) * n_cached_layers(config) as f64,
        measured_step_us,
    };
    let (n_active, n_total) = experts(recipe, config);
    let mut routed_bytes = 0.0;
    for (name, entry) in checkpoint.entries() {
        if !is_read(name, recipe, n_layers) {
            continue;
        }
        let share = if name.contains(".experts.") && n_total > 0 {
            routed_bytes += entry.n_bytes() as f64;
            n_active as f64 / n_total as f64
        } else {
            target.dense_bytes += entry.n_bytes() as f64;
            1.0
        };
        target.n_active_weights += share * n_weights(name, entry);
    }
    if routed_bytes > 0.0 {
        target.routed = Some(RoutedExperts { all_bytes: routed_bytes, n_active, n_total });
    }
    if measured_step_us.is_none() && n_held < n_layers {
        let error = anyhow!("`{}` holds {n_held} of the target's {n_layers} layers", checkpoint.dir().display());
        return Err(error).hint(
            "the bytes of a target step are not known: give its measured speed without speculation, `--baseline TOK/S`",
        );
    }
    Ok(target)
}

/// The target's layers that the checkpoint holds, and how many there are.
fn layers_held(checkpoint: &Checkpoint, recipe: &Recipe) -> (usize, usize) {
    let n_layers = number(checkpoint.config(), "num_hidden_layers");
    let read = checkpoint.entries().keys().filter(|name| is_read(name, recipe, n_layers));
    (read.filter_map(|name| layer_of(name)).collect::<BTreeSet<_>>().len(), n_layers)
}

/// Puts the MTP layer's routed experts in for those of layers that the checkpoint lacks: a measured step says what one
/// token costs, not how many more experts the verification of k drafts reads. Returns what to tell about it.
fn stand_in(target: &mut Target, drafter: &Drafter, (n_held, n_layers): (usize, usize), load: Load) -> Option<String> {
    if n_held >= n_layers {
        return None;
    }
    let held = format!("the checkpoint holds {n_held} of the target's {n_layers} layers");
    let left_out = "the operations of the others, which large batches meet, are left out";
    match drafter.routed {
        Some(routed) if target.routed.is_none() => {
            target.routed = Some(RoutedExperts { all_bytes: routed.all_bytes * (n_layers - n_held) as f64, ..routed });
            Some(format!("{held}: their routed experts are ASSUMED to be as large as the MTP layer's; {left_out}"))
        }
        _ => (load.batch > 1).then(|| format!("{held}: {left_out}")),
    }
}

/// Draft tokens that the family's runtime can be started with, of those asked for, and why others are not.
fn bootable(family: &str, drafted: &[usize]) -> (Vec<usize>, Option<&'static str>) {
    if family != "qwen3.8-flash-next" || !drafted.iter().any(|k| (5..=8).contains(k)) {
        return (drafted.to_vec(), None);
    }
    let kept = drafted.iter().copied().filter(|k| !(5..=8).contains(k)).collect();
    (
        kept,
        Some("k = 5 to 8 do not boot with vLLM: its QSA cache needs a block size divisible by 4 + k rounded up to 4"),
    )
}

/// The sizes that are worth considering: whole tiles, finer for small models.
fn sizes(target_rows: usize, pad_to: usize) -> Vec<usize> {
    row_choices(target_rows, (target_rows / 256).next_multiple_of(pad_to.max(1)))
}

fn is_read(name: &str, recipe: &Recipe, n_layers: usize) -> bool {
    if name == recipe.head.name {
        return true;
    }
    let is_draft = name.starts_with("mtp.") || name.contains(".mtp.") || name.contains(".mtp_layers.");
    !is_draft && !UNREAD.iter().any(|part| name.contains(part)) && layer_of(name).is_none_or(|layer| layer < n_layers)
}

/// The number after `layers.`.
fn layer_of(name: &str) -> Option<usize> {
    let (_, rest) = name.split_once("layers.")?;
    rest.split('.').next()?.parse().ok()
}

/// Weights of a tensor; packed ones count as what they hold, scales as none.
fn n_weights(name: &str, entry: &TensorEntry) -> f64 {
    let n_elements = entry.shape.iter().map(|&n| n as f64).product::<f64>();
    if name.contains("_scale") {
        return 0.0;
    }
    match entry.dtype {
        Dtype::U8 | Dtype::I8 => 2.0 * n_elements,
        Dtype::I32 | Dtype::U32 => 8.0 * n_elements,
        _ => n_elements,
    }
}

fn experts(recipe: &Recipe, config: &Value) -> (usize, usize) {
    let total = ["num_experts", "n_routed_experts", "num_local_experts"].map(|key| number(config, key));
    let own = (number(config, "num_experts_per_tok"), total.into_iter().find(|&n| n > 0).unwrap_or(0));
    if own.1 > 0 { own } else { recipe.experts.map_or((0, 0), |experts| (experts.active, experts.total)) }
}

/// Bytes that one token adds to the cache of one attention layer.
fn layer_cache_bytes(config: &Value) -> f64 {
    let compressed = number(config, "kv_lora_rank");
    if compressed > 0 {
        return (compressed + number(config, "qk_rope_head_dim")) as f64 * CACHE_ELEMENT_BYTES;
    }
    let n_heads = number(config, "num_attention_heads");
    let head_dim = match number(config, "head_dim") {
        0 => number(config, "hidden_size") / n_heads.max(1),
        head_dim => head_dim,
    };
    let n_key_heads = match number(config, "num_key_value_heads") {
        0 => n_heads,
        n_key_heads => n_key_heads,
    };
    2.0 * (n_key_heads * head_dim) as f64 * CACHE_ELEMENT_BYTES
}

/// Layers whose cache grows with the context: linear attention has a state of fixed size.
fn n_cached_layers(config: &Value) -> usize {
    if let Some(types) = config_value(config, "layer_types").and_then(Value::as_array) {
        let is_linear =
            |kind: &&Value| kind.as_str().is_some_and(|kind| kind.contains("linear") || kind.contains("mamba"));
        return types.len() - types.iter().filter(is_linear).count();
    }
    let n_layers = number(config, "num_hidden_layers");
    match number(config, "full_attention_interval") {
        0 => n_layers,
        interval => n_layers / interval,
    }
}

fn number(config: &Value, key: &str) -> usize {
    config_value(config, key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::cost::tests::costs_27b, *};

    #[test]
    fn flash_next_is_not_planned_for_drafts_that_do_not_boot() {
        let all: Vec<usize> = (1..=12).collect();
        let (kept, why) = bootable("qwen3.8-flash-next", &all);
        assert_eq!(kept, [1, 2, 3, 4, 9, 10, 11, 12]);
        assert!(why.unwrap().contains("5 to 8"));
        assert_eq!(bootable("qwen3.5-dense", &all), (all.clone(), None));
        assert_eq!(bootable("qwen3.8-flash-next", &[3]), (vec![3], None));
    }

    #[test]
    fn only_attention_layers_have_a_growing_cache() {
        let config = json!({"text_config": {
            "num_hidden_layers": 4, "full_attention_interval": 4, "num_key_value_heads": 2, "head_dim": 256,
            "num_attention_heads": 24, "hidden_size": 2560
        }});
        assert_eq!((n_cached_layers(&config), layer_cache_bytes(&config)), (1, 2048.0));
        let named = json!({"layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2});
        assert_eq!(n_cached_layers(&named), 1);
        let latent = json!({"kv_lora_rank": 512, "qk_rope_head_dim": 64});
        assert_eq!(layer_cache_bytes(&latent), 1152.0);
    }

    #[test]
    fn a_measured_step_does_not_hide_the_experts_that_verification_reads() {
        let costs = costs_27b(Hardware::of_bandwidth(1.0).unwrap(), 20_000.0);
        let routed = Some(RoutedExperts { all_bytes: 512e3, n_active: 10, n_total: 512 });
        let sparse = Drafter { routed, ..costs.drafter.clone() };
        let (one, many) = (costs.load, Load { batch: 8, ..costs.load });
        let mut target = costs.target.clone();
        assert_eq!(stand_in(&mut target, &costs.drafter, (0, 48), one), None);
        assert!(stand_in(&mut target, &costs.drafter, (0, 48), many).unwrap().contains("large batches"));
        assert_eq!(stand_in(&mut target, &sparse, (48, 48), one), None);
        assert_eq!(target, costs.target);
        assert!(stand_in(&mut target, &sparse, (0, 48), one).unwrap().contains("ASSUMED"));
        let costs = Costs { target, ..costs };
        assert!((costs.verify_us(0) - 20_000.0).abs() < 1e-6, "one token is what was measured");
        // 48 layers of 10 kB a token, two tokens: nearly as much again, at 0.8 GB/s.
        let added_us = costs.verify_us(1) - 20_000.0;
        assert!((580.0..600.0).contains(&added_us), "{added_us}");
    }

    #[test]
    fn layer_numbers_are_read_from_names() {
        assert_eq!(layer_of("model.layers.61.mlp.gate.weight"), Some(61));
        assert_eq!(layer_of("model.norm.weight"), None);
    }
}
