//! Opens a sidecar directory and checks that its files belong together, without the target.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::{DRAFTER_NAME, FORMAT_VERSION, MANIFEST_NAME, Manifest, metadata};
use crate::{
    checkpoint::Checkpoint,
    checksum::{LIST_NAME, read_list},
    error::Hint,
    input::read_file,
    vocab::{
        DraftVocab,
        forms::{self, Form},
    },
};

/// A manifest is a few hundred bytes a tensor: beyond this it is something else.
const MAX_MANIFEST_BYTES: u64 = 256 << 20;

/// A sidecar whose files agree with each other.
#[derive(Debug)]
pub struct Sidecar {
    /// The directory.
    pub dir: PathBuf,
    /// `manifest.json`.
    pub manifest: Manifest,
    /// The kept ids.
    pub vocab: DraftVocab,
    /// `drafter.safetensors`.
    pub drafter: Checkpoint,
}

impl Sidecar {
    /// Whether `dir` looks like a sidecar.
    pub fn is_at(dir: &Path) -> bool {
        dir.join(MANIFEST_NAME).is_file() && dir.join(DRAFTER_NAME).is_file()
    }

    /// Reads the manifest, the vocabulary and the header of the drafter.
    ///
    /// # Errors
    /// A file is missing or damaged, the format is of a later version, or the files are not of one build.
    pub fn open(dir: &Path) -> Result<Self> {
        let say = || format!("`{}`", dir.display());
        let manifest = read_manifest(dir).with_context(say)?;
        let drafter = Checkpoint::open_file(&dir.join(DRAFTER_NAME))
            .with_context(say)
            .hint("this is not a sidecar, or it is damaged: `draftfast verify-sha DIR` says which file changed")?;
        let vocab = read_vocab(dir, &manifest)?;
        check_metadata(drafter.metadata(), &manifest, &vocab)
            .with_context(say)
            .hint("the files of this sidecar are not of one build: build it again")?;
        Ok(Self { dir: dir.to_owned(), manifest, vocab, drafter })
    }

    /// # Errors
    /// There is no `sha256sums.txt`, or it names not even the sidecar's own files. It is written last, so what a killed
    /// run left has none, or has just begun it.
    pub fn check_finished(&self) -> Result<()> {
        const NOT_ENDED: &str = "the run that wrote this sidecar did not end";
        const HINT: &str =
            "build it again; if nothing else is missing, `draftfast verify-sha DIR --write` makes the list anew";
        let list = self.dir.join(LIST_NAME);
        if !list.is_file() {
            return Err(anyhow!("`{}` is missing: {NOT_ENDED}, or a file was lost", list.display())).hint(HINT);
        }
        let listed = read_list(&list).hint(HINT)?;
        let is_listed = |name: &str| listed.iter().any(|file| file.name == name);
        match [DRAFTER_NAME, MANIFEST_NAME].into_iter().find(|name| !is_listed(name)) {
            Some(name) => Err(anyhow!("`{}` does not name `{name}`: {NOT_ENDED}", list.display())).hint(HINT),
            None => Ok(()),
        }
    }
}

fn read_manifest(dir: &Path) -> Result<Manifest> {
    let text = read_file(&dir.join(MANIFEST_NAME), MAX_MANIFEST_BYTES)
        .with_context(|| format!("`{MANIFEST_NAME}`"))
        .hint("this folder is not a draftfast sidecar")?;
    let version: serde_json::Value =
        serde_json::from_slice(&text).with_context(|| format!("`{MANIFEST_NAME}` is not valid JSON"))?;
    match version.get("format").and_then(serde_json::Value::as_u64) {
        Some(v) if v == u64::from(FORMAT_VERSION) => {}
        Some(v) => bail!("`{MANIFEST_NAME}` has format {v}, this draftfast reads format {FORMAT_VERSION}"),
        None => bail!("`{MANIFEST_NAME}` has no `format`: it is not a draftfast manifest"),
    }
    // Read once more, as an error of the text knows its line.
    serde_json::from_slice(&text).with_context(|| format!("`{MANIFEST_NAME}` is not a manifest"))
}

fn read_vocab(dir: &Path, manifest: &Manifest) -> Result<DraftVocab> {
    let name = Form::Safetensors.file_name();
    let (vocab, _) = forms::read(&dir.join(name), Some(manifest.target.target_rows))?;
    let record = &manifest.vocabulary;
    ensure!(
        (vocab.token_ids.len(), vocab.n_rows()) == (record.n_real_rows, record.n_rows),
        "`{name}` keeps {} ids in {} rows, `{MANIFEST_NAME}` says {} in {}",
        vocab.token_ids.len(),
        vocab.n_rows(),
        record.n_real_rows,
        record.n_rows
    );
    Ok(vocab)
}

fn check_metadata(found: &BTreeMap<String, String>, manifest: &Manifest, vocab: &DraftVocab) -> Result<()> {
    let vocab_sha256 = vocab.sha256();
    ensure!(
        vocab_sha256 == manifest.vocabulary.sha256,
        "`{}` has the ids of another vocabulary: sha256 `{vocab_sha256}`, expected `{}`",
        Form::Safetensors.file_name(),
        manifest.vocabulary.sha256
    );
    for (key, expected) in [
        (metadata::DRAFTFAST_FORMAT, FORMAT_VERSION.to_string().as_str()),
        (metadata::HEAD_TREE_SHA256, &manifest.target.head_tree_sha256),
        (metadata::VOCABULARY_SHA256, &vocab_sha256),
        (metadata::PROVENANCE_SHA256, &manifest.provenance_sha256()?),
    ] {
        let value = found.get(key).map(String::as_str);
        ensure!(
            value == Some(expected),
            "`{DRAFTER_NAME}`: metadata `{key}` is `{}`, expected `{expected}`",
            value.unwrap_or("missing")
        );
    }
    Ok(())
}
