//! One table per model family. To add one, see docs/families.md.
//!
//! Names and shapes follow the checkpoints; fused groups and padding follow vLLM's `model_executor/models`.
#![expect(clippy::enum_glob_use, reason = "tables read better without paths")]

use super::{
    family::{Family, Role::*, Row, row},
    sizes::{Size, size, size_or},
};

/// Every family, in the order in which `synth` lists them.
pub static FAMILIES: &[&Family] = &[&QWEN35_DENSE, &QWEN38_FLASH_NEXT];

/// Symbols that nearly all families share.
const QWEN_SIZES: &[Size] = &[
    size("V", &["vocab_size"]),
    size("H", &["hidden_size"]),
    size("I", &["intermediate_size"]),
    size("layers", &["num_hidden_layers"]),
    size_or("mtp", &["mtp_num_hidden_layers", "num_nextn_predict_layers"], 1),
    size("hq", &["num_attention_heads"]),
    size("hk", &["num_key_value_heads"]),
    size("d", &["head_dim"]),
    // Qwen3-Next and later write q and its output gate into one projection; configs often omit the flag.
    size_or("g", &["attn_output_gate"], 1),
    size("E", &["num_experts"]),
    size("topk", &["num_experts_per_tok"]),
    size("Im", &["moe_intermediate_size"]),
    size("Is", &["shared_expert_intermediate_size"]),
    size("hc", &["hc_count"]),
    size("r", &["hc_lowrank"]),
    size("nq", &["indexer_n_heads"]),
    size("nk", &["indexer_kv_heads"]),
    size("di", &["indexer_head_dim"]),
    // Gated delta net, for the target's own layers.
    size("lk", &["linear_num_key_heads"]),
    size("lv", &["linear_num_value_heads"]),
    size("dk", &["linear_key_head_dim"]),
    size("dv", &["linear_value_head_dim"]),
    size("conv", &["linear_conv_kernel_dim"]),
];

static QWEN35_DENSE: Family = Family {
    name: "qwen3.5-dense",
    model_types: &["qwen3_5", "qwen3_5_text"],
    module: &["mtp."],
    sizes: QWEN_SIZES,
    rows: &[
        row("mtp.fc.weight", "H, 2*H", Combiner),
        row("mtp.layers.{i}.self_attn.q_proj.weight", "hq*(1+g)*d, H", Attention).fused("qkv_proj"),
        row("mtp.layers.{i}.self_attn.k_proj.weight", "hk*d, H", Attention).fused("qkv_proj"),
        row("mtp.layers.{i}.self_attn.v_proj.weight", "hk*d, H", Attention).fused("qkv_proj"),
        row("mtp.layers.{i}.self_attn.o_proj.weight", "H, hq*d", Attention),
        row("mtp.layers.{i}.mlp.gate_proj.weight", "I, H", DenseMlp).fused("gate_up_proj"),
        row("mtp.layers.{i}.mlp.up_proj.weight", "I, H", DenseMlp).fused("gate_up_proj"),
        row("mtp.layers.{i}.mlp.down_proj.weight", "H, I", DenseMlp),
        row("mtp.layers.{i}.self_attn.q_norm.weight", "d", Small),
        row("mtp.layers.{i}.self_attn.k_norm.weight", "d", Small),
        row("mtp.layers.{i}.input_layernorm.weight", "H", Small),
        row("mtp.layers.{i}.post_attention_layernorm.weight", "H", Small),
        row("mtp.pre_fc_norm_embedding.weight", "H", Small),
        row("mtp.pre_fc_norm_hidden.weight", "H", Small),
        row("mtp.norm.weight", "H", Small),
    ],
    target: QWEN35_TARGET,
};

