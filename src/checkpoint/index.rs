//! Which files make up a checkpoint: the index if there is one, else every `*.safetensors` of the folder.
//!
//! File names come from a download, so they must not lead out of the folder. One exception is the Hugging Face cache,
//! whose `snapshots/REVISION/` holds links into the `blobs/` of the same repository.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;

use crate::{
    error::{Hint, advise},
    input::read_file,
};

/// A tensor takes about a hundred bytes of the index.
const MAX_INDEX_BYTES: u64 = 1 << 30;

/// Name of the index file that Hugging Face writes for sharded checkpoints.
const INDEX: &str = "model.safetensors.index.json";

/// The files of a checkpoint.
#[derive(Debug)]
pub(super) struct ShardList {
    /// File names relative to the folder, sorted.
    pub files: Vec<String>,
    /// Tensor name to file name, as the index claims; empty without an index.
    pub claims: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Finds the shards of `dir` and checks that each is a file inside it.
pub(super) fn find_shards(dir: &Path) -> Result<ShardList> {
    let index_path = dir.join(INDEX);
    let list = if index_path.symlink_metadata().is_ok() { read_index(&index_path)? } else { list_folder(dir)? };
    let roots = allowed_roots(dir)?;
    for file in &list.files {
        check_inside(dir, file, &roots)?;
    }
    Ok(list)
}

fn read_index(path: &Path) -> Result<ShardList> {
    let text = read_file(path, MAX_INDEX_BYTES).with_context(|| format!("`{}`", path.display()))?;
    let index: Index = serde_json::from_slice(&text)
        .map_err(|error| anyhow!("`{}`: not a valid index: {error}", path.display()))
        .hint("expected an object with `weight_map`, from tensor names to file names")?;
    let files: BTreeSet<&String> = index.weight_map.values().collect();
    ensure!(!files.is_empty(), "`{}`: `weight_map` names no tensor", path.display());
    Ok(ShardList { files: files.into_iter().cloned().collect(), claims: index.weight_map })
}

fn list_folder(dir: &Path) -> Result<ShardList> {
    let say = || format!("`{}`: cannot list the folder", dir.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).with_context(say)? {
        let name = entry.with_context(say)?.file_name();
        // A name that is not UTF-8 cannot be one of ours.
        if let Some(name) = name.to_str().filter(|name| name.ends_with(".safetensors")) {
            files.push(name.to_owned());
        }
    }
    files.sort_unstable();
    if files.is_empty() {
        return Err(advise(
            anyhow!("`{}`: found no `{INDEX}` and no `*.safetensors` file", dir.display()),
            "MODEL is a Hugging Face model folder with config.json and safetensors weights",
        ));
    }
    Ok(ShardList { files, claims: BTreeMap::new() })
}

/// Folders in which a shard may really lie, links resolved.
fn allowed_roots(dir: &Path) -> Result<Vec<PathBuf>> {
    let dir = dir.canonicalize().with_context(|| format!("`{}`: cannot resolve the folder", dir.display()))?;
    let snapshots = dir.parent().filter(|parent| parent.file_name().is_some_and(|name| name == "snapshots"));
    let blobs = snapshots.and_then(Path::parent).map(|repository| repository.join("blobs"));
    Ok([Some(dir), blobs].into_iter().flatten().collect())
}

fn check_inside(dir: &Path, file: &str, roots: &[PathBuf]) -> Result<()> {
    let leads_out = || {
        advise(
            anyhow!("`{}`: shard `{file}` leads outside the model folder", dir.display()),
            "shards must lie in the folder; copy or hard-link the file there",
        )
    };
    let relative = Path::new(file);
    let is_plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    if file.is_empty() || !is_plain {
        return Err(leads_out());
    }
    let path = dir.join(relative);
    let Ok(real) = path.canonicalize() else {
        return Err(advise(
            anyhow!("`{file}`: the shard is missing from `{}`", dir.display()),
            "the download is incomplete: fetch this file again",
        ));
    };
    if !roots.iter().any(|root| real.starts_with(root)) {
        return Err(leads_out());
    }
    if !real.is_file() {
        bail!("`{file}`: expected a file, found something else");
    }
    Ok(())
}
