//! The fast engine against the `tokenizers` crate, over strings from a grammar of hard cases.
//!
//! A fixed number of strings by default. `DRAFTFAST_FUZZ_SECONDS=60 cargo test --release count_fuzz` goes on for that
//! long in each test; `DRAFTFAST_FUZZ_SEED` starts elsewhere; `DRAFTFAST_FUZZ_TOKENIZERS` names more tokenizer.json
//! files, separated by colons.

mod families;
mod grammar;
mod made;

use std::{
    fmt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use draftfast::counts::{EngineChoice, Tokenizer};

use self::{
    families::families,
    grammar::{Random, string},
    made::tokenizer_json,
};
use crate::counts::shared_data;

/// Strings that are counted at once.
const N_BATCH: usize = 128;

/// Batches with each tokenizer where no time is given.
const N_BATCHES: u64 = 8;

/// How long to go on, and from which seed.
struct Effort {
    time: Duration,
    seed: u64,
}

impl Effort {
    /// As the environment asks, for each of `n_tokenizers` that share a test.
    fn asked(n_tokenizers: usize) -> Self {
        let number = |name: &str| std::env::var(name).ok().map_or(0, |text| text.parse::<u64>().unwrap());
        let time = Duration::from_secs(number("DRAFTFAST_FUZZ_SECONDS")) / n_tokenizers as u32;
        Self { time, seed: number("DRAFTFAST_FUZZ_SEED") << 32 }
    }
}

/// What was compared without a difference.
#[derive(Default)]
struct Compared {
    n_strings: usize,
    n_bytes: usize,
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} strings, {} bytes, no difference", self.n_strings, self.n_bytes)
    }
}

fn count(tokenizer: &Tokenizer, texts: &[&str], choice: EngineChoice) -> Vec<u64> {
    tokenizer.count_texts(texts, choice).unwrap()
}

fn differ(tokenizer: &Tokenizer, texts: &[&str]) -> bool {
    count(tokenizer, texts, EngineChoice::Auto) != count(tokenizer, texts, EngineChoice::Reference)
}

/// Compares the two engines.
///
/// # Panics
/// They differ; the shortest text found that shows it is in the message.
fn compare(tokenizer: &Tokenizer, name: &str, effort: &Effort) {
    let tokens: Vec<String> = (0..tokenizer.n_ids() as u32)
        .step_by(1 + tokenizer.n_ids() / 20_000)
        .filter_map(|id| String::from_utf8(tokenizer.token_bytes(id)?).ok())
        .collect();
    let added: Vec<String> = tokenizer.added().map(|(_, token)| token.content.clone()).collect();
    let started = Instant::now();
    let mut compared = Compared::default();
    for batch in 0.. {
        if batch >= N_BATCHES && started.elapsed() >= effort.time {
            break;
        }
        let mut random = Random(effort.seed + 0x5eed_0000 + batch);
        let texts: Vec<String> = (0..N_BATCH).map(|_| string(&mut random, &tokens, &added)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        if differ(tokenizer, &texts) {
            panic!("{name}: batch {batch}: {}", difference(tokenizer, &texts));
        }
        compared.n_strings += texts.len();
        compared.n_bytes += texts.iter().map(|text| text.len()).sum::<usize>();
    }
    println!("{name}: {compared}");
}

/// Says what differs, on a text cut down as far as it goes. The texts may differ only together.
fn difference(tokenizer: &Tokenizer, texts: &[&str]) -> String {
    let Some(bad) = texts.iter().find(|text| differ(tokenizer, &[text])) else {
        return format!("the engines differ on all of the texts together, on none by itself: {texts:?}");
    };
    let mut bad = (*bad).to_owned();
    let without = |text: &str, i: usize, c: char| format!("{}{}", &text[..i], &text[i + c.len_utf8()..]);
    while let Some(shorter) =
        bad.char_indices().map(|(i, c)| without(&bad, i, c)).find(|shorter| differ(tokenizer, &[shorter]))
    {
        bad = shorter;
    }
    let fast = count(tokenizer, &[&bad], EngineChoice::Auto);
    let reference = count(tokenizer, &[&bad], EngineChoice::Reference);
    let differing = (0..fast.len()).filter(|id| fast[*id] != reference[*id]);
    let shown: Vec<_> =
        differing.map(|id| (tokenizer.token(id as u32).unwrap_or("?").to_owned(), fast[id], reference[id])).collect();
    format!("the engines differ on {bad:?} in (token, fast, reference) {shown:?}")
}

#[test]
fn every_family_equals_the_reference_on_made_vocabularies() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    let made: Vec<_> = families().into_iter().flat_map(|family| [(family.clone(), 0), (family, 1)]).collect();
    let effort = Effort::asked(made.len());
    for ((name, regexes, nfc, ignore_merges), seed) in made {
        let regexes: Vec<&str> = regexes.iter().map(String::as_str).collect();
        let json = tokenizer_json(&regexes, nfc, ignore_merges, seed);
        std::fs::write(&path, serde_json::to_vec(&json).unwrap()).unwrap();
        let tokenizer = Tokenizer::open(&path).unwrap();
        assert_eq!(tokenizer.fast_name(), Ok(name));
        compare(&tokenizer, name, &effort);
    }
}

#[test]
fn the_real_vocabularies_equal_the_reference() {
    let more = std::env::var("DRAFTFAST_FUZZ_TOKENIZERS").unwrap_or_default();
    let mut paths: Vec<PathBuf> = more.split(':').filter(|path| !path.is_empty()).map(PathBuf::from).collect();
    if let Some(data) = shared_data() {
        paths.extend(["qwen3.8", "qwen3"].map(|name| data.join(format!("tokenizers/{name}/tokenizer.json.gz"))));
    }
    let effort = Effort::asked(paths.len().max(1));
    for path in paths {
        let tokenizer = Tokenizer::open(&path).unwrap();
        assert!(tokenizer.fast_name().is_ok(), "{:?}", tokenizer.fast_name());
        compare(&tokenizer, &name_of(&path), &effort);
    }
}

/// The folder of a tokenizer.json, which is what tells one from another.
fn name_of(path: &Path) -> String {
    path.parent().and_then(Path::file_name).map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}
