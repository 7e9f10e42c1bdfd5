//! The seed corpora, a folder a target. They are committed; this is how they were made (`fuzz/run --seeds`).

use std::{fs, io::Write, path::Path, sync::Arc};

use draftfast::{
    checkpoint::{
        Checkpoint, Overrides, recipe,
        synth::{self, Scale},
    },
    counts::{Counts, DomainCounts, FileRecord},
    plan,
    vocab::{
        DraftVocab,
        forms::{Form, encode},
    },
};
use parquet::{data_type::ByteArrayType, file::writer::SerializedFileWriter, schema::parser::parse_message_type};

use crate::weights::{FAMILIES, PROVENANCE_SHA256, provenance_sha256, tiny_sidecar};

/// Writes them below `dir`.
pub fn write(dir: &Path) {
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let folder = dir.join(target);
        fs::create_dir_all(&folder).expect("the folder can be made");
        fs::write(folder.join(name), bytes).expect("the folder is writable");
    };
    vocabularies(&write);
    weights(&write);
    texts(&write);
    lists(&write);
}

type Sink<'a> = &'a dyn Fn(&str, &str, &[u8]);

fn vocabularies(write: Sink<'_>) {
    let vocab = DraftVocab::new(100, (0..33).map(|n| 3 * n).collect()).expect("the ids are valid");
    for form in Form::ALL {
        for (name, bytes) in encode(form, &vocab, Some("ab")).expect("every form holds it") {
            match form {
                Form::MaskPt | Form::IdsPt | Form::MappingPt | Form::D2tPt => {
                    write("pt", name, &bytes);
                    write("pickle", name, pickle_of(&bytes));
                }
                Form::Npy => write("npy", name, &bytes),
                Form::Safetensors => {
                    write("safetensors", name, &bytes);
                    write("vocabulary", name, &[&[2], &bytes[..]].concat());
                }
                Form::Gguf => write("vocabulary", name, &[&[2], &bytes[..]].concat()),
                Form::IdsTxt => write("vocabulary", name, &[&[0], &bytes[..]].concat()),
                Form::IdsJson => write("vocabulary", name, &[&[1], &bytes[..]].concat()),
            }
        }
    }
}

/// The first member of a zip of stored members.
fn pickle_of(zip: &[u8]) -> &[u8] {
    let number = |at: usize, n: usize| zip[at..at + n].iter().rev().fold(0, |sum, byte| 256 * sum + usize::from(*byte));
    let start = 30 + number(26, 2) + number(28, 2);
    &zip[start..start + number(18, 4)]
}

fn weights(write: Sink<'_>) {
    let odd = r#"{"__metadata__":null,"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]},"b":{"dtype":"X9","shape":[],"data_offsets":[2,3]}}"#;
    write("safetensors", "odd", &[&(odd.len() as u64).to_le_bytes(), odd.as_bytes(), b"xyz"].concat());
    let index = br#"{"metadata":{"total_size":2},"weight_map":{"a":"a.safetensors","b":"b.safetensors"}}"#;
    write("index", "two", index);
    let scratch = std::env::temp_dir().join("draftfast-fuzz-seeds");
    for (i, family) in FAMILIES.iter().enumerate() {
        fs::create_dir_all(&scratch).expect("the folder can be made");
        synth::write_headers(family, Scale::Tiny, &scratch).expect("the headers are written");
        let config = fs::read(scratch.join("config.json")).expect("there is a config");
        write("config", family, &[&[i as u8], &config[..]].concat());
        let header = header_of(&only_shard(&scratch));
        write("recipe", family, &[&config[..], &[0], &header].concat());
        fs::remove_dir_all(&scratch).expect("the folder can be removed");
    }
    let (_, out) = tiny_sidecar();
    let manifest = fs::read(out.join("manifest.json")).expect("there is a manifest");
    let header = String::from_utf8(header_of(&out.join("drafter.safetensors"))).expect("a header is UTF-8");
    let header = header.replace(&provenance_sha256(&manifest), PROVENANCE_SHA256);
    write("sidecar", "tiny", &[&manifest[..], &[0], header.as_bytes()].concat());
    let plan = serde_json::to_vec(&small_plan()).expect("JSON is written");
    write("report", "plan", &plan);
    write("report", "vocabulary", &[&[0], VOCABULARY.as_bytes()].concat());
    write("report", "all", &[&plan[..], &[0], VOCABULARY.as_bytes(), &[0], &manifest].concat());
}

