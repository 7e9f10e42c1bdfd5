//! y = W x on the card, for the few vectors of a draft step: what it works on, and the launch.

use anyhow::{Result, ensure};
use cudarc::driver::{CudaFunction, CudaSlice, DevicePtr, DriverError};
use half::bf16;

use super::{
    Gpu,
    device::explain,
    kernels::{Arguments, Launch, launch},
    plan::{MAX_M, Plan},
};
use crate::nvfp4::BLOCK;

/// Warps of a block of kernels/gemv_bf16.cu.
pub(super) const BF16_WARPS: u32 = 8;

/// What a product gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// All logits, F32 `[m, n]`.
    Logits,
    /// The token id of the largest logit of each vector, and that logit; NaN is the largest, ties go to the lower id.
    Argmax,
}

/// An NVFP4 matrix on the card.
#[derive(Debug)]
pub struct Nvfp4Matrix {
    codes: CudaSlice<u8>,
    scales: CudaSlice<u8>,
    global_scale: CudaSlice<f32>,
    n: u32,
    k: u32,
}

/// Where an NVFP4 matrix lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nvfp4At {
    pub(super) codes: u64,
    pub(super) scales: u64,
    pub(super) global_scale: u64,
    pub(super) n: u32,
    pub(super) k: u32,
}

/// Vectors and results on the card, and the argmax kernel's scratch.
#[derive(Debug)]
pub struct Vectors {
    /// BF16.
    x: CudaSlice<u16>,
    pub(super) y: CudaSlice<f32>,
    token_ids: Option<CudaSlice<i32>>,
    /// A column a block, `[m, grid]`; zeros between launches.
    slots: CudaSlice<u64>,
    ids: CudaSlice<i32>,
    best: CudaSlice<f32>,
    pub(super) m: u32,
}

impl Gpu {
    /// Sends an NVFP4 matrix, `codes` `[n, k/2]` and `block_scales` `[n, k/16]`.
    ///
    /// # Errors
    /// The card is out of memory; the lengths do not fit the shape.
    pub fn nvfp4_matrix(&self, n: u32, k: u32, codes: &[u8], scales: &[u8], global_scale: f32) -> Result<Nvfp4Matrix> {
        let weights = n as usize * k as usize;
        ensure!(codes.len() == weights / 2 && scales.len() == weights / BLOCK, "codes and scales are not of {n} x {k}");
        let doing = |e: DriverError| explain(e, "send a matrix");
        let matrix = Nvfp4Matrix {
            codes: self.stream.clone_htod(codes).map_err(doing)?,
            scales: self.stream.clone_htod(scales).map_err(doing)?,
            global_scale: self.stream.clone_htod(&[global_scale]).map_err(doing)?,
            n,
            k,
        };
        self.synchronize()?;
        Ok(matrix)
    }

    /// Sends `m` vectors `x` `[m, k]` and makes room for results of up to `n` rows. `token_ids`: the id of each row,
    /// ascending but for repeats of the first at the end.
    ///
    /// # Errors
    /// The card is out of memory.
    pub fn vectors(&self, x: &[bf16], m: u32, n: u32, token_ids: Option<&[i32]>) -> Result<Vectors> {
        let bits: Vec<u16> = x.iter().map(|x| x.to_bits()).collect();
        let doing = |e: DriverError| explain(e, "send vectors");
        let vectors = Vectors {
            x: self.stream.clone_htod(&bits).map_err(doing)?,
            y: self.stream.alloc_zeros(m as usize * n as usize).map_err(doing)?,
            token_ids: token_ids.map(|ids| self.stream.clone_htod(ids)).transpose().map_err(doing)?,
            slots: self.stream.alloc_zeros(m as usize * 2 * self.n_multiprocessors).map_err(doing)?,
            ids: self.stream.alloc_zeros(MAX_M as usize).map_err(doing)?,
            best: self.stream.alloc_zeros(MAX_M as usize).map_err(doing)?,
            m,
        };
        self.synchronize()?;
        Ok(vectors)
    }

    /// Puts the product into the stream. `dependent`: what stands in front of it in the stream is such a product too.
    ///
    /// # Errors
    /// The launch failed.
    pub fn multiply(&self, w: &Nvfp4Matrix, v: &Vectors, plan: &Plan, output: Output, dependent: bool) -> Result<()> {
        let kernel = self.gemv_kernel(plan, output)?;
        let at = |slice: &CudaSlice<u8>| slice.device_ptr(&self.stream).0;
        let global_scale = w.global_scale.device_ptr(&self.stream).0;
        let w = Nvfp4At { codes: at(&w.codes), scales: at(&w.scales), global_scale, n: w.n, k: w.k };
        self.multiply_at(&kernel, w, v, plan, output, dependent)
    }

