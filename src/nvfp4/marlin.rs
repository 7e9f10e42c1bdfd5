//! Marlin's own layout of an NVFP4 weight, as vLLM 0.32 makes it when it loads one (`prepare_fp4_layer_for_marlin`).
//!
//! The kernel multiplies 16 x 64 tiles: a warp's 32 lanes each find the eight codes that they need in one word, in the
//! order in which the unpacking instruction yields them. Scales are turned, permuted to match, and rewritten as S0E5M3, an
//! unsigned byte with the exponent range of FP16. An export for inspection and for kernels outside vLLM: the layout is
//! private to the kernel and changes with versions and GPUs, so it is never the master copy.

use anyhow::{Result, ensure};
use half::f16;

use super::{BLOCK, E4M3_MAX, e4m3};

/// The element type of the model's activations: the kernel's scales depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// BF16.
    Bf16,
    /// FP16.
    Fp16,
}

/// A weight in Marlin's layout, padded to `[n, k]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Marlin {
    /// Rows, padded with zeros.
    pub n: usize,
    /// Columns, padded with zeros.
    pub k: usize,
    /// `[k / 16, 2 n]`
    pub qweight: Vec<u32>,
    /// S0E5M3, `[k / 16, n]`
    pub scales: Vec<u8>,
    /// The tensor's scale, with the exponents that the kernel's formats leave out.
    pub global_scale: f32,
    /// The power of two by which all block scales were raised.
    pub scale_factor: f32,
    /// Blocks with a nonzero scale that the layout cannot say: they became zero.
    pub n_flushed_blocks: usize,
}

/// Rewrites `codes` `[n, k/2]` and `block_scales` `[n, k/16]`.
///
/// # Errors
/// A block scale is negative or NaN, or the tensor's scale is beyond what the kernel can say.
///
/// # Panics
/// A slice does not have the length that its shape says.
pub fn pack(
    codes: &[u8],
    block_scales: &[u8],
    (n, k): (usize, usize),
    global_scale: f32,
    activation: Activation,
) -> Result<Marlin> {
    assert_eq!((codes.len(), block_scales.len()), (n * k / 2, n * k / BLOCK), "codes and scales of {n} x {k}");
    if let Some(at) = block_scales.iter().position(|&code| code > e4m3::MAX_CODE) {
        anyhow::bail!(
            "row {} has the block scale code {:#04x}, which is negative or NaN",
            at * BLOCK / k,
            block_scales[at]
        );
    }
    let (padded_n, padded_k) = padded(n, k);
    let scale_factor = match activation {
        Activation::Bf16 => scale_factor(block_scales),
        Activation::Fp16 => 1.0,
    };
    let exponent_bias = match activation {
        Activation::Bf16 => 126,
        Activation::Fp16 => 14,
    };
    let global_scale = global_scale * 2f32.powi(exponent_bias - 7) / scale_factor;
    ensure!(global_scale.is_finite(), "the tensor's scale is too large for Marlin: it became {global_scale}");
    let scale = |row: usize, block: usize| {
        if row < n && block < k / BLOCK { block_scales[row * (k / BLOCK) + block] } else { 0 }
    };
    let scales = pack_scales(padded_n, padded_k, scale, scale_factor);
    let n_nonzero = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte != 0).count();
    let n_flushed_blocks = n_nonzero(block_scales) - n_nonzero(&scales);
    let code = |row: usize, column: usize| {
        if row >= n || column >= k {
            return 0;
        }
        let byte = codes[row * (k / 2) + column / 2];
        u32::from(if column.is_multiple_of(2) { byte & 0xF } else { byte >> 4 })
    };
    let qweight = pack_codes(padded_n, padded_k, code);
    Ok(Marlin { n: padded_n, k: padded_k, qweight, scales, global_scale, scale_factor, n_flushed_blocks })
}

/// The smallest shape in one of the kernel's two tile families: 64 rows by 128 columns, or 128 by 64.
pub fn padded(n: usize, k: usize) -> (usize, usize) {
    let families =
        [(64, 128), (128, 64)].map(|(rows, columns)| (n.next_multiple_of(rows), k.next_multiple_of(columns)));
    if (families[1].0 * families[1].1, families[1].0 + families[1].1)
        < (families[0].0 * families[0].1, families[0].0 + families[0].1)
    {
        families[1]
    } else {
        families[0]
    }
}

/// The largest power of two that keeps all block scales within 448.
fn scale_factor(block_scales: &[u8]) -> f32 {
    let largest = e4m3::decode(block_scales.iter().copied().max().unwrap_or(0));
    if largest > 0.0 && largest < E4M3_MAX { (E4M3_MAX / largest).log2().floor().exp2() } else { 1.0 }
}

