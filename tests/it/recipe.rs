//! Which tensors of a checkpoint are quantized and which kept, family by family, and what a draft step costs.

use std::{collections::BTreeSet, fs};

use draftfast::{
    checkpoint::{
        Checkpoint, Overrides, Recipe, ledger, recipe,
        synth::{self, Scale},
    },
    error::hints,
    output::StagedDir,
    report::Progress,
};
use serde_json::{Value, json};

use crate::checkpoint::{edit_headers, edit_json, model, plain_recipe, safetensors_bytes, tiny};

#[test]
fn a_recipe_names_every_linear_of_the_dense_module_and_keeps_the_norms() {
    let dir = tiny("qwen3.5-dense");
    let recipe = plain_recipe(&model(&dir)).unwrap();
    let linears: Vec<(&str, usize, usize, Option<&str>)> = recipe
        .linears
        .iter()
        .map(|linear| (linear.name.as_str(), linear.n, linear.k, linear.fused.as_deref()))
        .collect();
    let (qkv, gate_up) = (Some("mtp.layers.0.self_attn.qkv_proj"), Some("mtp.layers.0.mlp.gate_up_proj"));
    assert_eq!(
        linears,
        [
            ("mtp.fc.weight", 256, 512, None),
            ("mtp.layers.0.mlp.down_proj.weight", 256, 512, None),
            ("mtp.layers.0.mlp.gate_proj.weight", 512, 256, gate_up),
            ("mtp.layers.0.mlp.up_proj.weight", 512, 256, gate_up),
            ("mtp.layers.0.self_attn.k_proj.weight", 128, 256, qkv),
            ("mtp.layers.0.self_attn.o_proj.weight", 256, 256, None),
            ("mtp.layers.0.self_attn.q_proj.weight", 512, 256, qkv),
            ("mtp.layers.0.self_attn.v_proj.weight", 128, 256, qkv),
        ]
    );
    assert_eq!(recipe.kept.len(), 7);
    assert_eq!((recipe.target_rows, recipe.hidden_size, recipe.head.tied), (2304, 256, false));
    assert_eq!(recipe.head.name, "lm_head.weight");
}

#[test]
fn routed_experts_that_are_nvfp4_are_kept_and_so_are_router_indexer_and_mixers() {
    let dir = tiny("qwen3.8-flash-next");
    let recipe = plain_recipe(&model(&dir)).unwrap();
    assert_eq!(recipe.linears.len(), 9);
    let reason = |name: &str| recipe.kept.iter().find(|kept| kept.name == name).unwrap().reason.clone();
    assert_eq!(reason("mtp.layers.0.mlp.experts.3.up_proj.weight"), "routed expert, already NVFP4");
    assert!(reason("mtp.layers.0.mlp.gate.weight").starts_with("router"));
    assert!(reason("mtp.layers.0.self_attn.indexer.index_qk_proj.weight").starts_with("indexer"));
    assert!(reason("mtp.hyper_connection_mixer.input_mix_weight_up.weight").starts_with("hyper-connection"));
    assert_eq!(
        reason("mtp.layers.0.mlp.experts.3.up_proj.weight_scale"),
        "scale of `mtp.layers.0.mlp.experts.3.up_proj.weight`"
    );
}

#[test]
fn wrapped_names_are_resolved() {
    let dir = tiny("qwen3.5-dense");
    edit_headers(&model(&dir), |header| {
        *header = std::mem::take(header)
            .into_iter()
            .map(|(name, tensor)| match name.as_str() {
                "__metadata__" => (name, tensor),
                _ => (format!("language_model.{name}"), tensor),
            })
            .collect();
    });
    let recipe = plain_recipe(&model(&dir)).unwrap();
    assert_eq!(recipe.head.name, "language_model.lm_head.weight");
    assert_eq!(recipe.linears[0].name, "language_model.mtp.fc.weight");
    assert_eq!(recipe.linears[4].fused.as_deref(), Some("language_model.mtp.layers.0.self_attn.qkv_proj"));
}

