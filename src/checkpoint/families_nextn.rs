//! The other families: an MTP layer after the target's last one, or under a name of its own.

use super::{
    family::{Family, Role::*, row},
    sizes::{Size, size, size_or},
};

const SIZES: &[Size] = &[
    size("V", &["vocab_size"]),
    size("H", &["hidden_size"]),
    size("I", &["intermediate_size"]),
    size("layers", &["num_hidden_layers"]),
    size_or("mtp", &["num_nextn_predict_layers"], 1),
    size("hq", &["num_attention_heads"]),
    size("hk", &["num_key_value_heads"]),
    size("d", &["head_dim"]),
    size("E", &["n_routed_experts", "num_experts", "moe_num_experts"]),
    size("topk", &["num_experts_per_tok", "moe_k"]),
    size("Im", &["moe_intermediate_size"]),
    size_or("ns", &["n_shared_experts"], 1),
    size("Is", &["moe_shared_expert_intermediate_size"]),
    // Multi-head latent attention.
    size("rq", &["q_lora_rank"]),
    size("rkv", &["kv_lora_rank"]),
    size("nope", &["qk_nope_head_dim"]),
    size("rope", &["qk_rope_head_dim"]),
    size("dv", &["v_head_dim"]),
    size("nq", &["index_n_heads"]),
    size("di", &["index_head_dim"]),
];

/// DeepSeek-V3 and V3.2, and models of that structure: Kimi-K2, GLM-4.7-Flash, GLM-5.
pub static DEEPSEEK_V3: Family = Family {
    name: "deepseek-v3",
    model_types: &["deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe_lite", "glm_moe_dsa"],
    module: &["model.layers.{L}."],
    sizes: SIZES,
    rows: &[
        row("model.layers.{L}.eh_proj.weight", "H, 2*H", Combiner),
        row("model.layers.{L}.self_attn.q_a_proj.weight", "rq, H", Attention).fused("fused_qkv_a_proj"),
        row("model.layers.{L}.self_attn.kv_a_proj_with_mqa.weight", "rkv+rope, H", Attention).fused("fused_qkv_a_proj"),
        row("model.layers.{L}.self_attn.q_b_proj.weight", "hq*(nope+rope), rq", Attention),
        // Runtimes split it into two batched products at load, in the model's own precision.
        row("model.layers.{L}.self_attn.kv_b_proj.weight", "hq*(nope+dv), rkv", Absorbed),
        row("model.layers.{L}.self_attn.o_proj.weight", "H, hq*dv", Attention),
        row("model.layers.{L}.mlp.shared_experts.gate_proj.weight", "ns*Im, H", SharedExpert).fused("gate_up_proj"),
        row("model.layers.{L}.mlp.shared_experts.up_proj.weight", "ns*Im, H", SharedExpert).fused("gate_up_proj"),
        row("model.layers.{L}.mlp.shared_experts.down_proj.weight", "H, ns*Im", SharedExpert),
        row("model.layers.{L}.mlp.experts.{e}.gate_proj.weight", "Im, H", RoutedExpert)
            .fused("gate_up_proj")
            .optional(),
        row("model.layers.{L}.mlp.experts.{e}.up_proj.weight", "Im, H", RoutedExpert).fused("gate_up_proj").optional(),
        row("model.layers.{L}.mlp.experts.{e}.down_proj.weight", "H, Im", RoutedExpert).optional(),
        row("model.layers.{L}.mlp.gate.weight", "E, H", Router),
        row("model.layers.{L}.mlp.gate.e_score_correction_bias", "E", Small).optional(),
        row("model.layers.{L}.self_attn.indexer.wq_b.weight", "nq*di, rq", Indexer).optional(),
        row("model.layers.{L}.self_attn.indexer.wk.weight", "di, H", Indexer).optional(),
        row("model.layers.{L}.self_attn.indexer.weights_proj.weight", "nq, H", Indexer).optional(),
        row("model.layers.{L}.self_attn.indexer.k_norm.weight", "di", Small).optional(),
        row("model.layers.{L}.self_attn.indexer.k_norm.bias", "di", Small).optional(),
        row("model.layers.{L}.self_attn.q_a_layernorm.weight", "rq", Small),
        row("model.layers.{L}.self_attn.kv_a_layernorm.weight", "rkv", Small),
        row("model.layers.{L}.input_layernorm.weight", "H", Small),
        row("model.layers.{L}.post_attention_layernorm.weight", "H", Small),
        row("model.layers.{L}.enorm.weight", "H", Small),
        row("model.layers.{L}.hnorm.weight", "H", Small),
        row("model.layers.{L}.shared_head.norm.weight", "H", Small),
        row("model.layers.{L}.shared_head.head.weight", "V, H", SharedCopy).optional(),
        row("model.layers.{L}.embed_tokens.weight", "V, H", SharedCopy).optional(),
    ],
    target: &[],
};