fn pack_codes(n: usize, k: usize, code: impl Fn(usize, usize) -> u32) -> Vec<u32> {
    /// Which of a lane's eight codes stands in each nibble, from the lowest up.
    const NIBBLES: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    let mut words = Vec::with_capacity(n * k / 8);
    for tile_k in 0..k / 16 {
        for tile_n in 0..n / 64 {
            for (lane, warp) in (0..32).flat_map(|lane| (0..4).map(move |warp| (lane, warp))) {
                let row = 64 * tile_n + 16 * warp + lane / 4;
                let column = 16 * tile_k + 2 * (lane % 4);
                let of = |i: usize| code(row + 8 * (i / 4), column + [0, 1, 8, 9][i % 4]);
                words.push(NIBBLES.iter().enumerate().fold(0, |word, (at, &i)| word | of(i) << (4 * at)));
            }
        }
    }
    words
}

fn pack_scales(n: usize, k: usize, scale: impl Fn(usize, usize) -> u8, scale_factor: f32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(n * k / BLOCK);
    for block in 0..k / BLOCK {
        for at in 0..n {
            // Pairs in the middle of each four change places, then each 64 rows are read as 8 x 8, transposed.
            let at = at / 4 * 4 + [0, 2, 1, 3][at % 4];
            let row = at / 64 * 64 + at % 64 % 8 * 8 + at % 64 / 8;
            bytes.push(s0e5m3(e4m3::decode(scale(row, block)) * scale_factor));
        }
    }
    bytes
}

/// The scale times 2^7 as FP16 without its sign bit, cut to eight bits; below 2 it is zero.
fn s0e5m3(scale: f32) -> u8 {
    let scaled = f16::from_f32(scale * 128.0);
    if scaled < f16::from_f32(2.0) { 0 } else { (scaled.to_bits() >> 7) as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_padded_to_the_cheaper_family() {
        assert_eq!(padded(64064, 2560), (64064, 2560));
        assert_eq!(padded(64, 64), (64, 128));
        assert_eq!(padded(128, 64), (128, 64));
        assert_eq!(padded(130, 64), (256, 64));
        assert_eq!(padded(200, 192), (256, 192));
    }

    #[test]
    fn every_kernel_safe_scale_survives_and_smaller_ones_are_counted() {
        let scales: Vec<u8> = (0..=126).cycle().take(64 * 8).collect();
        let marlin = pack(&[0; 64 * 64], &scales, (64, 128), 1.0, Activation::Bf16).unwrap();
        let n_small = scales.iter().filter(|&&code| (1..8).contains(&code)).count();
        assert_eq!((marlin.n_flushed_blocks, marlin.scale_factor), (n_small, 1.0));
        let small: Vec<u8> = vec![e4m3::encode(3.5); 64 * 8];
        assert_eq!(pack(&[0; 64 * 64], &small, (64, 128), 1.0, Activation::Bf16).unwrap().scale_factor, 128.0);
        assert!(pack(&[0; 64 * 64], &[0x7F; 64 * 8], (64, 128), 1.0, Activation::Bf16).is_err());
        assert!(pack(&[0; 64 * 64], &small, (64, 128), 1e30, Activation::Bf16).is_err());
    }

    #[test]
    fn padding_adds_zeros_and_moves_nothing_that_is_whole() {
        let (n, k) = (40, 144);
        let codes: Vec<u8> = (0..n * k / 2).map(|i| (i * 37 % 251) as u8).collect();
        let scales: Vec<u8> = (0..n * k / BLOCK).map(|i| 8 + (i % 100) as u8).collect();
        let ragged = pack(&codes, &scales, (n, k), 1.0, Activation::Fp16).unwrap();
        let (padded_n, padded_k) = (ragged.n, ragged.k);
        let (mut all_codes, mut all_scales) = (vec![0; padded_n * padded_k / 2], vec![0; padded_n * padded_k / BLOCK]);
        for row in 0..n {
            all_codes[row * padded_k / 2..][..k / 2].copy_from_slice(&codes[row * k / 2..][..k / 2]);
            all_scales[row * padded_k / BLOCK..][..k / BLOCK].copy_from_slice(&scales[row * k / BLOCK..][..k / BLOCK]);
        }
        assert_eq!(ragged, pack(&all_codes, &all_scales, (padded_n, padded_k), 1.0, Activation::Fp16).unwrap());
    }
}