/// A plan of the tiny model for a GB10, cut to three sizes and two numbers of draft tokens.
fn small_plan() -> plan::PlanRecord {
    let model = Checkpoint::open(&tiny_sidecar().0).expect("the tiny model is there");
    let recipe = recipe(&model, None, &Overrides::default()).expect("the tiny model has a recipe");
    let inputs = plan::model::Inputs {
        hardware: plan::Hardware::named("gb10").expect("the table has it"),
        acceptance: None,
        coverage: None,
        drafted: vec![1, 3],
        load: plan::Load { batch: 1, n_context_tokens: 64 },
        baseline: None,
        pad_to: 768,
    };
    let question = plan::model::question(&model, None, &recipe, &inputs).expect("the question can be asked");
    plan::PlanRecord::new(question).expect("there are numbers of draft tokens")
}

fn only_shard(dir: &Path) -> std::path::PathBuf {
    let files = fs::read_dir(dir).expect("the folder is there").map(|entry| entry.expect("it is listed").path());
    files.filter(|path| path.extension().is_some_and(|e| e == "safetensors")).min().expect("there is a shard")
}

fn header_of(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).expect("the file is there");
    let (n_header_bytes, rest) = bytes.split_first_chunk().expect("a safetensors file has a length");
    rest[..u64::from_le_bytes(*n_header_bytes) as usize].to_vec()
}

fn texts(write: Sink<'_>) {
    let lines =
        ["It's 42 naïve words,\r\n  and\tmore…", "中文，混排 12345 e\u{301}\u{323} ǅx", "<|im_start|>f(x) // {a}\n\n"];
    for (i, line) in (0_u8..).zip(lines) {
        for family in 0..5 {
            write("splitter", &format!("{i}-{family}"), &[&[family], line.as_bytes()].concat());
        }
        let json = format!(
            "{{\"text\": {line:?}}}\n{{\"messages\": [{{\"role\": \"assistant\", \"content\": \"<think>t</think>r\"}}]}}\n"
        );
        for (kind, content) in [(0, line), (1, &json), (2, line), (3, &json), (4, line), (5, &json), (6, &json)] {
            let bytes = match kind {
                2 | 3 => gzip(content.as_bytes()),
                4 | 5 => zstd::bulk::compress(content.as_bytes(), 3).expect("the text is compressed"),
                _ => content.as_bytes().to_vec(),
            };
            write("corpus", &format!("{i}-{kind}"), &[&[kind, i], &bytes[..]].concat());
        }
    }
    for (name, json) in TOKENIZERS {
        write("tokenizer", name, json.as_bytes());
    }
    write("template", "chatml", TEMPLATE.as_bytes());
    write(
        "template",
        "plain",
        b"{{ bos_token }}{% for m in messages %}{{ m['content'] | trim }}{{ eos_token }}{% endfor %}",
    );
    write("parquet", "text", &parquet("message s { optional binary text (UTF8); }", &["a", "", "中文"]));
    write("parquet", "required", &parquet("message s { required binary content (UTF8); }", &["a", "b", "a"]));
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).expect("memory is written");
    encoder.finish().expect("memory is written")
}

fn parquet(schema: &str, texts: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let schema = Arc::new(parse_message_type(schema).expect("the schema is one"));
    let is_optional = schema.get_fields()[0].is_optional();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Default::default()).expect("memory is written");
    let mut group = writer.next_row_group().expect("memory is written");
    let mut column = group.next_column().expect("memory is written").expect("there is a column");
    let values: Vec<_> = texts.iter().map(|text| (*text).into()).collect();
    let levels = vec![1; texts.len()];
    column
        .typed::<ByteArrayType>()
        .write_batch(&values, is_optional.then_some(&levels[..]), None)
        .expect("memory is written");
    column.close().expect("memory is written");
    group.close().expect("memory is written");
    writer.close().expect("memory is written");
    bytes
}