/// GLM-4.5, 4.6 and 4.7: grouped-query attention with biases.
pub static GLM45: Family = Family {
    name: "glm-4.5",
    model_types: &["glm4_moe", "glm4v_moe", "glm4v_moe_text"],
    module: &["model.layers.{L}."],
    sizes: SIZES,
    rows: &[
        row("model.layers.{L}.eh_proj.weight", "H, 2*H", Combiner),
        row("model.layers.{L}.self_attn.q_proj.weight", "hq*d, H", Attention).fused("qkv_proj"),
        row("model.layers.{L}.self_attn.k_proj.weight", "hk*d, H", Attention).fused("qkv_proj"),
        row("model.layers.{L}.self_attn.v_proj.weight", "hk*d, H", Attention).fused("qkv_proj"),
        row("model.layers.{L}.self_attn.q_proj.bias", "hq*d", Small).optional(),
        row("model.layers.{L}.self_attn.k_proj.bias", "hk*d", Small).optional(),
        row("model.layers.{L}.self_attn.v_proj.bias", "hk*d", Small).optional(),
        row("model.layers.{L}.self_attn.q_norm.weight", "d", Small).optional(),
        row("model.layers.{L}.self_attn.k_norm.weight", "d", Small).optional(),
        row("model.layers.{L}.self_attn.o_proj.weight", "H, hq*d", Attention),
        row("model.layers.{L}.mlp.shared_experts.gate_proj.weight", "ns*Im, H", SharedExpert).fused("gate_up_proj"),
        row("model.layers.{L}.mlp.shared_experts.up_proj.weight", "ns*Im, H", SharedExpert).fused("gate_up_proj"),
        row("model.layers.{L}.mlp.shared_experts.down_proj.weight", "H, ns*Im", SharedExpert),
        row("model.layers.{L}.mlp.experts.{e}.gate_proj.weight", "Im, H", RoutedExpert)
            .fused("gate_up_proj")
            .optional(),
        row("model.layers.{L}.mlp.experts.{e}.up_proj.weight", "Im, H", RoutedExpert).fused("gate_up_proj").optional(),
        row("model.layers.{L}.mlp.experts.{e}.down_proj.weight", "H, Im", RoutedExpert).optional(),
        row("model.layers.{L}.mlp.gate.weight", "E, H", Router),
        row("model.layers.{L}.mlp.gate.e_score_correction_bias", "E", Small).optional(),
        row("model.layers.{L}.input_layernorm.weight", "H", Small),
        row("model.layers.{L}.post_attention_layernorm.weight", "H", Small),
        row("model.layers.{L}.enorm.weight", "H", Small),
        row("model.layers.{L}.hnorm.weight", "H", Small),
        row("model.layers.{L}.shared_head.norm.weight", "H", Small),
        row("model.layers.{L}.shared_head.head.weight", "V, H", SharedCopy).optional(),
        row("model.layers.{L}.embed_tokens.weight", "V, H", SharedCopy).optional(),
    ],
    target: &[],
};