#[test]
fn a_tied_head_is_taken_from_the_embedding() {
    let dir = tiny("qwen3.5-dense");
    edit_json(&model(&dir).join("config.json"), |config| config["tie_word_embeddings"] = json!(true));
    let recipe = plain_recipe(&model(&dir)).unwrap();
    assert_eq!((recipe.head.name.as_str(), recipe.head.tied), ("model.embed_tokens.weight", true));
}

#[test]
fn a_lost_mtp_module_is_explained_and_taken_from_another_folder() {
    let (dir, upstream) = (tiny("qwen3.5-dense"), tiny("qwen3.5-dense"));
    edit_headers(&model(&dir), |header| {
        *header =
            std::mem::take(header).into_iter().map(|(name, tensor)| (name.replace("mtp.", "lost."), tensor)).collect();
    });
    let error = plain_recipe(&model(&dir)).unwrap_err();
    assert!(error.to_string().ends_with("this qwen3.5-dense checkpoint has no MTP tensors (`mtp.*`)"), "{error}");
    assert!(hints(&error)[0].contains("drop them at export") && hints(&error)[0].contains("--mtp-from"));
    let (target, upstream) = (Checkpoint::open(&model(&dir)).unwrap(), Checkpoint::open(&model(&upstream)).unwrap());
    let recipe = recipe(&target, Some(&upstream), &Overrides::default()).unwrap();
    assert_eq!(recipe.linears.len(), 8);
    assert!(recipe.linears.iter().all(|linear| linear.source == draftfast::checkpoint::Source::MtpFrom));
}

#[test]
fn mtp_tensors_of_another_model_are_refused() {
    let (dir, other) = (tiny("qwen3.5-dense"), tiny("qwen3.8-flash-next"));
    let (target, other) = (Checkpoint::open(&model(&dir)).unwrap(), Checkpoint::open(&model(&other)).unwrap());
    let error = recipe(&target, Some(&other), &Overrides::default()).unwrap_err();
    assert!(error.to_string().contains("`model_type` is \"qwen4_exp_text\""), "{error}");
}

#[test]
fn a_shape_that_disagrees_with_the_config_names_file_tensor_found_and_expected() {
    let dir = tiny("qwen3.5-dense");
    edit_json(&model(&dir).join("config.json"), |config| config["intermediate_size"] = json!(768));
    let error = format!("{:#}", plain_recipe(&model(&dir)).unwrap_err());
    assert!(error.contains(".safetensors`: tensor `mtp.layers.0.mlp.down_proj.weight`"), "{error}");
    assert!(error.contains("shape is [256, 512], expected [256, 768]"), "{error}");
    edit_json(&model(&dir).join("config.json"), |config| config["vocab_size"] = json!(9));
    let error = format!("{:#}", plain_recipe(&model(&dir)).unwrap_err());
    assert!(
        error.contains("tensor `lm_head.weight` has shape [2304, 256], but `config.json` says that `vocab_size` is 9")
    );
}

#[test]
fn a_wrong_dtype_is_named() {
    let dir = tiny("qwen3.5-dense");
    edit_headers(&model(&dir), |header| {
        if let Some(tensor) = header.get_mut("mtp.fc.weight") {
            tensor["dtype"] = json!("I16");
        }
    });
    let error = plain_recipe(&model(&dir)).unwrap_err();
    assert!(error.to_string().contains("tensor `mtp.fc.weight` has dtype I16, expected BF16"), "{error}");
    assert!(hints(&error)[0].contains("--mtp-from"));
}

#[test]
fn a_missing_mtp_tensor_is_named() {
    let dir = tiny("qwen3.5-dense");
    edit_headers(&model(&dir), |header| {
        if let Some(tensor) = header.remove("mtp.norm.weight") {
            header.insert("elsewhere".to_owned(), tensor);
        }
    });
    let error = plain_recipe(&model(&dir)).unwrap_err();
    assert!(error.to_string().contains("tensor `mtp.norm.weight` of the MTP module is missing"), "{error}");
}

