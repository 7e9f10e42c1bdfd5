//! Checksums that other tools read: `sha256sums.txt` as `sha256sum -c` takes it, and git-lfs pointer files.
//!
//! A list comes from elsewhere and is not trusted: it may name only files below its own folder. What a passing check
//! shows is that the files are those the list names; it does not show who made the list.

mod digest;
mod lanes;
mod list;
mod pointer;
mod together;
mod tree;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

pub use digest::sha256_file;
pub use list::{LIST_NAME, add_list, format_list, read_list, write_list};
pub use pointer::read_pointers;
use together::sha256_files;
pub use tree::{PIECE_BYTES, Tree, tree_sha256};

use crate::report::Progress;

/// A file and the digest it should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The name to print: as it stands in the list.
    pub name: String,
    /// Where the file is.
    pub path: PathBuf,
    /// Lower-case hexadecimal.
    pub sha256: String,
    /// The size, where the list says it (git-lfs pointers do).
    pub n_bytes: Option<u64>,
}

/// What became of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The digest is the expected one.
    Ok,
    /// The digest or the size differs.
    Failed,
    /// There is no such file.
    Missing,
    /// The file exists and cannot be read; the reason.
    Unreadable(String),
}

/// Hashes the files in parallel; outcomes stand in the order of `expected`.
///
/// # Errors
/// Interrupted.
pub fn check(expected: &[Expected], progress: &Progress) -> Result<Vec<Outcome>> {
    let mut outcomes: Vec<Option<Outcome>> = expected.iter().map(outcome_without_reading).collect();
    let unread: Vec<usize> = (0..expected.len()).filter(|&i| outcomes[i].is_none()).collect();
    let paths: Vec<PathBuf> = unread.iter().map(|&i| expected[i].path.clone()).collect();
    for (i, found) in unread.into_iter().zip(sha256_files(&paths, progress)?) {
        outcomes[i] = Some(match found {
            Ok(sha256) if sha256 == expected[i].sha256 => Outcome::Ok,
            Ok(_) => Outcome::Failed,
            Err(error) => Outcome::Unreadable(format!("{error:#}")),
        });
    }
    Ok(outcomes.into_iter().flatten().collect())
}

/// `None` when the file must be hashed.
fn outcome_without_reading(expected: &Expected) -> Option<Outcome> {
    let metadata = match expected.path.metadata() {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Some(Outcome::Missing),
        Err(e) => return Some(Outcome::Unreadable(e.to_string())),
    };
    if !metadata.is_file() {
        return Some(Outcome::Unreadable("not a regular file".to_owned()));
    }
    expected.n_bytes.is_some_and(|n| n != metadata.len()).then_some(Outcome::Failed)
}

/// The files below `dir`, as sorted relative paths with `/`. Links are followed only to files inside `dir`.
///
/// # Errors
/// A link leads outside, something is neither file nor folder, or a name is not UTF-8.
fn files_below(dir: &Path) -> Result<Vec<String>> {
    let root = dir.canonicalize().with_context(|| format!("`{}`: cannot open the folder", dir.display()))?;
    let mut names = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(dir.join(&folder))
            .with_context(|| format!("`{}`: cannot list the folder", dir.join(&folder).display()))?;
        for entry in entries {
            let relative = folder.join(entry?.file_name());
            let path = dir.join(&relative);
            let kind = path.symlink_metadata()?.file_type();
            if kind.is_dir() {
                folders.push(relative);
                continue;
            }
            if kind.is_symlink() {
                stay_inside(&root, &path)?;
            }
            if kind.is_symlink() && path.is_dir() {
                bail!("`{}` is a link to a folder, and a list names files", path.display());
            }
            if !path.is_file() {
                bail!("`{}` is neither a file nor a folder", path.display());
            }
            let name = relative.to_str().with_context(|| format!("`{}`: the name is not UTF-8", path.display()))?;
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// # Errors
/// `path` is a link that leads out of `root` (a canonical path).
fn stay_inside(root: &Path, path: &Path) -> Result<()> {
    match path.canonicalize() {
        Ok(target) if !target.starts_with(root) => {
            bail!("`{}` is a link that leads outside the folder, to `{}`", path.display(), target.display())
        }
        // A dangling link is reported as a missing file when it is opened.
        _ => Ok(()),
    }
}
