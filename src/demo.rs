//! What `build --demo` needs beside the code: our own sample texts, carried in the binary, and a tiny model.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use crate::{
    checkpoint::synth::{self, Scale},
    corpus::Source,
    output::StagedDir,
    report::Progress,
};

/// The family of the demo's model.
pub const FAMILY: &str = "qwen3.5-dense";
/// Ids that the demo keeps: the tiny tokenizer has about two thousand.
pub const SIZE: usize = 1_000;

/// Name below corpora/sample and content of each sample text.
const SAMPLES: &[(&str, &str)] = &[
    ("code/backup.sh", include_str!("../corpora/sample/code/backup.sh")),
    ("code/debounce.ts", include_str!("../corpora/sample/code/debounce.ts")),
    ("code/histogram.c", include_str!("../corpora/sample/code/histogram.c")),
    ("code/inventory.py", include_str!("../corpora/sample/code/inventory.py")),
    ("code/orders.sql", include_str!("../corpora/sample/code/orders.sql")),
    ("code/ring.rs", include_str!("../corpora/sample/code/ring.rs")),
    ("en/diary.md", include_str!("../corpora/sample/en/diary.md")),
    ("en/letter.md", include_str!("../corpora/sample/en/letter.md")),
    ("en/questions.md", include_str!("../corpora/sample/en/questions.md")),
    ("en/release-notes.md", include_str!("../corpora/sample/en/release-notes.md")),
    ("en/tides.md", include_str!("../corpora/sample/en/tides.md")),
    ("en/workshop.md", include_str!("../corpora/sample/en/workshop.md")),
    ("math.jsonl", include_str!("../corpora/sample/math.jsonl")),
    ("zh.jsonl", include_str!("../corpora/sample/zh.jsonl")),
];

/// Writes the sample texts below `dir`; returns one source a domain.
///
/// # Errors
/// The disk is full.
pub fn write_samples(dir: &Path) -> Result<Vec<Source>> {
    for (name, text) in SAMPLES {
        let path = dir.join(name);
        let folder = path.parent().unwrap_or(dir);
        let written = fs::create_dir_all(folder).and_then(|()| fs::write(&path, text));
        written.with_context(|| format!("`{}`: cannot write a sample text", path.display()))?;
    }
    let source = |(domain, name): (&str, &str)| Source {
        domain: domain.to_owned(),
        weight: 1.0,
        path: dir.join(name),
        field: None,
    };
    Ok([("code", "code"), ("en", "en"), ("math", "math.jsonl"), ("zh", "zh.jsonl")].map(source).to_vec())
}

/// Writes the demo's model to `dir`.
///
/// # Errors
/// `dir` exists (unless `force`), or the disk is full.
pub fn write_model(dir: &Path, force: bool) -> Result<()> {
    let staged = StagedDir::create(dir, force)?;
    synth::write(FAMILY, Scale::Tiny, 0, &staged, &Progress::silent())?;
    staged.commit()
}
