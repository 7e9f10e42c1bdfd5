//! Input that is made to hurt: files that never end, files that grow, names that are no names. Each is refused in one
//! sentence, soon, and in little memory.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::Read,
    os::unix::{ffi::OsStrExt, fs::symlink},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{draftfast, stderr, stdout};

/// No refusal takes longer, on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(20);

/// Runs the program; kills it and fails when it has not ended soon.
fn soon<S: AsRef<OsStr>>(args: &[S]) -> Output {
    let words: Vec<_> = args.iter().map(|word| word.as_ref().to_string_lossy()).collect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_draftfast"));
    let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > SOON {
            child.kill().unwrap();
            panic!("still running after {SOON:?}: {}", words.join(" "));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

/// Fails with one sentence that contains `said`.
fn refused<S: AsRef<OsStr>>(args: &[S], said: &str) {
    let output = soon(args);
    let text = stderr(&output);
    let words: Vec<_> = args.iter().map(|word| word.as_ref().to_string_lossy()).collect();
    assert_eq!(output.status.code(), Some(1), "{}: {text}", words.join(" "));
    assert!(text.contains(said), "{}: {text}", words.join(" "));
    let errors = text.lines().filter(|line| line.starts_with("error")).count();
    assert!(errors == 1 && !text.contains("panicked") && !text.contains("unexpected"), "{text}");
}

/// A tiny model and files beside it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let output = draftfast(&["synth", "qwen3.5-dense", "--scale", "tiny", "-o", &place.at("model")]);
        assert!(output.status.success(), "{}", stderr(&output));
        fs::write(place.at("ids.txt"), (0..64).map(|id| format!("{id}\n")).collect::<String>()).unwrap();
        place
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn fifo(&self, name: &str) -> String {
        assert!(Command::new("mkfifo").arg(self.at(name)).status().unwrap().success());
        self.at(name)
    }
}

#[test]
fn no_command_waits_for_a_fifo_or_reads_a_device() {
    let place = Place::new();
    let (model, ids, tokenizer) = (place.at("model"), place.at("ids.txt"), place.at("model/tokenizer.json"));
    let (fifo, out) = (place.fifo("fifo"), place.at("out"));
    fs::create_dir(place.at("odd")).unwrap();
    place.fifo("odd/config.json");
    fs::create_dir(place.at("odder")).unwrap();
    fs::write(place.at("odder/config.json"), "{}").unwrap();
    place.fifo("odder/model.safetensors");
    for file in ["/dev/zero", "/dev/urandom", &fifo] {
        for args in [
            vec!["count", &tokenizer, "--corpus", file, "-o", &out],
            vec!["count", file, "--corpus", &ids, "-o", &out],
            vec!["quantize", &model, "--vocab", file, "-o", &out],
            vec!["quantize", &model, "--vocab", &ids, "--importance", file, "-o", &out],
            vec!["merge", file, "-o", &out],
            vec!["build-vocab", &model, "--counts", file, "-o", &out],
            vec!["build-vocab", &model, "--mixture", file, "-o", &out],
            vec!["plan", &model, "--hardware", "gb10", "--vllm-metrics", file],
            vec!["plan", &model, "--hardware", "gb10", "--sglang-log", file],
            vec!["plan", &model, "--hardware", "gb10", "--acceptance-curve", file],
            vec!["plan", &model, "--hardware", "gb10", "--coverage", file],
            vec!["plan", &model, "--hardware", "gb10", "--bench", file],
            vec!["verify-sha", file],
        ] {
            refused(&args, "");
            assert!(!Path::new(&out).exists());
        }
    }
    refused(&["inspect", &place.at("odder")], "expected a file");
    refused(&["verify", &place.at("odd"), "--model", &model], "");
    refused(&["count", &tokenizer, "--corpus", &fifo, "-o", &out], "give `-` as the corpus");
}

#[test]
fn a_folder_with_fifos_devices_and_loops_is_read_for_its_texts_alone() {
    let place = Place::new();
    let corpus = place.at("corpus");
    fs::create_dir_all(place.at("corpus/inner")).unwrap();
    fs::write(place.at("corpus/inner/a.txt"), "words").unwrap();
    place.fifo("corpus/fifo.txt");
    symlink("/dev/urandom", place.at("corpus/device.txt")).unwrap();
    symlink("..", place.at("corpus/inner/up")).unwrap();
    symlink("b.txt", place.at("corpus/b.txt")).unwrap();
    let output =
        soon(&["count", &place.at("model/tokenizer.json"), "--corpus", &corpus, "-o", &place.at("c"), "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(found.to_string().contains("inner/a.txt") || found.to_string().contains("\"n_documents\":1"), "{found}");
}

/// A tokenizer that the fast engine leaves to the `tokenizers` crate.
fn word_level(normalizer: &Value) -> Value {
    json!({ "version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": { "type": "Whitespace" },
            "model": { "type": "WordLevel", "unk_token": "?", "vocab": { "?": 0, "words": 1 } } })
}

#[test]
fn tokenizers_that_panic_grow_or_lie_are_refused() {
    let place = Place::new();
    fs::write(place.at("a.txt"), "words aaaaaaaa").unwrap();
    let replace = json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "aaaaaaaaaa" });
    let precompiled = |map: &str| json!({ "type": "Precompiled", "precompiled_charsmap": map });
    let mut huge = word_level(&Value::Null);
    huge["model"]["vocab"]["huge"] = json!(4_294_967_295_u32);
    let mut added = word_level(&Value::Null);
    added["added_tokens"] = json!([{ "id": 1 << 24, "content": "<a>", "special": true, "single_word": false,
                                     "lstrip": false, "rstrip": false, "normalized": false }]);
    let chain = json!({ "type": "Sequence", "normalizers": vec![replace; 30] });
    for (tokenizer, said) in [
        (word_level(&precompiled("AAAA")), "shorter than it says"),
        (word_level(&precompiled("////fw==")), "shorter than it says"),
        (word_level(&precompiled("BAAAAAAA")), "tokenizers crate"),
        (word_level(&chain), "times longer"),
        (huge, "expected less than"),
        (added, "or more"),
    ] {
        fs::write(place.at("tokenizer.json"), tokenizer.to_string()).unwrap();
        refused(&["count", &place.at("tokenizer.json"), "--corpus", &place.at("a.txt"), "-o", &place.at("out")], said);
    }
}