#[test]
fn globs_override_the_table_and_a_glob_without_a_match_is_an_error() {
    let dir = tiny("qwen3.8-flash-next");
    let checkpoint = Checkpoint::open(&model(&dir)).unwrap();
    let with = |quantize: &[&str], keep: &[&str]| {
        let owned = |globs: &[&str]| globs.iter().map(|&glob| glob.to_owned()).collect();
        recipe(&checkpoint, None, &Overrides { quantize: owned(quantize), keep: owned(keep) })
    };
    let changed = with(&["*input_mix_weight_up*"], &["*.o_proj.weight"]).unwrap();
    let has = |name: &str| changed.linears.iter().any(|linear| linear.name == name);
    assert!(has("mtp.hyper_connection_mixer.input_mix_weight_up.weight"));
    assert!(!has("mtp.layers.0.self_attn.o_proj.weight"));
    // Keeping one part of a fused module keeps all of it.
    let fused = with(&[], &["*.k_proj.weight"]).unwrap();
    let reason = |name: &str| fused.kept.iter().find(|kept| kept.name.contains(name)).unwrap().reason.clone();
    assert_eq!(reason(".k_proj"), "`--keep *.k_proj.weight`");
    assert_eq!(reason("self_attn.q_proj"), "fused with `mtp.layers.0.self_attn.k_proj.weight`, which is kept");
    let message = |result: anyhow::Result<Recipe>| result.unwrap_err().to_string();
    assert_eq!(message(with(&[], &["*nothing*"])), "`--keep *nothing*` matches no tensor of the MTP module");
    assert_eq!(message(with(&["[a"], &[])), "`--quantize [a` is not a valid glob");
    assert!(message(with(&["*q_norm*"], &[])).contains("cannot be quantized: shape [64] is not that of a linear"));
    assert!(message(with(&["*experts.1.up_proj*"], &[])).ends_with("is NVFP4 already"));
    assert!(message(with(&["*o_proj*"], &["*o_proj*"])).contains("is named by both `--quantize` and `--keep`"));
}

#[test]
fn an_unknown_family_is_guessed_aloud() {
    let dir = tiny("qwen3.8-flash-next");
    edit_json(&model(&dir).join("config.json"), |config| config["model_type"] = json!("novel"));
    let recipe = plain_recipe(&model(&dir)).unwrap();
    assert_eq!(recipe.family, "unknown");
    assert!(recipe.notes[0].contains("no table for model type `novel`"));
    assert_eq!(recipe.linears.len(), 9, "{:?}", recipe.linears);
}

#[test]
fn two_seeds_differ_and_one_seed_is_reproducible() {
    let write = |seed| {
        let dir = tempfile::tempdir().unwrap();
        let out = StagedDir::create(&model(&dir), false).unwrap();
        synth::write("qwen3.5-dense", Scale::Tiny, seed, &out, &Progress::silent()).unwrap();
        out.commit().unwrap();
        fs::read(model(&dir).join("model-00001-of-00003.safetensors")).unwrap()
    };
    assert_eq!(write(1), write(1));
    assert_ne!(write(1), write(2));
}

/// The ledger of a config and of headers alone, at full scale: the files are sparse.
fn full_ledger(family: &str, n_rows: usize) -> ledger::Ledger {
    let dir = tempfile::tempdir().unwrap();
    synth::write_headers(family, Scale::Full, dir.path()).unwrap();
    ledger::ledger(&plain_recipe(dir.path()).unwrap(), n_rows)
}

#[test]
fn the_ledger_of_27b_is_exact() {
    let ledger = full_ledger("qwen3.5-dense", 64_064);
    assert_eq!(ledger.head_before_bytes, 2_542_796_800);
    assert_eq!(ledger.linears_before_bytes, 849_346_560);
    assert_eq!(ledger.before_bytes, 3_392_143_360);
    assert_eq!(ledger.head_after_bytes, 184_504_320);
    assert_eq!(ledger.linears_after_bytes, 238_878_720);
    assert_eq!(ledger.after_bytes, 423_383_040);
}

