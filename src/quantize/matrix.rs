//! One matrix on its way from the checkpoint to the sidecar.

use std::ops::Range;

use anyhow::{Context, Result};
use rayon::prelude::*;

use super::{
    DRAFT_HEAD, Sources,
    fp8::Fp8Scale,
    method::{Rounder, Way},
    tile::{SourceMatrix, Tile},
};
use crate::{
    checkpoint::{PackedScales, Recipe, Source},
    error::advise,
    gpu::{Device, Quantizer, Rows},
    interrupt,
    nvfp4::{self, BLOCK, ErrorStats, Weight},
    report::Progress,
    sidecar::DrafterFile,
    vocab::DraftVocab,
};

/// Weights in a tile: 256 KiB of BF16, which stays in a core's cache between the gather and the codes.
const TILE_WEIGHTS: usize = 1 << 17;
/// Weights in a tile where starting one costs more than a cache miss: a card's kernel, or a pass over the plan of error
/// feedback.
const LARGE_TILE_WEIGHTS: usize = 1 << 20;

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
        self.tiles_of(TILE_WEIGHTS)
    }

    fn tiles_of(&self, n_weights: usize) -> Vec<Range<usize>> {
        let rows = n_weights.div_ceil(self.k.max(1));
        (0..self.n.div_ceil(rows)).map(|i| i * rows..((i + 1) * rows).min(self.n)).collect()
    }

    /// Reads the rows of a tile.
    ///
    /// # Errors
    /// As [`SourceMatrix::read`].
    pub fn read<'a>(&self, source: &SourceMatrix<'a>, rows: Range<usize>) -> Result<Tile<'a>> {
        source.read(self.row_ids.as_deref(), rows, self.k)
    }

    /// The largest magnitude of all rows.
    pub(super) fn amax(&self, source: &SourceMatrix<'_>, progress: &Progress) -> Result<f32> {
        let largest = self.tiles().into_par_iter().map(|rows| {
            interrupt::check()?;
            progress.advance((rows.len() * self.k * 2) as u64);
            if let Some(amax) = source.bf16_amax(self.row_ids.as_deref(), &rows, self.k)? {
                return Ok(amax);
            }
            match self.read(source, rows.clone())? {
                Tile::Bf16(tile) => self.tile_amax(source, &rows, &tile),
                Tile::F16(tile) => self.tile_amax(source, &rows, &tile),
                Tile::F32(tile) => self.tile_amax(source, &rows, &tile),
            }
        });
        largest.try_reduce(|| 0.0, |a, b| Ok(a.max(b)))
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
            (Device::Cuda(gpu), Way::Nearest(config)) => Some(Quantizer::new(gpu, self.k, config)?),
            _ => None,
        };
        let is_plain = quantizer.is_none() && matches!(rounder.way, Way::Nearest(_));
        let tiles = self.tiles_of(if is_plain { TILE_WEIGHTS } else { LARGE_TILE_WEIGHTS });
        // Handed out one after the other, so that the file grows from its beginning and can be hashed meanwhile.
        let stats = tiles.into_iter().enumerate().par_bridge().map_init(Packed::default, |packed, (at, rows)| {
            interrupt::check()?;
            let tile = self.read(source, rows.clone())?;
            let on_card =
                quantizer.as_ref().map(|quantizer| on_gpu(quantizer, &tile, rounder.global_scale)).transpose()?;
            let is_done = on_card.is_some();
            if let Some(codes_and_scales) = on_card {
                *packed = codes_and_scales;
            }
            let stats = match tile {
                Tile::Bf16(tile) => self.quantize_tile(&tile, rounder, packed, is_done),
                Tile::F16(tile) => self.quantize_tile(&tile, rounder, packed, is_done),
                Tile::F32(tile) => self.quantize_tile(&tile, rounder, packed, is_done),
            };
            let first = rows.start * self.k;
            drafter.write_at(&format!("{}.weight", self.name), (first / 2) as u64, &packed.codes)?;
            drafter.write_at(&format!("{}.weight_scale", self.name), (first / BLOCK) as u64, &packed.block_scales)?;
            progress.advance((rows.len() * self.k * 2) as u64);
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
        packed: &mut Packed,
        is_done: bool,
    ) -> ErrorStats {
        let Packed { codes, block_scales } = packed;
        if !is_done {
            codes.resize(tile.len() / 2, 0);
            block_scales.resize(tile.len() / BLOCK, 0);
            rounder.quantize(tile, self.k, codes, block_scales);
        }
        rounder.figures(tile, self.k, codes, block_scales)
    }
}

/// Codes and block scales of a tile.
#[derive(Debug, Default)]
struct Packed {
    codes: Vec<u8>,
    block_scales: Vec<u8>,
}

/// Codes and block scales of a tile, from the card.
fn on_gpu(quantizer: &Quantizer<'_>, tile: &Tile<'_>, global_scale: f32) -> Result<Packed> {
    let wide: Vec<f32>;
    let rows = match tile {
        Tile::Bf16(rows) => Rows::Bf16(rows),
        Tile::F32(rows) => Rows::F32(rows),
        Tile::F16(rows) => {
            wide = rows.iter().map(|w| w.widen()).collect();
            Rows::F32(&wide)
        }
    };
    let mut packed = Packed { codes: vec![0; rows.len() / 2], block_scales: vec![0; rows.len() / BLOCK] };
    quantizer.quantize(rows, global_scale, &mut packed.codes, &mut packed.block_scales)?;
    Ok(packed)
}

/// The figures of consecutive tiles, merged in row order.
pub fn merged<'a>(tiles: impl IntoIterator<Item = &'a ErrorStats>) -> ErrorStats {
    let mut all = ErrorStats::default();
    for tile in tiles {
        all.merge(tile);
    }
    all
}