#[test]
fn a_parquet_page_whose_rows_share_one_long_text_is_read_in_little_memory() {
    use parquet::{data_type::ByteArrayType, file::writer::SerializedFileWriter, schema::parser::parse_message_type};
    const N_ROWS: usize = 8_000;
    const N_TEXT_BYTES: usize = 512 << 10;
    let place = Place::new();
    let schema = parse_message_type("message s { required binary text (UTF8); }").unwrap();
    let file = fs::File::create(place.at("bomb.parquet")).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema.into(), Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let text = parquet::data_type::ByteArray::from(vec![b'\n'; N_TEXT_BYTES]);
    column.typed::<ByteArrayType>().write_batch(&vec![text; N_ROWS], None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    assert!(fs::metadata(place.at("bomb.parquet")).unwrap().len() < 4 << 20, "four gigabytes in a small file");
    let args = [
        "count",
        &place.at("model/tokenizer.json"),
        "--corpus",
        &place.at("bomb.parquet"),
        "-o",
        &place.at("c"),
        "-j1",
    ];
    let (output, peak) = peak_mebibytes(&args, 40);
    assert!(peak < 300, "{peak} MiB: {}", stderr(&output));
}

/// Runs for at most `seconds`; returns the most memory that was resident and not of a file, in MiB.
fn peak_mebibytes(args: &[&str], seconds: u64) -> (Output, u64) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_draftfast"));
    let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (begin, mut peak) = (Instant::now(), 0);
    while child.try_wait().unwrap().is_none() {
        if let Ok(status) = fs::read_to_string(format!("/proc/{}/status", child.id())) {
            let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
            let kilobytes = anonymous.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
            peak = peak.max(kilobytes.unwrap_or(0) / 1024);
        }
        if begin.elapsed() > Duration::from_secs(seconds) {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    (child.wait_with_output().unwrap(), peak)
}

#[test]
fn names_with_newlines_dashes_and_bytes_that_are_no_text_are_names() {
    let place = Place::new();
    let root = place.0.path().to_owned();
    for name in [&b"-x"[..], b"new\nline", b"not \xff utf-8", b"$(touch x) 'quoted' \\"] {
        let model = root.join(OsStr::from_bytes(name));
        fs::rename(place.at("model"), &model).unwrap();
        let out = root.join(OsStr::from_bytes(&[name, b"-out"].concat()));
        let ids = PathBuf::from(place.at("ids.txt"));
        let run = |words: &[&OsStr]| {
            // A name that begins with a dash stands behind `--`, or after `./`.
            let mut command = Command::new(env!("CARGO_BIN_EXE_draftfast"));
            let output = command.args(words).current_dir(&root).output().unwrap();
            assert!(output.status.success(), "{:?}: {}", words, stderr(&output));
        };
        let word = OsStr::new;
        let relative = OsString::from(model.file_name().unwrap());
        run(&[word("quantize"), word("--vocab"), ids.as_os_str(), word("-o"), out.as_os_str(), word("--"), &relative]);
        run(&[word("verify"), word("--model"), model.as_os_str(), out.as_os_str()]);
        run(&[word("verify-sha"), out.as_os_str()]);
        run(&[word("inspect"), word("--"), &relative]);
        fs::rename(&model, place.at("model")).unwrap();
    }
}

#[test]
fn tensor_names_that_would_write_to_a_terminal_or_a_report_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    for (name, shown) in
        [("a\u{1b}[2Jb", "`a\\u{1b}[2Jb`"), ("a\nerror: b", "`a\\nerror: b`"), ("a` ![](b)", "no name needs")]
    {
        let header = json!({name: {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}).to_string();
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        fs::write(&path, file).unwrap();
        refused(&["inspect", path.to_str().unwrap()], shown);
        assert_eq!(stderr(&draftfast(&["inspect", path.to_str().unwrap()])).lines().count(), 1);
    }
}

#[test]
fn a_checkpoint_cut_short_while_it_is_mapped_ends_the_run_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // Headers of the full size over holes: a second or more of work without a gigabyte on disk.
    fs::create_dir(at("model")).unwrap();
    draftfast::checkpoint::synth::write_headers(
        "qwen3.5-dense",
        draftfast::checkpoint::synth::Scale::Full,
        &at("model"),
    )
    .unwrap();
    fs::write(at("ids.txt"), (0..65_536).map(|id| format!("{id}\n")).collect::<String>()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_draftfast"));
    command.args(["quantize", "--scale", "mse", "-j1", "--vocab"]).args([at("ids.txt"), at("model")]);
    let mut child = command.arg("-o").arg(at("out")).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let is_staged = || {
        let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path().join("drafter.safetensors"));
        names.into_iter().any(|drafter| drafter.exists())
    };
    let begin = Instant::now();
    while !is_staged() && begin.elapsed() < SOON && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    for entry in fs::read_dir(at("model")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(1 << 20).unwrap();
        }
    }
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("was truncated or became unreadable") && said.contains("hint:"), "{said}");
    assert!(!at("out").exists());
}

