//! Selection end to end: what is always kept, the seed's shape, determinism, and clear errors.

#![expect(clippy::print_stdout, reason = "a skipped test says why")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use draftfast::{
    corpus::Source,
    counts::{CountOptions, Tokenizer, count},
    report::Progress,
    vocab::{DraftVocab, evidence::Evidence, forms, retain},
};
use serde_json::{Value, json};

use super::{draftfast, stderr, stdout};

/// Where the byte tokens of the made tokenizer begin: not at 0, as no rule may rely on it.
const FIRST_BYTE_ID: u32 = 100;
/// Ids of the made tokenizer: words, bytes, merged words, added tokens.
const N_IDS: usize = 400;

/// GPT-2's printable character for a byte.
fn byte_char(byte: u8) -> char {
    match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        0..=0x20 => char::from_u32(0x100 + u32::from(byte)).unwrap(),
        0x7f..=0xa0 => char::from_u32(0x121 + u32::from(byte) - 0x7f).unwrap(),
        0xad => '\u{143}',
    }
}

/// A model folder with a byte-level tokenizer of 400 ids: two-letter merges at 0..100 and 356..397, all bytes at
/// 100..356, three added tokens at the end; V = 512.
fn model(dir: &Path) -> PathBuf {
    let mut vocab = serde_json::Map::new();
    for byte in 0..=255u8 {
        vocab.insert(byte_char(byte).to_string(), json!(FIRST_BYTE_ID + u32::from(byte)));
    }
    let pairs: Vec<(char, char)> = ('a'..='l').flat_map(|a| ('a'..='l').map(move |b| (a, b))).collect();
    let ids = (0..FIRST_BYTE_ID).chain(FIRST_BYTE_ID + 256..N_IDS as u32 - 3);
    let mut merges = Vec::new();
    for ((a, b), id) in pairs.iter().zip(ids) {
        vocab.insert(format!("{a}{b}"), json!(id));
        merges.push(format!("{a} {b}"));
    }
    let added = |id: usize, content: &str, special: bool| {
        json!({ "id": id, "content": content, "special": special, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false })
    };
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [added(397, "<|end|>", true), added(398, "<think>", false), added(399, "<|start|>", true)],
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": merges },
    });
    let folder = dir.join("model");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    fs::write(folder.join("config.json"), r#"{"vocab_size": 512}"#).unwrap();
    folder
}

fn text(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).unwrap();
    path
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The vocabulary that a successful `build-vocab` wrote.
fn built(args: &[&str], out: &Path) -> DraftVocab {
    let output = draftfast(&[&["build-vocab"], args, &["-o", path(out)]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output).trim(), path(out), "stdout names the output and nothing else");
    forms::read(out, None).unwrap().0
}