#[test]
fn the_ledger_of_flash_next_is_exact_and_hides_nothing() {
    let ledger = full_ledger("qwen3.8-flash-next", 65_536);
    assert_eq!(ledger.head_before_bytes, 1_271_398_400);
    assert_eq!((ledger.linears_before_bytes, ledger.linears_after_bytes), (135_659_520, 38_154_240));
    let line = |name: &str| {
        let item = ledger.items.iter().find(|item| item.name == name).unwrap();
        (item.before_bytes, item.after_bytes)
    };
    assert_eq!(line("routed experts"), (27_648_000, 27_648_000));
    assert_eq!(line("router"), (2_621_440, 2_621_440));
    assert_eq!(line("indexer"), (3_276_800, 3_276_800));
    assert_eq!(line("hyper-connection mixers"), (39_976_960, 39_976_960));
    assert_eq!(ledger.before_bytes, 1_271_398_400 + 135_659_520 + 27_648_000 + 2_621_440 + 3_276_800 + 39_976_960);
}

#[test]
fn every_family_is_synthesized_and_resolved() {
    for (family, n_linears, combiner) in [
        ("qwen3.5-moe", 8, "mtp.fc.weight"),
        ("qwen3-next", 8, "mtp.fc.weight"),
        ("deepseek-v3", 8, "model.layers.4.eh_proj.weight"),
        ("glm-4.5", 8, "model.layers.4.eh_proj.weight"),
        ("mimo", 8, "model.mtp_layers.0.input_proj.weight"),
        ("mimo-v2", 8, "model.mtp.layers.0.eh_proj.weight"),
        ("nemotron-h", 9, "mtp.layers.0.eh_proj.weight"),
        ("ernie-4.5", 8, "model.mtp_linear_proj.0.weight"),
    ] {
        let recipe = plain_recipe(&model(&tiny(family))).unwrap_or_else(|error| panic!("{family}: {error:#}"));
        assert_eq!(recipe.family, family);
        assert_eq!(recipe.head.name, "lm_head.weight", "{family}");
        assert_eq!(recipe.linears.len(), n_linears, "{family}: {:?}", recipe.linears);
        assert!(recipe.linears.iter().any(|linear| linear.name == combiner), "{family}");
        let unknown: Vec<_> = recipe.kept.iter().filter(|kept| kept.reason.contains("not in the table")).collect();
        assert!(unknown.is_empty(), "{family}: {unknown:?}");
        let n_groups =
            recipe.linears.iter().filter_map(|linear| linear.fused.as_deref()).collect::<BTreeSet<_>>().len();
        assert_eq!(n_groups, if family == "nemotron-h" { 1 } else { 2 }, "{family}: q/k/v and gate/up");
    }
}

#[test]
fn synth_lists_every_family_once() {
    let names: Vec<&str> = synth::families().collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    assert_eq!(names.len(), 10);
}

#[test]
fn fp8_linears_name_their_scales_and_copies_of_the_head_are_left_out() {
    let recipe = plain_recipe(&model(&tiny("deepseek-v3"))).unwrap();
    let linear = |name: &str| recipe.linears.iter().find(|linear| linear.name.ends_with(name)).unwrap();
    assert_eq!(linear("q_b_proj.weight").scale.as_deref(), Some("model.layers.4.self_attn.q_b_proj.weight_scale_inv"));
    assert_eq!(linear("eh_proj.weight").scale, None);
    assert!(recipe.kept.iter().all(|kept| !kept.name.contains("q_b_proj")), "the old scales are not copied");
    let replaced: Vec<&str> = recipe.replaced.iter().map(|kept| kept.name.as_str()).collect();
    assert_eq!(replaced, ["model.layers.4.embed_tokens.weight", "model.layers.4.shared_head.head.weight"]);
    // 8 experts of 3 x 128 x 256 bytes and 3 x 1 x 2 F32 scales, of which a token uses 2.
    let experts = ledger::ledger(&recipe, 64).items.into_iter().find(|item| item.name == "routed experts").unwrap();
    assert_eq!(experts.before_bytes, 2 * (3 * 128 * 256 + 3 * 2 * 4));
}

#[test]
fn an_fp8_linear_without_its_scale_is_refused() {
    let dir = tiny("deepseek-v3");
    edit_headers(&model(&dir), |header| {
        if let Some(tensor) = header.remove("model.layers.4.self_attn.o_proj.weight_scale_inv") {
            header.insert("elsewhere".to_owned(), tensor);
        }
    });
    let error = plain_recipe(&model(&dir)).unwrap_err().to_string();
    assert!(error.contains("tensor `model.layers.4.self_attn.o_proj.weight` is FP8, but there is no"), "{error}");
}

