//! Writes a corpus of any size to stdout: the texts of jsonl files again and again, each time with other letters
//! changed, so that new pre-tokens never cease. The same arguments give the same bytes.
//!
//! `synthetic_corpus N_BYTES jsonl FILE...` writes a record a line, `synthetic_corpus N_BYTES line FILE...` one line.

mod texts;

use std::io::{BufWriter, Write};

use anyhow::{Context, Result, bail, ensure};

/// One letter of so many is changed.
const CHANGED: u64 = 64;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [n_bytes, layout, files @ ..] = args.as_slice() else {
        bail!("usage: synthetic_corpus N_BYTES jsonl|line FILE...");
    };
    let n_bytes: u64 = n_bytes.parse().context("the number of bytes")?;
    ensure!(matches!(layout.as_str(), "jsonl" | "line"), "the layout is `{layout}`, not `jsonl` or `line`");
    let mut texts = Vec::new();
    for file in files {
        texts.extend(texts::read(file).with_context(|| format!("`{file}`"))?);
    }
    ensure!(texts.iter().any(|text| !text.is_empty()), "the files hold no text");
    let mut output = BufWriter::with_capacity(1 << 20, std::io::stdout().lock());
    let mut random = 0;
    let mut n_written = 0;
    for text in texts.iter().cycle() {
        if n_written >= n_bytes {
            break;
        }
        let text = changed(text, &mut random);
        let written = match layout.as_str() {
            "jsonl" => format!("{}\n", serde_json::json!({ "text": text })),
            _ => text.replace(['\r', '\n'], " "),
        };
        output.write_all(written.as_bytes())?;
        n_written += written.len() as u64;
    }
    output.flush()?;
    Ok(())
}

/// The text with some of its letters changed: Latin ones to Latin ones, Han ones to Han ones.
fn changed(text: &str, random: &mut u64) -> String {
    let change = |c: char| {
        if !(c.is_ascii_lowercase() || ('\u{4e00}'..='\u{9fa5}').contains(&c)) {
            return c;
        }
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let high = *random >> 33;
        match (high.is_multiple_of(CHANGED), c.is_ascii()) {
            (false, _) => c,
            (true, true) => char::from(b'a' + (high / CHANGED % 26) as u8),
            (true, false) => char::from_u32(0x4e00 + (high / CHANGED % 20_902) as u32).unwrap_or(c),
        }
    };
    text.chars().map(change).collect()
}