/// What a failing `build-vocab` says.
fn refused(args: &[&str], out: &Path) -> String {
    let output = draftfast(&[&["build-vocab"], args, &["-o", path(out)]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(!out.exists(), "nothing is left behind");
    stderr(&output)
}

#[test]
fn a_narrow_corpus_keeps_every_byte_and_every_added_token() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let corpus = text(dir.path(), "narrow.txt", &"abab cdcd ".repeat(50));
    let vocab =
        built(&[path(&model), "--corpus", path(&corpus), "--size", "4", "--pad-to", "1"], &dir.path().join("out"));
    for byte in 0..256 {
        assert!(vocab.token_ids.contains(&(FIRST_BYTE_ID + byte)), "byte {byte:#04x}");
    }
    for id in [397, 398, 399] {
        assert!(vocab.token_ids.contains(&id), "added token {id}");
    }
    // "ab" and "cd" earned their places; " " is a byte; one more useful id fills the four.
    assert!(vocab.token_ids.contains(&1) && vocab.token_ids.contains(&27));
    assert!(vocab.token_ids.len() <= 4 + 256 + 3);
}

#[test]
fn templates_and_ends_of_turn_are_kept_with_their_reasons() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let template = "{{ '<|start|>' + 'jk' }}{% if x == \"kj\" %}<think>{% endif %}";
    fs::write(model.join("tokenizer_config.json"), json!({ "chat_template": template }).to_string()).unwrap();
    fs::write(model.join("generation_config.json"), r#"{"eos_token_id": [397, 5]}"#).unwrap();
    let tokenizer = Tokenizer::open(&model).unwrap();
    let retained = retain::retain(&tokenizer).unwrap();
    let reasons = |id: u32| -> Vec<String> {
        let found = retained.reasons().find(|(found, _)| *found == id);
        found.map(|(_, reasons)| reasons.iter().map(ToString::to_string).collect()).unwrap_or_default()
    };
    assert_eq!(reasons(397), ["special", "eos"]);
    assert_eq!(reasons(5), ["eos"]);
    assert_eq!(reasons(398), ["added", "chat template"]);
    assert_eq!(reasons(399), ["special", "chat template"]);
    assert_eq!(reasons(FIRST_BYTE_ID), ["byte"]);
    let jk = tokenizer.encode("jk").unwrap();
    assert_eq!(jk.len(), 1, "a merge of the made tokenizer");
    assert_eq!(reasons(jk[0]), ["chat template"]);
}

#[test]
fn the_same_texts_give_the_same_bytes_whatever_the_threads_and_the_order() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let lines: String =
        (0..400).map(|i| format!("{{\"text\": \"ab{} fg{}\"}}\n", "cd".repeat(i % 7), i % 13)).collect();
    let zh = format!("zh={}", path(&text(dir.path(), "a.jsonl", &lines)));
    let en = format!("en:2={}", path(&text(dir.path(), "b.txt", &"hi jk kl ".repeat(99))));
    let out = |name: &str| dir.path().join(name);
    let common = [path(&model), "--size", "60"];
    built(&[&common[..], &["--corpus", &zh, "--corpus", &en, "-j", "1"]].concat(), &out("one"));
    built(&[&common[..], &["--corpus", &en, "--corpus", &zh, "-j", "2"]].concat(), &out("two"));
    for name in ["draft_vocab.safetensors", "mask.pt", "vocabulary.json"] {
        assert_eq!(fs::read(out("one").join(name)).unwrap(), fs::read(out("two").join(name)).unwrap(), "{name}");
    }
    let record: Value = serde_json::from_slice(&fs::read(out("one").join("vocabulary.json")).unwrap()).unwrap();
    assert_eq!(record["selection"]["weights"], json!({ "en": 2.0, "zh": 1.0 }));
    assert_eq!(record["n_rows"].as_u64().unwrap() % 128, 0);
    assert_eq!(record["counts"]["domains"][1]["files"][0]["name"], "a.jsonl");
    assert!(!record.to_string().contains(path(dir.path())), "no machine path reaches the record");
}

#[test]
fn the_parts_of_the_evidence_add_up_to_the_whole_count() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = Tokenizer::open(&model(dir.path())).unwrap();
    let lines: String = (0..300).map(|i| format!("{{\"text\": \"ab cd {i}\"}}\n")).collect();
    let source: Source = format!("zh={}", path(&text(dir.path(), "a.jsonl", &lines))).parse().unwrap();
    let (options, silent) = (CountOptions::default(), Progress::silent());
    let whole = count(&tokenizer, std::slice::from_ref(&source), &options, &silent).unwrap();
    let evidence = Evidence::count(&tokenizer, &[source], &[], &options, &silent).unwrap();
    assert_eq!(evidence.counts, whole);
    let heldout = &evidence.heldout.unwrap().domains[0];
    assert!((15..=45).contains(&heldout.n_documents), "about a tenth of 300: {}", heldout.n_documents);
}