#[test]
fn limits_of_memory_and_time_are_kept_and_a_smaller_one_is_said() {
    let place = Place::new();
    let under = |kilobytes: u64, args: &str| {
        let script = format!("ulimit -t 20; ulimit -v {kilobytes}; exec {} {args}", env!("CARGO_BIN_EXE_draftfast"));
        Command::new("sh").args(["-c", &script]).output().unwrap()
    };
    let (model, ids, out) = (place.at("model"), place.at("ids.txt"), place.at("out"));
    // Everything of a tiny model, its map included, in half a gigabyte of address space.
    for args in [
        format!("inspect {model}"),
        format!("quantize {model} --vocab {ids} -o {out} -j2"),
        format!("verify {out} --model {model} -j2"),
        format!("verify-sha {out} -j2"),
    ] {
        let output = under(512 << 10, &args);
        assert!(output.status.success(), "{args}: {}", stderr(&output));
    }
    // A shard that does not fit is a sentence, not a crash.
    let sparse = fs::File::create(place.at("big.safetensors")).unwrap();
    let header = br#"{"hidden_states":{"dtype":"BF16","shape":[4194304,256],"data_offsets":[0,2147483648]}}"#;
    std::os::unix::fs::FileExt::write_all_at(&sparse, &(header.len() as u64).to_le_bytes(), 0).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, header, 8).unwrap();
    sparse.set_len(8 + header.len() as u64 + (2 << 30)).unwrap();
    let args = format!("verify {out} --model {model} -j2 --hidden-states {}", place.at("big.safetensors"));
    let output = under(1 << 20, &args);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot map"), "{}", stderr(&output));
    // A second of processor time is too little to search the scales of 65,536 rows: said, and nothing is left.
    let work = tempfile::tempdir().unwrap();
    let model = work.path().join("model");
    fs::create_dir(&model).unwrap();
    draftfast::checkpoint::synth::write_headers("qwen3.5-dense", draftfast::checkpoint::synth::Scale::Full, &model)
        .unwrap();
    fs::write(work.path().join("ids.txt"), (0..65_536).map(|id| format!("{id}\n")).collect::<String>()).unwrap();
    let quantize = "quantize model --scale mse --vocab ids.txt -j1 -o out";
    let script = format!("ulimit -S -t 1; exec {} {quantize}", env!("CARGO_BIN_EXE_draftfast"));
    let output = Command::new("sh").args(["-c", &script]).current_dir(work.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("interrupted: nothing was written"), "{}", stderr(&output));
    assert_eq!(fs::read_dir(work.path()).unwrap().count(), 2, "the model and the ids");
}

