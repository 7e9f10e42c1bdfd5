//! Error figures of rows, on the card and with the CPU's digits.

use anyhow::Result;
use cudarc::driver::CudaFunction;

use super::{
    Gpu, Rows,
    kernels::{Arguments, Launch, launch},
    lanes::Lanes,
};
use crate::nvfp4::{BLOCK, ErrorStats, RowSums, figures_power};

/// As in kernels/row_errors.cu: rows of a thread block, one a warp.
const ROWS_PER_BLOCK: u32 = 8;
/// Bytes of a row's figures: two F64, an F32, three U32.
const FIGURES_BYTES: usize = 32;

/// The error figures of one matrix, from any number of threads.
#[derive(Debug)]
pub struct ErrorMeter<'g> {
    kernel: CudaFunction,
    lanes: Lanes<'g>,
}

impl<'g> ErrorMeter<'g> {
    /// # Errors
    /// The card does not take the kernels.
    pub fn new(gpu: &'g Gpu) -> Result<Self> {
        Ok(Self { kernel: gpu.kernel("row_errors", "nvfp4_row_errors")?, lanes: Lanes::new(gpu) })
    }

    /// As `nvfp4::error_stats` without importance.
    ///
    /// # Errors
    /// The card is out of memory or was lost.
    ///
    /// # Panics
    /// The lengths do not belong together.
    pub fn error_stats(
        &self,
        rows: Rows,
        codes: &[u8],
        block_scales: &[u8],
        k: usize,
        global_scale: f32,
    ) -> Result<ErrorStats> {
        let (bytes, n_weights) = rows.bytes();
        let mut stats = ErrorStats::default();
        if n_weights == 0 {
            return Ok(stats);
        }
        assert!(n_weights.is_multiple_of(k) && codes.len() == n_weights / 2 && block_scales.len() == n_weights / BLOCK);
        let (n_rows, row_blocks) = (u32::try_from(n_weights / k)?, u32::try_from(k / BLOCK)?);
        let power = figures_power(global_scale);
        let arguments = |inputs: &[u64], figures: u64| {
            Arguments::default()
                .long(inputs[0])
                .word(u32::from(matches!(rows, Rows::Bf16(_))))
                .word(n_rows)
                .word(row_blocks)
                .float(global_scale * power)
                .float(power)
                .long(inputs[1])
                .long(inputs[2])
                .long(figures)
        };
        let shape = Launch {
            n_blocks: n_rows.div_ceil(ROWS_PER_BLOCK),
            threads: ROWS_PER_BLOCK * 32,
            shared_bytes: 0,
            dependent: false,
        };
        self.lanes.run(
            &[bytes, codes, block_scales],
            n_rows as usize * FIGURES_BYTES,
            "compare a tile with its source",
            |stream, inputs, figures| {
                #[expect(unsafe_code, reason = "a launch")]
                // SAFETY: the arguments are those of `nvfp4_row_errors`; the lane's buffers hold the rows and their figures.
                unsafe {
                    launch(stream, &self.kernel, shape, arguments(inputs, figures))
                }
            },
            |figures| {
                for row in figures.as_chunks().0 {
                    stats.push_row(k, power, read_figures(row));
                }
            },
        )?;
        Ok(stats)
    }
}

fn read_figures(bytes: &[u8; FIGURES_BYTES]) -> RowSums {
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    let double = |at: usize| f64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    let (sq_error, sq_weight) = (double(0), double(8));
    RowSums {
        sums: [sq_error, sq_weight, sq_error, sq_weight],
        largest_square: f32::from_bits(word(16)),
        n_saturated: u64::from(word(20)),
        n_flushed: u64::from(word(24)),
    }
}
