//! FP8 weights, as DeepSeek and Qwen publish them: E4M3 codes and a tensor of multipliers beside them.
//!
//! The shape of the multipliers says what they cover: one the whole tensor, `[n]` or `[n, 1]` a row each, anything else
//! square blocks, 128 x 128 in every release so far (`weight_scale_inv`, which multiplies despite its name).

use anyhow::{Result, bail, ensure};
use half::bf16;

use crate::{
    checkpoint::{Dtype, Tensor},
    nvfp4::e4m3,
};

/// Rows and columns of a block.
const BLOCK: usize = 128;

/// The multipliers of one FP8 matrix.
#[derive(Debug, Clone)]
pub struct Fp8Scale {
    values: Vec<f32>,
    rows_per_scale: usize,
    columns_per_scale: usize,
    scales_per_row: usize,
}

impl Fp8Scale {
    /// The multipliers in `scale` of a matrix with `n` rows and `k` columns.
    ///
    /// # Errors
    /// The shape fits none of the layouts, the dtype is not BF16 or F32, or a multiplier is not finite.
    pub fn new(scale: &Tensor<'_>, n: usize, k: usize) -> Result<Self> {
        let at = || format!("`{}`: tensor `{}`", scale.file, scale.name);
        let values: Vec<f32> = match scale.dtype {
            Dtype::F32 => scale.data.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            Dtype::BF16 => scale.data.as_chunks::<2>().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect(),
            other => bail!("{} has dtype {other}, expected F32 or BF16", at()),
        };
        if let Some(bad) = values.iter().find(|x| !x.is_finite()) {
            bail!("{} has {bad}; expected finite multipliers", at());
        }
        let blocks = [n.div_ceil(BLOCK), k.div_ceil(BLOCK)];
        let (rows_per_scale, columns_per_scale, scales_per_row) = match *scale.shape {
            [] | [1] | [1, 1] => (n, k, 1),
            [rows] | [rows, 1] if rows == n => (1, k, 1),
            [rows, columns] if [rows, columns] == blocks => (BLOCK, BLOCK, columns),
            _ => bail!("{} has shape {:?}, expected [], [{n}], [{n}, 1] or {blocks:?}", at(), scale.shape),
        };
        Ok(Self { values, rows_per_scale, columns_per_scale, scales_per_row })
    }

    /// Row `row` of the matrix, from its codes `[k]`, appended to `out`.
    ///
    /// # Errors
    /// The codes are fewer than a row.
    pub fn decode_row(&self, row: usize, codes: &[u8], out: &mut Vec<f32>) -> Result<()> {
        ensure!(!codes.is_empty(), "row {row} is empty");
        let scales = &self.values[row / self.rows_per_scale * self.scales_per_row..];
        for (block, codes) in codes.chunks(self.columns_per_scale).enumerate() {
            out.extend(codes.iter().map(|&code| e4m3::decode(code) * scales[block]));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(shape: &[usize], values: &[f32]) -> (Vec<usize>, Vec<u8>) {
        (shape.to_vec(), values.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    fn open(shape: &[usize], data: &[u8], n: usize, k: usize) -> Result<Fp8Scale> {
        Fp8Scale::new(&Tensor { name: "s", file: "f", dtype: Dtype::F32, shape, data }, n, k)
    }

    #[test]
    fn the_shape_says_what_a_multiplier_covers() {
        let one = vec![e4m3::ONE; 256];
        for (shape, values, row, expected) in [
            (&[][..], &[3.0][..], 1, [3.0, 3.0]),
            (&[200], &[0.0, 5.0], 1, [5.0, 5.0]),
            (&[200, 1], &[0.0, 5.0], 1, [5.0, 5.0]),
            (&[2, 2], &[1.0, 2.0, 3.0, 4.0], 130, [3.0, 4.0]),
        ] {
            let mut values = values.to_vec();
            values.resize(shape.iter().product::<usize>(), 0.0);
            let (shape, data) = scale(shape, &values);
            let scale = open(&shape, &data, 200, 256).unwrap();
            let mut out = Vec::new();
            scale.decode_row(row, &one, &mut out).unwrap();
            assert_eq!((out.len(), [out[127], out[128]]), (256, expected), "{shape:?}");
        }
    }

    #[test]
    fn multipliers_that_fit_no_layout_are_refused() {
        let (shape, data) = scale(&[3], &[1.0; 3]);
        assert!(
            open(&shape, &data, 200, 256).unwrap_err().to_string().contains("expected [], [200], [200, 1] or [2, 2]")
        );
        let (shape, data) = scale(&[], &[f32::NAN]);
        assert!(open(&shape, &data, 200, 256).unwrap_err().to_string().contains("NaN"));
    }
}
