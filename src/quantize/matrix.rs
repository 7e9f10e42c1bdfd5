//! One matrix on its way from the checkpoint to the sidecar.

use std::ops::Range;

use anyhow::{Context, Result};
use rayon::prelude::*;
use safetensors::Dtype;

use super::{
    DRAFT_HEAD, Sources,
    fp8::Fp8Scale,
    method::{Rounder, Way},
    tile::{SourceMatrix, Tile},
};
use crate::{
    checkpoint::{PackedScales, Recipe, Source},
    checksum::PIECE_BYTES,
    error::advise,
    gpu::{Device, Quantizer},
    interrupt,
    nvfp4::{self, BLOCK, ErrorStats, Weight},
    report::Progress,
    sidecar::DrafterFile,
    vocab::DraftVocab,
};

/// Weights in a tile: 256 KiB of BF16, which stays in a core's cache from the codes to the error figures.
const TILE_WEIGHTS: usize = 1 << 17;
/// Weights whose codes are written together, 512 KiB of them: smaller writes cost the kernel more, a byte. They are one tile
/// where starting one costs more than a cache miss: a card's kernel, or a pass over the plan of error feedback.
const WRITTEN_WEIGHTS: usize = 1 << 20;

/// A matrix to quantize.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// Its name in the sidecar, without `.weight`.
    pub name: String,
    /// The source tensor.
    pub source: String,
    /// The tensor of its multipliers, when it is FP8.
    pub fp8_scale: Option<String>,
    /// Its scales, when it is NVFP4 already.
    pub packed: Option<PackedScales>,
    /// The checkpoint that holds them.
    pub checkpoint: Source,
    /// Rows in the sidecar.
    pub n: usize,
    /// Columns.
    pub k: usize,
    /// The source row of each row; `None` when all rows are taken in order.
    pub row_ids: Option<Vec<u32>>,
    /// Parts with the same value share a global scale.
    pub fused: Option<String>,
}

/// The matrices of a recipe: the draft head, then the linears in the recipe's order.
pub fn matrices(recipe: &Recipe, vocab: &DraftVocab) -> Vec<Matrix> {
    let head = Matrix {
        name: DRAFT_HEAD.to_owned(),
        source: recipe.head.name.clone(),
        fp8_scale: recipe.head.scale.clone(),
        packed: recipe.head.packed.clone(),
        checkpoint: Source::Target,
        n: vocab.n_rows(),
        k: recipe.hidden_size,
        row_ids: Some(vocab.row_ids().collect()),
        fused: None,
    };
    let linears = recipe.linears.iter().map(|linear| Matrix {
        name: linear.name.strip_suffix(".weight").unwrap_or(&linear.name).to_owned(),
        source: linear.name.clone(),
        fp8_scale: linear.scale.clone(),
        packed: None,
        checkpoint: linear.source,
        n: linear.n,
        k: linear.k,
        row_ids: None,
        fused: linear.fused.clone(),
    });
    std::iter::once(head).chain(linears).collect()
}

impl Matrix {
    /// Whether this is the draft head.
    pub fn is_head(&self) -> bool {
        self.row_ids.is_some()
    }

    /// The tensors of scales that belong to the source, in a fixed order.
    pub fn scale_sources(&self) -> Vec<&str> {
        let packed = self.packed.iter().flat_map(|packed| [&packed.block_scale, &packed.global_scale]);
        self.fp8_scale.iter().chain(packed).map(String::as_str).collect()
    }

    /// What shares a global scale with this matrix.
    pub(super) fn scale_group(&self) -> &str {
        self.fused.as_deref().unwrap_or(&self.name)
    }

