//! Readers: every form of text, and every way a file can be wrong.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use draftfast::corpus::{Extract, FileReader, Format, ReadOptions, Source, expand};

fn source(path: impl Into<PathBuf>) -> Source {
    Source { domain: "text".to_owned(), weight: 1.0, path: path.into(), field: None }
}

/// All texts of a path, and the first error of its records.
fn read(path: &Path) -> Result<(Vec<String>, Option<String>), String> {
    let mut texts = Vec::new();
    let mut first_error = None;
    for file in &expand(&[source(path)], Format::Text).map_err(|e| format!("{e:#}"))?.files {
        let mut reader = FileReader::open(file, &ReadOptions::default()).map_err(|e| format!("{e:#}"))?;
        while let Some(block) = reader.next_block().map_err(|e| format!("{e:#}"))? {
            let tally = block
                .texts(&Extract::default(), |text| {
                    texts.push(text.to_owned());
                    Ok(())
                })
                .unwrap();
            first_error = first_error.or(tally.first_error.map(|e| e.to_string()));
        }
    }
    Ok((texts, first_error))
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn plain_gz_and_zst_give_the_same_texts() {
    let dir = tempfile::tempdir().unwrap();
    let lines = b"{\"text\": \"one\"}\r\n\n{\"text\": \"two\\n\"}\n{\"text\": \"no newline behind\"}";
    let expected = ["one", "two\n", "no newline behind"];
    for (name, bytes) in [
        ("a.jsonl", lines.to_vec()),
        ("a.ndjson", [b"\xef\xbb\xbf", &lines[..]].concat()),
        ("a.jsonl.gz", gzip(lines)),
        ("a.json.gz", [gzip(&lines[..16]), gzip(&lines[16..])].concat()),
        ("a.jsonl.zst", zstd::encode_all(&lines[..], 3).unwrap()),
    ] {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(read(&path).unwrap(), (expected.map(str::to_owned).to_vec(), None), "{name}");
    }
    let array = b" [ {\"text\": \"one\"},\n  {\"text\":\n \"two\\n\"}, {\"text\": \"no newline behind\"} ]";
    for (name, bytes) in [("c.json", array.to_vec()), ("c.json.gz", gzip(array))] {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(read(&path).unwrap(), (expected.map(str::to_owned).to_vec(), None), "{name}");
    }
    std::fs::write(dir.path().join("b.md"), "# text\n").unwrap();
    assert_eq!(read(&dir.path().join("*.md")).unwrap().0, ["# text\n"]);
}

#[test]
fn truncated_files_name_the_offset() {
    let dir = tempfile::tempdir().unwrap();
    let text = (0..20_000).map(|i| format!("{{\"text\": \"{}\"}}\n", i * 7919)).collect::<String>();
    for (name, bytes) in
        [("a.jsonl.gz", gzip(text.as_bytes())), ("a.jsonl.zst", zstd::encode_all(text.as_bytes(), 3).unwrap())]
    {
        let path = dir.path().join(name);
        std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        let error = read(&path).unwrap_err();
        assert!(error.contains(name) && error.contains("truncated or damaged after"), "{error}");
    }
}

#[test]
fn bad_records_and_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let (texts, error) = read(&write("a.jsonl", b"{\"text\": \"a\"}\n[1]\n{\"text\": \"b\"}\n")).unwrap();
    assert_eq!(texts, ["a", "b"]);
    assert_eq!(error.unwrap(), "line 2 is a list, expected a JSON object");
    let (_, error) = read(&write("a.txt", b"abc\xffdef")).unwrap();
    assert_eq!(error.unwrap(), "is not UTF-8 at byte 3");
    assert!(read(&write("a.parquet", b"PAR1 no")).unwrap_err().contains("not a parquet file"));
    assert!(read(Path::new("no/such/file")).unwrap_err().contains("no such file or folder"));
}

#[test]
fn parquet_without_the_column_names_what_it_has() {
    let Some(data) = crate::counts::shared_data() else { return };
    let path = data.join("corpora/en/train/docs.parquet");
    let files = expand(&[source(&path)], Format::Text).unwrap().files;
    let options = ReadOptions { field: Some("body".to_owned()), ..ReadOptions::default() };
    let error = format!("{:#}", FileReader::open(&files[0], &options).err().unwrap());
    assert!(error.contains("docs.parquet") && error.contains("no column `body`, found `id`, `text`"), "{error}");
    assert!(!read(&path).unwrap().0.is_empty());
}
