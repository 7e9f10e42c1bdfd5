//! The fast engine against the `tokenizers` crate, over strings from a grammar of hard cases.
//!
//! A fixed number of strings by default. `DRAFTFAST_FUZZ_SECONDS=60 cargo test --release count_fuzz` goes on for that
//! long with each tokenizer, from other seeds; `DRAFTFAST_FUZZ_TOKENIZERS` names more tokenizer.json files, separated
//! by colons.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use draftfast::counts::{EngineChoice, Tokenizer};
use serde_json::{Value, json};

use crate::counts::shared_data;

/// SplitMix64: the seed is all there is to a run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Pieces that have bitten tokenizers, or may.
const PIECES: &[&str] = &[
    "a",
    "B",
    "the",
    "Hello",
    "HELLO",
    "camelCase",
    "XMLHttp",
    "naïve",
    "straße",
    "ǅ",
    "ǈungla",
    "Σίσυφος",
    "ſ",
    "K",
    "ª",
    "ʰ",
    "'s",
    "'S",
    "'ſ",
    "'t",
    "'re",
    "'RE",
    "'Ve",
    "'m",
    "'ll",
    "'LL",
    "'lL",
    "'d",
    "'sfoo",
    "'x",
    "'",
    "''",
    "’s",
    "'r",
    "'l",
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r",
    "\r\n",
    "\n\n",
    "\n \n",
    " \n",
    "\n  ",
    "\t\n",
    "\u{b}",
    "\u{c}",
    "\u{85}",
    "\u{a0}",
    "\u{2028}",
    "\u{3000}",
    "\u{2003}",
    "\u{200b}",
    "\u{feff}",
    "\u{1c}",
    "\0",
    "\u{7f}",
    "\u{ad}",
    "0",
    "7",
    "42",
    "123",
    "1234",
    "12345678",
    "½",
    "Ⅷ",
    "٣",
    "३",
    "𝟗",
    "①",
    "²",
    "!",
    "?!",
    "...",
    "(",
    "((",
    ")",
    "{",
    "}",
    "[]",
    "<",
    ">",
    "</",
    "/",
    "//",
    "/*",
    "\\",
    "\"",
    "#",
    "$",
    "%",
    "&",
    "+",
    "-",
    "--",
    "_",
    "__init__",
    "=",
    "==",
    "~",
    "`",
    "|",
    "<|",
    "|>",
    "@",
    ";",
    ":",
    ",",
    ".",
    "“",
    "”",
    "—",
    "…",
    "。",
    "，",
    "、",
    "「",
    "」",
    "！",
    "？",
    "：",
    "￥",
    "＋",
    "～",
    "・",
    "゠",
    "ー",
    "\u{301}",
    "\u{300}",
    "\u{323}",
    "\u{327}",
    "\u{338}",
    "\u{345}",
    "\u{3099}",
    "\u{309a}",
    "\u{5b0}",
    "\u{64b}",
    "\u{94d}",
    "\u{e31}",
    "\u{20dd}",
    "\u{fe0f}",
    "\u{1d165}",
    "e\u{301}",
    "E\u{323}\u{302}",
    "A\u{30a}",
    "か\u{3099}",
    "ハ\u{309a}",
    "\u{212b}",
    "\u{2126}",
    "\u{f900}",
    "\u{fa0e}",
    "\u{2f800}",
    "\u{340}",
    "\u{344}",
    "\u{958}",
    "\u{fb1d}",
    "\u{1d15e}",
    "中",
    "国",
    "中国",
    "人民",
    "的",
    "我们",
    "你好",
    "世界",
    "一",
    "龥",
    "龦",
    "鿿",
    "㐀",
    "𠀀",
    "𪛖",
    "丁",
    "䷀",
    "々",
    "〇",
    "〆",
    "ひらがな",
    "カタカナ",
    "漢字かな",
    "ｶﾞ",
    "한",
    "한국어",
    "안녕",
    "ᄒ",
    "ᅡ",
    "ᆫ",
    "가\u{11a8}",
    "ㄱ",
    "각",
    "ไทย",
    "हिन्दी",
    "العربية",
    "مرحبًا",
    "עברית",
    "ქართული",
    "ខ្មែរ",
    "🚀",
    "👩‍👩‍👧",
    "🇩🇪",
    "👍🏽",
    "𝒜",
    "∑",
    "√",
    "€",
    "°",
    "\u{fffd}",
    "\u{e000}",
    "\u{378}",
    "\u{1f}",
    "\u{10ffff}",
    "\u{e0001}",
];

/// A string of a few pieces of the grammar, of the tokenizer's own tokens, of single characters, some repeated.
fn string(random: &mut Random, tokens: &[String], added: &[String]) -> String {
    let mut text = String::new();
    for _ in 0..1 + random.below(12) {
        let piece = match random.below(20) {
            0..=11 => (*random.pick(PIECES)).to_owned(),
            12..=15 => random.pick(tokens).clone(),
            16 | 17 if !added.is_empty() => random.pick(added).clone(),
            18 => {
                // Part of an added token, which must not match.
                let part: Vec<char> = added.first().map(|a| a.chars().collect()).unwrap_or_default();
                part.iter().take(random.below(part.len() + 1)).collect()
            }
            _ => char::from_u32(random.below(0x3_0000) as u32).unwrap_or('x').to_string(),
        };
        let n = if random.below(12) == 0 { 1 + random.below(40) } else { 1 };
        (0..n).for_each(|_| text.push_str(&piece));
    }
    text
}

