//! Writes a sidecar into a staged directory: everything but the checksums, which come last.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use super::{
    DrafterFile, ErrorRecord, FORMAT_VERSION, MANIFEST_NAME, Manifest, NVFP4, RecipeRecord, ScaleSource, TargetRecord,
    TensorRecord, VocabularyRecord, config::drafter_config, metadata, target::file_records,
};
use crate::{
    checkpoint::{Ledger, Recipe, Source},
    gpu::Device,
    nvfp4::ErrorStats,
    output::StagedDir,
    quantize::{self, Importance, Matrix, Prepared, QuantizeOptions, Rounding, Sources, matrices},
    report::{self, Progress},
    vocab::{
        DraftVocab,
        forms::{self, Form},
    },
};

/// What a sidecar is made of.
#[derive(Debug)]
pub struct SidecarParts<'a> {
    /// The checkpoints.
    pub sources: Sources<'a>,
    /// Which tensors are quantized and which kept.
    pub recipe: &'a Recipe,
    /// The kept ids.
    pub vocab: &'a DraftVocab,
    /// sha256 of the target's tokenizer.json, when it has one.
    pub tokenizer_sha256: Option<String>,
    /// How the ids were chosen, for the manifest.
    pub selection: Option<serde_json::Value>,
    /// How to quantize.
    pub options: &'a QuantizeOptions,
    /// Where to quantize.
    pub device: &'a Device,
    /// Bytes of a draft step.
    pub ledger: Ledger,
}

/// Quantizes and writes `drafter.safetensors`, `draft_vocab.safetensors`, `config.json`, `manifest.json` and the report.
///
/// # Errors
/// A tensor cannot be quantized, the disk is full, or the run was interrupted.
pub fn write(parts: &SidecarParts<'_>, staged: &StagedDir, progress: &Progress) -> Result<Manifest> {
    let SidecarParts { sources, recipe, vocab, options, device, .. } = parts;
    let tensors = quantize::output_tensors(recipe, vocab, *sources, options)?;
    let prepared = quantize::prepare(recipe, vocab, *sources, options, progress)?;
    let mut manifest = manifest(parts, &prepared)?;
    let mut metadata = BTreeMap::from([
        (metadata::FORMAT.to_owned(), "pt".to_owned()),
        (metadata::DRAFTFAST_FORMAT.to_owned(), FORMAT_VERSION.to_string()),
        (metadata::VOCABULARY_SHA256.to_owned(), manifest.vocabulary.sha256.clone()),
        (metadata::HEAD_TREE_SHA256.to_owned(), manifest.target.head_tree_sha256.clone()),
        (metadata::PROVENANCE_SHA256.to_owned(), manifest.provenance_sha256()?),
    ]);
    if options.row_shift {
        metadata.insert(metadata::ROW_SHIFT.to_owned(), "true".to_owned());
    }
    let drafter = DrafterFile::create(staged, &tensors, &metadata)?;
    let figures = quantize::run(&prepared, device, &drafter, progress)?;
    measure(&mut manifest, &prepared, &figures)?;
    // The rest of the drafter's digest is one thread's work: the other files are written meanwhile.
    let (finished, written) = rayon::join(|| drafter.finish(), || write_others(parts, &manifest, staged));
    finished?;
    written?;
    Ok(manifest)
}

/// Enters the error figures into their records.
fn measure(manifest: &mut Manifest, prepared: &Prepared<'_>, figures: &BTreeMap<String, ErrorStats>) -> Result<()> {
    for (name, stats) in figures {
        let (Some((method, global_scale)), Some(record)) = (prepared.method(name), manifest.tensors.get_mut(name))
        else {
            bail!("tensor `{name}` was quantized without a record");
        };
        record.error = Some(ErrorRecord {
            weighted_relative_error: method.importance().map(|_| stats.weighted_relative()),
            ..error_record(method.name(), global_scale, stats)
        });
    }
    Ok(())
}

/// All but the drafter.
fn write_others(parts: &SidecarParts<'_>, manifest: &Manifest, staged: &StagedDir) -> Result<()> {
    let text = serde_json::to_string_pretty(manifest).context("cannot encode the manifest")? + "\n";
    staged.write(MANIFEST_NAME, text.as_bytes())?;
    // The sidecar's own form; `build` may have written it among others.
    for (name, bytes) in forms::encode(Form::Safetensors, parts.vocab, parts.tokenizer_sha256.as_deref())? {
        if !staged.path().join(name).exists() {
            staged.write(name, &bytes)?;
        }
    }
    let config = drafter_config(parts.sources.target.config(), &manifest.tensors);
    let config = serde_json::to_string_pretty(&config).context("cannot encode the config")? + "\n";
    staged.write("config.json", config.as_bytes())?;
    for (name, bytes) in report::files(staged.path(), manifest)? {
        staged.write(&name, &bytes)?;
    }
    Ok(())
}