    /// The source tensor, and its multipliers when it is FP8.
    ///
    /// # Errors
    /// One is missing, or the multipliers do not fit.
    pub fn open<'a>(&self, sources: Sources<'a>, row_shift: Option<Vec<f32>>) -> Result<SourceMatrix<'a>> {
        let checkpoint = sources.pick(self.checkpoint);
        let tensor = checkpoint.tensor(&self.source)?;
        let n_rows = tensor.shape.first().copied().unwrap_or(0);
        let scale = self.fp8_scale.as_deref().map(|name| checkpoint.tensor(name)).transpose()?;
        let fp8_scale = scale.map(|scale| Fp8Scale::new(&scale, n_rows, self.k)).transpose()?;
        Ok(SourceMatrix { tensor, fp8_scale, row_shift })
    }

    /// The rows of each tile.
    pub fn tiles(&self) -> Vec<Range<usize>> {
        self.tiles_of(0..self.n, TILE_WEIGHTS).collect()
    }

    fn tiles_of(&self, rows: Range<usize>, n_weights: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let n_rows = n_weights.div_ceil(self.k.max(1));
        rows.clone().step_by(n_rows).map(move |first| first..(first + n_rows).min(rows.end))
    }

    /// The parts of a tile whose rows follow each other in the source: those need no gathering.
    fn stretches(&self, rows: Range<usize>) -> Vec<Range<usize>> {
        let Some(ids) = &self.row_ids else { return vec![rows] };
        let mut begin = rows.start;
        let stretches = ids[rows].chunk_by(|id, next| id + 1 == *next).map(|ids| {
            begin += ids.len();
            begin - ids.len()..begin
        });
        stretches.collect()
    }

    /// Reads the rows of a tile.
    ///
    /// # Errors
    /// As [`SourceMatrix::read`].
    pub fn read<'a>(&self, source: &SourceMatrix<'a>, rows: Range<usize>) -> Result<Tile<'a>> {
        source.read(self.row_ids.as_deref(), rows, self.k)
    }

    /// The largest magnitude of all rows. `piece_largest` has that of each piece of the source tensor, whose rows need not
    /// all be ours, if it is BF16.
    ///
    /// # Errors
    /// A weight is not finite.
    pub(super) fn amax(&self, source: &SourceMatrix<'_>, piece_largest: &[u16], progress: &Progress) -> Result<f32> {
        if let Some(amax) = self.amax_by_pieces(source, piece_largest)? {
            progress.advance((self.n * self.k * 2) as u64);
            return Ok(amax);
        }
        let largest = self.tiles().into_par_iter().map(|rows| {
            interrupt::check()?;
            progress.advance((rows.len() * self.k * 2) as u64);
            match self.read(source, rows.clone())? {
                Tile::Bf16(tile) => self.tile_amax(source, &rows, &tile),
                Tile::F16(tile) => self.tile_amax(source, &rows, &tile),
                Tile::F32(tile) => self.tile_amax(source, &rows, &tile),
            }
        });
        largest.try_reduce(|| 0.0, |a, b| Ok(a.max(b)))
    }

    /// Looks into the pieces that may hold the largest magnitude, most promising first. `None` where the pieces say nothing,
    /// or where a weight is not finite.
    fn amax_by_pieces(&self, source: &SourceMatrix<'_>, piece_largest: &[u16]) -> Result<Option<f32>> {
        if source.tensor.dtype != Dtype::BF16 || source.row_shift.is_some() {
            return Ok(None);
        }
        let mut pieces: Vec<usize> = (0..piece_largest.len()).collect();
        pieces.sort_by_key(|&piece| std::cmp::Reverse(piece_largest[piece]));
        // Compared as bits: what is not a number is larger than anything.
        let mut largest = 0;
        for piece in pieces {
            if u32::from(piece_largest[piece]) << 16 <= largest {
                break;
            }
            largest = largest.max(self.amax_of_piece(source, piece)?);
        }
        let largest = f32::from_bits(largest);
        Ok(largest.is_finite().then_some(largest))
    }

    /// The largest magnitude of our rows that have a part in a piece of the source, as bits.
    fn amax_of_piece(&self, source: &SourceMatrix<'_>, piece: usize) -> Result<u32> {
        let row_bytes = self.k * 2;
        let rows = piece * PIECE_BYTES / row_bytes..((piece + 1) * PIECE_BYTES).div_ceil(row_bytes);
        let mut largest = 0;
        let mut look = |row: usize| {
            let amax = nvfp4::amax_of_row(&source.tensor.bf16(row * self.k..(row + 1) * self.k)?);
            largest = largest.max(amax.to_bits());
            anyhow::Ok(())
        };
        match &self.row_ids {
            Some(ids) => ids.iter().map(|&id| id as usize).filter(|id| rows.contains(id)).try_for_each(&mut look)?,
            None => (rows.start..rows.end.min(self.n)).try_for_each(&mut look)?,
        }
        Ok(largest)
    }

    fn tile_amax<W: Weight>(&self, source: &SourceMatrix<'_>, rows: &Range<usize>, tile: &[W]) -> Result<f32> {
        let amax = nvfp4::amax(tile);
        if amax.is_finite() {
            return Ok(amax);
        }
        let at = nvfp4::find_non_finite(tile).context("a weight is not finite and cannot be found")?;
        let (row, column) = (rows.start + at / self.k, at % self.k);
        let row = self.row_ids.as_ref().map_or(row, |ids| ids[row] as usize);
        Err(advise(
            anyhow::anyhow!(
                "`{}`: tensor `{}` has {} in row {row}, column {column}; expected finite weights",
                source.tensor.file,
                self.source,
                tile[at].widen()
            ),
            "the checkpoint is damaged or was saved from a diverged run: fetch this shard again",
        ))
    }

    /// The energy of each column over the largest: the sum over rows of w_ik^2. A stand-in for measured inputs.
    pub(super) fn column_energy(&self, source: &SourceMatrix<'_>, progress: &Progress) -> Result<Vec<f32>> {
        fn energies<W: Weight>(tile: &[W], k: usize) -> Vec<f64> {
            let mut energies = vec![0f64; k];
            for row in tile.chunks_exact(k) {
                energies.iter_mut().zip(row).for_each(|(sum, w)| *sum += f64::from(w.widen()).powi(2));
            }
            energies
        }
        let tiles = self.tiles().into_par_iter().map(|rows| {
            interrupt::check()?;
            progress.advance((rows.len() * self.k * 2) as u64);
            Ok(match self.read(source, rows)? {
                Tile::Bf16(tile) => energies(&tile, self.k),
                Tile::F16(tile) => energies(&tile, self.k),
                Tile::F32(tile) => energies(&tile, self.k),
            })
        });
        // Summed in the order of the tiles, so that threads do not change a digit.
        let mut total = vec![0f64; self.k];
        for tile in tiles.collect::<Result<Vec<_>>>()? {
            total.iter_mut().zip(tile).for_each(|(sum, x)| *sum += x);
        }
        let largest = total.iter().copied().fold(0.0, f64::max);
        Ok(total.into_iter().map(|x| if largest > 0.0 { (x / largest) as f32 } else { 1.0 }).collect())
    }

    /// Quantizes all rows into `drafter`; returns the error figures.
    pub(super) fn quantize(
        &self,
        source: &SourceMatrix<'_>,
        rounder: &Rounder<'_>,
        device: &Device,
        drafter: &DrafterFile,
        progress: &Progress,
    ) -> Result<ErrorStats> {
        // Error feedback runs on the CPU whatever the device.
        let quantizer = match (device, &rounder.way) {
            (Device::Cuda(gpu), Way::Nearest(plan)) => Some(Quantizer::new(gpu, self.k, plan.config())?),
            _ => None,
        };
        let is_plain = quantizer.is_none() && matches!(rounder.way, Way::Nearest(_));
        let n_at_once = if is_plain { TILE_WEIGHTS } else { WRITTEN_WEIGHTS };
        let is_bf16 = source.tensor.dtype == Dtype::BF16 && source.row_shift.is_none();
        let in_place = is_plain && is_bf16 && rounder.begins_at_once();
        // Handed out one after the other, so that the file grows from its beginning and can be hashed meanwhile.
        let parts = self.tiles_of(0..self.n, WRITTEN_WEIGHTS).enumerate().par_bridge();
        let stats = parts.map_init(Packed::default, |packed, (at, rows)| {
            packed.resize(rows.len() * self.k);
            let mut stats = ErrorStats::default();
            let tiles = self.tiles_of(rows.clone(), n_at_once);
            for tile in tiles.flat_map(|tile| if in_place { self.stretches(tile) } else { vec![tile] }) {
                interrupt::check()?;
                progress.advance((tile.len() * self.k * 2) as u64);
                let (codes, block_scales) = packed.part(tile.start - rows.start..tile.end - rows.start, self.k);
                let tile = self.read(source, tile)?;
                let is_done = quantizer.is_some();
                if let Some(quantizer) = &quantizer {
                    tile.with_gpu_rows(|rows| quantizer.quantize(rows, rounder.global_scale, codes, block_scales))?;
                }
                stats.merge(&match tile {
                    Tile::Bf16(tile) => self.quantize_tile(&tile, rounder, is_done, codes, block_scales),
                    Tile::F16(tile) => self.quantize_tile(&tile, rounder, is_done, codes, block_scales),
                    Tile::F32(tile) => self.quantize_tile(&tile, rounder, is_done, codes, block_scales),
                });
            }
            let first = rows.start * self.k;
            // Scales first: the last codes make the file whole, and what is left of its digest is then taken beside the
            // report.
            drafter.write_at(&format!("{}.weight_scale", self.name), (first / BLOCK) as u64, &packed.block_scales)?;
            drafter.write_at(&format!("{}.weight", self.name), (first / 2) as u64, &packed.codes)?;
            Ok((at, stats))
        });
        let mut stats = stats.collect::<Result<Vec<_>>>()?;
        stats.sort_unstable_by_key(|(at, _)| *at);
        Ok(merged(stats.iter().map(|(_, stats)| stats)))
    }

    /// Quantizes a tile, unless that is done already; returns its error figures.
    fn quantize_tile<W: Weight>(
        &self,
        tile: &[W],
        rounder: &Rounder<'_>,
        is_done: bool,
        codes: &mut [u8],
        block_scales: &mut [u8],
    ) -> ErrorStats {
        if is_done {
            rounder.figures(tile, self.k, codes, block_scales)
        } else {
            rounder.quantize(tile, self.k, codes, block_scales)
        }
    }
}