#[test]
fn bad_sizes_and_missing_v_are_refused_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let corpus = text(dir.path(), "a.txt", "abcd");
    let out = dir.path().join("out");
    let common = [path(&model), "--corpus", path(&corpus)];
    let said = refused(&[&common[..], &["--size", "500"]].concat(), &out);
    assert!(said.contains("the size 500 is larger than the vocabulary, which has 400 ids") && said.contains("hint:"));
    let said = refused(&[&common[..], &["--size", "64", "--target-rows", "300"]].concat(), &out);
    assert!(said.contains("the tokenizer has 400 ids, more than the 300 rows of lm_head"), "{said}");
    let said = refused(&[&common[..], &["--size", "64", "--weight", "code=2"]].concat(), &out);
    assert!(said.contains("domain `code`, which has no counts"), "{said}");
    fs::remove_file(model.join("config.json")).unwrap();
    let said = refused(&[&common[..], &["--size", "64"]].concat(), &out);
    assert!(said.contains("V, the rows of lm_head, is not known") && said.contains("--target-rows V"), "{said}");
    let said = refused(&[path(&model), "--size", "64", "--target-rows", "512"], &out);
    assert!(said.contains("nothing to count was given") && said.contains("--corpus PATH"), "{said}");
}

#[test]
fn a_mixture_file_and_floors_shape_the_vocabulary() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let pairs = |letters: &str| -> String {
        let words: Vec<String> =
            letters.chars().flat_map(|a| letters.chars().map(move |b| format!("{a}{b} "))).collect();
        (0..200).map(|i| format!("{{\"text\": \"{}{i}\"}}\n", words[i % words.len()].repeat(3))).collect()
    };
    text(dir.path(), "zh.jsonl", &pairs("abcdef"));
    text(dir.path(), "en.jsonl", &pairs("ghijkl"));
    let mixture =
        text(dir.path(), "mix.toml", "[zh]\nweight = 0.001\npaths = ['zh.jsonl']\n[en]\npaths = ['en.jsonl']\n");
    let share = |out: &str, extra: &[&str]| -> f64 {
        let out = dir.path().join(out);
        built(&[&[path(&model), "--mixture", path(&mixture), "--size", "30", "--pad-to", "1"], extra].concat(), &out);
        let record: Value = serde_json::from_slice(&fs::read(out.join("vocabulary.json")).unwrap()).unwrap();
        let coverage = record["coverage"]["coverage"].as_array().unwrap();
        coverage.iter().find(|one| one["domain"] == "zh").unwrap()["share"].as_f64().unwrap()
    };
    assert!(share("plain", &[]) < 0.9, "zh weighs next to nothing");
    assert!(share("floored", &["--floor", "zh=0.95"]) >= 0.95);
}

#[test]
fn a_mixture_reads_a_downloaded_data_set_and_its_own_field() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    // As `hf download` leaves it: files are links to blobs, and a card lies beside the data.
    let home = dir.path().join("hub/datasets--org--said");
    for folder in ["refs", "blobs", "snapshots/0a1b/data"] {
        fs::create_dir_all(home.join(folder)).unwrap();
    }
    fs::write(home.join("refs/main"), "0a1b").unwrap();
    fs::write(home.join("blobs/ff"), "{\"said\": \"abcd\", \"text\": \"never read\"}\n".repeat(50)).unwrap();
    fs::write(home.join("snapshots/0a1b/README.md"), "a card").unwrap();
    std::os::unix::fs::symlink("../../../blobs/ff", home.join("snapshots/0a1b/data/one.jsonl")).unwrap();
    text(dir.path(), "en.jsonl", &"{\"text\": \"kl\"}\n".repeat(50));
    let mixture = "[zh]\ndataset = 'org/said'\npaths = ['data/*.jsonl']\nfield = 'said'\n[en]\npaths = ['en.jsonl']\n";
    let mixture = text(dir.path(), "mix.toml", mixture);
    let run = |cache: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_draftfast"));
        command.env("HF_HUB_CACHE", dir.path().join(cache)).args(["build-vocab", path(&model), "--size", "4"]);
        command.args(["--mixture", path(&mixture), "-o", path(&dir.path().join("out"))]).output().unwrap()
    };
    let said = stderr(&run("empty"));
    assert!(
        said.contains("`org/said`, revision `main`, is not in") && said.contains("hf download --repo-type"),
        "{said}"
    );
    let output = run("hub");
    assert!(output.status.success(), "{}", stderr(&output));
    let record: Value = serde_json::from_slice(&fs::read(dir.path().join("out/vocabulary.json")).unwrap()).unwrap();
    let domains = &record["counts"]["domains"];
    assert_eq!((&domains[0]["n_bytes"], &domains[1]["n_bytes"]), (&json!(50 * 2), &json!(50 * 4)));
    assert_eq!(domains[1]["files"][0]["name"], "one.jsonl");
}

