//! `count` and `merge` as a person runs them.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use draftfast::counts::{Counts, Tokenizer, read_tsv};

use crate::{counts::shared_data, draftfast, stderr, stdout};

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// A tokenizer of single bytes with one added token: id = byte, `<eot>` = 256.
fn byte_tokenizer(dir: &Path) -> String {
    let spell = |byte: u32| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => byte,
        0..=0x20 => 0x100 + byte,
        0x7f..=0xa0 => 0x121 + byte - 0x7f,
        _ => 0x143,
    };
    let vocab: serde_json::Map<String, serde_json::Value> =
        (0..256).map(|byte| (char::from_u32(spell(byte)).unwrap().to_string(), byte.into())).collect();
    let split = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null, "decoder": null,
        "added_tokens": [{ "id": 256, "content": "<eot>", "single_word": false, "lstrip": false, "rstrip": false,
                           "normalized": false, "special": true }],
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": split }, "behavior": "Isolated", "invert": false },
            { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false }] },
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                   "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": [] }
    });
    let path = dir.join("tokenizer.json");
    std::fs::write(&path, json.to_string()).unwrap();
    text(&path)
}

fn write(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) -> String {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    text(&path)
}

#[test]
fn stdin_becomes_lines_of_counts() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = byte_tokenizer(dir.path());
    for (format, input, expected) in [
        ("text", "aab<eot>", "97\t2\n98\t1\n256\t1\n"),
        ("jsonl", "{\"text\": \"a\"}\n{\"text\": \"ab\"}\n", "97\t2\n98\t1\n"),
        ("jsonl", "", "\n"),
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_draftfast"))
            .args(["count", &tokenizer, "--stdin", "--format", format, "--emit", "tsv"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(stdout(&output), expected);
    }
}

#[test]
fn merged_shards_equal_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = byte_tokenizer(dir.path());
    let a = write(dir.path(), "a.txt", "hello");
    let b = write(dir.path(), "b.jsonl", "{\"text\": \"world\"}\n");
    let path = |name: &str| text(&dir.path().join(name));
    let ran = |args: &[&str]| {
        let output = draftfast(args);
        assert!(output.status.success(), "{}", stderr(&output));
    };
    let (one, two, sum, whole) = (path("1.counts"), path("2.counts.zst"), path("sum.counts"), path("whole.counts"));
    ran(&["count", &tokenizer, "--corpus", &format!("x={a}"), "-o", &one]);
    ran(&["count", &tokenizer, "--corpus", &format!("x={b}"), "-o", &two]);
    ran(&["count", &tokenizer, "--corpus", &format!("x={a}"), "--corpus", &format!("x={b}"), "-o", &whole]);
    ran(&["merge", &two, &one, "-o", &sum]);
    assert_eq!(std::fs::read(&sum).unwrap(), std::fs::read(&whole).unwrap());

    let repeated = draftfast(&["merge", &one, &one, "-o", &path("twice.counts")]);
    assert!(stderr(&repeated).contains("`a.txt` was counted before"), "{}", stderr(&repeated));

    let read = || Counts::read(Path::new(&one));
    let twice = Counts::sum([read(), read()]).unwrap().unwrap();
    assert!(twice.warnings.iter().any(|warning| warning.contains("`a.txt`")), "{:?}", twice.warnings);

    let lines = write(dir.path(), "part-0", "97\t2\n");
    let output = draftfast(&["merge", &lines, "-o", &path("lines.counts")]);
    assert!(stderr(&output).contains("hint: say which tokenizer"), "{}", stderr(&output));
    ran(&["merge", &lines, &write(dir.path(), "part-1", ""), "--tokenizer", &tokenizer, "-o", &path("lines.counts")]);
    assert_eq!(Counts::read(Path::new(&path("lines.counts"))).unwrap().domains[0].counts[97], 2);
}

