//! A head that is NVFP4 already: its kept rows are sliced, codes and block scales bit for bit. Quantizing the decoded
//! weights again would only add a second error.

use anyhow::{Context, Result, ensure};
use rayon::prelude::*;

use super::{Matrix, Sources};
use crate::{
    checkpoint::{PackedScales, Tensor},
    interrupt,
    nvfp4::BLOCK,
    sidecar::DrafterFile,
};

/// The tensors of a packed matrix.
#[derive(Debug)]
pub struct PackedMatrix<'a> {
    codes: Tensor<'a>,
    block_scales: Tensor<'a>,
    /// The multiplier, whatever the checkpoint's convention.
    pub global_scale: f32,
}

impl<'a> PackedMatrix<'a> {
    /// Opens the source of `matrix`.
    ///
    /// # Errors
    /// A tensor is missing, or the global scale is not a positive number.
    pub fn open(matrix: &Matrix, scales: &PackedScales, sources: Sources<'a>) -> Result<Self> {
        let checkpoint = sources.pick(matrix.checkpoint);
        let global = checkpoint.tensor(&scales.global_scale)?;
        let bytes = global.data.try_into().with_context(|| format!("tensor `{}` is not one F32", global.name))?;
        let stored = f32::from_le_bytes(bytes);
        let global_scale = if scales.divides { 1.0 / stored } else { stored };
        ensure!(
            global_scale.is_finite() && global_scale > 0.0,
            "`{}`: tensor `{}` is {stored}, expected a positive number",
            global.file,
            global.name
        );
        let (codes, block_scales) = (checkpoint.tensor(&matrix.source)?, checkpoint.tensor(&scales.block_scale)?);
        Ok(Self { codes, block_scales, global_scale })
    }

    /// Codes `[k/2]` and block scales `[k/16]` of row `row` of `matrix`.
    ///
    /// # Errors
    /// The source ends before the row.
    pub fn row(&self, matrix: &Matrix, row: usize) -> Result<(&'a [u8], &'a [u8])> {
        let source_row = matrix.row_ids.as_ref().map_or(row, |ids| ids[row] as usize);
        let part = |tensor: &Tensor<'a>, n_bytes: usize| {
            let bytes = tensor.data.get(source_row * n_bytes..(source_row + 1) * n_bytes);
            bytes.with_context(|| format!("`{}`: tensor `{}` ends before row {source_row}", tensor.file, tensor.name))
        };
        Ok((part(&self.codes, matrix.k / 2)?, part(&self.block_scales, matrix.k / BLOCK)?))
    }

    /// Copies all rows of `matrix` into `drafter`.
    pub(super) fn slice(&self, matrix: &Matrix, drafter: &DrafterFile) -> Result<()> {
        matrix.tiles().into_par_iter().try_for_each(|rows| {
            interrupt::check()?;
            let first = rows.start * matrix.k;
            let (mut codes, mut block_scales) = (Vec::new(), Vec::new());
            for row in rows {
                let (row_codes, row_scales) = self.row(matrix, row)?;
                codes.extend_from_slice(row_codes);
                block_scales.extend_from_slice(row_scales);
            }
            drafter.write_at(&format!("{}.weight", matrix.name), (first / 2) as u64, &codes)?;
            drafter.write_at(&format!("{}.weight_scale", matrix.name), (first / BLOCK) as u64, &block_scales)
        })?;
        drafter.write_at(&format!("{}.weight_scale_2", matrix.name), 0, &self.global_scale.to_le_bytes())
    }
}
