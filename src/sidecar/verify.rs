//! Compares a sidecar with the model it was made from: every kept row and every MTP tensor, from the bytes on disk.
//!
//! Each quantized matrix is decoded and set against its source rows. All error figures are computed anew and must equal
//! the manifest's to the last digit; apart from that, no row may be so far from its source that it can only be another
//! row. Tensors that are not quantized must be equal bit for bit.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use rayon::prelude::*;
use serde::Serialize;

use super::{ErrorRecord, FileRecord, NVFP4, Sidecar, TensorRecord, target::file_records, write::error_record};
use crate::{
    checkpoint::{Dtype, Overrides, PackedScales, Source, Tensor, recipe},
    gpu::{Device, ErrorMeter},
    interrupt,
    nvfp4::{self, BLOCK, ErrorStats},
    quantize::{DRAFT_HEAD, Matrix, PackedMatrix, ROW_SHIFT, Sources, TOKEN_IDS, Tile, hash_sources, merged},
    report::Progress,
};

/// A decoded row further than this from its source, relative to the source's norm, is another row: rounding to NVFP4
/// costs about 0.1, feedback rounding up to 0.3, and a random row is 1.4 away.
const OTHER_ROW_ERROR: f64 = 0.7;

/// What `verify` found.
#[derive(Debug, Default, Serialize)]
pub struct Verification {
    /// Quantized matrices compared.
    pub n_quantized: usize,
    /// Tensors compared bit for bit.
    pub n_kept: usize,
    /// Rows of the draft head.
    pub n_rows: usize,
    /// One sentence for each thing that is wrong; empty when all is well.
    pub problems: Vec<String>,
}

/// Checks `sidecar` against the model it was made from.
///
/// # Errors
/// The model cannot be read, or the run was interrupted; what is wrong with the sidecar is returned, not an error.
pub fn verify(sidecar: &Sidecar, sources: Sources<'_>, device: &Device, progress: &Progress) -> Result<Verification> {
    let mut found = Verification { n_rows: sidecar.manifest.vocabulary.n_rows, ..Verification::default() };
    let problems = &mut found.problems;
    check_files("the target", &sidecar.manifest.target.files, &file_records(sources.target)?, problems);
    if let Some(mtp_from) = sources.mtp_from {
        check_files("the MTP source", &sidecar.manifest.target.mtp_files, &file_records(mtp_from)?, problems);
    }
    note(problems, check_tensor_set(sidecar));
    note(problems, check_complete(sidecar, sources));
    note(problems, check_token_ids(sidecar));
    note(problems, check_digests(sidecar, sources, progress));

    let mut group_scales = BTreeMap::new();
    for (name, record) in &sidecar.manifest.tensors {
        interrupt::check()?;
        if record.to == NVFP4 {
            found.n_quantized += 1;
            let checked = check_matrix(sidecar, name, record, sources, device, progress);
            let checked = checked.and_then(|scale| check_shared(&mut group_scales, name, record, scale));
            note(&mut found.problems, checked);
        } else {
            found.n_kept += 1;
            note(&mut found.problems, check_kept(sidecar, name, record, sources));
        }
    }
    interrupt::check()?;
    Ok(found)
}

/// The number of bytes that [`verify`] reads of the model, for a progress bar.
pub fn verify_bytes(sidecar: &Sidecar, sources: Sources<'_>) -> u64 {
    let digest = |record: &TensorRecord| {
        let entries = sources.pick(source(record)).entries();
        entries.get(&record.source).map_or(0, crate::checkpoint::TensorEntry::n_bytes)
    };
    // The shapes are the manifest's, which has not been checked yet.
    let weights = |record: &TensorRecord| record.shape.iter().fold(2, |n: u64, side| n.saturating_mul(*side as u64));
    let decoded = |record: &TensorRecord| if record.to == NVFP4 { weights(record) } else { 0 };
    let all = sidecar.manifest.tensors.values().map(|record| digest(record).saturating_add(decoded(record)));
    all.fold(0, u64::saturating_add)
}

fn note(problems: &mut Vec<String>, checked: Result<()>) {
    if let Err(error) = checked {
        problems.push(format!("{error:#}"));
    }
}