#[test]
fn stacked_experts_are_kept_and_counted_by_their_share() {
    let recipe = plain_recipe(&model(&tiny("qwen3.5-moe"))).unwrap();
    let experts = ledger::ledger(&recipe, 64).items.into_iter().find(|item| item.name == "routed experts").unwrap();
    assert_eq!(experts.before_bytes, 2 * 3 * 128 * 256 * 2, "2 of 8 experts in BF16");
}

#[test]
fn linears_packed_by_compressed_tensors_are_refused_with_a_way_out() {
    let dir = tiny("qwen3.5-dense");
    edit_headers(&model(&dir), |header| {
        if let Some(tensor) = header.remove("mtp.layers.0.mlp.down_proj.weight") {
            header.insert("mtp.layers.0.mlp.down_proj.weight_packed".to_owned(), tensor);
        }
    });
    let error = plain_recipe(&model(&dir)).unwrap_err();
    assert!(
        format!("{error:#}").ends_with(
            "tensor `mtp.layers.0.mlp.down_proj.weight` is missing: this checkpoint holds \
             `mtp.layers.0.mlp.down_proj.weight_packed`, already quantized"
        ),
        "{error:#}"
    );
    assert!(hints(&error).iter().any(|hint| hint.contains("--mtp-from")));
}

#[test]
fn a_linear_that_is_already_nvfp4_is_kept_as_it_is() {
    let dir = tiny("qwen3.8-flash-next");
    // The expert's triple plays a shared expert's part: same shapes.
    edit_headers(&model(&dir), |header| {
        for suffix in ["", "_scale", "_scale_2"] {
            let (expert, shared) =
                ("mtp.layers.0.mlp.experts.0.down_proj.weight", "mtp.layers.0.mlp.shared_expert.down_proj.weight");
            let old = header.remove(&format!("{shared}{suffix}"));
            if let Some(tensor) = header.remove(&format!("{expert}{suffix}")) {
                header.insert(format!("{shared}{suffix}"), tensor);
            }
            if let Some(tensor) = old {
                header.insert(format!("elsewhere{suffix}"), tensor);
            }
        }
    });
    let recipe = plain_recipe(&model(&dir)).unwrap();
    let name = "mtp.layers.0.mlp.shared_expert.down_proj.weight";
    assert_eq!(recipe.kept.iter().find(|kept| kept.name == name).unwrap().reason, "already NVFP4");
    assert!(recipe.linears.iter().all(|linear| linear.name != name));
}

#[test]
fn a_step_runs_one_of_several_mtp_layers() {
    let dir = tiny("mimo-v2");
    let one = ledger::ledger(&plain_recipe(&model(&dir)).unwrap(), 64);
    // A second layer: the same tensors once more in a shard of their own.
    edit_json(&model(&dir).join("config.json"), |config| config["num_nextn_predict_layers"] = json!(2));
    let shards = Checkpoint::open(&model(&dir)).unwrap();
    let mut header = serde_json::Map::new();
    let mut data: Vec<u8> = Vec::new();
    for name in shards.entries().keys().filter(|name| name.starts_with("model.mtp.layers.0.")) {
        let tensor = shards.tensor(name).unwrap();
        let offsets = [data.len(), data.len() + tensor.data.len()];
        let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets});
        header.insert(name.replace("layers.0", "layers.1"), entry);
        data.extend(tensor.data);
    }
    let mut bytes = safetensors_bytes(&Value::from(header).to_string(), 0);
    bytes.extend(data);
    fs::write(model(&dir).join("second.safetensors"), bytes).unwrap();
    fs::remove_file(model(&dir).join("model.safetensors.index.json")).unwrap();
    let recipe = plain_recipe(&model(&dir)).unwrap();
    assert_eq!(recipe.linears.len(), 16);
    let two = ledger::ledger(&recipe, 64);
    assert_eq!((one.before_bytes, one.after_bytes), (two.before_bytes, two.after_bytes));
    assert!(two.not_counted.iter().any(|what| what == "MTP layers after the first: a step runs one of 2"));
}