#[test]
fn bad_records_are_counted_and_strict_stops_at_them() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = byte_tokenizer(dir.path());
    let corpus = write(dir.path(), "a.jsonl", "{\"text\": \"a\"}\n7\n{\"text\": \"b\"}\n{\n");
    let output = text(&dir.path().join("a.counts"));
    let lenient = draftfast(&["count", &tokenizer, "--corpus", &corpus, "-o", &output, "--json"]);
    assert!(lenient.status.success());
    assert!(stderr(&lenient).contains("2 records were skipped, the first: line 2 is a number, expected a JSON object"));
    assert_eq!(Counts::read(Path::new(&output)).unwrap().domains[0].files[0].n_skipped, 2);
    let strict = draftfast(&["count", &tokenizer, "--corpus", &corpus, "-o", &output, "--force", "--strict"]);
    assert_eq!(strict.status.code(), Some(1));
    assert!(stderr(&strict).contains("line 2 is a number"));
    let refused = draftfast(&["count", &tokenizer, "--corpus", &corpus, "-o", &output]);
    assert!(stderr(&refused).contains("exists already"), "{}", stderr(&refused));
}

#[test]
fn empty_corpora_and_other_encodings_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = byte_tokenizer(dir.path());
    let output = text(&dir.path().join("a.counts"));
    for (name, bytes, why) in [
        ("empty.jsonl", &b"\n"[..], "holds no document"),
        ("skipped.jsonl", b"7\n", "1 record was skipped"),
        ("latin1.txt", b"caf\xe9", "is not UTF-8 at byte 3"),
        ("cut.jsonl.gz", b"\x1f\x8b\x08\x00", "truncated or damaged"),
    ] {
        let corpus = write(dir.path(), name, bytes);
        let failed = draftfast(&["count", &tokenizer, "--corpus", &corpus, "-o", &output]);
        assert_eq!(failed.status.code(), Some(1));
        assert!(stderr(&failed).contains(why), "{name}: {}", stderr(&failed));
        assert!(!Path::new(&output).exists());
    }
}

#[test]
fn what_is_no_text_in_a_folder_is_left_out_and_listed() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = byte_tokenizer(dir.path());
    let folder = dir.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    for (name, bytes) in [("a.txt", &b"aa"[..]), ("b.bin", b"b\0"), ("c.c", b"/* caf\xe9 */"), ("d.txt", b"d")] {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    let args = ["count", &tokenizer, "--corpus", &text(&folder), "--emit", "tsv"];
    let output = draftfast(&args);
    assert_eq!(stdout(&output), "97\t2\n100\t1\n", "{}", stderr(&output));
    assert!(stderr(&output).contains("b.bin` looks binary"), "{}", stderr(&output));
    assert!(stderr(&output).contains("c.c` is not UTF-8 at byte 6"), "{}", stderr(&output));
    for n in 0..30 {
        std::fs::write(folder.join(format!("e{n}.bin")), b"\0").unwrap();
    }
    let flooded = stderr(&draftfast(&args));
    assert_eq!(flooded.matches("looks binary").count(), 20, "{flooded}");
    assert!(flooded.contains("12 more like these: `-v` names them"), "{flooded}");
    let strict = draftfast(&[&args[..], &["--strict"]].concat());
    assert_eq!(strict.status.code(), Some(1));
    assert!(stderr(&strict).contains("c.c`: is not UTF-8 at byte 6"), "{}", stderr(&strict));
}

#[test]
fn a_run_stopped_by_a_truncated_file_goes_on_when_the_file_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = byte_tokenizer(dir.path());
    let lines = |seed: u64| {
        let word = |i: u64| i.wrapping_mul(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..120_000).map(|i| format!("{{\"text\": \"{:016x}\"}}\n", word(i))).collect::<String>()
    };
    let gzip = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let whole = gzip(&lines(1));
    let at = |name: &str| text(&dir.path().join(name));
    let (first, corpus) = (write(dir.path(), "a.txt", "first"), at("b.jsonl.gz"));
    let run = |bytes: &[u8], output: &str| {
        std::fs::write(&corpus, bytes).unwrap();
        draftfast(&["count", &tokenizer, "--corpus", &first, "--corpus", &corpus, "-o", output])
    };
    let output = at("new/folder/a.counts");
    let stopped = run(&whole[..whole.len() * 2 / 3], &output);
    assert!(stderr(&stopped).contains("the same command goes on from there"), "{}", stderr(&stopped));
    let changed = run(&gzip(&lines(3)), &output);
    assert!(
        stderr(&changed).contains("b.jsonl.gz` has changed where an earlier run had counted it"),
        "{}",
        stderr(&changed)
    );
    let mended = run(&whole, &output);
    assert!(stderr(&mended).contains("an earlier run had counted"), "{}", stderr(&mended));
    assert!(run(&whole, &at("fresh.counts")).status.success());
    assert_eq!(std::fs::read(&output).unwrap(), std::fs::read(at("fresh.counts")).unwrap());
    // A state of other text is not used, and that is said.
    run(&whole[..whole.len() * 2 / 3], &at("b.counts"));
    let other = draftfast(&["count", &tokenizer, "--corpus", &first, "-o", &at("b.counts")]);
    assert!(stderr(&other).contains("counting begins at the beginning"), "{}", stderr(&other));
}

