//! `sha256sums.txt`: a line a file, `<64 hex digits><space><space or *><relative path>`, as coreutils writes it.
//!
//! A line that begins with `\` has `\n`, `\r` and `\\` escaped in its path. The BSD form `SHA256 (path) = hex` is read
//! too. Blank lines and lines that begin with `#` are passed over; anything else is an error, never skipped.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Component, Path},
};

use anyhow::{Context, Result, bail};

use super::{Expected, files_below, sha256_files, stay_inside};
use crate::{
    error::{Hint, quoted},
    output::{StagedDir, write_file},
    report::Progress,
};

/// The name of the list in a directory.
pub const LIST_NAME: &str = "sha256sums.txt";

/// A list is text about files: larger than this it is something else.
const MAX_LIST_BYTES: u64 = 64 << 20;

/// Reads a list; paths are relative to the folder of `list`.
///
/// # Errors
/// A line cannot be read, a path is absolute, has `..`, or is a link that leads outside, or a file is listed twice.
pub fn read_list(list: &Path) -> Result<Vec<Expected>> {
    let metadata = list.metadata().with_context(|| format!("`{}`: cannot open", list.display()));
    let metadata = metadata.hint("make one with `draftfast verify-sha --write DIR`")?;
    if !metadata.is_file() || metadata.len() > MAX_LIST_BYTES {
        bail!("`{}` is not a checksum list: it is no regular file of at most {MAX_LIST_BYTES} bytes", list.display());
    }
    let text = std::fs::read(list).with_context(|| format!("`{}`: cannot read", list.display()))?;
    let text = String::from_utf8(text).with_context(|| format!("`{}` is not UTF-8", list.display()))?;
    let dir = list.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let root = dir.canonicalize().with_context(|| format!("`{}`: cannot open the folder", dir.display()))?;

    let mut expected = Vec::new();
    let mut seen = BTreeMap::new();
    for (i, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let at = || format!("`{}` line {}", list.display(), i + 1);
        let (sha256, name) = parse_line(line).with_context(at)?;
        refuse_escape(&name).with_context(at)?;
        let path = dir.join(&name);
        stay_inside(&root, &path).with_context(at)?;
        if let Some(first) = seen.insert(name.clone(), i + 1) {
            bail!("{}: `{name}` is listed already in line {first}", at());
        }
        expected.push(Expected { name, path, sha256, n_bytes: None });
    }
    if expected.is_empty() {
        bail!("`{}` lists no file", list.display());
    }
    Ok(expected)
}

fn parse_line(line: &str) -> Result<(String, String)> {
    if let Some(rest) = line.strip_prefix("SHA256 (")
        && let Some((name, digest)) = rest.rsplit_once(") = ")
    {
        return Ok((parse_digest(digest)?, name.to_owned()));
    }
    let (escaped, line) = line.strip_prefix('\\').map_or((false, line), |rest| (true, rest));
    let (digest, name) = line.split_once(' ').context("expected `<sha256>  <path>`")?;
    let name = name.strip_prefix([' ', '*']).context("expected two spaces, or a space and `*`, before the path")?;
    if name.is_empty() {
        bail!("the path is empty");
    }
    Ok((parse_digest(digest)?, if escaped { unescape(name)? } else { name.to_owned() }))
}

fn parse_digest(digest: &str) -> Result<String> {
    if let Some(c) = digest.chars().find(|c| !c.is_ascii_hexdigit()) {
        bail!("{} is not a sha256: expected 64 hexadecimal digits, found {c:?}", quoted(digest));
    }
    if digest.len() != 64 {
        bail!("{} is not a sha256: expected 64 hexadecimal digits, found {}", quoted(digest), digest.len());
    }
    Ok(digest.to_ascii_lowercase())
}

fn unescape(name: &str) -> Result<String> {
    let mut out = String::with_capacity(name.len());
    let mut chars = name.chars();
    while let Some(c) = chars.next() {
        out.push(match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', Some('n')) => '\n',
            ('\\', Some('r')) => '\r',
            ('\\', Some('\\')) => '\\',
            ('\\', other) => bail!("unknown escape `\\{}` in the path", other.map(String::from).unwrap_or_default()),
            (c, _) => c,
        });
    }
    Ok(out)
}