/// Compares the two engines; on a difference, the shortest text found that shows it is in the message.
fn compare(tokenizer: &Tokenizer, name: &str, n_batches: usize, seconds: u64) {
    let tokens: Vec<String> = (0..tokenizer.n_ids() as u32)
        .step_by(1 + tokenizer.n_ids() / 20_000)
        .filter_map(|id| String::from_utf8(tokenizer.token_bytes(id)?).ok())
        .collect();
    let added: Vec<String> = tokenizer.added().map(|(_, token)| token.content.clone()).collect();
    let differ = |texts: &[&str]| {
        tokenizer.count_texts(texts, EngineChoice::Auto).unwrap()
            != tokenizer.count_texts(texts, EngineChoice::Reference).unwrap()
    };
    let started = Instant::now();
    let (mut batch, mut n_strings, mut n_bytes) = (0, 0, 0);
    while batch < n_batches || started.elapsed() < Duration::from_secs(seconds) {
        let mut random = Random(0x5eed_0000 + batch as u64);
        batch += 1;
        let texts: Vec<String> = (0..128).map(|_| string(&mut random, &tokens, &added)).collect();
        n_strings += texts.len();
        n_bytes += texts.iter().map(String::len).sum::<usize>();
        if !differ(&texts.iter().map(String::as_str).collect::<Vec<_>>()) {
            continue;
        }
        let mut bad = texts.iter().find(|text| differ(&[text.as_str()])).unwrap().clone();
        while let Some(shorter) = bad
            .char_indices()
            .map(|(i, c)| format!("{}{}", &bad[..i], &bad[i + c.len_utf8()..]))
            .find(|shorter| differ(&[shorter.as_str()]))
        {
            bad = shorter;
        }
        let count = |choice| tokenizer.count_texts(&[&bad], choice).unwrap();
        let (fast, reference) = (count(EngineChoice::Auto), count(EngineChoice::Reference));
        let differing = (0..fast.len()).filter(|id| fast[*id] != reference[*id]);
        let shown: Vec<_> = differing
            .map(|id| (tokenizer.token(id as u32).unwrap_or("?").to_owned(), fast[id], reference[id]))
            .collect();
        panic!("{name}: the engines differ on {bad:?} in (token, fast, reference) {shown:?}");
    }
    println!("{name}: {n_strings} strings, {n_bytes} bytes, no difference");
}

fn compare_as_asked(tokenizer: &Tokenizer, name: &str, n_batches: usize) {
    let seconds = std::env::var("DRAFTFAST_FUZZ_SECONDS").ok().map_or(0, |seconds| seconds.parse().unwrap());
    compare(tokenizer, name, n_batches, seconds);
}

fn open_json(json: &Value) -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    std::fs::write(&path, serde_json::to_vec(json).unwrap()).unwrap();
    Tokenizer::open(&path).unwrap()
}

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

fn tokenizer_json(regexes: &[&str], nfc: bool, ignore_merges: bool, seed: u64) -> Value {
    let model = model(seed, 400, ignore_merges);
    let split = |regex: &&str| json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false });
    let mut steps: Vec<Value> = regexes.iter().map(split).collect();
    steps.push(json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false }));
    json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": added(&model, ADDED),
            "normalizer": if nfc { json!({ "type": "NFC" }) } else { Value::Null },
            "pre_tokenizer": { "type": "Sequence", "pretokenizers": steps },
            "post_processor": null, "decoder": null, "model": model })
}

const CONTRACTIONS: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";

/// Name, split regexes, NFC, ignore_merges: the published components, put together here.
fn families() -> Vec<(&'static str, Vec<String>, bool, bool)> {
    let cl100k = |letter: &str, mark: &str, digits: &str| {
        format!(
            r"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letter}+|\p{{N}}{digits}| ?[^\s\p{{L}}{mark}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
    let (upper, lower) = (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]");
    let prefix = r"[^\r\n\p{L}\p{N}]?";
    let o200k = format!(
        r"{prefix}{upper}*{lower}+{CONTRACTIONS}?|{prefix}{upper}+{lower}*{CONTRACTIONS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    );
    let deepseek = [
        r"\p{N}{1,3}".to_owned(),
        "[一-龥\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+".to_owned(),
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+".to_owned(),
    ];
    vec![
        ("qwen3.5", vec![cl100k(r"[\p{L}\p{M}]", r"\p{M}", "")], true, false),
        ("qwen2", vec![cl100k(r"\p{L}", "", "")], true, false),
        ("cl100k", vec![cl100k(r"\p{L}", "", "{1,3}")], false, true),
        ("o200k", vec![o200k], false, false),
        ("deepseek-v3", deepseek.to_vec(), false, false),
    ]
}

#[test]
fn every_family_equals_the_reference_on_made_vocabularies() {
    for (name, regexes, nfc, ignore_merges) in families() {
        for seed in 0..2 {
            let regexes: Vec<&str> = regexes.iter().map(String::as_str).collect();
            let tokenizer = open_json(&tokenizer_json(&regexes, nfc, ignore_merges, seed));
            assert_eq!(tokenizer.fast_name(), Ok(name));
            compare_as_asked(&tokenizer, name, 8);
        }
    }
}

#[test]
fn the_real_vocabularies_equal_the_reference() {
    let Some(data) = shared_data() else { return };
    let mut paths: Vec<PathBuf> =
        ["qwen3.8", "qwen3"].iter().map(|name| data.join(format!("tokenizers/{name}/tokenizer.json.gz"))).collect();
    let more = std::env::var("DRAFTFAST_FUZZ_TOKENIZERS").unwrap_or_default();
    paths.extend(more.split(':').filter(|path| !path.is_empty()).map(|path| Path::new(path).to_owned()));
    for path in paths {
        let tokenizer = Tokenizer::open(&path).unwrap();
        assert!(tokenizer.fast_name().is_ok(), "{:?}", tokenizer.fast_name());
        compare_as_asked(&tokenizer, &path.display().to_string(), 8);
    }
}
