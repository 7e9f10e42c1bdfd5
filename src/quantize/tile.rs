//! Rows of a source matrix, gathered by token id when the matrix is the head, in the dtype that the checkpoint has.

use std::borrow::Cow;

use anyhow::{Result, bail};
use half::{bf16, f16};
use safetensors::Dtype;

use crate::checkpoint::Tensor;

/// A tile of rows, row-major.
#[derive(Debug)]
pub enum Tile<'a> {
    /// As nearly all checkpoints have them.
    Bf16(Cow<'a, [bf16]>),
    /// Half precision.
    F16(Vec<f16>),
    /// Single precision.
    F32(Vec<f32>),
}

/// Reads rows `rows` of the matrix whose row `i` is row `row_ids[i]` of `tensor` (or row `i` itself), `k` columns each.
///
/// # Errors
/// The dtype is none of BF16, F16 and F32, or the tensor is shorter than the rows say.
pub fn read_tile<'a>(
    tensor: &Tensor<'a>,
    row_ids: Option<&[u32]>,
    rows: std::ops::Range<usize>,
    k: usize,
) -> Result<Tile<'a>> {
    let elements = rows.start * k..rows.end * k;
    match (tensor.dtype, row_ids) {
        (Dtype::BF16, None) => Ok(Tile::Bf16(tensor.bf16(elements)?)),
        (Dtype::BF16, Some(ids)) => {
            let mut tile = Vec::with_capacity(rows.len() * k);
            for &id in &ids[rows] {
                tile.extend_from_slice(&tensor.bf16(id as usize * k..(id as usize + 1) * k)?);
            }
            Ok(Tile::Bf16(Cow::Owned(tile)))
        }
        (Dtype::F16, ids) => gather(tensor, ids, rows, k, f16::from_le_bytes).map(Tile::F16),
        (Dtype::F32, ids) => gather(tensor, ids, rows, k, f32::from_le_bytes).map(Tile::F32),
        (dtype, _) => bail!("`{}`: tensor `{}` has dtype {dtype}, expected BF16, F16 or F32", tensor.file, tensor.name),
    }
}

/// Elements of `BYTES` bytes each.
fn gather<const BYTES: usize, T>(
    tensor: &Tensor<'_>,
    row_ids: Option<&[u32]>,
    rows: std::ops::Range<usize>,
    k: usize,
    read: impl Fn([u8; BYTES]) -> T,
) -> Result<Vec<T>> {
    let mut tile = Vec::with_capacity(rows.len() * k);
    for row in rows {
        let row = row_ids.map_or(row, |ids| ids[row] as usize);
        let Some(bytes) = tensor.data.get(row * k * BYTES..(row + 1) * k * BYTES) else {
            bail!("`{}`: tensor `{}` ends before row {row}", tensor.file, tensor.name);
        };
        let (elements, _) = bytes.as_chunks::<BYTES>();
        tile.extend(elements.iter().map(|&element| read(element)));
    }
    Ok(tile)
}
