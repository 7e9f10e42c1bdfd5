//! Tokenizers and corpora.

#[path = "../../tests/it/count_fuzz/families.rs"]
mod families;

use std::{fs, sync::LazyLock};

use draftfast::{
    checkpoint::synth::{self, Scale},
    corpus::{Extract, FileReader, Format, ReadOptions, Source, Speakers, expand},
    counts::{EngineChoice, Tokenizer, chat_template},
    output::StagedDir,
    report::Progress,
};
use serde_json::{Value, json};

use crate::scratch::Scratch;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("text"));

/// The tokenizer.json of a synthetic model.
pub fn synthetic_tokenizer() -> Value {
    let model = SCRATCH.dir().join("model");
    let staged = StagedDir::create(&model, true).expect("the scratch folder is writable");
    synth::write("qwen3.5-dense", Scale::Tiny, 0, &staged, &Progress::silent())
        .expect("the synthetic model is written");
    let json = fs::read(staged.path().join("tokenizer.json")).expect("the synthetic model has a tokenizer");
    serde_json::from_slice(&json).expect("the synthetic tokenizer is JSON")
}

static TOKENIZERS: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
    let base = synthetic_tokenizer();
    let step = |regex: &String| json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false });
    let open = |(_, regexes, nfc, ignore_merges): (&str, Vec<String>, bool, bool)| {
        let mut json = base.clone();
        let mut steps: Vec<Value> = regexes.iter().map(step).collect();
        steps
            .push(json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false }));
        json["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": steps });
        json["normalizer"] = if nfc { json!({ "type": "NFC" }) } else { Value::Null };
        json["model"]["ignore_merges"] = json!(ignore_merges);
        let path = SCRATCH.write("tokenizer.json", &serde_json::to_vec(&json).expect("JSON is written"));
        let tokenizer = Tokenizer::open(&path).expect("the synthetic tokenizer is one");
        assert!(tokenizer.fast_name().is_ok(), "{:?}", tokenizer.fast_name());
        // Loads the reference now, so that no input pays for it.
        let _ = tokenizer.count_texts(&["a"], EngineChoice::Reference);
        tokenizer
    };
    families::families().into_iter().map(open).collect()
});

/// The fast engine against the `tokenizers` crate: the same ids for any text, and the same wherever it is cut.
pub fn splitter(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let tokenizer = &TOKENIZERS[usize::from(*first) % TOKENIZERS.len()];
    let text = String::from_utf8_lossy(rest);
    let counted = |choice| tokenizer.count_texts(&[&text], choice).expect("the text is counted");
    assert!(counted(EngineChoice::Auto) == counted(EngineChoice::Reference), "{:?}: {text:?}", tokenizer.fast_name());
    let ids = tokenizer.encode(&text).expect("the text is encoded");
    let mut sums = vec![0_u64; tokenizer.n_ids()];
    ids.iter().for_each(|id| sums[*id as usize] += 1);
    assert!(sums == counted(EngineChoice::Auto), "{:?}: {text:?}", tokenizer.fast_name());
}

/// A tokenizer.json, opened and used on one text by both engines, which must agree.
pub fn tokenizer(data: &[u8]) {
    const TEXT: &str = "It's 42 naïve Ǆ words,\r\n  e\u{301} 中国!\u{a0} <|a|> ... x\t\n";
    let path = SCRATCH.write("tokenizer.json", data);
    let Ok(tokenizer) = Tokenizer::open(&path) else { return };
    let counted = |choice| tokenizer.count_texts(&[TEXT], choice);
    let (auto, reference) = (counted(EngineChoice::Auto), counted(EngineChoice::Reference));
    if let (Ok(auto), Ok(reference)) = (auto, reference) {
        assert!(auto == reference, "{:?}", tokenizer.fast_name());
    }
    for id in 0..tokenizer.n_ids().min(1000) as u32 {
        let _ = (tokenizer.token(id), tokenizer.token_bytes(id));
    }
}

/// A chat template, rendered for a few chats.
pub fn template(data: &[u8]) {
    static TOKENIZER: LazyLock<(Scratch, Tokenizer)> = LazyLock::new(|| {
        let scratch = Scratch::new("template");
        let json = serde_json::to_vec(&synthetic_tokenizer()).expect("JSON is written");
        let path = scratch.write("tokenizer.json", &json);
        let tokenizer = Tokenizer::open(&path).expect("the synthetic tokenizer is one");
        (scratch, tokenizer)
    });
    const CHATS: &str = concat!(
        "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \" q\\n\"}, ",
        "{\"role\": \"assistant\", \"content\": \"<think>t</think>r\", \"tool_calls\": [{\"name\": \"f\", \"arguments\": {\"a\": 1}}]}]}\n",
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"gpt\", \"value\": \"r\"}]}\n",
    );
    let (scratch, tokenizer) = &*TOKENIZER;
    scratch.write("chat_template.jinja", data);
    for speakers in [Speakers::All, Speakers::Assistant] {
        let Ok(Some(template)) = chat_template(tokenizer) else { return };
        let extract = Extract { render: Some(template.renderer(speakers, true)), speakers, ..Extract::default() };
        walk(scratch, "chats.jsonl", CHATS.as_bytes(), &extract);
    }
}

/// A corpus file: the first byte picks its extension, the second what is taken from the records.
pub fn corpus(data: &[u8]) {
    let [kind, taken, rest @ ..] = data else { return };
    let names = ["a.txt", "a.jsonl", "a.txt.gz", "a.jsonl.gz", "a.txt.zst", "a.jsonl.zst", "a.json", "a"];
    let extract = Extract {
        field: (taken & 1 > 0).then(|| "a.b".to_owned()),
        speakers: if taken & 2 > 0 { Speakers::Assistant } else { Speakers::All },
        thinking: taken & 4 == 0,
        ..Extract::default()
    };
    walk(&SCRATCH, names[usize::from(*kind) % names.len()], rest, &extract);
}

/// A parquet file.
pub fn parquet(data: &[u8]) {
    walk(&SCRATCH, "a.parquet", data, &Extract::default());
}

/// Reads a corpus to its end, or as far as a bomb is taken.
fn walk(scratch: &Scratch, name: &str, bytes: &[u8], extract: &Extract) {
    /// Blocks of a mebibyte: more comes out of a bomb alone.
    const MAX_BLOCKS: usize = 256;
    let source = Source { domain: "text".to_owned(), weight: 1.0, path: scratch.write(name, bytes), field: None };
    let Ok(expanded) = expand(&[source], Format::Text) else { return };
    for file in &expanded.files {
        let Ok(mut reader) = FileReader::open(file, &ReadOptions::default()) else { continue };
        for _ in 0..MAX_BLOCKS {
            let Ok(Some(block)) = reader.next_block() else { break };
            let mut n_bytes = 0;
            let count = |text: &str| {
                n_bytes += text.len() as u64;
                Ok(())
            };
            let tally = block.texts(extract, count).expect("only the visitor returns an error");
            assert!(extract.render.is_some() || !extract.thinking || tally.n_bytes == n_bytes);
        }
        let _ = reader.finish();
    }
}