fn lists(write: Sink<'_>) {
    let zeros = "0".repeat(64);
    let list = format!("# a list\n{zeros}  a.txt\n\\{zeros} *new\\nline\nSHA256 (b) = {zeros}\n");
    write("checksums", "three", list.as_bytes());
    let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{zeros}\nsize 7\n");
    write("pointers", "seven", pointer.as_bytes());
    write("counts", "tsv", b"id\tcount\n0\t5\n63\t7\n");
    let file = FileRecord { name: "a".into(), sha256: zeros, n_bytes: 1, n_documents: 1, n_skipped: 0 };
    let domain = |domain: &str| DomainCounts {
        domain: domain.into(),
        counts: vec![1, 2, 3],
        texts: "each text".into(),
        n_documents: 1,
        n_bytes: 1,
        files: vec![file.clone()],
    };
    let counts = Counts {
        tokenizer_sha256: "ab".into(),
        n_ids: 3,
        engines: vec!["e".into()],
        domains: vec![domain("code"), domain("zh")],
        warnings: Vec::new(),
    };
    for name in ["counts.safetensors", "counts.safetensors.zst"] {
        let path = std::env::temp_dir().join(name);
        counts.write(&path, true).expect("the counts are written");
        write("counts", name, &fs::read(&path).expect("the counts are there"));
    }
    for (name, text) in PLANS {
        write("plan", name, text.as_bytes());
    }
}

const TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content.strip() + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

const TOKENIZERS: &[(&str, &str)] = &[
    (
        "bpe",
        r#"{"version":"1.0","added_tokens":[{"id":5,"content":"<|a|>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false}],"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}]},"post_processor":null,"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","dropout":null,"unk_token":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{"w":0,"o":1,"r":2,"wo":3,"wor":4},"merges":[["w","o"],["wo","r"]]}}"#,
    ),
    (
        "unigram",
        r#"{"version":"1.0","added_tokens":[],"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"_"},{"type":"Replace","pattern":{"String":" "},"content":"_"},{"type":"Strip","strip_left":true,"strip_right":false},{"type":"Lowercase"}]},"pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"always","split":true},"post_processor":null,"decoder":null,"model":{"type":"Unigram","unk_id":0,"byte_fallback":false,"vocab":[["<unk>",0.0],["w",-1.5],["or",-2.0],["_",-0.5]]}}"#,
    ),
    (
        "wordpiece",
        r##"{"version":"1.0","added_tokens":[],"normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true},"pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":null,"decoder":null,"model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"@@","max_input_chars_per_word":100,"vocab":{"[UNK]":0,"w":1,"@@o":2,"it":3}}}"##,
    ),
    (
        "wordlevel",
        r#"{"version":"1.0","added_tokens":[],"normalizer":{"type":"Precompiled","precompiled_charsmap":"AAAA"},"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,"model":{"type":"WordLevel","unk_token":"[UNK]","vocab":{"[UNK]":0,"words":1}}}"#,
    ),
];

const PLANS: &[(&str, &str)] = &[
    ("rates", "[0.9, 0.8]"),
    (
        "vllm",
        "vllm:spec_decode_num_drafts_total{engine=\"0\"} 600.0\nvllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"0\"} 500.0\n",
    ),
    ("sglang", "speculative_num_steps=3\nDecode batch, #running-req: 3, accept len: 2.50,\n"),
    ("curve", "64 0.5\n128 0.75\n"),
    ("vocabulary", VOCABULARY),
    ("bench", r#"{"timings":[{"weights":"bf16","m":1,"bytes":1000000,"median_us":10.0}]}"#),
    ("hardware", "name = \"m\"\nbandwidth_gb_s = 273\nnvfp4_efficiency = 0.8\n"),
    ("mixture", "[zh]\nweight = 2.0\npaths = [\"a.txt\"]\nheldout = [\"b\"]\n"),
];

const VOCABULARY: &str = r#"{"coverage":{"measured":"split","coverage":[{"domain":"zh","n_tokens":9,"share":0.5}],"curve":{"sizes":[64,100],"domains":{"zh":[0.5,1.0]},"mean":[0.5,1.0]}}}"#;
