//! Opening model folders: whole ones, and every way in which one can be broken.

use std::{
    fs,
    path::{Path, PathBuf},
};

use draftfast::{
    checkpoint::{
        Checkpoint, Overrides, Recipe, recipe,
        synth::{self, Scale},
    },
    error::hints,
    output::StagedDir,
    report::Progress,
};
use serde_json::{Value, json};

/// A folder with a tiny synthetic checkpoint.
pub(crate) fn tiny(family: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let out = StagedDir::create(&dir.path().join("model"), false).unwrap();
    synth::write(family, Scale::Tiny, 0, &out, &Progress::silent()).unwrap();
    out.commit().unwrap();
    dir
}

pub(crate) fn model(dir: &tempfile::TempDir) -> PathBuf {
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

pub(crate) fn safetensors_bytes(header: &str, n_data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + n_data, 0);
    bytes
}

fn open_error(dir: &Path) -> String {
    format!("{:#}", Checkpoint::open(dir).unwrap_err())
}

pub(crate) fn edit_json(path: &Path, edit: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    edit(&mut value);
    fs::write(path, serde_json::to_vec(&value).unwrap()).unwrap();
}

pub(crate) fn plain_recipe(dir: &Path) -> anyhow::Result<Recipe> {
    recipe(&Checkpoint::open(dir)?, None, &Overrides::default())
}

/// Renames tensors and patches dtypes in every header of a folder, lengths kept by padding.
pub(crate) fn edit_headers(dir: &Path, edit: impl Fn(&mut serde_json::Map<String, Value>)) {
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
fn a_shape_that_fills_no_whole_bytes_is_refused() {
    let header = r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}"#;
    let error = open_error(&model(&handmade(header, 2)));
    assert!(error.contains("tensor `a` (F4, shape [3]) has 12 bits, expected whole bytes"), "{error}");
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
