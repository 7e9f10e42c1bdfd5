//! A recipe and the kept ids in, packed tensors out, tile by tile: mapped rows -> gathered tile -> codes and block scales
//! -> their place in `drafter.safetensors`.
//!
//! Two passes over the weights. The first, [`prepare`], finds the largest magnitude of every matrix (and anything that is
//! not finite), since parts that runtimes fuse share one global scale, and takes digests of the source tensors; the second,
//! [`run`], quantizes. Neither bytes nor error figures depend on tiles or threads.

mod activations;
mod fp8;
mod matrix;
mod method;
mod packed;
mod tile;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use rayon::prelude::*;
use safetensors::Dtype;

pub use activations::{Activations, Measured};
pub use matrix::{Matrix, matrices, merged};
pub use method::{Importance, Method, QuantizeOptions, Rounding};
pub use packed::PackedMatrix;
pub use tile::{SourceMatrix, Tile};

use crate::{
    checkpoint::{Checkpoint, Recipe, Source},
    checksum::{Tree, tree_sha256},
    gpu::Device,
    interrupt,
    nvfp4::ErrorStats,
    report::Progress,
    sidecar::{DrafterFile, OutputTensor},
    vocab::DraftVocab,
};

/// The name of the draft head in the sidecar.
pub const DRAFT_HEAD: &str = "draft_head";
/// The tensor that maps a row of the draft head to its token id.
pub const TOKEN_IDS: &str = "draft_head.token_ids";

/// F32 [k], taken off every row of the draft head before it was quantized; absent unless `--row-shift` was given.
pub const ROW_SHIFT: &str = "draft_head.row_shift";

/// The checkpoints that tensors come from.
#[derive(Debug, Clone, Copy)]
pub struct Sources<'a> {
    /// The target.
    pub target: &'a Checkpoint,
    /// Another one for the MTP tensors, if the target has none.
    pub mtp_from: Option<&'a Checkpoint>,
}

/// What is known before the first weight is rounded.
#[derive(Debug)]
pub struct Prepared<'a> {
    recipe: &'a Recipe,
    vocab: &'a DraftVocab,
    sources: Sources<'a>,
    options: &'a QuantizeOptions,
    /// Those to quantize, the draft head first.
    quantized: Vec<PreparedMatrix<'a>>,
    /// Those that are NVFP4 already.
    packed: Vec<(Matrix, PackedMatrix<'a>)>,
    /// [`tree_sha256`] of every source tensor that is read, by its name.
    pub source_tree_sha256: BTreeMap<String, String>,
}

/// A matrix, opened, with its method and its scale.
#[derive(Debug)]
struct PreparedMatrix<'a> {
    matrix: Matrix,
    source: SourceMatrix<'a>,
    method: Method,
    global_scale: f32,
}

impl Prepared<'_> {
    /// The method and the global scale of a matrix, by its name in the sidecar; `None` when it is NVFP4 already.
    pub fn method(&self, name: &str) -> Option<(&Method, f32)> {
        let prepared = self.quantized.iter().find(|prepared| prepared.matrix.name == name);
        prepared.map(|prepared| (&prepared.method, prepared.global_scale))
    }
}

