//! From what a person names (`[DOMAIN[:WEIGHT]=]PATH`) to a list of files in a fixed order.
//!
//! A folder is walked recursively in byte order of the names, hidden entries left out; files that look binary are not
//! read but listed. A glob is expanded in the same order.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, Result, ensure};

use crate::error::Hint;

/// The domain of a source that names none.
pub const DEFAULT_DOMAIN: &str = "text";

/// One corpus as a person names it.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// What kind of text it is (`zh`, `code`, ...); counts are kept apart by domain.
    pub domain: String,
    /// How much the domain matters at selection; counting ignores it.
    pub weight: f64,
    /// A file, a folder, a glob, or `-` for stdin.
    pub path: PathBuf,
    /// The member or column that holds the text, where it is another than everywhere.
    pub field: Option<String>,
}

/// # Errors
/// A source is stdin, which can be read only once.
pub fn refuse_stdin(sources: &[Source]) -> Result<()> {
    if sources.iter().all(|source| source.path != Path::new("-")) {
        return Ok(());
    }
    Err(anyhow::anyhow!("stdin can be read once, and this run reads its text several times")).hint(
        "write the text to a file, or count it first: `draftfast count MODEL --stdin -o FILE`, then `--counts FILE`",
    )
}

impl FromStr for Source {
    type Err = anyhow::Error;

    /// Parses `[DOMAIN[:WEIGHT]=]PATH`. A `=` behind a `/` belongs to the path (`./lang=en/`).
    fn from_str(text: &str) -> Result<Self> {
        ensure!(!text.is_empty(), "a corpus needs a path");
        let (label, path) = match text.split_once('=') {
            Some((label, path)) if !label.contains('/') => (label, path),
            _ => (DEFAULT_DOMAIN, text),
        };
        let (domain, weight) = label.split_once(':').unwrap_or((label, "1"));
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        ensure!(
            !domain.is_empty() && domain.chars().all(is_name),
            "the domain `{domain}` of corpus `{text}` is not made of letters, digits, `_`, `-` and `.`"
        );
        let weight: f64 = weight.parse().with_context(|| format!("the weight `{weight}` of corpus `{text}`"))?;
        ensure!(weight.is_finite() && weight > 0.0, "the weight `{weight}` of corpus `{text}` is not positive");
        ensure!(!path.is_empty(), "corpus `{text}` names no path");
        Ok(Self { domain: domain.to_owned(), weight, path: path.into(), field: None })
    }
}

/// How the decoded bytes of a file are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The whole file is one document.
    Text,
    /// A JSON object a line.
    Lines,
    /// Apache Parquet.
    Parquet,
}

/// One file to read.
#[derive(Debug, Clone, PartialEq)]
pub struct CorpusFile {
    /// The domain of its source.
    pub domain: String,
    /// Where it is; `-` is stdin.
    pub path: PathBuf,
    /// How it is called in records: the file name, or the path below the parent of the folder that was named.
    pub name: String,
    /// How its decoded bytes are laid out.
    pub format: Format,
    /// The member or column of its source.
    pub field: Option<String>,
    /// Bytes on disk, 0 for stdin.
    pub n_bytes: u64,
    /// Whether it was found in a folder: what is no text there is left out, where a file that was named is an error.
    pub is_found: bool,
}

/// The files of the sources.
#[derive(Debug, Default)]
pub struct Expanded {
    /// Sorted by domain; within a domain in the order of the sources.
    pub files: Vec<CorpusFile>,
    /// Binary files of folders, which are not read.
    pub skipped: Vec<PathBuf>,
}

/// Finds the files of all sources. `stdin` is the layout of `-`.
///
/// # Errors
/// A path that does not exist or cannot be read, a glob or folder without a readable file, or no source at all.
pub fn expand(sources: &[Source], stdin: Format) -> Result<Expanded> {
    let mut expanded = Expanded::default();
    for source in sources {
        let n_before = expanded.files.len();
        let text = source.path.to_string_lossy();
        if text == "-" {
            expanded.files.push(file(source, &source.path, "-".to_owned(), stdin));
        } else if source.path.exists() {
            add_path(source, &source.path, &mut expanded)?;
        } else if text.contains(['*', '?', '[']) {
            let paths = glob::glob(&text).with_context(|| format!("`{text}` is not a valid glob"))?;
            let mut paths = paths.collect::<Result<Vec<_>, _>>().with_context(|| format!("glob `{text}`"))?;
            paths.sort();
            paths.iter().try_for_each(|path| add_path(source, path, &mut expanded))?;
        } else {
            return Err(anyhow::anyhow!("`{text}`: no such file or folder"))
                .hint("a corpus is a file, a folder, a quoted glob, or `-` for stdin");
        }
        if expanded.files.len() == n_before {
            return Err(anyhow::anyhow!("corpus `{text}` holds no text file"))
                .hint("readable are text files, .jsonl, .ndjson, .parquet, and .gz or .zst of them");
        }
    }
    ensure!(!expanded.files.is_empty(), "no corpus was given");
    expanded.files.sort_by(|a, b| a.domain.cmp(&b.domain)); // stable: the order of the sources stays
    Ok(expanded)
}

