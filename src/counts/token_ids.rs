//! Token ids that are logged already: no text, no tokenizer's work.
//!
//! Read are .jsonl (a list of ids a line, or an object with one), .npy (integers, little-endian) and .bin (plain
//! little-endian u16 or u32), each also as .gz or .zst.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result, bail, ensure};

use super::{Counts, DomainCounts, FileRecord, Tokenizer};
use crate::{
    corpus::{CorpusFile, Decoder, Format, Node, Source, expand, responses},
    error::Hint,
    interrupt,
    report::Progress,
};

/// Bytes of an id in a .bin file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdWidth {
    /// Little-endian u16.
    U16,
    /// Little-endian u32.
    U32,
}

/// Bytes that are decoded at once; a multiple of every width.
const CHUNK_BYTES: usize = 1 << 20;

/// Counts the ids of all sources. `width` is that of .bin files, `field` the member of .jsonl objects.
///
/// # Errors
/// An id outside the vocabulary, a file that is damaged or of another kind.
pub fn count_token_ids(
    tokenizer: &Tokenizer,
    sources: &[Source],
    width: Option<IdWidth>,
    field: Option<&str>,
    progress: &Progress,
) -> Result<Counts> {
    let mut domains = BTreeMap::<String, DomainCounts>::new();
    for file in &expand(sources, Format::Lines)?.files {
        let domain = domains.entry(file.domain.clone()).or_insert_with(|| DomainCounts {
            domain: file.domain.clone(),
            counts: vec![0; tokenizer.n_ids()],
            texts: "token ids".to_owned(),
            ..DomainCounts::default()
        });
        let record = read(file, width, field, &mut domain.counts, progress);
        let record = record.with_context(|| format!("`{}`", file.path.display()))?;
        domain.n_documents += record.n_documents;
        domain.files.push(record);
    }
    Ok(Counts {
        tokenizer_sha256: tokenizer.sha256().to_owned(),
        n_ids: tokenizer.n_ids(),
        engines: vec!["token ids".to_owned()],
        domains: domains.into_values().collect(),
        warnings: Vec::new(),
    })
}

fn read(
    file: &CorpusFile,
    width: Option<IdWidth>,
    field: Option<&str>,
    counts: &mut [u64],
    progress: &Progress,
) -> Result<FileRecord> {
    let mut decoder = Decoder::open(&file.path)?;
    let n_documents = match kind_of(&file.path).as_str() {
        "jsonl" | "ndjson" | "" => read_lines(&mut decoder, field, counts, progress)?,
        "npy" => {
            let kind = npy_kind(&mut decoder)?;
            read_numbers(&mut decoder, kind.0, kind.1, counts, progress)?
        }
        "bin" => {
            let width =
                width.context("the width of the ids is not known").hint("say it with `--ids u16` or `--ids u32`")?;
            read_numbers(&mut decoder, if width == IdWidth::U16 { 2 } else { 4 }, false, counts, progress)?
        }
        other => bail!("token ids are read from .jsonl, .npy and .bin, not from .{other}"),
    };
    let (sha256, n_bytes) = decoder.finish()?;
    Ok(FileRecord { name: file.name.clone(), sha256, n_bytes, n_documents, n_skipped: 0 })
}

/// The extension below a compression's.
fn kind_of(path: &Path) -> String {
    let extension =
        |path: &Path| path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    match extension(path).as_str() {
        "gz" | "zst" | "zstd" => extension(&path.with_extension("")),
        other => other.to_owned(),
    }
}

fn add(id: i64, counts: &mut [u64]) -> Result<()> {
    let n_ids = counts.len();
    let slot = usize::try_from(id).ok().and_then(|id| counts.get_mut(id));
    *slot.with_context(|| format!("id {id} is outside the vocabulary of {n_ids} ids"))? += 1;
    Ok(())
}

fn read_lines(decoder: &mut Decoder, field: Option<&str>, counts: &mut [u64], progress: &Progress) -> Result<u64> {
    let (mut rest, mut n_lines, mut n_documents, mut n_seen) = (Vec::new(), 0_u64, 0, 0);
    loop {
        interrupt::check()?;
        let is_end = decoder.fill(&mut rest, CHUNK_BYTES)? < CHUNK_BYTES;
        let n_whole = if is_end { rest.len() } else { rest.iter().rposition(|b| *b == b'\n').map_or(0, |n| n + 1) };
        ensure!(n_whole > 0 || is_end || rest.len() < 1 << 28, "line {} is longer than 256 MiB", n_lines + 1);
        for line in rest[..n_whole].split_inclusive(|b| *b == b'\n') {
            n_lines += 1;
            if !line.trim_ascii().is_empty() {
                add_line(line, field, counts).with_context(|| format!("line {n_lines}"))?;
                n_documents += 1;
            }
        }
        rest.drain(..n_whole);
        progress.advance(decoder.n_file_bytes() - n_seen);
        n_seen = decoder.n_file_bytes();
        if is_end {
            return Ok(n_documents);
        }
    }
}

