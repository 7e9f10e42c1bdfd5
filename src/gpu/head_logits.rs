//! Logits of heads on hidden states, on the card and with the CPU's digits.

use anyhow::Result;
use cudarc::driver::{DevicePtr, DriverError};
use half::bf16;

use super::{
    Gpu,
    device::explain,
    kernels::{Arguments, Launch, launch},
};
use crate::nvfp4::quality::Head;

/// As in kernels/head_logits.cu.
const THREADS: u32 = 256;
/// Rows, and states, of a thread block.
const TILE: usize = 64;

impl Gpu {
    /// As `nvfp4::quality::logits`: `[n_states, n_rows]`.
    ///
    /// # Errors
    /// The card is out of memory or was lost.
    pub fn head_logits(&self, head: Head, k: usize, states: &[bf16]) -> Result<Vec<f32>> {
        let doing = |e: DriverError| explain(e, "multiply a head by hidden states");
        let bits = |values: &[bf16]| values.iter().map(|x| x.to_bits()).collect::<Vec<u16>>();
        let (n_states, n_rows) = (states.len() / k, head.n_rows(k));
        let states = self.stream.clone_htod(&bits(states)).map_err(doing)?;
        let logits = self.stream.alloc_zeros::<f32>(n_states * n_rows).map_err(doing)?;
        let shape = |n: usize| u32::try_from(n);
        let rest = |arguments: Arguments| -> Result<Arguments> {
            Ok(arguments
                .long(states.device_ptr(&self.stream).0)
                .word(shape(n_rows)?)
                .word(shape(n_states)?)
                .word(shape(k)?)
                .long(logits.device_ptr(&self.stream).0))
        };
        let tiles = (shape(n_rows.div_ceil(TILE))?, shape(n_states.div_ceil(TILE))?);
        match head {
            Head::Bf16(weights) => {
                let weights = self.stream.clone_htod(&bits(weights)).map_err(doing)?;
                let arguments = Arguments::default().long(weights.device_ptr(&self.stream).0);
                self.multiply_tiles("head_logits_bf16", tiles, rest(arguments)?)?;
                self.stream.clone_dtoh(&logits).map_err(doing)
            }
            Head::Nvfp4 { codes, block_scales, global_scale } => {
                let codes = self.stream.clone_htod(codes).map_err(doing)?;
                let scales = self.stream.clone_htod(block_scales).map_err(doing)?;
                let at = [&codes, &scales].map(|slice| slice.device_ptr(&self.stream).0);
                let arguments = Arguments::default().long(at[0]).long(at[1]).float(global_scale);
                self.multiply_tiles("head_logits_nvfp4", tiles, rest(arguments)?)?;
                self.stream.clone_dtoh(&logits).map_err(doing)
            }
        }
    }

    fn multiply_tiles(&self, kernel: &str, (x, y): (u32, u32), arguments: Arguments) -> Result<()> {
        let kernel = self.kernel("head_logits", kernel)?;
        let shape = Launch { n_blocks: x * y, threads: THREADS, shared_bytes: 0, dependent: false };
        #[expect(unsafe_code, reason = "a launch")]
        // SAFETY: the arguments are those of `head_logits_*`, and the caller keeps the buffers until the stream was waited for.
        unsafe {
            launch(&self.stream, &kernel, shape, arguments.word(x))
        }
    }
}
