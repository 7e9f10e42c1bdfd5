//! Mixture files: a corpus written down, so that a vocabulary can be made again.
//!
//! ```toml
//! [zh]                          # a domain
//! weight = 2.0                  # default 1
//! paths = ["chats.jsonl", "books/"]
//! heldout = ["held/zh.jsonl"]   # optional
//! licence = "CC BY-SA 4.0"      # for people
//! dataset = "org/name"          # for people: where the files come from
//! ```
//!
//! Paths are relative to the mixture file.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::{corpus::Source, error::Hint};

/// The sources of a mixture file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mixture {
    /// What to count.
    pub sources: Vec<Source>,
    /// What to measure coverage on.
    pub heldout: Vec<Source>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Domain {
    #[serde(default = "one")]
    weight: f64,
    paths: Vec<PathBuf>,
    #[serde(default)]
    heldout: Vec<PathBuf>,
    /// Kept beside the paths for people; nothing is fetched.
    #[serde(default)]
    dataset: Option<String>,
    #[serde(default, rename = "licence")]
    _licence: Option<String>,
}

fn one() -> f64 {
    1.0
}

/// Reads a mixture file.
///
/// # Errors
/// Not such a file, a weight that is not positive, or a path that is not there (with its data set's name, if given).
pub fn read(path: &Path) -> Result<Mixture> {
    let say = || format!("`{}`", path.display());
    let text = crate::input::read_text(path).with_context(say)?;
    let domains: BTreeMap<String, Domain> = toml::from_str(&text).context("not a mixture file").with_context(say)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut mixture = Mixture::default();
    for (name, domain) in domains {
        let weight = domain.weight;
        ensure!(weight.is_finite() && weight > 0.0, "`{}`: the weight of domain `{name}` is {weight}", path.display());
        for (paths, sources) in [(&domain.paths, &mut mixture.sources), (&domain.heldout, &mut mixture.heldout)] {
            for path in paths {
                let path = folder.join(path);
                check(&path, domain.dataset.as_deref()).with_context(say)?;
                sources.push(Source { domain: name.clone(), weight, path });
            }
        }
    }
    ensure!(!mixture.sources.is_empty(), "`{}`: names no path", path.display());
    Ok(mixture)
}

fn check(path: &Path, dataset: Option<&str>) -> Result<()> {
    let is_glob = path.to_string_lossy().contains(['*', '?', '[']);
    if is_glob || path.exists() {
        return Ok(());
    }
    let missing = Err(anyhow::anyhow!("`{}`: no such file or folder", path.display()));
    match dataset {
        Some(dataset) => missing.hint(format!("download the data set `{dataset}` into it first")),
        None => missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> (tempfile::TempDir, Result<Mixture>) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.txt"), "a").unwrap();
        let file = dir.path().join("mixture.toml");
        std::fs::write(&file, text).unwrap();
        let mixture = read(&file);
        (dir, mixture)
    }

    #[test]
    fn domains_come_with_weights_and_paths_beside_the_file() {
        let (dir, mixture) =
            written("[zh]\nweight = 2\npaths = ['a.txt']\nheldout = ['a.txt']\n[en]\npaths = ['*.txt']\n");
        let mixture = mixture.unwrap();
        let [en, zh] = &mixture.sources[..] else { panic!() };
        assert_eq!((zh.domain.as_str(), zh.weight, &zh.path), ("zh", 2.0, &dir.path().join("a.txt")));
        assert_eq!((en.domain.as_str(), en.weight), ("en", 1.0));
        assert_eq!(mixture.heldout.len(), 1);
    }

    #[test]
    fn mistakes_are_named() {
        let said = |text: &str| format!("{:#}", written(text).1.unwrap_err());
        assert!(said("[zh]\npath = ['a.txt']\n").contains("unknown field"));
        assert!(said("[zh]\npaths = ['a.txt']\nweight = 0\n").contains("the weight of domain `zh` is 0"));
        assert!(said("[zh]\npaths = []\n").contains("names no path"));
        let (_dir, missing) = written("[zh]\npaths = ['b.txt']\ndataset = 'org/name'\n");
        let error = missing.unwrap_err();
        assert!(format!("{error:#}").contains("no such file"), "{error:#}");
        assert_eq!(crate::error::hints(&error), ["download the data set `org/name` into it first"]);
    }
}