fn check_files(
    whose: &str,
    expected: &BTreeMap<String, FileRecord>,
    found: &BTreeMap<String, FileRecord>,
    problems: &mut Vec<String>,
) {
    for (name, record) in expected {
        match found.get(name) {
            None => problems.push(format!("{whose} has no `{name}`, which the sidecar was made from")),
            Some(other) if other != record => problems.push(format!(
                "`{name}` of {whose} has changed: {} bytes with sha256 `{}` ({}), expected {} bytes with `{}`",
                other.n_bytes, other.sha256, other.covers, record.n_bytes, record.sha256
            )),
            Some(_) => {}
        }
    }
}

/// The drafter has the tensors that the manifest implies, and no other.
fn check_tensor_set(sidecar: &Sidecar) -> Result<()> {
    let mut expected = BTreeSet::from([TOKEN_IDS.to_owned()]);
    if sidecar.manifest.recipe.row_shift {
        expected.insert(ROW_SHIFT.to_owned());
    }
    for (name, record) in &sidecar.manifest.tensors {
        if record.to == NVFP4 {
            expected.extend(["weight", "weight_scale", "weight_scale_2"].map(|part| format!("{name}.{part}")));
        } else {
            expected.insert(name.clone());
        }
    }
    let found: BTreeSet<_> =
        sidecar.drafter.entries().keys().chain(sidecar.drafter.unknown().keys()).cloned().collect();
    if let Some(missing) = expected.difference(&found).next() {
        bail!("the drafter has no tensor `{missing}`");
    }
    if let Some(extra) = found.difference(&expected).next() {
        bail!("the drafter has a tensor `{extra}` that the manifest does not list");
    }
    Ok(())
}

/// Every MTP tensor that the model has is in the sidecar.
fn check_complete(sidecar: &Sidecar, sources: Sources<'_>) -> Result<()> {
    let recipe = recipe(sources.target, sources.mtp_from, &Overrides::default())?;
    let records = sidecar.manifest.tensors.values();
    // The multipliers of an FP8 linear are dissolved in its new scales.
    let sources_of = |record: &'_ TensorRecord| {
        let scales = record.scales.iter().map(|scale| scale.source.clone());
        std::iter::once(record.source.clone()).chain(scales).collect::<Vec<_>>()
    };
    let listed: BTreeSet<_> = records.flat_map(sources_of).collect();
    let linears = recipe.linears.iter().map(|linear| &linear.name);
    for name in linears.chain(recipe.kept.iter().map(|kept| &kept.name)).chain([&recipe.head.name]) {
        ensure!(listed.contains(name), "the model's tensor `{name}` is not in the sidecar");
    }
    Ok(())
}

fn check_token_ids(sidecar: &Sidecar) -> Result<()> {
    let tensor = expect(sidecar, TOKEN_IDS, Dtype::I64, &[sidecar.vocab.n_rows()])?;
    let (ids, _) = tensor.data.as_chunks::<8>();
    for (row, (found, expected)) in ids.iter().zip(sidecar.vocab.row_ids()).enumerate() {
        let found = i64::from_le_bytes(*found);
        ensure!(
            found == i64::from(expected),
            "tensor `{TOKEN_IDS}`: row {row} is token `{found}`, expected `{expected}` as the vocabulary says"
        );
    }
    Ok(())
}

/// The source tensors are those that the sidecar was made from.
fn check_digests(sidecar: &Sidecar, sources: Sources<'_>, progress: &Progress) -> Result<()> {
    let records = || sidecar.manifest.tensors.values();
    let tensors = records().map(|record| (record, &record.source, &record.source_tree_sha256));
    let scales = records()
        .flat_map(|record| record.scales.iter().map(move |scale| (record, &scale.source, &scale.source_tree_sha256)));
    let expected: Vec<_> = tensors.chain(scales).collect();
    let names = expected.iter().map(|(record, name, _)| (name.as_str(), source(record)));
    let digests = hash_sources(names.collect(), sources, progress)?;
    for (record, name, sha256) in expected {
        let found = &digests[name].sha256;
        ensure!(
            found == sha256,
            "`{}`: tensor `{name}` has changed since the sidecar was made: tree sha256 `{found}`, expected `{sha256}`",
            record.source_file,
        );
    }
    let head = &sidecar.manifest.target;
    ensure!(
        digests.get(&head.head_tensor).is_some_and(|tree| tree.sha256 == head.head_tree_sha256),
        "tensor `{}` of the target is not the one the sidecar was made from",
        head.head_tensor
    );
    Ok(())
}

fn source(record: &TensorRecord) -> Source {
    if record.mtp_from { Source::MtpFrom } else { Source::Target }
}

