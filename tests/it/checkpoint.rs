//! Opening model folders: whole ones, and every way in which one can be broken.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

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

/// A folder with a tiny synthetic checkpoint.
fn tiny(family: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let out = StagedDir::create(&dir.path().join("model"), false).unwrap();
    synth::write(family, Scale::Tiny, 0, &out, &Progress::silent()).unwrap();
    out.commit().unwrap();
    dir
}

fn model(dir: &tempfile::TempDir) -> PathBuf {
    dir.path().join("model")
}

/// A folder with one safetensors file made of a header and `n_data` bytes.
fn handmade(header: &str, n_data: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(model(&dir)).unwrap();
    fs::write(model(&dir).join("config.json"), "{}").unwrap();
    fs::write(model(&dir).join("model.safetensors"), safetensors_bytes(header, n_data)).unwrap();
    dir
}

fn safetensors_bytes(header: &str, n_data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + n_data, 0);
    bytes
}

fn open_error(dir: &Path) -> String {
    format!("{:#}", Checkpoint::open(dir).unwrap_err())
}

fn edit_json(path: &Path, edit: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    edit(&mut value);
    fs::write(path, serde_json::to_vec(&value).unwrap()).unwrap();
}

fn plain_recipe(dir: &Path) -> anyhow::Result<Recipe> {
    recipe(&Checkpoint::open(dir)?, None, &Overrides::default())
}

/// Renames tensors and patches dtypes in every header of a folder, lengths kept by padding.
fn edit_headers(dir: &Path, edit: impl Fn(&mut serde_json::Map<String, Value>)) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let n_header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let mut header = serde_json::from_slice(&bytes[8..8 + n_header]).unwrap();
        edit(&mut header);
        let header = serde_json::to_string(&header).unwrap();
        let mut edited = safetensors_bytes(&header, 0);
        edited.extend(&bytes[8 + n_header..]);
        fs::write(&path, edited).unwrap();
    }
    let _ = fs::remove_file(dir.join("model.safetensors.index.json"));
}

#[test]
fn a_sharded_folder_opens_with_and_without_its_index() {
    let dir = tiny("qwen3.5-dense");
    let with_index = Checkpoint::open(&model(&dir)).unwrap();
    assert!(with_index.shard_files().count() > 1);
    let entries = with_index.entries().clone();
    let head = with_index.tensor("lm_head.weight").unwrap();
    assert_eq!(head.shape, [2304, 256]);
    assert_eq!(head.data.len(), 2304 * 256 * 2);
    fs::remove_file(model(&dir).join("model.safetensors.index.json")).unwrap();
    assert_eq!(Checkpoint::open(&model(&dir)).unwrap().entries(), &entries);
}

#[test]
fn a_missing_shard_is_named() {
    let dir = tiny("qwen3.5-dense");
    fs::remove_file(model(&dir).join("model-00002-of-00003.safetensors")).unwrap();
    let error = open_error(&model(&dir));
    assert!(error.starts_with("`model-00002-of-00003.safetensors`: the shard is missing from"), "{error}");
}

#[test]
fn a_truncated_shard_is_named_with_both_sizes() {
    let dir = tiny("qwen3.5-dense");
    let path = model(&dir).join("model-00001-of-00003.safetensors");
    let n_bytes = fs::metadata(&path).unwrap().len();
    fs::File::options().write(true).open(&path).unwrap().set_len(n_bytes - 1).unwrap();
    assert_eq!(
        open_error(&model(&dir)),
        format!(
            "`model-00001-of-00003.safetensors`: the file is truncated: it has {} bytes, expected {n_bytes}",
            n_bytes - 1
        )
    );
}

