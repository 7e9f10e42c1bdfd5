//! Checkpoints and sidecars.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use clap::Parser;
use draftfast::{
    checkpoint::{
        Checkpoint, Overrides, ledger, recipe,
        synth::{self, Scale},
    },
    cli::Cli,
    commands,
    gpu::Device,
    inspect::{InspectConfig, inspect},
    plan,
    quantize::Sources,
    report::{Progress, Terminal},
    sidecar::{self, Sidecar},
    vocab::forms,
};

use crate::scratch::{Scratch, parts};

/// The families whose configs and headers are mutated.
pub const FAMILIES: [&str; 4] = ["qwen3.5-dense", "qwen3.5-moe", "qwen3-next", "deepseek-v3"];

fn looking() -> InspectConfig {
    InspectConfig { n_rows: 64, target_rows: Some(100), overrides: Overrides::default() }
}

/// One safetensors file: every tensor lies in the file and has the bytes of its shape, and the reference crate agrees.
pub fn safetensors(data: &[u8]) {
    static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("safetensors"));
    let path = SCRATCH.write("x.safetensors", data);
    let _ = inspect(&path, None, &looking());
    let _ = forms::read(&path, Some(100));
    let Ok(file) = Checkpoint::open_file(&path) else { return };
    for (name, entry) in file.entries() {
        let tensor = file.tensor(name).expect("a tensor that is listed can be mapped");
        let n_bits = entry.shape.iter().product::<usize>() * entry.dtype.bitsize();
        assert_eq!(tensor.data.len() * 8, n_bits, "{name}");
        let _ = tensor.bf16(0..entry.shape.iter().product());
    }
    if file.unknown().is_empty() {
        let theirs = safetensors::SafeTensors::deserialize(data).expect("what we accept is a safetensors file");
        assert_eq!(theirs.len(), file.entries().len());
    }
}

/// `model.safetensors.index.json` over two shards.
pub fn index(data: &[u8]) {
    static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| {
        let scratch = Scratch::new("index");
        scratch.write("config.json", b"{}");
        for name in ["a", "b"] {
            let header = format!(r#"{{"{name}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#);
            let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), b"x"].concat();
            scratch.write(&format!("{name}.safetensors"), &bytes);
        }
        scratch
    });
    SCRATCH.write("model.safetensors.index.json", data);
    if let Ok(model) = Checkpoint::open(SCRATCH.dir()) {
        assert!(model.shard_files().all(|file| file.starts_with(SCRATCH.dir())));
    }
}

/// The config of a model of some family, whose tensors are sound.
pub fn config(data: &[u8]) {
    static MODELS: LazyLock<Vec<Scratch>> = LazyLock::new(|| {
        let model = |family: &&str| {
            let scratch = Scratch::new(family);
            synth::write_headers(family, Scale::Tiny, scratch.dir()).expect("the synthetic headers are written");
            scratch
        };
        FAMILIES.iter().map(model).collect()
    });
    let Some((first, rest)) = data.split_first() else { return };
    let model = &MODELS[usize::from(*first) % MODELS.len()];
    model.write("config.json", rest);
    decide(model.dir());
}

/// A config and a safetensors header, whose data are a hole in a file.
pub fn recipe_of(data: &[u8]) {
    /// More than any checkpoint has.
    const MAX_DATA_BYTES: u64 = 1 << 42;
    static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("recipe"));
    let [config, header] = parts(data);
    SCRATCH.write("config.json", config);
    let offsets = serde_json::from_slice::<serde_json::Value>(header).unwrap_or_default();
    let end = |tensor: &serde_json::Value| tensor.get("data_offsets")?.get(1)?.as_u64();
    let n_data_bytes = offsets.as_object().into_iter().flatten().filter_map(|(_, tensor)| end(tensor)).max();
    let path = SCRATCH.write("model.safetensors", &[&(header.len() as u64).to_le_bytes(), header].concat());
    let file = fs::OpenOptions::new().write(true).open(path).expect("the scratch file can be opened");
    let n_data_bytes = n_data_bytes.unwrap_or(0).min(MAX_DATA_BYTES);
    file.set_len(8 + header.len() as u64 + n_data_bytes).expect("a hole takes no room");
    decide(SCRATCH.dir());
}

