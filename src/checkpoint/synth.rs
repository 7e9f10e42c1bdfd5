//! Writes a checkpoint of a family's exact structure with random weights: for demos, tests and benchmarks without a
//! download.
//!
//! `tiny` is a whole small model. `full` has the real sizes and writes only what a drafter needs: the head and the MTP
//! module. Left out: vision towers and n-gram tables, which no draft step reads.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    ops::Range,
    path::Path,
};

use anyhow::{Context, Result, anyhow};
use rayon::prelude::*;
use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::{
    families::FAMILIES,
    family::{Role, Row, by_name, row},
    names::fill,
    random::{Normal, Stream},
    sizes::{Sizes, config_value},
    synth_config::{ExpertLayout, Model, model},
    synth_tokenizer,
};
use crate::{error::advise, interrupt, output::StagedDir, report::Progress};

/// Standard deviation of the weights.
const WEIGHT_DEVIATION: f64 = 0.02;
/// Bytes that are made, hashed and written at a time.
const TILE_BYTES: usize = 8 << 20;
/// Bytes that one thread makes at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// A shard of a full-scale checkpoint is closed when it would grow past this.
const SHARD_BYTES: u64 = 3_000_000_000;

/// How large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// A whole model of a few megabytes.
    Tiny,
    /// The head and the MTP module at their real size.
    Full,
}

/// A tensor to be made.
struct Plan {
    dtype: Dtype,
    shape: Vec<usize>,
    fill: Fill,
}

/// How a tensor's bytes are made.
#[derive(Clone, Copy)]
enum Fill {
    /// Normal around 0.
    Weight,
    /// Normal around 1.
    Norm,
    /// Random NVFP4 codes.
    Codes,
    /// E4M3 block scales between 16 and 416.
    BlockScales,
    /// E4M3 weights of either sign.
    Fp8,
    /// F32 scales that bring codes back to about [`WEIGHT_DEVIATION`].
    Scale,
}

/// Names of the families that can be synthesized.
pub fn families() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.name)
}

/// Bytes of weights that [`write`] will make: for a progress bar.
///
/// # Errors
/// As [`write`].
pub fn n_bytes(family: &str, scale: Scale) -> Result<u64> {
    Ok(plan(family, scale)?.1.values().map(Plan::n_bytes).sum())
}

/// Writes the checkpoint into `out`.
///
/// # Errors
/// No such family, or the disk is full.
pub fn write(family: &str, scale: Scale, seed: u64, out: &StagedDir, progress: &Progress) -> Result<()> {
    let (mut model, tensors) = plan(family, scale)?;
    let shards = split(&tensors, shard_limit(scale, &tensors));
    let mut weight_map = Map::new();
    for (file, shard) in &shards {
        write_shard(out, file, shard, seed, progress)?;
        weight_map.extend(shard.iter().map(|(name, _)| ((*name).to_owned(), json!(file))));
    }
    let total_size: u64 = tensors.values().map(Plan::n_bytes).sum();
    let index = json!({
        "metadata": {"total_size": total_size, "made_by": "draftfast synth: random weights"},
        "weight_map": weight_map
    });
    write_json(out, "model.safetensors.index.json", &index)?;
    let tokenizer = synth_tokenizer::make(model.n_token_ids);
    let text = match model.config.get_mut("text_config") {
        Some(text) => text,
        None => &mut model.config,
    };
    text["eos_token_id"] = json!(tokenizer.end_of_text);
    write_json(out, "config.json", &model.config)?;
    write_json(out, "tokenizer.json", &tokenizer.tokenizer)?;
    write_json(out, "tokenizer_config.json", &tokenizer.tokenizer_config)?;
    write_json(out, "generation_config.json", &tokenizer.generation_config)
}

/// Writes the config and the shards' headers into `dir`; the weights are holes of the file system and read as zeros.
/// Enough to inspect a full-scale model without its gigabytes.
///
/// # Errors
/// No such family, or `dir` is not writable.
pub fn write_headers(family: &str, scale: Scale, dir: &Path) -> Result<()> {
    let (model, tensors) = plan(family, scale)?;
    for (file_name, shard) in split(&tensors, shard_limit(scale, &tensors)) {
        let say = || format!("`{file_name}`: cannot write");
        let header = header(&shard)?;
        let n_bytes: u64 = shard.iter().map(|(_, plan)| plan.n_bytes()).sum();
        let mut file = File::create(dir.join(&file_name)).with_context(say)?;
        file.write_all(&header).with_context(say)?;
        file.set_len(header.len() as u64 + n_bytes).with_context(say)?;
    }
    let config = serde_json::to_vec_pretty(&model.config).context("cannot encode JSON")?;
    fs::write(dir.join("config.json"), config).context("`config.json`: cannot write")
}

fn shard_limit(scale: Scale, tensors: &BTreeMap<String, Plan>) -> u64 {
    match scale {
        Scale::Full => SHARD_BYTES,
        // Several shards, so that an index is needed.
        Scale::Tiny => tensors.values().map(Plan::n_bytes).sum::<u64>() / 2 + 1,
    }
}

