//! The `config.json` of each synthetic checkpoint: the published numbers at full scale, small ones at tiny scale.
//!
//! Full configs nest the text model as the multimodal releases do; tiny ones are text-only exports, which are whole
//! without a vision tower. Both are therefore read by every test.

use serde_json::{Value, json};

use super::synth::Scale;

/// How routed experts are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpertLayout {
    /// One NVFP4 triple an expert and projection, as quantized releases have.
    Nvfp4,
    /// One tensor an expert and projection.
    Single,
    /// One tensor for all experts.
    Stacked,
}

/// A model to synthesize.
pub(super) struct Model {
    pub config: Value,
    /// The routed experts' layout, if there are any.
    pub experts: Option<ExpertLayout>,
    /// Whether linears but the combiner are FP8 with 128x128 scales.
    pub is_fp8: bool,
    /// Ids of the tokenizer, added tokens included; the rows of the head are a little more.
    pub n_token_ids: usize,
}

/// The model of `family` at `scale`; `None` if there is none.
pub(super) fn model(family: &str, scale: Scale) -> Option<Model> {
    let n_token_ids = if scale == Scale::Full { 248_077 } else { 2_293 };
    let (config, experts) = match (family, scale) {
        ("qwen3.5-dense", Scale::Full) => (nested("Qwen3_5", "qwen3_5", qwen35_27b()), None),
        ("qwen3.8-flash-next", Scale::Full) => {
            (nested("Qwen4Exp", "qwen4_exp", flash_next()), Some(ExpertLayout::Nvfp4))
        }
        (_, Scale::Full) => return None,
        ("qwen3.5-dense", _) => (flat("Qwen3_5ForCausalLM", "qwen3_5_text", qwen35_27b(), &[QWEN_TINY]), None),
        ("qwen3.5-moe", _) => (
            flat("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", qwen_text(40), &[QWEN_TINY, MOE_TINY]),
            Some(ExpertLayout::Stacked),
        ),
        ("qwen3-next", _) => (
            flat("Qwen3NextForCausalLM", "qwen3_next", qwen_text(48), &[QWEN_TINY, MOE_TINY]),
            Some(ExpertLayout::Single),
        ),
        ("qwen3.8-flash-next", _) => (
            flat("Qwen4ExpForCausalLM", "qwen4_exp_text", flash_next(), &[QWEN_TINY, MOE_TINY, FLASH_NEXT_TINY]),
            Some(ExpertLayout::Nvfp4),
        ),
        ("deepseek-v3", _) => {
            (plain("DeepseekV32ForCausalLM", "deepseek_v32", &[MOE_TINY, MLA_TINY]), Some(ExpertLayout::Single))
        }
        ("glm-4.5", _) => (plain("Glm4MoeForCausalLM", "glm4_moe", &[MOE_TINY]), Some(ExpertLayout::Single)),
        ("mimo", _) => (plain("MiMoForCausalLM", "mimo", &[]), None),
        ("mimo-v2", _) => (plain("MiMoV2FlashForCausalLM", "mimo_v2_flash", &[]), None),
        ("nemotron-h", _) => (plain("NemotronHForCausalLM", "nemotron_h", &[MOE_TINY]), Some(ExpertLayout::Single)),
        ("ernie-4.5", _) => (plain("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", &[]), None),
        _ => return None,
    };
    Some(Model { config, experts, is_fp8: family == "deepseek-v3", n_token_ids })
}

/// Qwen3.5/3.6/3.8-27B.
fn qwen35_27b() -> Value {
    let mut text = qwen_text(64);
    extend(
        &mut text,
        json!({"hidden_size": 5120, "intermediate_size": 17408, "num_attention_heads": 24,
        "num_key_value_heads": 4}),
    );
    text
}

const QWEN_TINY: &[(&str, u64)] = &[
    ("hidden_size", 256),
    ("intermediate_size", 512),
    ("num_attention_heads", 4),
    ("num_key_value_heads", 2),
    ("head_dim", 64),
    ("linear_num_key_heads", 4),
    ("linear_num_value_heads", 8),
    ("linear_key_head_dim", 64),
    ("linear_value_head_dim", 64),
];