fn check_kept(sidecar: &Sidecar, name: &str, record: &TensorRecord, sources: Sources<'_>) -> Result<()> {
    let original = sources.pick(source(record)).tensor(&record.source)?;
    let copy = expect(sidecar, name, original.dtype, original.shape)?;
    let at = copy.data.iter().zip(original.data).position(|(a, b)| a != b);
    match at {
        None => Ok(()),
        Some(at) => bail!("tensor `{name}` differs from the target's at byte {at}; it should be equal bit for bit"),
    }
}

/// Compares one quantized matrix with its source; returns its global scale.
fn check_matrix(
    sidecar: &Sidecar,
    name: &str,
    record: &TensorRecord,
    sources: Sources<'_>,
    device: &Device,
    progress: &Progress,
) -> Result<f32> {
    let at = || format!("tensor `{name}`");
    let &[n, k] = record.shape.as_slice() else { bail!("tensor `{name}`: the manifest's shape is not two numbers") };
    ensure!(k.is_multiple_of(BLOCK), "tensor `{name}`: K is {k}, expected a multiple of {BLOCK}");
    let matrix = Matrix {
        name: name.to_owned(),
        source: record.source.clone(),
        fp8_scale: if record.from == NVFP4 { None } else { record.scales.first().map(|scale| scale.source.clone()) },
        packed: packed_scales(record),
        checkpoint: source(record),
        n,
        k,
        row_ids: (name == DRAFT_HEAD).then(|| sidecar.vocab.row_ids().collect()),
        fused: record.fused.clone(),
    };
    let codes = expect(sidecar, &format!("{name}.weight"), Dtype::U8, &[n, k / 2])?;
    let block_scales = expect(sidecar, &format!("{name}.weight_scale"), Dtype::F8_E4M3, &[n, k / BLOCK])?;
    let global_scale = expect(sidecar, &format!("{name}.weight_scale_2"), Dtype::F32, &[])?;
    let global_scale = f32::from_le_bytes(global_scale.data.try_into().with_context(at)?);
    check_scales(name, k, block_scales.data, global_scale)?;
    if let Some(scales) = &matrix.packed {
        let packed = PackedMatrix::open(&matrix, scales, sources)?;
        check_sliced(&matrix, &packed, codes.data, block_scales.data, global_scale)?;
        return Ok(global_scale);
    }
    let expected = record.error.as_ref().with_context(at).context("the manifest has no error figures")?;
    let row_shift = read_row_shift(sidecar, &matrix)?;
    let original = matrix.open(sources, row_shift)?;
    let n_source_rows = if matrix.is_head() { sidecar.manifest.target.target_rows } else { n };
    ensure!(
        original.tensor.shape == [n_source_rows, k] && (!matrix.is_head() || n == sidecar.vocab.n_rows()),
        "tensor `{name}` has {n} rows of {k}, its source `{}` has shape {:?}",
        record.source,
        original.tensor.shape
    );
    let meter = if let Device::Cuda(gpu) = device { Some(ErrorMeter::new(gpu)?) } else { None };
    let tiles = matrix.tiles().into_par_iter().map(|rows| {
        interrupt::check()?;
        let (from, to) = (rows.start * k, rows.end * k);
        let (codes, scales) = (&codes.data[from / 2..to / 2], &block_scales.data[from / BLOCK..to / BLOCK]);
        progress.advance((rows.len() * k * 2) as u64);
        let tile = matrix.read(&original, rows)?;
        match &meter {
            Some(meter) => tile.with_gpu_rows(|rows| meter.error_stats(rows, codes, scales, k, global_scale)),
            None => Ok(error_stats(&tile, codes, scales, k, global_scale)),
        }
    });
    let stats = merged(&tiles.collect::<Result<Vec<_>>>()?);
    check_rows(&matrix, &stats)?;
    let found = ErrorRecord {
        weighted_relative_error: expected.weighted_relative_error,
        ..error_record(&expected.scale, global_scale, &stats)
    };
    check_figures(name, expected, &found)?;
    Ok(global_scale)
}

fn error_stats(tile: &Tile<'_>, codes: &[u8], scales: &[u8], k: usize, global_scale: f32) -> ErrorStats {
    match tile {
        Tile::Bf16(tile) => nvfp4::error_stats(tile, codes, scales, k, global_scale, None),
        Tile::F16(tile) => nvfp4::error_stats(tile, codes, scales, k, global_scale, None),
        Tile::F32(tile) => nvfp4::error_stats(tile, codes, scales, k, global_scale, None),
    }
}