fn write_json(out: &StagedDir, name: &str, value: &Value) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(value).context("cannot encode JSON")?;
    text.push(b'\n');
    out.write(name, &text).map(drop)
}

impl Plan {
    fn n_bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.dtype.bitsize() as u64 / 8
    }
}

/// Every tensor of the checkpoint.
fn plan(family: &str, scale: Scale) -> Result<(Model, BTreeMap<String, Plan>)> {
    let known = || families().collect::<Vec<_>>().join("`, `");
    let family = by_name(family)
        .ok_or_else(|| advise(anyhow!("there is no family `{family}`"), format!("families are `{}`", known())))?;
    let model = model(family.name, scale).ok_or_else(|| {
        advise(anyhow!("`{}` has no full scale", family.name), "give `--scale tiny`, or a family that has one")
    })?;
    let sizes = Sizes::read(&model.config, family.sizes)?;
    let mut tensors = BTreeMap::new();
    let target = match scale {
        Scale::Tiny if family.target.is_empty() => ENDS,
        Scale::Tiny => family.target,
        Scale::Full => &ENDS[..1],
    };
    for row in family.rows.iter().chain(target) {
        add(&mut tensors, row, &sizes, &model)?;
    }
    Ok((model, tensors))
}

/// The two ends of every model: all that is written of a target without a table of its own.
const ENDS: &[Row] =
    &[row("lm_head.weight", "V, H", Role::Other), row("model.embed_tokens.weight", "V, H", Role::Other)];

/// The tensors of one row: one a layer or expert, with their scales if they are quantized.
fn add(tensors: &mut BTreeMap<String, Plan>, row: &Row, sizes: &Sizes, model: &Model) -> Result<()> {
    let is_expert = row.role == Role::RoutedExpert;
    let layout = model.experts.filter(|_| is_expert);
    if is_expert && row.name.contains("{e}") == (layout == Some(ExpertLayout::Stacked)) {
        return Ok(());
    }
    let is_linear = row.role.is_quantized() || is_expert || row.role == Role::Absorbed;
    let is_fp8 = model.is_fp8 && is_linear && row.role != Role::Combiner;
    let shape = sizes.shape(if row.shape.is_empty() { default_shape(row) } else { row.shape })?;
    for name in expand(row, sizes, model)? {
        let parts = match (shape.as_slice(), layout) {
            (&[n, k], Some(ExpertLayout::Nvfp4)) => vec![
                ("", Dtype::U8, vec![n, k / 2], Fill::Codes),
                ("_scale", Dtype::F8_E4M3, vec![n, k / 16], Fill::BlockScales),
                ("_scale_2", Dtype::F32, vec![], Fill::Scale),
            ],
            (&[n, k], _) if is_fp8 => vec![
                ("", Dtype::F8_E4M3, shape.clone(), Fill::Fp8),
                ("_scale_inv", Dtype::F32, vec![n.div_ceil(128), k.div_ceil(128)], Fill::Scale),
            ],
            _ => {
                let is_norm = row.role == Role::Small && shape.len() == 1 && !name.ends_with("bias");
                let fill = if is_norm { Fill::Norm } else { Fill::Weight };
                vec![("", Dtype::BF16, shape.clone(), fill)]
            }
        };
        for (suffix, dtype, shape, fill) in parts {
            tensors.insert(format!("{name}{suffix}"), Plan { dtype, shape, fill });
        }
    }
    Ok(())
}

/// A shape for rows whose table does not fix one.
fn default_shape(row: &Row) -> &'static str {
    match (row.role, row.name.rsplit('.').nth(1)) {
        (Role::Small, _) => "hq",
        (Role::Attention, Some("q_proj")) => "hq*d, H",
        (Role::Attention, Some("o_proj")) => "H, hq*d",
        (Role::Attention, _) => "hk*d, H",
        (_, Some("down_proj")) => "H, Im",
        (Role::RoutedExpert, _) => "Im, H",
        _ => "H, H",
    }
}

/// The names that a row stands for.
fn expand(row: &Row, sizes: &Sizes, model: &Model) -> Result<Vec<String>> {
    let n_layers = sizes.get("layers")?;
    let kinds = config_value(&model.config, "layer_types").and_then(Value::as_array);
    let of_kind = |kind: &str| -> Vec<usize> {
        (0..n_layers).filter(|&layer| kinds.is_none_or(|kinds| kinds[layer] == kind)).collect()
    };
    let has = |placeholder: &str| row.name.contains(placeholder);
    let (placeholder, layers) = if has("{all}") {
        ("{all}", (0..n_layers).collect())
    } else if has("{linear}") {
        ("{linear}", of_kind("linear_attention"))
    } else if has("{full}") {
        ("{full}", of_kind("full_attention"))
    } else if has("{i}") || has("{L}") {
        ("", (0..sizes.get("mtp")?).collect())
    } else {
        ("", vec![0])
    };
    let n_experts = if has("{e}") { sizes.get("E")? } else { 1 };
    let mut names = Vec::with_capacity(layers.len() * n_experts);
    for layer in layers {
        let pattern = if placeholder.is_empty() {
            row.name.to_owned()
        } else {
            row.name.replace(placeholder, &layer.to_string())
        };
        names.extend((0..n_experts).map(|expert| fill(&pattern, layer, n_layers, expert)));
    }
    Ok(names)
}