#[test]
fn logged_ids_are_counted_without_a_text() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = byte_tokenizer(dir.path());
    let npy = |dtype: &str, bytes: &[u8]| {
        let mut header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': (3,), }}");
        while (10 + header.len() + 1) % 64 != 0 {
            header.push(' ');
        }
        header.push('\n');
        [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), bytes].concat()
    };
    let wide: Vec<u8> = [1_i64, 256, 1].iter().flat_map(|id| id.to_le_bytes()).collect();
    let narrow: Vec<u8> = [1_u16, 256, 1].iter().flat_map(|id| id.to_le_bytes()).collect();
    for (name, bytes) in [
        ("a.jsonl", b"[1, 256]\n{\"token_ids\": [1]}\n".to_vec()),
        (
            "b.jsonl",
            br#"{"prompt_token_ids": [9], "choices": [{"message": {"content": ""}, "token_ids": [1, 256]}]}"#.to_vec(),
        ),
        (
            "c.jsonl",
            br#"{"prompt": "", "outputs": [{"text": "", "token_ids": [1]}, {"text": "", "token_ids": [256]}]}"#
                .to_vec(),
        ),
        ("a.npy", npy("<i8", &wide)),
        ("b.npy", npy("<u2", &narrow)),
        ("a.bin", narrow.clone()),
    ] {
        let corpus = write(dir.path(), name, bytes);
        let mut args = vec!["count", &tokenizer, "--token-ids", "--corpus", &corpus, "--emit", "tsv"];
        if name == "a.bin" {
            assert!(stderr(&draftfast(&args)).contains("--ids u16"));
            args.extend(["--ids", "u16"]);
        }
        let output = draftfast(&args);
        let n_ones = if matches!(name, "b.jsonl" | "c.jsonl") { 1 } else { 2 };
        assert_eq!(stdout(&output), format!("1\t{n_ones}\n256\t1\n"), "{name}: {}", stderr(&output));
    }
    let outside = write(dir.path(), "d.jsonl", "[257]\n");
    let failed = draftfast(&["count", &tokenizer, "--token-ids", "--corpus", &outside, "--emit", "tsv"]);
    assert!(stderr(&failed).contains("line 1: id 257 is outside the vocabulary of 257 ids"), "{}", stderr(&failed));
}

#[test]
fn response_logs_and_assistant_turns_are_read_directly() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = byte_tokenizer(dir.path());
    let log =
        r#"{"id": "x", "choices": [{"message": {"role": "assistant", "content": "aa", "reasoning_content": "b"}}]}"#;
    let chat =
        r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>b</think>aa"}]}"#;
    let corpus = write(dir.path(), "log.jsonl", format!("{log}\n"));
    let chats = write(dir.path(), "chat.jsonl", format!("{chat}\n"));
    let counted = |args: &[&str]| stdout(&draftfast(&[&["count", &tokenizer, "--emit", "tsv"], args].concat()));
    assert_eq!(counted(&["--corpus", &corpus]), "97\t2\n98\t1\n");
    assert_eq!(counted(&["--corpus", &corpus, "--no-thinking"]), "97\t2\n");
    assert_eq!(counted(&["--corpus", &chats, "--only", "assistant", "--no-thinking"]), "97\t2\n");
    let template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<eot>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
    std::fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    assert_eq!(counted(&["--corpus", &chats, "--only", "assistant", "--no-thinking"]), "97\t2\n256\t1\n");
    // What a server logged stands in no chat: the template puts its end of turn behind it all the same.
    assert_eq!(counted(&["--corpus", &corpus, "--only", "assistant"]), "97\t2\n256\t1\n");
}

