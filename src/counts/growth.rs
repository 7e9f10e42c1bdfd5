//! What a tokenizer's normalizer may do to a text, judged before the `tokenizers` crate sees it: a chain of replacements
//! that each make a text ten times longer fills any memory, and the crate believes the lengths in a precompiled map.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Bytes that come of one byte at most. Published normalizers stay below 150 (NFKC, then spaces of three bytes).
const MAX_GROWTH: f64 = 1024.0;

/// # Errors
/// The normalizer can make texts more than a thousand times longer, or holds a map that contradicts itself.
pub(super) fn check(normalizer: &Value) -> Result<()> {
    let growth = growth(normalizer)?;
    ensure!(
        growth <= MAX_GROWTH,
        "its normalizer can make a text {growth:.0} times longer, expected at most {MAX_GROWTH}"
    );
    Ok(())
}

/// The factor by which a normalizer can lengthen a text. The longest expansions of Unicode: NFD 3, NFKD 11 (U+FDFA).
fn growth(normalizer: &Value) -> Result<f64> {
    let text = |key: &str| normalizer.get(key).and_then(Value::as_str).unwrap_or_default();
    Ok(match text("type") {
        "Sequence" => {
            let steps = normalizer.get("normalizers").and_then(Value::as_array);
            steps.into_iter().flatten().map(growth).product::<Result<f64>>()?
        }
        "Replace" => replaced(normalizer.pointer("/pattern/String").and_then(Value::as_str), text("content").len()),
        "Prepend" => 1.0 + text("prepend").len() as f64,
        "Precompiled" => longest_piece(text("precompiled_charsmap"))?.max(1) as f64,
        "NFKC" | "NFKD" => 11.0,
        "NFC" | "NFD" | "Lowercase" | "BertNormalizer" | "Nmt" => 3.0,
        "ByteLevel" => 2.0,
        _ => 1.0,
    })
}

/// A regex may match a single byte, or nothing at all between two.
fn replaced(pattern: Option<&str>, n_content_bytes: usize) -> f64 {
    match pattern.map_or(0, str::len) {
        0 => 1.0 + n_content_bytes as f64,
        n_bytes => (n_content_bytes as f64 / n_bytes as f64).max(1.0),
    }
}

/// The longest replacement of a SentencePiece character map: the length of a trie in bytes (u32), the trie, and the
/// replacements, each ended by a NUL.
fn longest_piece(base64: &str) -> Result<usize> {
    let map = decode(base64).context("its precompiled character map is not base64")?;
    let short = "its precompiled character map is shorter than it says";
    let (n_trie_bytes, rest) = map.split_first_chunk().context(short)?;
    let pieces = rest.get(u32::from_le_bytes(*n_trie_bytes) as usize..).context(short)?;
    Ok(pieces.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0))
}

/// Standard base64; `None` for a character outside its alphabet.
fn decode(base64: &str) -> Option<Vec<u8>> {
    let value = |digit: u8| {
        Some(match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        })
    };
    let digits = base64.trim_end_matches('=').bytes().map(value).collect::<Option<Vec<_>>>()?;
    let group = |group: &[u8]| {
        let bits = (0..4).fold(0_u32, |bits, i| bits << 6 | u32::from(group.get(i).copied().unwrap_or(0)));
        bits.to_be_bytes()[1..].iter().copied().take(group.len() * 6 / 8).collect::<Vec<_>>()
    };
    Some(digits.chunks(4).flat_map(group).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn published_normalizers_pass() {
        let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        let llama =
            json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]});
        let spaces = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"});
        let t5 = json!({"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}, spaces]});
        for normalizer in [Value::Null, json!({"type": "NFC"}), llama, t5] {
            check(&normalizer).unwrap();
        }
    }

    #[test]
    fn growing_chains_and_false_maps_are_refused() {
        let step = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"});
        let said = |normalizer: Value| check(&normalizer).unwrap_err().to_string();
        assert!(said(json!({"type": "Sequence", "normalizers": vec![step; 40]})).contains("times longer"));
        assert!(said(json!({"type": "Prepend", "prepend": "x".repeat(5000)})).contains("5001 times"));
        let map = |base64: &str| json!({"type": "Precompiled", "precompiled_charsmap": base64});
        assert!(said(map("/////w==")).contains("shorter than it says"));
        assert!(said(map("!")).contains("not base64"));
        let long = format!("AAAAAG{}", "Fh".repeat(1000));
        assert!(said(map(&long)).contains("times longer"));
    }

    #[test]
    fn base64_is_that_of_rfc_4648() {
        for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYmFy", "foobar")] {
            assert_eq!(decode(text).unwrap(), bytes.as_bytes());
        }
    }
}