/// Everything that is decided from headers alone.
fn decide(dir: &Path) {
    let _ = inspect(dir, None, &looking());
    let Ok(model) = Checkpoint::open(dir) else { return };
    let Ok(recipe) = recipe(&model, None, &Overrides::default()) else { return };
    for n_rows in [1, 64, recipe.target_rows] {
        let _ = ledger::ledger(&recipe, n_rows);
    }
    let _ = plan::model::drafter(&recipe, model.config());
    let _ = plan::model::target(&model, &recipe, None);
    let _ = sidecar::drafter_config(model.config(), &Default::default());
}

/// A tiny model and its sidecar, built once.
pub fn tiny_sidecar() -> &'static (PathBuf, PathBuf) {
    static BUILT: LazyLock<(PathBuf, PathBuf)> = LazyLock::new(|| {
        let scratch = Scratch::new("built");
        let (model, out) = (scratch.dir().join("model"), scratch.dir().join("out"));
        let ids = scratch.write("ids.txt", (0..64).map(|id| format!("{id}\n")).collect::<String>().as_bytes());
        let run = |words: &[&str]| {
            let cli = Cli::parse_from([&["draftfast", "-q"], words].concat());
            commands::run(&cli, &Terminal::new(&cli.global)).expect("the tiny sidecar is built");
        };
        let text = |path: &PathBuf| path.to_str().expect("the scratch path is UTF-8").to_owned();
        run(&["synth", "qwen3.5-dense", "--scale", "tiny", "--force", "-o", &text(&model)]);
        run(&["quantize", "--force", "--vocab", &text(&ids), &text(&model), "-o", &text(&out)]);
        (model, out)
    });
    &BUILT
}

/// Stands in the seeds for the digest of the manifest's provenance, which changes with every mutation.
pub const PROVENANCE_SHA256: &str = "PROVENANCE_SHA256";

/// What the drafter's header says of a manifest; nothing when it is none.
pub fn provenance_sha256(manifest: &[u8]) -> String {
    let manifest: Option<sidecar::Manifest> = serde_json::from_slice(manifest).ok();
    manifest.and_then(|manifest| manifest.provenance_sha256().ok()).unwrap_or_default()
}

/// A manifest and the header of its drafter, whose data are those of a real one.
pub fn sidecar(data: &[u8]) {
    static SCRATCH: LazyLock<(Scratch, Checkpoint, Vec<u8>)> = LazyLock::new(|| {
        let scratch = Scratch::new("sidecar");
        let (model, out) = tiny_sidecar();
        for name in ["config.json", "draft_vocab.safetensors"] {
            scratch.write(name, &fs::read(out.join(name)).expect("the tiny sidecar is there"));
        }
        let drafter = fs::read(out.join(sidecar::DRAFTER_NAME)).expect("the tiny sidecar is there");
        let (n_header_bytes, rest) = drafter.split_first_chunk().expect("a safetensors file has a length");
        let data = rest[u64::from_le_bytes(*n_header_bytes) as usize..].to_vec();
        (scratch, Checkpoint::open(model).expect("the tiny model is there"), data)
    });
    let (scratch, target, tensors) = &*SCRATCH;
    let [manifest, header] = parts(data);
    scratch.write(sidecar::MANIFEST_NAME, manifest);
    let header = String::from_utf8_lossy(header).replace(PROVENANCE_SHA256, &provenance_sha256(manifest));
    let drafter = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), tensors].concat();
    scratch.write(sidecar::DRAFTER_NAME, &drafter);
    let _ = inspect(scratch.dir(), None, &looking());
    let Ok(found) = Sidecar::open(scratch.dir()) else { return };
    let sources = Sources { target, mtp_from: None };
    let _ = sidecar::verify_bytes(&found, sources);
    let _ = sidecar::verify(&found, sources, &Device::Cpu, &Progress::silent());
}