fn add_line(line: &[u8], field: Option<&str>, counts: &mut [u64]) -> Result<()> {
    let node: Node<'_> = serde_json::from_slice(line).context("not JSON")?;
    let usual = ["token_ids", "output_token_ids", "input_ids", "ids", "tokens"];
    let list = match (&node, field) {
        (Node::List(_), _) => Some(&node),
        (_, Some(field)) => node.get(field),
        _ => usual.iter().find_map(|name| node.get(name)),
    };
    if let Some(list) = list {
        return add_list(list, counts);
    }
    let logged = responses(&node).filter(|_| field.is_none()).context("no list of ids")?;
    logged.iter().try_for_each(|response| add_list(response.token_ids.context("no list of ids")?, counts))
}

fn add_list(list: &Node<'_>, counts: &mut [u64]) -> Result<()> {
    let Node::List(ids) = list else { bail!("no list of ids") };
    for id in ids {
        let Node::Scalar(number) = id else { bail!("an id is {}, expected a number", id.kind()) };
        add(number.as_i64().with_context(|| format!("the id `{number}` is not an integer"))?, counts)?;
    }
    Ok(())
}

/// Width and signedness of the integers of an .npy file, whose header is read.
fn npy_kind(decoder: &mut Decoder) -> Result<(usize, bool)> {
    let mut start = Vec::new();
    decoder.fill(&mut start, 10)?;
    ensure!(start.len() == 10 && start.starts_with(b"\x93NUMPY"), "not an .npy file");
    let mut header = Vec::new();
    let length = match start[6] {
        1 => usize::from(u16::from_le_bytes([start[8], start[9]])),
        _ => {
            decoder.fill(&mut start, 2)?;
            let length = start[8..].first_chunk::<4>().context("the .npy header is truncated")?;
            u32::from_le_bytes(*length) as usize
        }
    };
    ensure!(length < 1 << 16, "the .npy header states {length} bytes");
    decoder.fill(&mut header, length)?;
    let header = String::from_utf8_lossy(&header).into_owned();
    let dtype = header.split("'descr':").nth(1).and_then(|rest| rest.split('\'').nth(1)).unwrap_or("?");
    match dtype {
        "<u2" => Ok((2, false)),
        "<i2" => Ok((2, true)),
        "<u4" => Ok((4, false)),
        "<i4" => Ok((4, true)),
        "<u8" | "<i8" => Ok((8, true)),
        other => bail!("the .npy array has dtype `{other}`, expected little-endian integers"),
    }
}

fn read_numbers(
    decoder: &mut Decoder,
    width: usize,
    is_signed: bool,
    counts: &mut [u64],
    progress: &Progress,
) -> Result<u64> {
    let mut bytes = Vec::new();
    let mut n_seen = 0;
    loop {
        interrupt::check()?;
        bytes.clear();
        let is_end = decoder.fill(&mut bytes, CHUNK_BYTES)? < CHUNK_BYTES;
        ensure!(bytes.len() % width == 0, "the file ends inside an id of {width} bytes");
        for id in bytes.chunks_exact(width) {
            let mut word = [0; 8];
            word[..width].copy_from_slice(id);
            if is_signed && id[width - 1] >= 0x80 {
                word[width..].fill(0xff);
            }
            add(i64::from_le_bytes(word), counts)?;
        }
        progress.advance(decoder.n_file_bytes() - n_seen);
        n_seen = decoder.n_file_bytes();
        if is_end {
            return Ok(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_ids_are_added_and_bad_ones_named() {
        let mut counts = vec![0; 4];
        add_line(b"[1, 1, 3]", None, &mut counts).unwrap();
        add_line(br#"{"token_ids": [0]}"#, None, &mut counts).unwrap();
        add_line(br#"{"out": [0]}"#, Some("out"), &mut counts).unwrap();
        assert_eq!(counts, [2, 2, 0, 1]);
        for (bad, why) in
            [("[4]", "outside"), ("[-1]", "outside"), ("[1.5]", "integer"), ("{}", "no list"), ("[\"a\"]", "a string")]
        {
            let error = format!("{:#}", add_line(bad.as_bytes(), None, &mut counts).unwrap_err());
            assert!(error.contains(why), "{bad}: {error}");
        }
    }
}