fn packed_scales(record: &TensorRecord) -> Option<PackedScales> {
    let (true, [block_scale, global_scale]) = (record.from == NVFP4, record.scales.as_slice()) else { return None };
    let global_scale = global_scale.source.clone();
    let divides = global_scale.ends_with("weight_global_scale");
    Some(PackedScales { block_scale: block_scale.source.clone(), global_scale, divides })
}

/// Rows of a matrix that was NVFP4 already are those of the source, bit for bit.
fn check_sliced(
    matrix: &Matrix,
    packed: &PackedMatrix<'_>,
    codes: &[u8],
    block_scales: &[u8],
    global_scale: f32,
) -> Result<()> {
    let name = &matrix.name;
    ensure!(
        global_scale.to_bits() == packed.global_scale.to_bits(),
        "tensor `{name}` has global scale {global_scale}, its source has {}",
        packed.global_scale
    );
    let rows = codes.chunks_exact(matrix.k / 2).zip(block_scales.chunks_exact(matrix.k / BLOCK));
    for (row, (codes, block_scales)) in rows.enumerate() {
        let (source_codes, source_scales) = packed.row(matrix, row)?;
        ensure!(
            codes == source_codes && block_scales == source_scales,
            "tensor `{name}`: row {row} is not its source row bit for bit"
        );
    }
    Ok(())
}

fn read_row_shift(sidecar: &Sidecar, matrix: &Matrix) -> Result<Option<Vec<f32>>> {
    if !matrix.is_head() || !sidecar.manifest.recipe.row_shift {
        return Ok(None);
    }
    let tensor = expect(sidecar, ROW_SHIFT, Dtype::F32, &[matrix.k])?;
    Ok(Some(tensor.data.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()))
}

/// The tensor of the drafter, with this dtype and shape.
fn expect<'a>(sidecar: &'a Sidecar, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Tensor<'a>> {
    let tensor = sidecar.drafter.tensor(name)?;
    ensure!(
        tensor.dtype == dtype && tensor.shape == shape,
        "tensor `{name}` is {} {:?}, expected {dtype} {shape:?}",
        tensor.dtype,
        tensor.shape
    );
    Ok(tensor)
}

/// No NaN and no negative scale.
fn check_scales(name: &str, k: usize, block_scales: &[u8], global_scale: f32) -> Result<()> {
    ensure!(
        global_scale.is_finite() && global_scale > 0.0,
        "tensor `{name}`: the global scale is {global_scale}, expected a positive number"
    );
    if let Some(at) = block_scales.iter().position(|&code| code >= 0x7F) {
        bail!(
            "tensor `{name}`: the block scale of row {}, block {} is code {:#04x}, which is NaN or negative",
            at / (k / BLOCK),
            at % (k / BLOCK),
            block_scales[at]
        );
    }
    Ok(())
}

/// Each row decodes to its own source row.
fn check_rows(matrix: &Matrix, stats: &ErrorStats) -> Result<()> {
    for (row, error) in stats.rows().iter().enumerate() {
        let relative = error.relative();
        if relative > OTHER_ROW_ERROR || relative.is_nan() {
            let source_row = matrix.row_ids.as_ref().map_or(row, |ids| ids[row] as usize);
            bail!(
                "tensor `{}`: row {row} does not decode to row {source_row} of `{}`: relative error {relative:.3}",
                matrix.name,
                matrix.source
            );
        }
    }
    Ok(())
}

fn check_figures(name: &str, expected: &ErrorRecord, found: &ErrorRecord) -> Result<()> {
    ensure!(
        expected == found,
        "tensor `{name}` has other error figures than the manifest: relative error {} (manifest {}), global scale {} \
         (manifest {}), worst row {} (manifest {})",
        found.relative_error,
        expected.relative_error,
        found.global_scale,
        expected.global_scale,
        found.worst_row,
        expected.worst_row
    );
    Ok(())
}

/// Parts that runtimes fuse have one global scale.
fn check_shared(
    groups: &mut BTreeMap<String, (String, f32)>,
    name: &str,
    record: &TensorRecord,
    global_scale: f32,
) -> Result<()> {
    let Some(fused) = &record.fused else { return Ok(()) };
    let (first, shared) = groups.entry(fused.clone()).or_insert_with(|| (name.to_owned(), global_scale));
    ensure!(
        shared.to_bits() == global_scale.to_bits(),
        "tensor `{name}` has global scale {global_scale}, `{first}` has {shared}: parts of `{fused}` must share one"
    );
    Ok(())
}