/// Codes and block scales of some rows.
#[derive(Debug, Default)]
struct Packed {
    codes: Vec<u8>,
    block_scales: Vec<u8>,
}

impl Packed {
    fn resize(&mut self, n_weights: usize) {
        self.codes.resize(n_weights / 2, 0);
        self.block_scales.resize(n_weights / BLOCK, 0);
    }

    fn part(&mut self, rows: Range<usize>, k: usize) -> (&mut [u8], &mut [u8]) {
        let (begin, end) = (rows.start * k, rows.end * k);
        (&mut self.codes[begin / 2..end / 2], &mut self.block_scales[begin / BLOCK..end / BLOCK])
    }
}

/// The figures of consecutive tiles, merged in row order.
pub fn merged<'a>(tiles: impl IntoIterator<Item = &'a ErrorStats>) -> ErrorStats {
    let mut all = ErrorStats::default();
    for tile in tiles {
        all.merge(tile);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{checkpoint::Tensor, checksum::tree_sha256};

    #[test]
    fn the_pieces_give_the_largest_magnitude_of_the_kept_rows_alone() {
        let (n_source, k) = (1200, 1500);
        let mut weights: Vec<f32> = (0..n_source * k).map(|i| ((i * 7919 % 1009) as f32 - 504.0) * 1e-3).collect();
        // Rows that are not kept: larger than all, and no number at all. A kept one that two pieces share.
        (weights[5 * k + 3], weights[700 * k]) = (90.0, f32::NAN);
        let shared = PIECE_BYTES / 2 / k;
        weights[shared * k + k - 1] = -7.0;
        let bytes: Vec<u8> = weights.iter().flat_map(|&w| half::bf16::from_f32(w).to_le_bytes()).collect();
        let tensor = Tensor { name: "w", file: "f", dtype: Dtype::BF16, shape: &[n_source, k], data: &bytes };
        let source = SourceMatrix { tensor, fp8_scale: None, row_shift: None };
        let matrix = |row_ids: Vec<u32>| Matrix {
            name: "w".to_owned(),
            source: "w".to_owned(),
            fp8_scale: None,
            packed: None,
            checkpoint: Source::Target,
            n: row_ids.len(),
            k,
            row_ids: Some(row_ids),
            fused: None,
        };
        let largest = tree_sha256(&bytes, &Progress::silent()).unwrap().largest;
        let amax = |ids: Vec<u32>| matrix(ids).amax(&source, &largest, &Progress::silent());
        let shared = u32::try_from(shared).unwrap();
        assert_eq!(amax((0..1200).filter(|id| ![5, 700].contains(id)).collect()).unwrap(), 7.0);
        assert_eq!(amax((0..1200).filter(|id| ![5, 700, shared].contains(id)).collect()).unwrap(), 0.50390625);
        assert_eq!(amax(vec![5]).unwrap(), 90.0);
        let error = amax(vec![2, 700]).unwrap_err().to_string();
        assert!(error.contains("NaN in row 700, column 0"), "{error}");
    }

    #[test]
    fn rows_that_follow_each_other_are_one_stretch() {
        let ids: Vec<u32> = [4..7, 9..40, 3..5, 8..9].into_iter().flatten().collect();
        let matrix = Matrix {
            name: "w".to_owned(),
            source: "w".to_owned(),
            fp8_scale: None,
            packed: None,
            checkpoint: Source::Target,
            n: ids.len(),
            k: 16,
            row_ids: Some(ids),
            fused: None,
        };
        assert_eq!(matrix.stretches(1..37), [1..3, 3..34, 34..36, 36..37]);
    }
}