/// MiMo-7B: a Qwen2 block.
pub static MIMO: Family = Family {
    name: "mimo",
    model_types: &["mimo"],
    module: &["model.mtp_layers."],
    sizes: SIZES,
    rows: &[
        row("model.mtp_layers.{i}.input_proj.weight", "H, 2*H", Combiner),
        row("model.mtp_layers.{i}.self_attn.q_proj.weight", "hq*d, H", Attention).fused("qkv_proj"),
        row("model.mtp_layers.{i}.self_attn.k_proj.weight", "hk*d, H", Attention).fused("qkv_proj"),
        row("model.mtp_layers.{i}.self_attn.v_proj.weight", "hk*d, H", Attention).fused("qkv_proj"),
        row("model.mtp_layers.{i}.self_attn.q_proj.bias", "hq*d", Small).optional(),
        row("model.mtp_layers.{i}.self_attn.k_proj.bias", "hk*d", Small).optional(),
        row("model.mtp_layers.{i}.self_attn.v_proj.bias", "hk*d", Small).optional(),
        row("model.mtp_layers.{i}.self_attn.o_proj.weight", "H, hq*d", Attention),
        row("model.mtp_layers.{i}.mlp.gate_proj.weight", "I, H", DenseMlp).fused("gate_up_proj"),
        row("model.mtp_layers.{i}.mlp.up_proj.weight", "I, H", DenseMlp).fused("gate_up_proj"),
        row("model.mtp_layers.{i}.mlp.down_proj.weight", "H, I", DenseMlp),
        row("model.mtp_layers.{i}.token_layernorm.weight", "H", Small),
        row("model.mtp_layers.{i}.hidden_layernorm.weight", "H", Small),
        row("model.mtp_layers.{i}.input_layernorm.weight", "H", Small),
        row("model.mtp_layers.{i}.post_attention_layernorm.weight", "H", Small),
        row("model.mtp_layers.{i}.final_layernorm.weight", "H", Small),
    ],
    target: &[],
};

/// MiMo-V2-Flash: its MTP layers use sliding-window attention, whose sizes have other config keys in each release, so
/// those shapes are not checked.
pub static MIMO_V2: Family = Family {
    name: "mimo-v2",
    model_types: &["mimo_v2", "mimo_v2_flash"],
    module: &["model.mtp."],
    sizes: SIZES,
    rows: &[
        row("model.mtp.layers.{i}.eh_proj.weight", "H, 2*H", Combiner),
        row("model.mtp.layers.{i}.self_attn.q_proj.weight", "", Attention).fused("qkv_proj"),
        row("model.mtp.layers.{i}.self_attn.k_proj.weight", "", Attention).fused("qkv_proj"),
        row("model.mtp.layers.{i}.self_attn.v_proj.weight", "", Attention).fused("qkv_proj"),
        row("model.mtp.layers.{i}.self_attn.o_proj.weight", "", Attention),
        row("model.mtp.layers.{i}.self_attn.attention_sink_bias", "", Small).optional(),
        row("model.mtp.layers.{i}.mlp.gate_proj.weight", "I, H", DenseMlp).fused("gate_up_proj"),
        row("model.mtp.layers.{i}.mlp.up_proj.weight", "I, H", DenseMlp).fused("gate_up_proj"),
        row("model.mtp.layers.{i}.mlp.down_proj.weight", "H, I", DenseMlp),
        row("model.mtp.layers.{i}.enorm.weight", "H", Small),
        row("model.mtp.layers.{i}.hnorm.weight", "H", Small),
        row("model.mtp.layers.{i}.input_layernorm.weight", "H", Small),
        row("model.mtp.layers.{i}.pre_mlp_layernorm.weight", "H", Small),
        row("model.mtp.layers.{i}.final_layernorm.weight", "H", Small),
    ],
    target: &[],
};

