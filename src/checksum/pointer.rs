//! git-lfs pointer files: what a Hugging Face repository holds in place of a large file when it is cloned without lfs.
//!
//! ```text
//! version https://git-lfs.github.com/spec/v1
//! oid sha256:4d7a...
//! size 5368709120
//! ```

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use super::{Expected, files_below};
use crate::error::advise;

/// The specification keeps pointers below this size.
const MAX_POINTER_BYTES: u64 = 1024;

/// The pointers below `pointers`, each with the real file that it stands for.
///
/// With `real`, a folder that mirrors `pointers`: the file of the same relative path. Without: the file beside the
/// pointer whose name is the pointer's without its last extension (`model.safetensors.pointer` for
/// `model.safetensors`).
///
/// # Errors
/// There is no pointer below `pointers`, a pointer is malformed, or it stands where its real file should be.
pub fn read_pointers(pointers: &Path, real: Option<&Path>) -> Result<Vec<Expected>> {
    let mut expected = Vec::new();
    for name in files_below(pointers)? {
        let pointer = pointers.join(&name);
        let Some((sha256, n_bytes)) = read_pointer(&pointer)? else { continue };
        let (name, path) = match real {
            Some(real) => (name.clone(), real.join(&name)),
            None => beside(&name, &pointer)?,
        };
        if path.is_file() && read_pointer(&path)?.is_some() {
            return Err(advise(
                anyhow::anyhow!("`{}` is a git-lfs pointer, not the file itself", path.display()),
                "fetch the file itself, for example with `git lfs pull`",
            ));
        }
        expected.push(Expected { name, path, sha256, n_bytes: Some(n_bytes) });
    }
    if expected.is_empty() {
        bail!("`{}` has neither a sha256sums.txt nor a git-lfs pointer", pointers.display());
    }
    Ok(expected)
}

fn beside(name: &str, pointer: &Path) -> Result<(String, PathBuf)> {
    let real = Path::new(name).with_extension("");
    let real = real.to_str().context("the name is not UTF-8")?;
    if real == name {
        return Err(advise(
            anyhow::anyhow!("`{}` is a git-lfs pointer and its real file is not beside it", pointer.display()),
            "name the folder with the real files: `--against DIR`",
        ));
    }
    Ok((real.to_owned(), pointer.with_extension("")))
}

/// The digest and the size that a pointer states; `None` when the file is no pointer.
fn read_pointer(path: &Path) -> Result<Option<(String, u64)>> {
    let say = || format!("`{}`: cannot read", path.display());
    let file = File::open(path).with_context(say)?;
    if file.metadata().with_context(say)?.len() > MAX_POINTER_BYTES {
        return Ok(None);
    }
    let mut text = Vec::new();
    file.take(MAX_POINTER_BYTES).read_to_end(&mut text).with_context(say)?;
    let Ok(text) = String::from_utf8(text) else { return Ok(None) };
    if !text.starts_with("version https://git-lfs") {
        return Ok(None);
    }
    let field = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
    let malformed = |what: &str| format!("`{}` is a git-lfs pointer without a valid `{what}` line", path.display());
    let oid = field("oid sha256:").map(str::trim).with_context(|| malformed("oid sha256:"))?;
    if oid.len() != 64 || !oid.bytes().all(|b| b.is_ascii_hexdigit()) {
        bail!(malformed("oid sha256:"));
    }
    let size = field("size ").and_then(|s| s.trim().parse().ok()).with_context(|| malformed("size"))?;
    Ok(Some((oid.to_ascii_lowercase(), size)))
}