    pub(super) fn gemv_kernel(&self, plan: &Plan, output: Output) -> Result<CudaFunction> {
        let suffix = if output == Output::Argmax { "argmax" } else { "logits" };
        let kernel = self.kernel(plan.module, &format!("{}_{suffix}", plan.kernel))?;
        self.allow_shared(&kernel)?;
        Ok(kernel)
    }

    /// As [`Gpu::multiply`], for a matrix that the caller keeps alive.
    pub(super) fn multiply_at(
        &self,
        kernel: &CudaFunction,
        w: Nvfp4At,
        v: &Vectors,
        plan: &Plan,
        output: Output,
        dependent: bool,
    ) -> Result<()> {
        let dependent = dependent && self.capability >= (9, 0);
        for first in (0..v.m).step_by(plan.m as usize) {
            let m = plan.m.min(v.m - first);
            let row = |pointer: u64, bytes: u64| pointer + u64::from(first) * bytes;
            let arguments = Arguments::default()
                .long(w.codes)
                .long(w.scales)
                .long(w.global_scale)
                .long(row(v.x.device_ptr(&self.stream).0, u64::from(w.k) * 2))
                .word(w.n)
                .word(w.k)
                .word(m)
                .word(plan.split)
                .word(u32::from(dependent));
            let arguments = match output {
                Output::Logits => arguments.long(row(v.y.device_ptr(&self.stream).0, u64::from(w.n) * 4)),
                Output::Argmax => arguments
                    .long(v.token_ids.as_ref().map_or(0, |ids| ids.device_ptr(&self.stream).0))
                    .long(v.slots.device_ptr(&self.stream).0)
                    .long(row(v.ids.device_ptr(&self.stream).0, 4))
                    .long(row(v.best.device_ptr(&self.stream).0, 4)),
            };
            let shape =
                Launch { n_blocks: plan.grid, threads: plan.warps * 32, shared_bytes: plan.shared_bytes, dependent };
            #[expect(unsafe_code, reason = "a launch")]
            // SAFETY: the arguments are those of the kernel; the vectors have room for m rows of results, and the caller
            // keeps the matrix until the stream is waited for.
            unsafe {
                launch(&self.stream, kernel, shape, arguments)?;
            }
        }
        Ok(())
    }

    /// Waits, and returns the logits `[m, n]`.
    ///
    /// # Errors
    /// A kernel failed.
    pub fn logits(&self, v: &Vectors) -> Result<Vec<f32>> {
        self.stream.clone_dtoh(&v.y).map_err(|e| explain(e, "fetch logits"))
    }

    /// Waits, and returns the ids of the largest logits and these logits, for each vector.
    ///
    /// # Errors
    /// A kernel failed.
    pub fn winners(&self, v: &Vectors) -> Result<Vec<(i32, f32)>> {
        let doing = |e: DriverError| explain(e, "fetch token ids");
        let (ids, best) =
            (self.stream.clone_dtoh(&v.ids).map_err(doing)?, self.stream.clone_dtoh(&v.best).map_err(doing)?);
        Ok(ids.into_iter().zip(best).take(v.m as usize).collect())
    }

    /// Puts a BF16 product, `weights` `[n, k]`, into the stream: the control.
    pub(super) fn multiply_bf16_at(
        &self,
        kernel: &CudaFunction,
        weights: u64,
        (n, k): (u32, u32),
        v: &Vectors,
    ) -> Result<()> {
        let arguments = Arguments::default()
            .long(weights)
            .long(v.x.device_ptr(&self.stream).0)
            .word(n)
            .word(k)
            .word(v.m)
            .long(v.y.device_ptr(&self.stream).0);
        let shape =
            Launch { n_blocks: n.div_ceil(BF16_WARPS), threads: BF16_WARPS * 32, shared_bytes: 0, dependent: false };
        #[expect(unsafe_code, reason = "a launch")]
        // SAFETY: the arguments are those of `bf16_gemv*`, and the caller's buffers hold the shape.
        unsafe {
            launch(&self.stream, kernel, shape, arguments)
        }
    }
}