/// The tensors that `drafter.safetensors` will have.
pub fn output_tensors(
    recipe: &Recipe,
    vocab: &DraftVocab,
    sources: Sources<'_>,
    options: &QuantizeOptions,
) -> Result<BTreeMap<String, OutputTensor>> {
    let mut tensors = BTreeMap::new();
    let tensor = |dtype, shape: Vec<usize>| OutputTensor { dtype, shape };
    for matrix in matrices(recipe, vocab) {
        let Matrix { name, n, k, .. } = &matrix;
        tensors.insert(format!("{name}.weight"), tensor(Dtype::U8, vec![*n, k / 2]));
        tensors.insert(format!("{name}.weight_scale"), tensor(Dtype::F8_E4M3, vec![*n, k / crate::nvfp4::BLOCK]));
        tensors.insert(format!("{name}.weight_scale_2"), tensor(Dtype::F32, vec![]));
    }
    tensors.insert(TOKEN_IDS.to_owned(), tensor(Dtype::I64, vec![vocab.n_rows()]));
    if options.row_shift {
        tensors.insert(ROW_SHIFT.to_owned(), tensor(Dtype::F32, vec![recipe.hidden_size]));
    }
    for kept in &recipe.kept {
        let entry = sources.pick(kept.source).entries().get(&kept.name);
        let entry = entry.with_context(|| format!("there is no tensor `{}`", kept.name))?;
        ensure!(
            !tensors.contains_key(&kept.name),
            "tensor `{}` would be written twice, quantized and as it is",
            kept.name
        );
        tensors.insert(kept.name.clone(), tensor(entry.dtype, entry.shape.clone()));
    }
    Ok(tensors)
}

/// Bytes that [`run`] reads, for a progress bar: every weight twice, and every source tensor once for its digest.
pub fn progress_bytes(recipe: &Recipe, vocab: &DraftVocab, sources: Sources<'_>) -> u64 {
    let matrices = matrices(recipe, vocab);
    let weights: u64 = matrices.iter().map(|m| 2 * (m.n * m.k * 2) as u64).sum();
    let digests: u64 = source_names(recipe, &matrices)
        .iter()
        .filter_map(|(name, source)| sources.pick(*source).entries().get(*name))
        .map(crate::checkpoint::TensorEntry::n_bytes)
        .sum();
    weights + digests
}

/// Opens every matrix, finds its global scale, and hashes every source tensor.
///
/// # Errors
/// A weight is not finite (tensor, row and column are named), a dtype cannot be quantized, options contradict each other,
/// or the run was interrupted.
pub fn prepare<'a>(
    recipe: &'a Recipe,
    vocab: &'a DraftVocab,
    sources: Sources<'a>,
    options: &'a QuantizeOptions,
    progress: &Progress,
) -> Result<Prepared<'a>> {
    options.validate()?;
    let matrices = matrices(recipe, vocab);
    let names = source_names(recipe, &matrices);
    let trees = hash_sources(names, sources, progress)?;
    let (quantized, packed) = open(&matrices, &trees, sources, options, progress)?;
    let source_tree_sha256 = trees.into_iter().map(|(name, tree)| (name, tree.sha256)).collect();
    Ok(Prepared { recipe, vocab, sources, options, quantized, packed, source_tree_sha256 })
}

/// Those to quantize, and those that are NVFP4 already.
type Opened<'a> = (Vec<PreparedMatrix<'a>>, Vec<(Matrix, PackedMatrix<'a>)>);

fn open<'a>(
    matrices: &[Matrix],
    trees: &BTreeMap<String, Tree>,
    sources: Sources<'a>,
    options: &QuantizeOptions,
    progress: &Progress,
) -> Result<Opened<'a>> {
    let (mut quantized, mut packed) = (Vec::new(), Vec::new());
    let mut group_amax = BTreeMap::new();
    for matrix in matrices {
        if let Some(scales) = &matrix.packed {
            packed.push((matrix.clone(), PackedMatrix::open(matrix, scales, sources)?));
            continue;
        }
        let mut source = matrix.open(sources, None)?;
        if matrix.is_head() {
            source.row_shift = method::head_shift(options, matrix, &source)?;
        }
        let largest = group_amax.entry(matrix.scale_group()).or_insert(0f32);
        *largest = largest.max(matrix.amax(&source, &trees[&matrix.source].largest, progress)?);
        let method = options.method(matrix, &source, progress)?;
        quantized.push(PreparedMatrix { matrix: matrix.clone(), source, method, global_scale: 0.0 });
    }
    for prepared in &mut quantized {
        prepared.global_scale = prepared.method.global_scale(group_amax[prepared.matrix.scale_group()]);
    }
    Ok((quantized, packed))
}