#[test]
fn an_output_on_a_read_only_disk_is_refused_before_the_work() {
    let place = Place::new();
    let disk = place.at("disk");
    fs::create_dir(&disk).unwrap();
    if !Command::new("mount").args(["-t", "tmpfs", "-o", "ro", "none", &disk]).output().unwrap().status.success() {
        println!("skipped: mounting needs root");
        return;
    }
    let args = ["quantize", &place.at("model"), "--vocab", &place.at("ids.txt"), "-o", &place.at("disk/out")];
    let output = draftfast(&args);
    assert!(Command::new("umount").arg(&disk).status().unwrap().success());
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("Read-only file system") && stderr(&output).contains("hint"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_file_that_is_not_there_is_named_as_it_was_given() {
    let place = Place::new();
    let (model, ids, out) = (place.at("model"), place.at("ids.txt"), place.at("out"));
    for args in [
        vec!["quantize", &model, "--vocab", &ids, "--importance", "/nonexist", "-o", &out],
        vec!["quantize", &model, "--vocab", "/nonexist", "-o", &out],
        vec!["quantize", "/nonexist", "--vocab", &ids, "-o", &out],
        vec!["quantize", &model, "--mtp-from", "/nonexist", "--vocab", &ids, "-o", &out],
        vec!["count", "/nonexist", "--corpus", &ids, "-o", &out],
        vec!["count", &model, "--corpus", "/nonexist", "-o", &out],
        vec!["build-vocab", &model, "--counts", "/nonexist", "-o", &out],
        vec!["build-vocab", &model, "--mixture", "/nonexist", "-o", &out],
        vec!["merge", "/nonexist", "-o", &out],
        vec!["plan", &model, "--hardware", "gb10", "--vllm-metrics", "/nonexist"],
        vec!["verify", "/nonexist", "--model", &model],
        vec!["verify-sha", "/nonexist"],
        vec!["inspect", "/nonexist"],
        vec!["export", "/nonexist", "--layout", "compressed-tensors", "-o", &out],
        vec!["convert", "/nonexist", "mask.pt", "--target-rows", "9"],
    ] {
        refused(&args, "`/nonexist");
    }
}
