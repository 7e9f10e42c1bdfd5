//! Rows of a source matrix, gathered by token id when the matrix is the head, in the dtype that the checkpoint has.

use std::{borrow::Cow, ops::Range};

use anyhow::{Context, Result, bail};
use half::{bf16, f16};
use safetensors::Dtype;

use super::fp8::Fp8Scale;
use crate::{checkpoint::Tensor, gpu::Rows, nvfp4::Weight};

/// A tile of rows, row-major.
#[derive(Debug)]
pub enum Tile<'a> {
    /// As nearly all checkpoints have them.
    Bf16(Cow<'a, [bf16]>),
    /// Half precision.
    F16(Vec<f16>),
    /// Single precision; also what FP8 and shifted rows become.
    F32(Vec<f32>),
}

/// Where a matrix's rows come from.
#[derive(Debug)]
pub struct SourceMatrix<'a> {
    /// The source tensor.
    pub tensor: Tensor<'a>,
    /// Its multipliers, when it is FP8.
    pub fp8_scale: Option<Fp8Scale>,
    /// Subtracted from every row, `[k]`: what `--row-shift` chose.
    pub row_shift: Option<Vec<f32>>,
}

impl<'a> SourceMatrix<'a> {
    /// Rows `rows` of the matrix whose row `i` is row `row_ids[i]` of the tensor (or row `i` itself), `k` columns each.
    ///
    /// # Errors
    /// The dtype is none of BF16, F16, F32 and FP8 with multipliers, or the tensor is shorter than the rows say.
    pub fn read(&self, row_ids: Option<&[u32]>, rows: Range<usize>, k: usize) -> Result<Tile<'a>> {
        let tile = self.read_unshifted(row_ids, rows, k)?;
        let Some(shift) = &self.row_shift else { return Ok(tile) };
        let mut shifted = tile.widened();
        for row in shifted.chunks_exact_mut(k) {
            row.iter_mut().zip(shift).for_each(|(w, shift)| *w -= shift);
        }
        Ok(Tile::F32(shifted))
    }

    fn read_unshifted(&self, row_ids: Option<&[u32]>, rows: Range<usize>, k: usize) -> Result<Tile<'a>> {
        let tensor = &self.tensor;
        match (tensor.dtype, row_ids, &self.fp8_scale) {
            (Dtype::BF16, None, _) => Ok(Tile::Bf16(tensor.bf16(rows.start * k..rows.end * k)?)),
            // Rows that follow each other need no gathering.
            (Dtype::BF16, Some(ids), _) if ids[rows.clone()].windows(2).all(|pair| pair[0] + 1 == pair[1]) => {
                let first = ids[rows.start] as usize;
                Ok(Tile::Bf16(tensor.bf16(first * k..(first + rows.len()) * k)?))
            }
            (Dtype::BF16, Some(ids), _) => {
                let mut tile = Vec::with_capacity(rows.len() * k);
                for &id in &ids[rows] {
                    tile.extend_from_slice(&tensor.bf16(id as usize * k..(id as usize + 1) * k)?);
                }
                Ok(Tile::Bf16(Cow::Owned(tile)))
            }
            (Dtype::F16, ids, _) => gather(tensor, ids, rows, k, f16::from_le_bytes).map(Tile::F16),
            (Dtype::F32, ids, _) => gather(tensor, ids, rows, k, f32::from_le_bytes).map(Tile::F32),
            (Dtype::F8_E4M3, ids, Some(scale)) => {
                let mut tile = Vec::with_capacity(rows.len() * k);
                for row in rows {
                    let row = ids.map_or(row, |ids| ids[row] as usize);
                    scale.decode_row(row, row_bytes::<1>(tensor, row, k)?, &mut tile)?;
                }
                Ok(Tile::F32(tile))
            }
            (dtype, _, _) => bail!(
                "`{}`: tensor `{}` has dtype {dtype}, expected BF16, F16, F32 or FP8 with scales",
                tensor.file,
                tensor.name
            ),
        }
    }
}

impl Tile<'_> {
    /// Calls `work` with the rows in a dtype that the card takes.
    pub fn with_gpu_rows<T>(&self, work: impl FnOnce(Rows<'_>) -> T) -> T {
        match self {
            Self::Bf16(tile) => work(Rows::Bf16(tile)),
            Self::F16(tile) => work(Rows::F32(&tile.iter().map(|w| w.widen()).collect::<Vec<_>>())),
            Self::F32(tile) => work(Rows::F32(tile)),
        }
    }

    /// As F32, which holds every source dtype exactly.
    fn widened(self) -> Vec<f32> {
        match self {
            Self::Bf16(tile) => tile.iter().map(|w| w.widen()).collect(),
            Self::F16(tile) => tile.into_iter().map(Weight::widen).collect(),
            Self::F32(tile) => tile,
        }
    }
}

fn row_bytes<'a, const BYTES: usize>(tensor: &Tensor<'a>, row: usize, k: usize) -> Result<&'a [u8]> {
    let bytes = tensor.data.get(row * k * BYTES..(row + 1) * k * BYTES);
    bytes.with_context(|| format!("`{}`: tensor `{}` ends before row {row}", tensor.file, tensor.name))
}

/// Elements of `BYTES` bytes each.
fn gather<const BYTES: usize, T>(
    tensor: &Tensor<'_>,
    row_ids: Option<&[u32]>,
    rows: Range<usize>,
    k: usize,
    read: impl Fn([u8; BYTES]) -> T,
) -> Result<Vec<T>> {
    let mut tile = Vec::with_capacity(rows.len() * k);
    for row in rows {
        let row = row_ids.map_or(row, |ids| ids[row] as usize);
        let (elements, _) = row_bytes::<BYTES>(tensor, row, k)?.as_chunks::<BYTES>();
        tile.extend(elements.iter().map(|&element| read(element)));
    }
    Ok(tile)
}