/// Quantizes and copies everything the recipe names into `drafter`; returns the error figures of every matrix that was
/// quantized, by its name in the sidecar.
///
/// # Errors
/// The disk is full, or the run was interrupted.
pub fn run(
    prepared: &Prepared<'_>,
    device: &Device,
    drafter: &DrafterFile,
    progress: &Progress,
) -> Result<BTreeMap<String, ErrorStats>> {
    let &Prepared { recipe, vocab, sources, options, .. } = prepared;
    copy_kept(recipe, sources, drafter)?;
    let ids: Vec<[u8; 8]> = vocab.row_ids().map(|id| i64::from(id).to_le_bytes()).collect();
    drafter.write_at(TOKEN_IDS, 0, ids.as_flattened())?;
    for PreparedMatrix { matrix, source, global_scale, .. } in &prepared.quantized {
        drafter.write_at(&format!("{}.weight_scale_2", matrix.name), 0, &global_scale.to_le_bytes())?;
        if let Some(shift) = &source.row_shift {
            let bytes: Vec<u8> = shift.iter().flat_map(|x| x.to_le_bytes()).collect();
            drafter.write_at(ROW_SHIFT, 0, &bytes)?;
        }
    }
    for (matrix, packed) in &prepared.packed {
        packed.slice(matrix, drafter)?;
    }
    let mut figures = BTreeMap::new();
    for PreparedMatrix { matrix, source, method, global_scale } in &prepared.quantized {
        // One at a time: the plan of error feedback is large.
        let rounder = options.rounder(matrix, method, *global_scale)?;
        let stats = matrix.quantize(source, &rounder, device, drafter, progress)?;
        figures.insert(matrix.name.clone(), stats);
    }
    Ok(figures)
}

/// Copies the kept tensors bit for bit.
fn copy_kept(recipe: &Recipe, sources: Sources<'_>, drafter: &DrafterFile) -> Result<()> {
    /// Copied at a time, so that an interruption is seen and dirty pages do not pile up.
    const COPY_BYTES: usize = 8 << 20;
    recipe.kept.par_iter().try_for_each(|kept| {
        let tensor = sources.pick(kept.source).tensor(&kept.name)?;
        for (i, part) in tensor.data.chunks(COPY_BYTES).enumerate() {
            interrupt::check()?;
            drafter.write_at(&kept.name, (i * COPY_BYTES) as u64, part)?;
        }
        Ok(())
    })
}

/// Every source tensor and the checkpoint that holds it.
fn source_names<'a>(recipe: &'a Recipe, matrices: &'a [Matrix]) -> Vec<(&'a str, Source)> {
    let of_matrix = |matrix: &'a Matrix| {
        let names = std::iter::once(matrix.source.as_str()).chain(matrix.scale_sources());
        names.map(|name| (name, matrix.checkpoint)).collect::<Vec<_>>()
    };
    let kept = recipe.kept.iter().map(|kept| (kept.name.as_str(), kept.source));
    matrices.iter().flat_map(of_matrix).chain(kept).collect()
}

/// The [`tree_sha256`] of every tensor named, by its name.
///
/// # Errors
/// A tensor is missing, or the run was interrupted.
pub fn hash_sources(
    names: Vec<(&str, Source)>,
    sources: Sources<'_>,
    progress: &Progress,
) -> Result<BTreeMap<String, Tree>> {
    names
        .into_par_iter()
        .map(|(name, source)| {
            let tensor = sources.pick(source).tensor(name)?;
            Ok((name.to_owned(), tree_sha256(tensor.data, progress)?))
        })
        .collect()
}

impl<'a> Sources<'a> {
    /// The checkpoint that holds a tensor.
    pub fn pick(self, source: Source) -> &'a Checkpoint {
        match source {
            Source::Target => self.target,
            Source::MtpFrom => self.mtp_from.unwrap_or(self.target),
        }
    }
}