#[test]
fn logged_calls_are_rendered_as_the_model_writes_them() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = byte_tokenizer(dir.path());
    let template = "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.reasoning_content }}{{ m.content }}\
                    {% for c in m.tool_calls %}{% for name, value in c.function.arguments|items %}{{ name }}={{ value }};{% endfor %}\
                    {{ c.function.arguments|tojson }}{% endfor %}<eot>{% endif %}{% endfor %}";
    std::fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    let call =
        r#""tool_calls": [{"type": "function", "function": {"name": "n", "arguments": "{\"b\": 1, \"a\": [2, 3]}"}}]"#;
    let log = format!(
        r#"{{"choices": [{{"message": {{"role": "assistant", "content": null, "reasoning": "r", {call}}}}}]}}"#
    );
    let corpus = write(dir.path(), "log.jsonl", log);
    let output = draftfast(&["count", &tokenizer, "--emit", "tsv", "--corpus", &corpus, "--only", "assistant"]);
    let mut expected = vec![0_u64; 257];
    r#"rb=1;a=[2, 3];{"b": 1, "a": [2, 3]}"#.bytes().for_each(|byte| expected[usize::from(byte)] += 1);
    expected[256] = 1;
    assert_eq!(read_tsv(&stdout(&output), 257).unwrap(), expected, "{}", stderr(&output));
}

#[test]
fn a_check_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = byte_tokenizer(dir.path());
    let corpus = write(dir.path(), "a.jsonl", "{\"text\": \"it's  NFC\"}\n".repeat(20));
    let output = text(&dir.path().join("a.counts"));
    let ran = draftfast(&["count", &tokenizer, "--corpus", &corpus, "-o", &output, "--check", "1"]);
    assert!(ran.status.success(), "{}", stderr(&ran));
    let engines = Counts::read(Path::new(&output)).unwrap().engines;
    assert!(engines.iter().any(|line| line.contains("(20, ") && line.ends_with("equal")), "{engines:?}");
    let checked = |corpus: &str, share| {
        let output = text(&dir.path().join("none.counts"));
        stderr(&draftfast(&["count", &tokenizer, "--corpus", corpus, "-o", &output, "--check", share]))
    };
    let one = write(dir.path(), "one.jsonl", "{\"text\": \"a\"}\n");
    assert!(checked(&one, "0.000001").contains("picks none of the documents"), "{}", checked(&one, "0.000001"));
    assert!(checked("-", "1").contains("stdin can be read once"), "{}", checked("-", "1"));
}

/// The slow engine, so that there is time to kill it.
#[test]
fn a_killed_run_goes_on_and_gives_the_same_counts() {
    let Some(data) = shared_data() else { return };
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = text(&data.join("tokenizers/qwen3.8/tokenizer.json.gz"));
    let corpus = format!("code={}", data.join("corpora/code/train").display());
    let output: PathBuf = dir.path().join("code.counts");
    let state = dir.path().join("code.counts.resume");
    let mut run = Command::new(env!("CARGO_BIN_EXE_draftfast"));
    run.args(["-j", "1", "count", &tokenizer, "--corpus", &corpus, "--engine", "reference", "--save-every", "1", "-o"]);
    run.arg(&output).stderr(Stdio::piped());
    let mut child = run.spawn().unwrap();
    let started = Instant::now();
    while !state.is_file() && child.try_wait().unwrap().is_none() && started.elapsed() < Duration::from_secs(300) {
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    if !output.exists() {
        assert!(state.is_file(), "a state was saved");
    }
    let again = run.arg("--force").output().unwrap();
    assert!(again.status.success(), "{}", stderr(&again));
    assert!(!state.exists(), "the state is removed with the result");
    let opened = Tokenizer::open(Path::new(&tokenizer)).unwrap();
    let golden =
        zstd::decode_all(std::fs::File::open(data.join("golden_counts/small.train.code.tsv.zst")).unwrap()).unwrap();
    let golden = read_tsv(&String::from_utf8(golden).unwrap(), opened.n_ids()).unwrap();
    assert_eq!(Counts::read_for(&output, &opened).unwrap().domains[0].counts, golden);
}