static QWEN38_FLASH_NEXT: Family = Family {
    name: "qwen3.8-flash-next",
    model_types: &["qwen4_exp", "qwen4_exp_text"],
    module: &["mtp."],
    sizes: QWEN_SIZES,
    rows: &[
        row("mtp.fc_embedding.weight", "H, H", Combiner),
        row("mtp.fc_hidden.weight", "H, H", Combiner),
        row("mtp.layers.{i}.self_attn.q_proj.weight", "hq*(1+g)*d, H", Attention).fused("qkv_proj"),
        row("mtp.layers.{i}.self_attn.k_proj.weight", "hk*d, H", Attention).fused("qkv_proj"),
        row("mtp.layers.{i}.self_attn.v_proj.weight", "hk*d, H", Attention).fused("qkv_proj"),
        row("mtp.layers.{i}.self_attn.o_proj.weight", "H, hq*d", Attention),
        row("mtp.layers.{i}.mlp.shared_expert.gate_proj.weight", "Is, H", SharedExpert).fused("gate_up_proj"),
        row("mtp.layers.{i}.mlp.shared_expert.up_proj.weight", "Is, H", SharedExpert).fused("gate_up_proj"),
        row("mtp.layers.{i}.mlp.shared_expert.down_proj.weight", "H, Is", SharedExpert),
        row("mtp.layers.{i}.mlp.experts.{e}.gate_proj.weight", "Im, H", RoutedExpert).fused("gate_up_proj").optional(),
        row("mtp.layers.{i}.mlp.experts.{e}.up_proj.weight", "Im, H", RoutedExpert).fused("gate_up_proj").optional(),
        row("mtp.layers.{i}.mlp.experts.{e}.down_proj.weight", "H, Im", RoutedExpert).optional(),
        // The upstream release stacks all experts into one tensor.
        row("mtp.layers.{i}.mlp.experts.gate_up_proj", "E, 2*Im, H", RoutedExpert).optional(),
        row("mtp.layers.{i}.mlp.experts.down_proj", "E, H, Im", RoutedExpert).optional(),
        row("mtp.layers.{i}.mlp.gate.weight", "E, H", Router),
        row("mtp.layers.{i}.mlp.shared_expert_gate.weight", "1, H", Small),
        row("mtp.layers.{i}.self_attn.indexer.index_qk_proj.weight", "(nq+nk)*di, H", Indexer),
        row("mtp.layers.{i}.self_attn.indexer.q_layernorm.weight", "di", Small),
        row("mtp.layers.{i}.self_attn.indexer.k_layernorm.weight", "di", Small),
        row("mtp.layers.{i}.self_attn.q_norm.weight", "d", Small),
        row("mtp.layers.{i}.self_attn.k_norm.weight", "d", Small),
        row("mtp.layers.{i}.attn_hyper_connection.input_mix_weight_down.weight", "r, hc*H", HyperConnection),
        row("mtp.layers.{i}.attn_hyper_connection.input_mix_weight_up.weight", "hc*H, r", HyperConnection),
        // The runtime merges down and inject and pads r + hc rows to r + 16.
        row("mtp.layers.{i}.attn_hyper_connection.block_inject_weight.weight", "hc, hc*H", HyperConnection)
            .reads("16*hc*H"),
        row("mtp.layers.{i}.attn_hyper_connection.hc_norm.weight", "hc*H", Small),
        row("mtp.layers.{i}.mlp_hyper_connection.input_mix_weight_down.weight", "r, hc*H", HyperConnection),
        row("mtp.layers.{i}.mlp_hyper_connection.input_mix_weight_up.weight", "hc*H, r", HyperConnection),
        row("mtp.layers.{i}.mlp_hyper_connection.block_inject_weight.weight", "hc, hc*H", HyperConnection)
            .reads("16*hc*H"),
        row("mtp.layers.{i}.mlp_hyper_connection.hc_norm.weight", "hc*H", Small),
        row("mtp.hyper_connection_mixer.input_mix_weight_down.weight", "r, hc*H", HyperConnection),
        row("mtp.hyper_connection_mixer.input_mix_weight_up.weight", "hc*H, r", HyperConnection),
        row("mtp.hyper_connection_mixer.hc_norm.weight", "hc*H", Small),
        row("mtp.pre_fc_norm_embedding.weight", "H", Small),
        row("mtp.pre_fc_norm_hidden.weight", "hc*H", Small),
    ],
    target: &[],
};

/// The target's own layers, so that a tiny model is whole.
const QWEN35_TARGET: &[Row] = &[
    row("model.language_model.embed_tokens.weight", "V, H", Other),
    row("lm_head.weight", "V, H", Other),
    row("model.language_model.norm.weight", "H", Small),
    row("model.language_model.layers.{all}.input_layernorm.weight", "H", Small),
    row("model.language_model.layers.{all}.post_attention_layernorm.weight", "H", Small),
    row("model.language_model.layers.{all}.mlp.gate_proj.weight", "I, H", DenseMlp),
    row("model.language_model.layers.{all}.mlp.up_proj.weight", "I, H", DenseMlp),
    row("model.language_model.layers.{all}.mlp.down_proj.weight", "H, I", DenseMlp),
    row("model.language_model.layers.{full}.self_attn.q_proj.weight", "hq*(1+g)*d, H", Attention),
    row("model.language_model.layers.{full}.self_attn.k_proj.weight", "hk*d, H", Attention),
    row("model.language_model.layers.{full}.self_attn.v_proj.weight", "hk*d, H", Attention),
    row("model.language_model.layers.{full}.self_attn.o_proj.weight", "H, hq*d", Attention),
    row("model.language_model.layers.{full}.self_attn.q_norm.weight", "d", Small),
    row("model.language_model.layers.{full}.self_attn.k_norm.weight", "d", Small),
    row("model.language_model.layers.{linear}.linear_attn.in_proj_qkv.weight", "2*lk*dk + lv*dv, H", Attention),
    row("model.language_model.layers.{linear}.linear_attn.in_proj_z.weight", "lv*dv, H", Attention),
    row("model.language_model.layers.{linear}.linear_attn.in_proj_a.weight", "lv, H", Attention),
    row("model.language_model.layers.{linear}.linear_attn.in_proj_b.weight", "lv, H", Attention),
    row("model.language_model.layers.{linear}.linear_attn.conv1d.weight", "2*lk*dk + lv*dv, 1, conv", Attention),
    row("model.language_model.layers.{linear}.linear_attn.out_proj.weight", "H, lv*dv", Attention),
    row("model.language_model.layers.{linear}.linear_attn.A_log", "lv", Small),
    row("model.language_model.layers.{linear}.linear_attn.dt_bias", "lv", Small),
    row("model.language_model.layers.{linear}.linear_attn.norm.weight", "dv", Small),
];