/// The tensors of one file, in the order of their data.
type Shard<'t> = Vec<(&'t str, &'t Plan)>;

/// File names and their tensors; a shard is filled in name order.
fn split(tensors: &BTreeMap<String, Plan>, limit: u64) -> Vec<(String, Shard<'_>)> {
    let mut shards: Vec<Shard<'_>> = Vec::new();
    let mut n_bytes = u64::MAX;
    for (name, plan) in tensors {
        n_bytes = n_bytes.saturating_add(plan.n_bytes());
        if n_bytes > limit {
            shards.push(Vec::new());
            n_bytes = plan.n_bytes();
        }
        if let Some(last) = shards.last_mut() {
            last.push((name, plan));
        }
    }
    let n_shards = shards.len();
    let named = shards.into_iter().enumerate().map(|(i, mut shard)| {
        // Wide elements first, as the reference writer does, so that every tensor is aligned.
        shard.sort_by_key(|(name, plan)| (Reverse(plan.dtype.bitsize()), *name));
        (format!("model-{:05}-of-{n_shards:05}.safetensors", i + 1), shard)
    });
    named.collect()
}

/// Length and JSON of a shard's header, padded so that the data is aligned.
fn header(shard: &Shard<'_>) -> Result<Vec<u8>> {
    let mut entries = Map::new();
    entries.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut begin = 0;
    for (name, plan) in shard {
        let end = begin + plan.n_bytes();
        let entry = json!({"dtype": plan.dtype, "shape": plan.shape, "data_offsets": [begin, end]});
        entries.insert((*name).to_owned(), entry);
        begin = end;
    }
    let mut json = serde_json::to_vec(&entries).context("cannot encode the header")?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json);
    Ok(bytes)
}

fn write_shard(out: &StagedDir, file_name: &str, shard: &Shard<'_>, seed: u64, progress: &Progress) -> Result<()> {
    let say = || format!("`{file_name}`: cannot write");
    let mut file = out.file(file_name)?;
    file.write_all(&header(shard)?).with_context(say)?;
    let generator = Generator::new(seed);
    let mut tile = vec![0; TILE_BYTES];
    for (name, plan) in shard {
        for range in tiles(plan.n_bytes()) {
            interrupt::check()?;
            let tile = &mut tile[..(range.end - range.start) as usize];
            generator.fill(name, plan.fill, range.start, tile);
            file.write_all(tile).with_context(say)?;
            progress.advance(tile.len() as u64);
        }
    }
    file.finish().map(drop)
}

fn tiles(n_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    (0..n_bytes).step_by(TILE_BYTES).map(move |begin| begin..n_bytes.min(begin + TILE_BYTES as u64))
}

/// The distributions, tabulated once a shard.
struct Generator {
    seed: u64,
    weights: Normal,
    norms: Normal,
}

impl Generator {
    fn new(seed: u64) -> Self {
        Self { seed, weights: Normal::new(0.0, WEIGHT_DEVIATION), norms: Normal::new(1.0, WEIGHT_DEVIATION) }
    }

    /// Makes the bytes of tensor `name` from byte `begin`, a multiple of 8.
    fn fill(&self, name: &str, fill: Fill, begin: u64, tile: &mut [u8]) {
        let stream = Stream::new(self.seed, name);
        tile.par_chunks_mut(CHUNK_BYTES).enumerate().for_each(|(i, chunk)| {
            let begin = begin + (i * CHUNK_BYTES) as u64;
            let words = begin / 8..;
            match fill {
                Fill::Weight => self.weights.fill(stream, begin / 2, chunk),
                Fill::Norm => self.norms.fill(stream, begin / 2, chunk),
                Fill::Codes => {
                    for (position, word) in words.zip(chunk.chunks_mut(8)) {
                        word.copy_from_slice(&stream.at(position).to_le_bytes()[..word.len()]);
                    }
                }
                Fill::BlockScales => {
                    for (position, word) in words.zip(chunk.chunks_mut(8)) {
                        for (byte, random) in word.iter_mut().zip(stream.at(position).to_le_bytes()) {
                            // 0x58 is 16, 0x7d is 416: far from the codes that kernels flush.
                            *byte = 0x58 + random % 0x26;
                        }
                    }
                }
                Fill::Fp8 => {
                    for (position, word) in words.zip(chunk.chunks_mut(8)) {
                        for (byte, random) in word.iter_mut().zip(stream.at(position).to_le_bytes()) {
                            // Magnitudes from 0x28 (1/4) to 0x77 (240): never the code of NaN.
                            *byte = (random & 0x80) | (0x28 + (random & 0x7f) % 0x50);
                        }
                    }
                }
                // The largest weight of `Weight` over 6 * 448.
                Fill::Scale => {
                    for scale in chunk.chunks_mut(4) {
                        scale.copy_from_slice(&(WEIGHT_DEVIATION as f32 * 4.0 / 2688.0).to_le_bytes());
                    }
                }
            }
        });
    }
}
