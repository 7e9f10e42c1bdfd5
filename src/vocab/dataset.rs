//! A data set by its name: where `hf download` keeps it on this machine. Nothing is fetched here.
//!
//! ```text
//! CACHE/datasets--ORG--NAME/refs/main          the commit that was current when it was downloaded
//! CACHE/datasets--ORG--NAME/snapshots/COMMIT/  the files, as links
//! ```

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, ensure};

use crate::{error::Hint, input::read_text};

/// The folder of Hugging Face's own tools: `HF_HUB_CACHE`, else `HF_HOME/hub`, else where they keep it by default.
pub fn cache() -> PathBuf {
    let dir = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || {
        let caches = dir("XDG_CACHE_HOME").unwrap_or_else(|| dir("HOME").unwrap_or_default().join(".cache"));
        caches.join("huggingface")
    };
    dir("HF_HUB_CACHE").unwrap_or_else(|| dir("HF_HOME").unwrap_or_else(home).join("hub"))
}

/// The folder of the data set `name` at `revision`: a branch, a tag, or a commit.
///
/// # Errors
/// A name or a revision that would lead elsewhere, or one that has not been downloaded.
pub fn folder(cache: &Path, name: &str, revision: &str) -> Result<PathBuf> {
    let parts: Vec<_> = name.split('/').collect();
    ensure!(parts.len() <= 2 && parts.iter().all(|part| is_plain(part)), "`{name}` is no name of a data set");
    ensure!(revision.split('/').all(is_plain), "`{revision}` is no revision of data set `{name}`");
    let home = cache.join(format!("datasets--{}", parts.join("--")));
    let reference = home.join("refs").join(revision);
    let commit = match reference.is_file() {
        true => read_text(&reference).with_context(|| format!("`{}`", reference.display()))?.trim().to_owned(),
        false => revision.to_owned(),
    };
    ensure!(is_plain(&commit), "`{}` names no commit", reference.display());
    let folder = home.join("snapshots").join(commit);
    if folder.is_dir() {
        return Ok(folder);
    }
    Err(anyhow!("data set `{name}`, revision `{revision}`, is not in `{}`", cache.display()))
        .hint(format!("run `hf download --repo-type dataset --revision {revision} {name}` first"))
}

fn is_plain(part: &str) -> bool {
    let is_of_names = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    !part.is_empty() && part.chars().all(is_of_names) && !part.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_data_set_is_found_by_branch_and_by_commit() {
        let cache = tempfile::tempdir().unwrap();
        let home = cache.path().join("datasets--org--books");
        let files = home.join("snapshots/0a1b");
        fs::create_dir_all(&files).unwrap();
        fs::create_dir_all(home.join("refs/refs")).unwrap();
        fs::write(home.join("refs/main"), "0a1b\n").unwrap();
        fs::write(home.join("refs/refs/pr"), "0a1b").unwrap();
        for revision in ["main", "0a1b", "refs/pr"] {
            assert_eq!(folder(cache.path(), "org/books", revision).unwrap(), files);
        }
        let error = folder(cache.path(), "org/books", "v2").unwrap_err();
        assert!(format!("{error:#}").contains("`org/books`, revision `v2`, is not in"), "{error:#}");
        let fetch = "run `hf download --repo-type dataset --revision v2 org/books` first";
        assert_eq!(crate::error::hints(&error), [fetch]);
    }

    #[test]
    fn no_name_and_no_reference_leads_out_of_the_cache() {
        let cache = tempfile::tempdir().unwrap();
        for name in ["", "a/b/c", "../b", "a/..", "/a", "-a", "a b"] {
            assert!(folder(cache.path(), name, "main").unwrap_err().to_string().contains("no name"), "{name}");
        }
        for revision in ["", "../main", "a//b", "--help"] {
            assert!(folder(cache.path(), "a", revision).unwrap_err().to_string().contains("no revision"), "{revision}");
        }
        let refs = cache.path().join("datasets--a/refs");
        fs::create_dir_all(&refs).unwrap();
        fs::write(refs.join("main"), "../../..").unwrap();
        assert!(folder(cache.path(), "a", "main").unwrap_err().to_string().contains("names no commit"));
    }
}