#[test]
fn records_are_read_as_asked() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let chat =
        r#"{"said": "a", "messages": [{"role": "user", "content": "aaaa"}, {"role": "assistant", "content": "b"}]}"#;
    let chats = text(dir.path(), "chats.jsonl", &format!("{chat}\n").repeat(50));
    let corpus = [path(&model), "--size", "1", "--corpus", path(&chats)];
    let n_bytes = |flags: &[&str], out: &str| {
        let out = dir.path().join(out);
        built(&[&corpus, flags].concat(), &out);
        let record: Value = serde_json::from_slice(&fs::read(out.join("vocabulary.json")).unwrap()).unwrap();
        record["counts"]["domains"][0]["n_bytes"].as_u64().unwrap()
    };
    let all = n_bytes(&[], "all");
    assert_eq!(all, 50 * 5);
    assert_eq!(n_bytes(&["--field", "said"], "field"), 50);
    assert!((50..all).contains(&n_bytes(&["--only", "assistant"], "own")));
    let said = refused(&[&corpus[..], &["--field", "none", "--strict"]].concat(), &dir.path().join("none"));
    assert!(said.contains("line 1"), "{said}");
}

#[test]
fn lines_of_counts_are_counts_and_stdin_is_no_corpus_here() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let lines = text(dir.path(), "counts.tsv", "97\t5\n98\t3\n");
    let vocab = built(&[path(&model), "--counts", path(&lines), "--size", "2", "--pad-to", "1"], &dir.path().join("v"));
    assert!(vocab.token_ids.contains(&97) && vocab.token_ids.contains(&98));
    let error = refused(&[path(&model), "--corpus", "-", "--size", "2"], &dir.path().join("w"));
    assert!(error.contains("stdin can be read once"), "{error}");
}

#[test]
fn an_empty_corpus_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let corpus = text(dir.path(), "empty.jsonl", "");
    let said = refused(&[path(&model), "--corpus", path(&corpus), "--size", "4"], &dir.path().join("out"));
    assert!(said.contains("the corpus of domain `text` holds no document"), "{said}");
}

#[test]
fn convert_audit_and_diff_read_what_build_vocab_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let corpus = text(dir.path(), "a.txt", &"abcd efgh ijkl ".repeat(20));
    let (full, out) = (dir.path().join("full"), dir.path().join("converted"));
    let vocab = built(&[path(&model), "--corpus", path(&corpus), "--size", "8", "--pad-to", "1"], &full);
    fs::create_dir(&out).unwrap();
    let output = draftfast(&["convert", path(&full), "ids.txt", "-o", path(&out)]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("read as absolute ids"), "{}", stderr(&output));
    let (read, _) = forms::read(&out.join("ids.txt"), Some(512)).unwrap();
    assert_eq!(read, vocab);
    let again = draftfast(&["convert", path(&full), "ids.txt", "-o", path(&out)]);
    assert_eq!(again.status.code(), Some(1), "an existing file is not replaced");

    assert!(draftfast(&["vocab", "audit", path(&full), path(&model)]).status.success());
    let cut: String =
        vocab.token_ids.iter().filter(|&&id| id != FIRST_BYTE_ID && id != 397).map(|id| format!("{id}\n")).collect();
    let cut = text(dir.path(), "cut.txt", &cut);
    let output = draftfast(&["vocab", "audit", path(&cut), path(&model), "--target-rows", "512"]);
    assert_eq!(output.status.code(), Some(1), "a missing always-kept id fails the audit");
    assert!(stdout(&output).contains("397\tMISSING\tspecial\t\"<|end|>\""), "{}", stdout(&output));
    assert!(stderr(&output).contains("2 of 259 always-kept ids are missing"), "{}", stderr(&output));

    let output = draftfast(&["vocab", "diff", path(&full), path(&cut), "--target-rows", "512"]);
    assert!(stdout(&output).contains("only A 2, only B 0"), "{}", stdout(&output));
}

