//! ggml's blocks of NVFP4 (`GGML_TYPE_NVFP4`): 64 weights in 36 bytes, four block scales and then the codes of four blocks.
//!
//! Within a block, byte `j` holds element `j` in its low nibble and element `j + 8` in its high one. A scale is an E4M3
//! number without sign, and ggml reads 0x7F as zero; so the scales carry over only if they are below 0x7F.

use anyhow::{Result, ensure};

use super::{BLOCK, e4m3};

/// Weights of a ggml block.
pub const WEIGHTS_PER_BLOCK: usize = 4 * BLOCK;
/// Bytes of a ggml block.
pub const BYTES_PER_BLOCK: usize = 4 + WEIGHTS_PER_BLOCK / 2;

/// Codes `[n, k/2]` and block scales `[n, k/16]` in ggml's blocks, `[n, k/64, 36]`. No number changes.
///
/// # Errors
/// `k` is not a multiple of 64, or a block scale has a sign or is NaN.
pub fn pack(codes: &[u8], block_scales: &[u8], k: usize) -> Result<Vec<u8>> {
    ensure!(k.is_multiple_of(WEIGHTS_PER_BLOCK), "has {k} columns, and ggml's NVFP4 takes multiples of 64");
    if let Some(at) = block_scales.iter().position(|&scale| scale > e4m3::MAX_CODE) {
        let (row, block) = (at * BLOCK / k, at % (k / BLOCK));
        let scale = block_scales[at];
        anyhow::bail!("has the scale code {scale:#04x} in row {row}, block {block}, and ggml's scales end at 0x7e");
    }
    let mut packed = Vec::with_capacity(block_scales.len() / 4 * BYTES_PER_BLOCK);
    for (scales, codes) in block_scales.as_chunks::<4>().0.iter().zip(codes.as_chunks::<{ 2 * BLOCK }>().0) {
        packed.extend_from_slice(scales);
        for block in codes.as_chunks::<{ BLOCK / 2 }>().0 {
            let [a, b, c, d, e, f, g, h] = *block;
            let (low, high) = (spread([a, b, c, d]), spread([e, f, g, h]));
            packed.extend_from_slice(&(low | high << 4).to_le_bytes());
        }
    }
    Ok(packed)
}

/// Eight nibbles, a byte each.
fn spread(bytes: [u8; 4]) -> u64 {
    let x = u64::from(u32::from_le_bytes(bytes));
    let x = (x | x << 16) & 0x0000_FFFF_0000_FFFF;
    let x = (x | x << 8) & 0x00FF_00FF_00FF_00FF;
    (x | x << 4) & 0x0F0F_0F0F_0F0F_0F0F
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvfp4::decode_rows;

    /// ggml's own arithmetic: codes count half units, and scales are halved.
    fn dequantize(block: &[u8]) -> Vec<f32> {
        const HALF_UNITS: [f32; 16] = [0., 1., 2., 3., 4., 6., 8., 12., -0., -1., -2., -3., -4., -6., -8., -12.];
        let scale = |code: u8| {
            let (exponent, mantissa) = (i32::from(code >> 3), f32::from(code & 7));
            let magnitude =
                if exponent == 0 { mantissa / 512.0 } else { (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7) };
            0.5 * magnitude
        };
        let mut weights = vec![0.0; 64];
        for (i, weight) in weights.iter_mut().enumerate() {
            let byte = block[4 + i / 16 * 8 + i % 8];
            let code = if i % 16 < 8 { byte & 0xF } else { byte >> 4 };
            *weight = HALF_UNITS[usize::from(code)] * scale(block[i / 16]);
        }
        weights
    }

    #[test]
    fn ggml_reads_the_same_numbers() {
        let k = 192;
        let codes: Vec<u8> = (0..5 * k / 2).map(|i| (i * 37 % 256) as u8).collect();
        let scales: Vec<u8> = (0..5 * k / BLOCK).map(|i| (i * 29 % 127) as u8).collect();
        let mut expected = vec![0.0; 5 * k];
        decode_rows(&codes, &scales, k, 1.0, &mut expected);
        let packed = pack(&codes, &scales, k).unwrap();
        assert_eq!(packed.len(), 5 * 3 * BYTES_PER_BLOCK);
        let found: Vec<f32> = packed.chunks_exact(BYTES_PER_BLOCK).flat_map(dequantize).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_ggml_cannot_say_is_refused() {
        let refused = |scales: &[u8], k: usize| pack(&vec![0; k / 2], scales, k).unwrap_err().to_string();
        assert!(refused(&[1; 3], 48).contains("48 columns"));
        assert!(refused(&[1, 2, 3, 0x7F], 64).contains("0x7f in row 0, block 3"));
        assert!(refused(&[1, 2, 0x81, 1], 64).contains("0x81 in row 0, block 2"));
    }
}
