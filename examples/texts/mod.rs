//! Records in memory.

use anyhow::{Context, Result};

/// The `text` of each line of a .jsonl or .jsonl.zst file.
pub fn read(file: &str) -> Result<Vec<String>> {
    let bytes = std::fs::read(file)?;
    let bytes = if file.ends_with(".zst") { zstd::decode_all(bytes.as_slice())? } else { bytes };
    let text = |line: &[u8]| -> Result<String> {
        let value: serde_json::Value = serde_json::from_slice(line)?;
        value["text"].as_str().map(str::to_owned).context("no text")
    };
    bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty()).map(text).collect()
}