/// The real data beside the checkout; absent on a fresh clone.
fn shared() -> Option<PathBuf> {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    if !shared.is_dir() {
        println!("skipped: the shared test data is not here");
    }
    shared.is_dir().then_some(shared)
}

#[test]
fn the_seeds_shape_from_the_real_tokenizer_and_text() {
    let Some(shared) = shared() else { return };
    let dir = tempfile::tempdir().unwrap();
    let corpora: Vec<String> = ["zh", "en", "code", "math"]
        .map(|domain| format!("{domain}={}", path(&shared.join("corpora").join(domain).join("heldout"))))
        .to_vec();
    let tokenizer = shared.join("tokenizers/qwen3.8/tokenizer.json.gz");
    let mut args = vec![path(&tokenizer), "--target-rows", "248320", "--size", "64000"];
    corpora.iter().for_each(|corpus| args.extend(["--corpus", corpus]));
    args.extend(["--pad-to", "64", "--pad-mode", "repeat"]);
    let out = dir.path().join("seed");
    let vocab = built(&args, &out);
    assert_eq!(vocab.target_rows, 248_320);
    assert_eq!(vocab.n_rows() % 64, 0);
    assert!(vocab.token_ids.len() >= 64_000 && vocab.token_ids.len() + vocab.n_repeated == vocab.n_rows());
    assert!(vocab.token_ids.iter().all(|&id| id < 248_077), "ids past the tokenizer are never kept");
    assert!((248_044..248_077).all(|id| vocab.token_ids.contains(&id)), "all 33 added tokens are kept");
    let (mask, detected) = forms::read(&out.join("mask.pt"), Some(248_320)).unwrap();
    assert_eq!(mask.token_ids, vocab.token_ids, "the mask holds the real ids only");
    assert_eq!(detected.arrays, ["`tensor` bool[248320]"]);
}

#[test]
fn the_shipped_counts_make_a_vocabulary_without_a_corpus() {
    let Some(shared) = shared() else { return };
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = shared.join("tokenizers/qwen3.8/tokenizer.json.gz");
    let heldout: Vec<String> = ["zh", "en", "code", "math"]
        .map(|domain| format!("{domain}={}", path(&shared.join("corpora").join(domain).join("heldout"))))
        .to_vec();
    let out = dir.path().join("out");
    let mut args =
        vec!["build-vocab", path(&tokenizer), "--target-rows", "248320", "--size", "64000", "-o", path(&out)];
    heldout.iter().for_each(|heldout| args.extend(["--heldout", heldout]));
    let output = draftfast(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("text that the model itself wrote serves better"), "{}", stderr(&output));
    let record: Value = serde_json::from_slice(&fs::read(out.join("vocabulary.json")).unwrap()).unwrap();
    for one in record["coverage"]["coverage"].as_array().unwrap() {
        let share = one["share"].as_f64().unwrap();
        assert!(share > 0.90, "{} covers {share}", one["domain"]);
    }
    let other = draftfast(&[
        "build-vocab",
        path(&shared.join("tokenizers/qwen3/tokenizer.json.gz")),
        "--target-rows",
        "151936",
        "-o",
        path(&out),
        "--force",
    ]);
    assert_eq!(other.status.code(), Some(1), "another vocabulary has no shipped counts");
    assert!(stderr(&other).contains("--corpus PATH"), "{}", stderr(&other));
}