/// The manifest, without error figures.
fn manifest(parts: &SidecarParts<'_>, prepared: &Prepared<'_>) -> Result<Manifest> {
    let SidecarParts { sources, recipe, vocab, selection, options, ledger, .. } = parts;
    let matrices = matrices(recipe, vocab);
    let mut tensors = BTreeMap::new();
    for matrix in &matrices {
        tensors.insert(matrix.name.clone(), quantized_record(matrix, parts, prepared)?);
    }
    for kept in &recipe.kept {
        let tensor = sources.pick(kept.source).tensor(&kept.name)?;
        let record = TensorRecord {
            source: kept.name.clone(),
            source_file: tensor.file.to_owned(),
            source_tree_sha256: prepared.source_tree_sha256[&kept.name].clone(),
            scales: Vec::new(),
            mtp_from: kept.source == Source::MtpFrom,
            from: tensor.dtype.to_string(),
            to: tensor.dtype.to_string(),
            shape: tensor.shape.to_vec(),
            fused: None,
            kept_because: Some(kept.reason.clone()),
            error: None,
        };
        tensors.insert(kept.name.clone(), record);
    }
    Ok(Manifest {
        format: FORMAT_VERSION,
        tool: concat!("draftfast ", env!("CARGO_PKG_VERSION")).to_owned(),
        target: TargetRecord {
            family: recipe.family.to_owned(),
            target_rows: recipe.target_rows,
            hidden_size: recipe.hidden_size,
            head_tensor: recipe.head.name.clone(),
            tied: recipe.head.tied,
            head_tree_sha256: prepared.source_tree_sha256[&recipe.head.name].clone(),
            files: file_records(sources.target)?,
            mtp_files: sources.mtp_from.map(file_records).transpose()?.unwrap_or_default(),
        },
        vocabulary: VocabularyRecord {
            sha256: vocab.sha256(),
            n_real_rows: vocab.token_ids.len(),
            n_rows: vocab.n_rows(),
            selection: selection.clone(),
        },
        recipe: recipe_record(options),
        ledger: ledger.clone(),
        tensors,
    })
}

fn quantized_record(matrix: &Matrix, parts: &SidecarParts<'_>, prepared: &Prepared<'_>) -> Result<TensorRecord> {
    let tensor = parts.sources.pick(matrix.checkpoint).tensor(&matrix.source)?;
    let scale = |name: &str| ScaleSource {
        source: name.to_owned(),
        source_tree_sha256: prepared.source_tree_sha256[name].clone(),
    };
    let method = prepared.method(&matrix.name);
    let error = method.map(|(method, global_scale)| ErrorRecord::unmeasured(method.name(), global_scale));
    let sliced = || "already NVFP4: rows and scales are sliced bit for bit".to_owned();
    Ok(TensorRecord {
        source: matrix.source.clone(),
        source_file: tensor.file.to_owned(),
        source_tree_sha256: prepared.source_tree_sha256[&matrix.source].clone(),
        scales: matrix.scale_sources().into_iter().map(scale).collect(),
        mtp_from: matrix.checkpoint == Source::MtpFrom,
        from: if matrix.packed.is_some() { NVFP4.to_owned() } else { tensor.dtype.to_string() },
        to: NVFP4.to_owned(),
        shape: vec![matrix.n, matrix.k],
        fused: matrix.fused.clone(),
        kept_because: error.is_none().then(sliced),
        error,
    })
}

/// The figures that the manifest keeps and `verify` recomputes.
pub(super) fn error_record(scale: &str, global_scale: f32, stats: &ErrorStats) -> ErrorRecord {
    let (worst_row, worst_row_relative_error) = stats.worst_row().unwrap_or_default();
    ErrorRecord {
        relative_error: stats.relative(),
        sum_sq_error: stats.sum_sq_error(),
        sum_sq_weight: stats.sum_sq_weight(),
        max_abs_error: stats.max_abs_error,
        worst_row,
        worst_row_relative_error,
        n_flushed_blocks: stats.n_flushed_blocks,
        n_saturated: stats.n_saturated,
        ..ErrorRecord::unmeasured(scale, global_scale)
    }
}

fn recipe_record(options: &QuantizeOptions) -> RecipeRecord {
    let rounding = match options.rounding {
        Rounding::Nearest => "nearest",
        Rounding::Gptq => "gptq",
    };
    let importance = match &options.importance {
        Importance::Even => None,
        Importance::Columns => Some("columns".to_owned()),
        Importance::Measured(activations) => Some(activations.sha256.clone()),
    };
    RecipeRecord { rounding: rounding.to_owned(), importance, row_shift: options.row_shift }
}