/// # Errors
/// The path is absolute or climbs out of its folder.
fn refuse_escape(name: &str) -> Result<()> {
    for component in Path::new(name).components() {
        match component {
            Component::Normal(_) | Component::CurDir => {}
            Component::ParentDir => bail!("`{name}` has `..`: only paths below the list's folder are checked"),
            Component::RootDir | Component::Prefix(_) => bail!("`{name}` is absolute: only relative paths are checked"),
        }
    }
    Ok(())
}

/// The text of a list, sorted by path.
pub fn format_list(digests: &BTreeMap<String, String>) -> String {
    let mut text = String::new();
    for (name, sha256) in digests {
        let escaped = name.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r");
        let mark = if escaped == *name { "" } else { "\\" };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{mark}{sha256}  {escaped}");
    }
    text
}

/// Hashes every file below `dir` but the list itself and writes the list, atomically. Returns the number of files.
///
/// # Errors
/// A file cannot be read, a link leads outside, or the folder is not writable.
pub fn write_list(dir: &Path, force: bool, progress: &Progress) -> Result<usize> {
    let digests = digests(dir, BTreeMap::new(), progress)?;
    write_file(&dir.join(LIST_NAME), format_list(&digests).as_bytes(), force)?;
    Ok(digests.len())
}

/// Adds the list to a directory under construction, whose files were hashed as they were written.
///
/// # Errors
/// As [`write_list`].
pub fn add_list(staged: &StagedDir, progress: &Progress) -> Result<()> {
    let digests = digests(staged.path(), staged.digests().known(), progress)?;
    staged.write(LIST_NAME, format_list(&digests).as_bytes())?;
    Ok(())
}

/// The sha256 of every file below `dir` but the list, by its path; those that are `known` are not read.
fn digests(dir: &Path, known: BTreeMap<String, String>, progress: &Progress) -> Result<BTreeMap<String, String>> {
    let names: Vec<_> = files_below(dir)?.into_iter().filter(|name| name != LIST_NAME).collect();
    if names.is_empty() {
        bail!("`{}` has no files", dir.display());
    }
    let unknown: Vec<_> = names.iter().filter(|name| !known.contains_key(*name)).cloned().collect();
    let paths: Vec<_> = unknown.iter().map(|name| dir.join(name)).collect();
    let mut digests = known;
    digests.retain(|name, _| names.binary_search(name).is_ok());
    for (name, sha256) in unknown.into_iter().zip(sha256_files(&paths, progress)?) {
        digests.insert(name, sha256?);
    }
    Ok(digests)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZEROS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

    #[test]
    fn lines_of_coreutils_and_bsd_are_read() {
        for (line, name) in [
            (format!("{ZEROS}  a b.txt"), "a b.txt"),
            (format!("{ZEROS} *bin"), "bin"),
            (format!("\\{ZEROS}  new\\nline\\\\"), "new\nline\\"),
            (format!("SHA256 (x) = {ZEROS}"), "x"),
        ] {
            assert_eq!(parse_line(&line).unwrap(), (ZEROS.to_owned(), name.to_owned()), "{line}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let digests =
            BTreeMap::from([("odd\n\\name".to_owned(), ZEROS.to_owned()), ("b".to_owned(), ZEROS.to_owned())]);
        let names: Vec<_> = format_list(&digests).lines().map(|line| parse_line(line).unwrap().1).collect();
        assert_eq!(names, ["b", "odd\n\\name"]);
    }

    #[test]
    fn malformed_lines_are_errors() {
        for line in
            ["zz  a", &ZEROS[1..], ZEROS, &format!("{ZEROS}  "), &format!("{ZEROS} a"), &format!("\\{ZEROS}  \\q")]
        {
            assert!(parse_line(line).is_err(), "{line}");
        }
        for name in ["/etc/passwd", "../x", "a/../../x"] {
            assert!(refuse_escape(name).is_err(), "{name}");
        }
    }
}