fn add_path(source: &Source, path: &Path, expanded: &mut Expanded) -> Result<()> {
    let parent = path.parent().unwrap_or(Path::new(""));
    if !path.is_dir() {
        return add_file(source, path, parent, true, expanded);
    }
    let mut folders = vec![path.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries = folder.read_dir().with_context(|| format!("`{}`: cannot list the folder", folder.display()))?;
        for entry in entries {
            let path = entry.with_context(|| format!("`{}`: cannot list the folder", folder.display()))?.path();
            if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
                continue;
            }
            // A linked folder could lead back up: only real folders are walked.
            let kind = path.symlink_metadata().with_context(|| format!("`{}`: cannot read", path.display()))?;
            if kind.is_dir() {
                folders.push(path);
            } else if path.is_file() {
                files.push(path);
            }
        }
    }
    files.sort();
    files.iter().try_for_each(|file| add_file(source, file, parent, false, expanded))
}

/// A file that was `named` is read whatever it looks like; one found in a folder is skipped when it is binary.
fn add_file(source: &Source, path: &Path, parent: &Path, named: bool, expanded: &mut Expanded) -> Result<()> {
    let say = || format!("`{}`: cannot read", path.display());
    let metadata = path.metadata().with_context(say)?;
    if !metadata.is_file() {
        // A device may have no end, and what comes out of a pipe cannot be read a second time to be checked.
        return Err(anyhow::anyhow!("`{}`: cannot read: it is not a regular file", path.display()))
            .hint("a pipe is read from stdin: give `-` as the corpus");
    }
    let n_bytes = metadata.len();
    let format = format_of(path, named);
    let is_compressed = matches!(extension(path).as_str(), "gz" | "zst" | "zstd");
    if !named && format == Format::Text && !is_compressed && looks_binary(path).with_context(say)? {
        expanded.skipped.push(path.to_owned());
        return Ok(());
    }
    let name = path.strip_prefix(parent).unwrap_or(path).to_string_lossy().into_owned();
    expanded.files.push(CorpusFile { n_bytes, is_found: !named, ..file(source, path, name, format) });
    Ok(())
}

fn file(source: &Source, path: &Path, name: String, format: Format) -> CorpusFile {
    let Source { domain, field, .. } = source.clone();
    CorpusFile { domain, path: path.to_owned(), name, format, field, n_bytes: 0, is_found: false }
}

/// A plain `.json` inside a folder is a source file like any other; named alone or compressed it is a data set.
fn format_of(path: &Path, named: bool) -> Format {
    let inner = match extension(path).as_str() {
        "gz" | "zst" | "zstd" => {
            let inner = extension(&path.with_extension(""));
            return if matches!(inner.as_str(), "jsonl" | "ndjson" | "json") { Format::Lines } else { Format::Text };
        }
        inner => inner.to_owned(),
    };
    match inner.as_str() {
        "jsonl" | "ndjson" => Format::Lines,
        "json" if named => Format::Lines,
        "parquet" => Format::Parquet,
        _ => Format::Text,
    }
}

fn extension(path: &Path) -> String {
    path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default()
}

/// Git's rule: a NUL byte near the start.
fn looks_binary(path: &Path) -> std::io::Result<bool> {
    let mut start = Vec::new();
    File::open(path)?.take(8192).read_to_end(&mut start)?;
    Ok(start.contains(&0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_may_name_domain_and_weight() {
        let parse = |text: &str| text.parse::<Source>().unwrap();
        assert_eq!(parse("a.txt"), Source { domain: "text".into(), weight: 1.0, path: "a.txt".into(), field: None });
        assert_eq!(parse("zh:2.5=x/y"), Source { domain: "zh".into(), weight: 2.5, path: "x/y".into(), field: None });
        assert_eq!(parse("./lang=en/a").path, Path::new("./lang=en/a"));
        for bad in ["", "zh=", "=a", "zh:x=a", "zh:-1=a", "zh:inf=a", "a b=c"] {
            assert!(bad.parse::<Source>().is_err(), "{bad}");
        }
    }

    #[test]
    fn folders_are_walked_in_order_and_binary_files_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("b")).unwrap();
        for (name, bytes) in
            [("b/z.rs", &b"z"[..]), ("a.txt", b"a"), ("c.bin", b"\0x"), (".git", b"x"), ("d.json", b"{")]
        {
            std::fs::write(root.join(name), bytes).unwrap();
        }
        let source = Source { domain: "code".into(), weight: 1.0, path: root.clone(), field: None };
        let found = expand(&[source], Format::Text).unwrap();
        let names: Vec<_> = found.files.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["root/a.txt", "root/b/z.rs", "root/d.json"]);
        assert_eq!(found.skipped, [root.join("c.bin")]);
    }
}