const MOE_TINY: &[(&str, u64)] = &[
    ("num_experts", 8),
    ("n_routed_experts", 8),
    ("num_experts_per_tok", 2),
    ("n_shared_experts", 1),
    ("moe_intermediate_size", 128),
    ("shared_expert_intermediate_size", 128),
    ("moe_shared_expert_intermediate_size", 128),
];

const MLA_TINY: &[(&str, u64)] = &[
    ("q_lora_rank", 128),
    ("kv_lora_rank", 64),
    ("qk_nope_head_dim", 64),
    ("qk_rope_head_dim", 64),
    ("v_head_dim", 64),
    ("index_n_heads", 4),
    ("index_head_dim", 32),
];

/// Qwen3.8-Flash-Next, without its n-gram table: nothing of a draft step reads that.
fn flash_next() -> Value {
    let mut text = qwen_text(48);
    extend(
        &mut text,
        json!({"hidden_size": 2560, "num_attention_heads": 24, "num_key_value_heads": 2,
        "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 640,
        "shared_expert_intermediate_size": 640, "norm_topk_prob": true, "hc_count": 4, "hc_lowrank": 320,
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 128, "indexer_budget": 2048,
        "indexer_compress_ratio": 4, "output_gate_type": "sigmoid", "ple_layer_ids": []}),
    );
    text
}

const FLASH_NEXT_TINY: &[(&str, u64)] = &[("hc_lowrank", 32), ("indexer_head_dim", 32)];

/// What the gated-delta-net families share: three linear layers, then one of full attention.
fn qwen_text(n_layers: usize) -> Value {
    json!({
        "attention_bias": false, "attention_dropout": 0.0, "attn_output_gate": true, "dtype": "bfloat16",
        "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "initializer_range": 0.02,
        "layer_types": layer_types(n_layers), "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32", "max_position_embeddings": 262_144, "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": false, "num_hidden_layers": n_layers, "rms_norm_eps": 1e-6,
        "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
            "rope_theta": 10_000_000, "rope_type": "default"},
        "tie_word_embeddings": false, "use_cache": true, "vocab_size": 248_320
    })
}

fn layer_types(n_layers: usize) -> Value {
    let kind = |layer: usize| if layer % 4 == 3 { "full_attention" } else { "linear_attention" };
    (0..n_layers).map(kind).collect()
}

/// The config of a multimodal release.
fn nested(class: &str, model_type: &str, mut text: Value) -> Value {
    extend(&mut text, json!({"model_type": format!("{model_type}_text")}));
    json!({
        "architectures": [format!("{class}ForConditionalGeneration")], "model_type": model_type,
        "tie_word_embeddings": false, "text_config": text
    })
}

/// The config of a text-only Qwen export, cut to four layers and 2,304 rows.
fn flat(class: &str, model_type: &str, mut text: Value, sizes: &[&[(&str, u64)]]) -> Value {
    extend(
        &mut text,
        json!({
            "architectures": [class], "model_type": model_type, "num_hidden_layers": 4, "layer_types": layer_types(4),
            "vocab_size": 2304, "max_position_embeddings": 4096
        }),
    );
    set_sizes(&mut text, sizes);
    text
}

/// The config of another small model.
fn plain(class: &str, model_type: &str, sizes: &[&[(&str, u64)]]) -> Value {
    let mut config = json!({
        "architectures": [class], "dtype": "bfloat16", "head_dim": 64, "hidden_act": "silu", "hidden_size": 256,
        "intermediate_size": 512, "max_position_embeddings": 4096, "model_type": model_type,
        "num_attention_heads": 4, "num_hidden_layers": 4, "num_key_value_heads": 2, "num_nextn_predict_layers": 1,
        "rms_norm_eps": 1e-6, "rope_theta": 10_000, "tie_word_embeddings": false, "vocab_size": 2304
    });
    set_sizes(&mut config, sizes);
    config
}

fn set_sizes(config: &mut Value, sizes: &[&[(&str, u64)]]) {
    for (key, size) in sizes.iter().copied().flatten() {
        config[*key] = json!(size);
    }
}

fn extend(object: &mut Value, more: Value) {
    if let (Value::Object(object), Value::Object(more)) = (object, more) {
        object.extend(more);
    }
}
