//! Rows of weights quantized on the card: the same bytes as `nvfp4::quantize_rows`.
//!
//! A tile goes through page-locked buffers on a stream of its own, so when several threads bring tiles, the copies of one
//! overlap with the kernel of another.

use std::sync::{Arc, Mutex};

use anyhow::{Result, anyhow};
use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, DevicePtr, DriverError, PinnedHostSlice, result};
use half::bf16;

use super::{
    Gpu,
    device::explain,
    kernels::{Arguments, Launch, launch},
};
use crate::nvfp4::{BLOCK, KERNEL_SAFE_MIN_CODE, QuantizeConfig, ScaleRule};

const THREADS: u32 = 256;

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
    gpu: &'g Gpu,
    kernel: CudaFunction,
    k: usize,
    min_code: u8,
    importance: Option<CudaSlice<f32>>,
    idle: Mutex<Vec<Lane>>,
}

/// A stream with its buffers.
#[derive(Debug)]
struct Lane {
    stream: Arc<CudaStream>,
    weights: PinnedHostSlice<u8>,
    packed: PinnedHostSlice<u8>,
    weights_there: CudaSlice<u8>,
    /// Codes, then block scales.
    packed_there: CudaSlice<u8>,
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
        Ok(Self { gpu, kernel, k, min_code, importance, idle: Mutex::new(Vec::new()) })
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
        let mut lane = self.take_lane(bytes.len(), codes.len() + block_scales.len())?;
        let doing = |e: DriverError| explain(e, "quantize a tile");
        lane.weights.as_mut_slice().map_err(doing)?[..bytes.len()].copy_from_slice(bytes);
        self.run(&mut lane, rows, n_weights, global_scale).map_err(|e| e.context("a tile of weights"))?;
        let packed = lane.packed.as_slice().map_err(doing)?;
        codes.copy_from_slice(&packed[..n_weights / 2]);
        block_scales.copy_from_slice(&packed[n_weights / 2..][..n_weights / BLOCK]);
        self.idle.lock().map_err(|_| anyhow!("a thread failed while it quantized"))?.push(lane);
        Ok(())
    }

    fn run(&self, lane: &mut Lane, rows: Rows, n_weights: usize, global_scale: f32) -> Result<()> {
        let n_blocks = n_weights / BLOCK;
        let (n_bytes, n_packed) = (rows.bytes().0.len(), n_weights / 2 + n_blocks);
        let stream = &lane.stream;
        let importance = self.importance.as_ref().map_or(0, |slice| slice.device_ptr(stream).0);
        let (weights, packed) = (lane.weights_there.device_ptr(stream).0, lane.packed_there.device_ptr(stream).0);
        let arguments = Arguments::default()
            .long(weights)
            .word(u32::from(matches!(rows, Rows::Bf16(_))))
            .long(n_blocks as u64)
            .word(u32::try_from(self.k / BLOCK)?)
            .float(global_scale)
            .word(u32::from(self.min_code))
            .long(importance)
            .long(packed)
            .long(packed + (n_weights / 2) as u64);
        let shape = Launch {
            n_blocks: u32::try_from(n_blocks.div_ceil(THREADS as usize))?,
            threads: THREADS,
            shared_bytes: 0,
            dependent: false,
        };
        let doing = |e: DriverError| explain(e, "quantize a tile");
        let from = lane.weights.as_slice().map_err(doing)?;
        #[expect(unsafe_code, reason = "asynchronous copies and a launch on buffers of this lane")]
        // SAFETY: the lane is this thread's alone, its buffers hold at least the bytes named (`take_lane`), the arguments
        // are those of `nvfp4_quantize_*`, and the stream is waited for before anything is read or reused.
        unsafe {
            result::memcpy_htod_async(weights, &from[..n_bytes], stream.cu_stream()).map_err(doing)?;
            launch(stream, &self.kernel, shape, arguments)?;
            let to = lane.packed.as_mut_slice().map_err(doing)?;
            result::memcpy_dtoh_async(&mut to[..n_packed], packed, stream.cu_stream()).map_err(doing)?;
        }
        stream.synchronize().map_err(doing)
    }

    /// An idle lane that is large enough, or a new one.
    fn take_lane(&self, n_bytes: usize, n_packed: usize) -> Result<Lane> {
        let idle = self.idle.lock().map_err(|_| anyhow!("a thread failed while it quantized"))?.pop();
        match idle {
            Some(lane) if lane.weights.len() >= n_bytes && lane.packed.len() >= n_packed => Ok(lane),
            _ => Lane::new(self.gpu, n_bytes, n_packed).map_err(|e| explain(e, "set up a tile's buffers")),
        }
    }
}

impl Lane {
    fn new(gpu: &Gpu, n_bytes: usize, n_packed: usize) -> Result<Self, DriverError> {
        let stream = gpu.context.new_stream()?;
        #[expect(unsafe_code, reason = "the buffers are written before they are read")]
        // SAFETY: `quantize` fills the weights, and the kernel the packed bytes, before either is read.
        unsafe {
            Ok(Self {
                weights: gpu.context.alloc_pinned_with_flags(n_bytes, 0)?,
                packed: gpu.context.alloc_pinned_with_flags(n_packed, 0)?,
                weights_there: stream.alloc(n_bytes)?,
                packed_there: stream.alloc(n_packed)?,
                stream,
            })
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
    fn bytes(&self) -> (&[u8], usize) {
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
