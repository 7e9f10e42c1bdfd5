//! Rows of weights quantized on the card: the same bytes as `nvfp4::quantize_rows`.

use anyhow::Result;
use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, DevicePtr};
use half::bf16;

use super::{
    Gpu,
    device::explain,
    kernels::{Arguments, Launch, launch},
    lanes::Lanes,
};
use crate::nvfp4::{BLOCK, KERNEL_SAFE_MIN_CODE, QuantizeConfig, ScaleRule};

pub(super) const THREADS: u32 = 256;

/// Rows to quantize, row-major.
#[derive(Debug, Clone, Copy)]
pub enum Rows<'a> {
    /// As most checkpoints have them.
    Bf16(&'a [bf16]),
    /// What every other dtype widens to.
    F32(&'a [f32]),
}

/// Quantizes the rows of one matrix, from any number of threads.
#[derive(Debug)]
pub struct Quantizer<'g> {
    kernel: CudaFunction,
    k: usize,
    min_code: u8,
    importance: Option<CudaSlice<f32>>,
    lanes: Lanes<'g>,
}

impl<'g> Quantizer<'g> {
    /// For a matrix of `k` columns.
    ///
    /// # Errors
    /// The card is out of memory or does not take the kernels.
    pub fn new(gpu: &'g Gpu, k: usize, config: &QuantizeConfig) -> Result<Self> {
        let kernel = gpu.kernel(
            "nvfp4_quantize",
            match config.rule {
                ScaleRule::Max => "nvfp4_quantize_max",
                ScaleRule::FourSix => "nvfp4_quantize_four_six",
                ScaleRule::FourSix1536 => "nvfp4_quantize_four_six_1536",
                ScaleRule::Mse => "nvfp4_quantize_mse",
            },
        )?;
        let importance = config.importance.map(|weights| gpu.stream.clone_htod(weights)).transpose();
        let importance = importance.map_err(|e| explain(e, "send the importance of the columns"))?;
        gpu.synchronize()?;
        let min_code = if config.kernel_safe { KERNEL_SAFE_MIN_CODE } else { 1 };
        Ok(Self { kernel, k, min_code, importance, lanes: Lanes::new(gpu) })
    }

    /// Quantizes whole rows into `codes` (half a byte a weight) and `block_scales` (a byte a block).
    ///
    /// # Errors
    /// The card is out of memory or was lost.
    ///
    /// # Panics
    /// The lengths do not belong together, as in `nvfp4::quantize_rows`.
    pub fn quantize(&self, rows: Rows, global_scale: f32, codes: &mut [u8], block_scales: &mut [u8]) -> Result<()> {
        let (bytes, n_weights) = rows.bytes();
        assert!(
            n_weights.is_multiple_of(self.k) && codes.len() == n_weights / 2 && block_scales.len() == n_weights / BLOCK
        );
        if n_weights == 0 {
            return Ok(());
        }
        let n_codes = codes.len();
        self.lanes.run(
            &[bytes],
            n_codes + block_scales.len(),
            "quantize a tile",
            |stream, inputs, packed| self.enqueue(stream, rows, inputs[0], global_scale, packed),
            |packed| {
                codes.copy_from_slice(&packed[..n_codes]);
                block_scales.copy_from_slice(&packed[n_codes..]);
            },
        )
    }

    /// `packed`: codes, then block scales.
    fn enqueue(&self, stream: &CudaStream, rows: Rows, weights: u64, global_scale: f32, packed: u64) -> Result<()> {
        let n_blocks = rows.len() / BLOCK;
        let arguments = Arguments::default()
            .long(weights)
            .word(u32::from(matches!(rows, Rows::Bf16(_))))
            .long(n_blocks as u64)
            .word(u32::try_from(self.k / BLOCK)?)
            .float(global_scale)
            .word(u32::from(self.min_code))
            .long(self.importance.as_ref().map_or(0, |slice| slice.device_ptr(stream).0))
            .long(packed)
            .long(packed + (rows.len() / 2) as u64);
        let shape = Launch {
            n_blocks: u32::try_from(n_blocks.div_ceil(THREADS as usize))?,
            threads: THREADS,
            shared_bytes: 0,
            dependent: false,
        };
        #[expect(unsafe_code, reason = "a launch")]
        // SAFETY: the arguments are those of `nvfp4_quantize_*`, and the lane's buffers hold the rows and what comes of them.
        unsafe {
            launch(stream, &self.kernel, shape, arguments)
        }
    }
}

impl Rows<'_> {
    /// Weights.
    pub fn len(&self) -> usize {
        self.bytes().1
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, and how many weights they are.
    pub(super) fn bytes(&self) -> (&[u8], usize) {
        let (pointer, n_bytes, n_weights): (*const u8, _, _) = match self {
            Self::Bf16(rows) => (rows.as_ptr().cast(), size_of_val(*rows), rows.len()),
            Self::F32(rows) => (rows.as_ptr().cast(), size_of_val(*rows), rows.len()),
        };
        #[expect(unsafe_code, reason = "numbers seen as bytes")]
        // SAFETY: the slice is as long as the rows, any byte is valid, and the borrow is the rows' own.
        unsafe {
            (std::slice::from_raw_parts(pointer, n_bytes), n_weights)
        }
    }
}