#[test]
fn impossible_header_lengths_are_refused_without_allocating() {
    let dir = handmade("{}", 0);
    for (length, expected) in [
        (1_u64 << 60, "the header is said to be 1152921504606846976 bytes long, expected at most 100000000"),
        (u64::MAX, "the header is said to be 18446744073709551615 bytes long, expected at most 100000000"),
        (3, "the header is said to be 3 bytes long, but the file has only 10 bytes"),
    ] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(b"{}");
        fs::write(model(&dir).join("model.safetensors"), bytes).unwrap();
        assert_eq!(open_error(&model(&dir)), format!("`model.safetensors`: {expected}"));
    }
    fs::write(model(&dir).join("model.safetensors"), b"abc").unwrap();
    assert!(open_error(&model(&dir)).contains("the file has 3 bytes"));
}

#[test]
fn offsets_must_cover_the_data_exactly_once() {
    let two = |a: &str, b: &str| {
        format!(
            r#"{{"a":{{"dtype":"BF16","shape":[2],"data_offsets":{a}}},"b":{{"dtype":"BF16","shape":[2],"data_offsets":{b}}}}}"#
        )
    };
    for (a, b, n_data, expected) in [
        ("[0,4]", "[2,6]", 6, "tensor `b` overlaps the one before it (bytes 2..4)"),
        ("[0,4]", "[8,12]", 12, "bytes 4..8, before tensor `b`, belong to no tensor"),
        ("[0,4]", "[8,4]", 12, "tensor `b` ends at byte 4, before its first byte 8"),
        ("[0,4]", "[4,6]", 6, "tensor `b` (BF16, shape [2]) occupies 2 bytes, expected 4"),
        ("[0,4]", "[4,8]", 9, "but its tensors end at byte"),
        ("[0,4]", "[18446744073709551611,18446744073709551615]", 8, "belong to no tensor"),
    ] {
        let error = open_error(&model(&handmade(&two(a, b), n_data)));
        assert!(error.starts_with("`model.safetensors`: ") && error.contains(expected), "{error}");
    }
}

#[test]
fn shapes_that_overflow_are_refused() {
    let header = r#"{"a":{"dtype":"BF16","shape":[4294967296,4294967296,4],"data_offsets":[0,0]}}"#;
    assert!(open_error(&model(&handmade(header, 0))).contains("too large to be true"));
}

#[test]
fn a_name_twice_in_one_file_or_in_two_is_refused() {
    let tensor = r#""a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
    let dir = handmade(&format!("{{{tensor},{tensor}}}"), 0);
    assert!(open_error(&model(&dir)).contains("tensor `a` is listed twice"));
    let dir = handmade(&format!("{{{tensor}}}"), 0);
    fs::copy(model(&dir).join("model.safetensors"), model(&dir).join("other.safetensors")).unwrap();
    assert_eq!(open_error(&model(&dir)), "`other.safetensors`: tensor `a` is already in `model.safetensors`");
}

#[test]
fn an_unknown_dtype_elsewhere_does_not_make_a_file_unreadable() {
    let header = r#"{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]},"b":{"dtype":"X3","shape":[9],"data_offsets":[2,5]}}"#;
    let dir = handmade(header, 5);
    let checkpoint = Checkpoint::open(&model(&dir)).unwrap();
    assert_eq!(checkpoint.tensor("a").unwrap().data.len(), 2);
    let error = checkpoint.tensor("b").unwrap_err();
    assert_eq!(error.to_string(), "tensor `b` has dtype `X3`, which draftfast does not know");
}

#[test]
fn null_metadata_and_trailing_spaces_are_fine() {
    let header = r#"{"__metadata__":null,"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}   "#;
    assert_eq!(Checkpoint::open(&model(&handmade(header, 1))).unwrap().entries().len(), 1);
}

