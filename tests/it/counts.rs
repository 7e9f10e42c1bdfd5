//! Counts equal those of Hugging Face `tokenizers`, id by id.

use std::path::{Path, PathBuf};

use draftfast::{
    corpus::Source,
    counts::{CountOptions, Counts, Tokenizer, count, read_tsv},
    report::Progress,
};

/// The project's test data; `None`, after saying so, where it is absent.
pub fn shared_data() -> Option<PathBuf> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    if !data.is_dir() {
        println!("skipped: the test data `../shared/data` is absent");
        return None;
    }
    Some(data)
}

fn open(data: &Path, tokenizer: &str) -> Tokenizer {
    Tokenizer::open(&data.join("tokenizers").join(tokenizer).join("tokenizer.json.gz")).unwrap()
}

fn count_path(tokenizer: &Tokenizer, domain: &str, path: PathBuf, n_threads: usize) -> Counts {
    let source = Source { domain: domain.to_owned(), weight: 1.0, path, field: None };
    let options = CountOptions { n_threads, ..CountOptions::default() };
    count(tokenizer, &[source], &options, &Progress::silent()).unwrap()
}

fn assert_golden(tokenizer: &Tokenizer, counts: &Counts, golden: &Path) {
    let tsv = zstd::decode_all(std::fs::File::open(golden).unwrap()).unwrap();
    let expected = read_tsv(&String::from_utf8(tsv).unwrap(), tokenizer.n_ids()).unwrap();
    let found = &counts.domains[0].counts;
    let differing: Vec<_> = (0..expected.len()).filter(|id| found[*id] != expected[*id]).collect();
    let shown: Vec<_> = differing.iter().take(5).map(|id| (id, found[*id], expected[*id])).collect();
    assert!(
        differing.is_empty(),
        "{}: {} ids differ, (id, found, golden): {shown:?}",
        golden.display(),
        differing.len()
    );
}

#[test]
fn counts_of_the_small_corpora_equal_the_golden_counts() {
    let Some(data) = shared_data() else { return };
    let tokenizer = open(&data, "qwen3.8");
    for part in ["train", "heldout"] {
        for domain in ["zh", "en", "code", "math"] {
            let counts = count_path(&tokenizer, domain, data.join("corpora").join(domain).join(part), 2);
            assert_golden(&tokenizer, &counts, &data.join(format!("golden_counts/small.{part}.{domain}.tsv.zst")));
        }
    }
}

#[test]
fn other_tokenizers_equal_their_golden_counts() {
    let Some(data) = shared_data() else { return };
    for name in ["qwen3", "smollm2"] {
        let tokenizer = open(&data, name);
        for domain in ["zh", "en", "code", "math"] {
            let counts = count_path(&tokenizer, domain, data.join("corpora").join(domain).join("train"), 2);
            let golden = format!("golden_counts/other/small.train.{domain}.{name}.tsv.zst");
            assert_golden(&tokenizer, &counts, &data.join(golden));
        }
    }
}

#[test]
fn counts_of_the_medium_corpora_equal_the_golden_counts() {
    let Some(data) = shared_data() else { return };
    let tokenizer = open(&data, "qwen3.8");
    for domain in ["zh", "en", "code", "math"] {
        let counts = count_path(&tokenizer, domain, data.join(format!("corpora_medium/{domain}.jsonl.zst")), 2);
        assert_golden(&tokenizer, &counts, &data.join(format!("golden_counts/medium.{domain}.tsv.zst")));
    }
}

#[test]
fn ids_equal_those_recorded_from_the_published_tokenizer() {
    let Some(data) = shared_data() else { return };
    let tokenizer = open(&data, "qwen3.8");
    let json = std::fs::read(data.join("tokenizers/qwen3.8/oracle_vectors.json")).unwrap();
    let vectors: Vec<serde_json::Value> = serde_json::from_slice(&json).unwrap();
    assert!(!vectors.is_empty());
    for vector in vectors {
        let text = vector["text"].as_str().unwrap();
        assert_eq!(serde_json::json!(tokenizer.encode(text).unwrap()), vector["ids"], "{text:?}");
    }
}
