//! Mixture files: a corpus written down, so that a vocabulary can be made again.
//!
//! ```toml
//! [zh]                          # a domain
//! weight = 2.0                  # default 1
//! paths = ["chats.jsonl", "books/"]
//! heldout = ["held/zh.jsonl"]   # optional
//! field = "reply"               # the member or column of the text, where it has an unusual name
//! licence = "CC BY-SA 4.0"      # for people
//!
//! [math]
//! dataset = "org/name"          # a data set that `hf download` has put into its cache
//! revision = "main"             # the default; a commit makes the counts repeatable
//! paths = ["data/*.parquet"]    # in the data set
//! ```
//!
//! Paths are relative to the mixture file, or to the data set.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::dataset;
use crate::{corpus::Source, input::parse_toml};

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
    field: Option<String>,
    dataset: Option<String>,
    revision: Option<String>,
    #[serde(default, rename = "licence")]
    _licence: Option<String>,
}

fn one() -> f64 {
    1.0
}

/// Reads a mixture file.
///
/// # Errors
/// Not such a file, a weight that is not positive, a path that is not there, or a data set that was not downloaded.
pub fn read(path: &Path) -> Result<Mixture> {
    let say = || format!("`{}`", path.display());
    let text = crate::input::read_text(path).with_context(say)?;
    let domains: BTreeMap<String, Domain> = parse_toml(&text).context("not a mixture file").with_context(say)?;
    let beside = path.parent().unwrap_or(Path::new(""));
    let mut mixture = Mixture::default();
    for (name, domain) in domains {
        let weight = domain.weight;
        ensure!(weight.is_finite() && weight > 0.0, "`{}`: the weight of domain `{name}` is {weight}", path.display());
        let folder = folder_of(&domain, beside).with_context(|| format!("domain `{name}`")).with_context(say)?;
        for (paths, sources) in [(domain.paths, &mut mixture.sources), (domain.heldout, &mut mixture.heldout)] {
            for path in paths {
                let path = folder.join(path);
                check(&path).with_context(say)?;
                sources.push(Source { domain: name.clone(), weight, path, field: domain.field.clone() });
            }
        }
    }
    ensure!(!mixture.sources.is_empty(), "`{}`: names no path", path.display());
    Ok(mixture)
}

/// Where a domain's paths begin.
fn folder_of(domain: &Domain, beside: &Path) -> Result<PathBuf> {
    match (&domain.dataset, &domain.revision) {
        (Some(name), revision) => dataset::folder(&dataset::cache(), name, revision.as_deref().unwrap_or("main")),
        (None, Some(_)) => bail!("has a `revision` and no `dataset`"),
        (None, None) => Ok(beside.to_owned()),
    }
}

fn check(path: &Path) -> Result<()> {
    let is_glob = path.to_string_lossy().contains(['*', '?', '[']);
    ensure!(is_glob || path.exists(), "`{}`: no such file or folder", path.display());
    Ok(())
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
        assert!(said("[zh]\npaths = ['b.txt']\n").contains("no such file"));
        assert!(said("[zh]\npaths = ['a.txt']\nrevision = 'main'\n").contains("a `revision` and no `dataset`"));
        assert!(said("[en]\npaths = ['a.txt']\n[zh]\ndataset = 'org/name'\n").contains("missing field `paths`"));
        let missing = said("[zh]\ndataset = 'org/never-downloaded'\npaths = ['*.parquet']\n");
        assert!(
            missing.contains("domain `zh`: data set `org/never-downloaded`, revision `main`, is not in"),
            "{missing}"
        );
    }
}
