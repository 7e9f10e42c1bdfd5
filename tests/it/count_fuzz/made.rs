//! Made tokenizers: the published splits around small vocabularies that are harder than real ones.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::grammar::{Random, string};

/// GPT-2's character for a byte.
fn spell(byte: u8) -> char {
    let shifted = |byte: u8| match byte {
        0..=0x20 => 0x100 + u32::from(byte),
        0x7f..=0xa0 => 0x121 + u32::from(byte) - 0x7f,
        _ => 0x143,
    };
    let is_plain = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    char::from_u32(if is_plain { byte.into() } else { shifted(byte) }).unwrap()
}

/// A small BPE vocabulary, trained on the grammar without regard to characters or words, so that it is full of tokens
/// that straddle characters; and, of each ten merges, one token that no merge makes.
fn model(seed: u64, n_merges: usize, ignore_merges: bool) -> Value {
    let mut random = Random(seed);
    let sample: String = (0..600).map(|_| string(&mut random, &["the".to_owned()], &[])).collect();
    let mut symbols: Vec<String> = sample.bytes().map(|byte| spell(byte).to_string()).collect();
    let mut vocab: BTreeMap<String, u32> = BTreeMap::new();
    // The bytes take ids in a shuffled order.
    (0..=255_u8).for_each(|i| {
        vocab.insert(spell(i.wrapping_mul(157)).to_string(), i.into());
    });
    let mut merges = Vec::new();
    while merges.len() < n_merges {
        let mut pairs: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        symbols.windows(2).for_each(|pair| *pairs.entry((&pair[0], &pair[1])).or_default() += 1);
        let Some(((left, right), _)) = pairs.into_iter().max_by_key(|(_, n)| *n) else { break };
        let (left, right) = (left.to_owned(), right.to_owned());
        let joined = format!("{left}{right}");
        let next = vocab.len() as u32;
        vocab.entry(joined.clone()).or_insert(next);
        if merges.len() % 10 == 0 {
            let next = vocab.len() as u32;
            vocab.entry(format!("{}{joined}", spell(b' '))).or_insert(next);
        }
        let mut merged = Vec::with_capacity(symbols.len());
        let mut rest = symbols.into_iter().peekable();
        while let Some(symbol) = rest.next() {
            if symbol == left && rest.peek() == Some(&right) {
                rest.next();
                merged.push(joined.clone());
            } else {
                merged.push(symbol);
            }
        }
        symbols = merged;
        merges.push(json!([left, right]));
    }
    // In every other vocabulary some merges stand before those that make their parts.
    if seed % 2 == 1 {
        (9..merges.len()).step_by(7).for_each(|i| merges.swap(i, i - 1 - i % 5));
    }
    json!({ "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": ignore_merges, "vocab": vocab, "merges": merges })
}

/// The entries of `added_tokens`; a text that is a token already keeps its id.
fn added(model: &Value, tokens: &[(&str, &str)]) -> Value {
    let vocab = model["vocab"].as_object().unwrap();
    let mut next = vocab.len();
    let entry = |(content, flags): &(&str, &str)| {
        let id = vocab.get(*content).cloned().unwrap_or_else(|| {
            next += 1;
            json!(next - 1)
        });
        json!({ "id": id, "content": content, "special": flags.contains('!'),
                "single_word": flags.contains('w'), "lstrip": flags.contains('l'), "rstrip": flags.contains('r'),
                "normalized": flags.contains('n') })
    };
    tokens.iter().map(entry).collect()
}

const ADDED: &[(&str, &str)] = &[
    ("<|a|>", "!"),
    ("<|a|><", ""),
    ("|><|b|>", ""),
    ("<|b|>", "!"),
    ("<think>", ""),
    ("<mask>", "!l"),
    ("<pad>", "!r"),
    ("<both>", "lr"),
    ("word", "w"),
    ("naïf", "wn"),
    ("re\u{301}sume\u{301}", "n"),
    ("<N>", "n"),
    ("<L>", "ln"),
    ("中国", "w"),
    ("   ", ""),
    ("'s", "n"),
];

/// A tokenizer.json.
pub fn tokenizer_json(regexes: &[&str], nfc: bool, ignore_merges: bool, seed: u64) -> Value {
    let model = model(seed, 400, ignore_merges);
    let split = |regex: &&str| json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false });
    let mut steps: Vec<Value> = regexes.iter().map(split).collect();
    steps.push(json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false }));
    json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": added(&model, ADDED),
            "normalizer": if nfc { json!({ "type": "NFC" }) } else { Value::Null },
            "pre_tokenizer": { "type": "Sequence", "pretokenizers": steps },
            "post_processor": null, "decoder": null, "model": model })
}