#[test]
fn deep_json_is_an_error_and_not_a_crash() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let dir = handmade(&format!(r#"{{"a":{deep}}}"#), 0);
    assert!(open_error(&model(&dir)).contains("`model.safetensors`: the safetensors header is not valid"));
    fs::write(model(&dir).join("config.json"), &deep).unwrap();
    assert!(open_error(&model(&dir)).contains("not valid JSON: recursion limit exceeded"));
}

#[test]
fn a_million_tensors_open_in_seconds() {
    let mut header = String::from("{");
    for i in 0..1_000_000_u32 {
        let comma = if i == 0 { "" } else { "," };
        header += &format!(r#"{comma}"t{i}":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{}]}}"#, i + 1);
    }
    header.push('}');
    let dir = handmade(&header, 1_000_000);
    let start = std::time::Instant::now();
    assert_eq!(Checkpoint::open(&model(&dir)).unwrap().entries().len(), 1_000_000);
    // About a second on an idle core; the bound leaves room for busy machines.
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}

#[test]
fn an_index_that_names_a_missing_tensor_or_the_wrong_shard_is_refused() {
    let dir = tiny("qwen3.5-dense");
    let index = model(&dir).join("model.safetensors.index.json");
    let (first, second) = ("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors");
    edit_json(&index, |index| index["weight_map"]["mtp.ghost.weight"] = json!(first));
    let said = |tensor: &str, file: &str, found: &str| {
        format!("the index says that tensor `{tensor}` is in `{file}`, found it in {found}")
    };
    assert_eq!(open_error(&model(&dir)), said("mtp.ghost.weight", first, "no shard"));
    edit_json(&index, |index| {
        index["weight_map"].as_object_mut().unwrap().remove("mtp.ghost.weight");
        index["weight_map"]["lm_head.weight"] = json!(second);
    });
    assert_eq!(open_error(&model(&dir)), said("lm_head.weight", second, &format!("`{first}`")));
}

#[test]
fn a_shard_outside_the_folder_is_refused() {
    let dir = tiny("qwen3.5-dense");
    let outside = dir.path().join("outside.safetensors");
    fs::copy(model(&dir).join("model-00001-of-00003.safetensors"), &outside).unwrap();
    std::os::unix::fs::symlink(&outside, model(&dir).join("link.safetensors")).unwrap();
    for name in
        ["../outside.safetensors", outside.to_str().unwrap(), "link.safetensors", "", "a/../../outside.safetensors"]
    {
        edit_json(&model(&dir).join("model.safetensors.index.json"), |index| {
            index["weight_map"] = json!({"lm_head.weight": name});
        });
        let error = Checkpoint::open(&model(&dir)).unwrap_err();
        assert!(error.to_string().contains(&format!("shard `{name}` leads outside the model folder")), "{error}");
        assert_eq!(hints(&error).len(), 1);
    }
}

#[test]
fn the_links_of_a_hugging_face_cache_are_followed() {
    let dir = tiny("qwen3.5-dense");
    let repository = dir.path().join("models--a--b");
    let snapshot = repository.join("snapshots/0123");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(repository.join("blobs")).unwrap();
    for (i, entry) in fs::read_dir(model(&dir)).unwrap().enumerate() {
        let entry = entry.unwrap();
        let blob = format!("blobs/{i}");
        fs::copy(entry.path(), repository.join(&blob)).unwrap();
        std::os::unix::fs::symlink(format!("../../{blob}"), snapshot.join(entry.file_name())).unwrap();
    }
    assert!(Checkpoint::open(&snapshot).unwrap().entries().contains_key("mtp.fc.weight"));
}

#[test]
fn what_is_not_a_model_folder_is_said_with_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    let error = Checkpoint::open(dir.path()).unwrap_err();
    assert!(format!("{error:#}").contains("config.json`: cannot read"), "{error:#}");
    assert_eq!(hints(&error).len(), 1);
    fs::write(dir.path().join("config.json"), "{}").unwrap();
    assert!(open_error(dir.path()).contains("found no `model.safetensors.index.json` and no `*.safetensors` file"));
    fs::write(dir.path().join("model.safetensors"), "version https://git-lfs.github.com/spec/v1\n").unwrap();
    assert!(open_error(dir.path()).contains("this is a git-lfs pointer"));
    assert!(open_error(&dir.path().join("absent")).contains("is not a folder"));
}

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