/// Nemotron 3: an attention layer, then an expert layer (`mtp_hybrid_override_pattern` `*E`, the only one published).
/// Experts are not gated; in some releases they work on a latent vector, so their shapes are not checked.
pub static NEMOTRON_H: Family = Family {
    name: "nemotron-h",
    model_types: &["nemotron_h", "nemotron_h_moe"],
    module: &["mtp."],
    sizes: SIZES,
    rows: &[
        row("mtp.layers.0.eh_proj.weight", "H, 2*H", Combiner),
        row("mtp.layers.0.mixer.q_proj.weight", "hq*d, H", Attention).fused("qkv_proj"),
        row("mtp.layers.0.mixer.k_proj.weight", "hk*d, H", Attention).fused("qkv_proj"),
        row("mtp.layers.0.mixer.v_proj.weight", "hk*d, H", Attention).fused("qkv_proj"),
        row("mtp.layers.0.mixer.o_proj.weight", "H, hq*d", Attention),
        row("mtp.layers.1.mixer.shared_experts.up_proj.weight", "Is, H", SharedExpert),
        row("mtp.layers.1.mixer.shared_experts.down_proj.weight", "H, Is", SharedExpert),
        row("mtp.layers.1.mixer.fc1_latent_proj.weight", "", SharedExpert).optional(),
        row("mtp.layers.1.mixer.fc2_latent_proj.weight", "", SharedExpert).optional(),
        row("mtp.layers.1.mixer.experts.{e}.up_proj.weight", "", RoutedExpert).optional(),
        row("mtp.layers.1.mixer.experts.{e}.down_proj.weight", "", RoutedExpert).optional(),
        row("mtp.layers.1.mixer.experts.up_proj", "", RoutedExpert).optional(),
        row("mtp.layers.1.mixer.experts.down_proj", "", RoutedExpert).optional(),
        row("mtp.layers.1.mixer.gate.weight", "E, H", Router),
        row("mtp.layers.1.mixer.gate.e_score_correction_bias", "E", Small).optional(),
        row("mtp.layers.0.enorm.weight", "H", Small),
        row("mtp.layers.0.hnorm.weight", "H", Small),
        row("mtp.layers.0.norm.weight", "H", Small),
        row("mtp.layers.1.norm.weight", "H", Small),
        row("mtp.layers.1.final_layernorm.weight", "H", Small),
    ],
    target: &[],
};

/// Ernie 4.5: a dense Llama block.
pub static ERNIE45: Family = Family {
    name: "ernie-4.5",
    model_types: &["ernie4_5", "ernie4_5_moe"],
    module: &["model.mtp_"],
    sizes: SIZES,
    rows: &[
        row("model.mtp_linear_proj.{i}.weight", "H, 2*H", Combiner),
        row("model.mtp_block.{i}.self_attn.q_proj.weight", "hq*d, H", Attention).fused("qkv_proj"),
        row("model.mtp_block.{i}.self_attn.k_proj.weight", "hk*d, H", Attention).fused("qkv_proj"),
        row("model.mtp_block.{i}.self_attn.v_proj.weight", "hk*d, H", Attention).fused("qkv_proj"),
        row("model.mtp_block.{i}.self_attn.o_proj.weight", "H, hq*d", Attention),
        row("model.mtp_block.{i}.mlp.gate_proj.weight", "I, H", DenseMlp).fused("gate_up_proj"),
        row("model.mtp_block.{i}.mlp.up_proj.weight", "I, H", DenseMlp).fused("gate_up_proj"),
        row("model.mtp_block.{i}.mlp.down_proj.weight", "H, I", DenseMlp),
        row("model.mtp_block.{i}.input_layernorm.weight", "H", Small),
        row("model.mtp_block.{i}.post_attention_layernorm.weight", "H", Small),
        row("model.mtp_emb_norm.{i}.weight", "H", Small),
        row("model.mtp_hidden_norm.{i}.weight", "H", Small),
    ],
    target: &[],
};
