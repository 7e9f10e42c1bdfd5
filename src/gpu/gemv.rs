//! y = W x on the card, for the few vectors of a draft step: which kernel, how its warps share the work, the launch.

use anyhow::{Result, ensure};
use cudarc::driver::{CudaFunction, CudaSlice, DevicePtr, DriverError};
use half::bf16;

use super::{
    Gpu,
    device::explain,
    kernels::{Arguments, Launch, launch, most_clusters},
};
use crate::nvfp4::BLOCK;

/// The most vectors a product takes.
pub const MAX_M: u32 = 8;
/// Warps of a block of kernels/gemv_bf16.cu.
const BF16_WARPS: u32 = 8;

/// As in kernels/gemv.cu: one vector.
mod one {
    pub(super) const WARPS: u32 = 16;
    /// Halves of warps, each of which takes rows of its own.
    pub(super) const GROUPS: u32 = 2 * WARPS;
    pub(super) const STEP_K: u32 = 512;
}

/// As in kernels/gemv_mma.cu: several vectors, or rows that do not start at 16 bytes.
mod several {
    pub(super) const WARPS: u32 = 12;
    pub(super) const TILE_ROWS: u32 = 32;
    pub(super) const STEP_K: u32 = 256;
    pub(super) const SLOT_BYTES: u32 = 4608;
    /// Of kernels/gemv_mma_few.cu: blocks that share tiles.
    pub(super) const CLUSTER: u32 = 8;
    /// The sums of a tile in one warp.
    pub(super) const SUMS_BYTES: u32 = 1024;
}

/// What a product gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// All logits, F32 `[m, n]`.
    Logits,
    /// The token id of the largest logit of each vector, and that logit; NaN is the largest, ties go to the lower id.
    Argmax,
}

/// What a plan needs to know of a card.
#[derive(Debug, Clone, Copy)]
pub struct Card {
    /// Multiprocessors.
    pub n_multiprocessors: u32,
    /// Dynamic shared memory that a block may have.
    pub block_bytes: u32,
    /// Blocks of kernels/gemv.cu that a multiprocessor holds: 2 from compute capability 9.0 on, where fewer registers are
    /// needed, else 1.
    pub gemv_blocks: u32,
    /// Clusters of kernels/gemv_mma_few.cu that run at a time; none before compute capability 9.0.
    pub clusters: u32,
}

/// How the warps share one product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    module: &'static str,
    kernel: &'static str,
    /// Vectors a launch takes; more take more launches.
    pub m: u32,
    /// Groups of lanes, or warps, that share rows.
    pub split: u32,
    grid: u32,
    warps: u32,
    shared_bytes: u32,
}

impl Plan {
    /// For `n` x `k` weights and `m` vectors.
    pub fn new(n: u32, k: u32, m: u32, card: Card) -> Result<Self> {
        ensure!(
            n > 0 && k > 0 && k.is_multiple_of(BLOCK as u32),
            "{n} x {k} is no NVFP4 matrix: k is a multiple of 16"
        );
        ensure!((1..=MAX_M).contains(&m), "{m} vectors: expected 1 to {MAX_M}");
        // The kernels count blocks in 32 bits.
        ensure!(
            u64::from(n) * u64::from(k) / BLOCK as u64 <= u64::from(u32::MAX),
            "{n} x {k} has more than 2^32 blocks"
        );
        let one = Self::one(n, k, card);
        let one_fits = k.is_multiple_of(32) && one.shared_bytes <= card.block_bytes;
        if m == 1 && one_fits {
            return Ok(one);
        }
        match Self::several(n, k, m, card) {
            Ok(several) if several.m > 1 || !one_fits => Ok(several),
            // Vector after vector then.
            _ if one_fits => Ok(one),
            refused => refused,
        }
    }

    /// One vector, kernels/gemv.cu. Rows are few when a group has hardly more than one; then, and where it leaves no step
    /// over, two groups share rows (fitted on an H200).
    fn one(n: u32, k: u32, card: Card) -> Self {
        let grid = n.min(card.n_multiprocessors * card.gemv_blocks);
        let few = u64::from(n) * 4 <= u64::from(grid) * u64::from(one::GROUPS) * 5;
        let n_steps = k.div_ceil(one::STEP_K);
        let split = if few || n_steps.is_multiple_of(2) { 2 } else { 1 };
        Self {
            module: "gemv",
            kernel: if few { "nvfp4_gemv_few" } else { "nvfp4_gemv" },
            m: 1,
            split,
            grid,
            warps: one::WARPS,
            // x, and the token ids of a block's rows
            shared_bytes: n_steps.next_multiple_of(split) * one::STEP_K * 2 + n.div_ceil(grid) * 4,
        }
    }

    /// Up to eight vectors, kernels/gemv_mma.cu; kernels/gemv_mma_few.cu where there are few rows.
    fn several(n: u32, k: u32, m: u32, card: Card) -> Result<Self> {
        use several::{STEP_K, TILE_ROWS, WARPS};
        let ragged = !k.is_multiple_of(STEP_K) || n < TILE_ROWS;
        let n_steps = k.div_ceil(STEP_K);
        if let Some(few) = Self::few(n, n_steps, m, card).filter(|_| !ragged) {
            return Ok(few);
        }
        // Fewer launches first, then the deeper prefetch.
        let mut choices = (1..=m).rev().flat_map(|m| [(m, 2), (m, 1)]).filter(|&(_, depth)| !ragged || depth == 1);
        let fits = |&(m, depth): &(u32, u32)| Self::several_bytes(n_steps, m, depth, WARPS) <= card.block_bytes;
        let Some((m, depth)) = choices.find(fits) else {
            anyhow::bail!(
                "one vector of {k} columns does not fit the card's {} bytes of shared memory a block",
                card.block_bytes
            );
        };
        let kernel = match (ragged, depth) {
            (true, _) => "nvfp4_mma_ragged",
            (_, 2) => "nvfp4_mma",
            _ => "nvfp4_mma_shallow",
        };
        let tiles = n.div_ceil(TILE_ROWS);
        let grid = tiles.min(card.n_multiprocessors);
        let tiles_per_block = tiles.div_ceil(grid);
        // Twice the steps that the busiest warp takes, and what joining a team's sums costs, as fitted on an H200.
        let cost = |split: u32| tiles_per_block.div_ceil(WARPS / split) * (2 * n_steps.div_ceil(split) + split);
        let split = [1, 2, 3, 4, 6, 12].into_iter().filter(|&s| s <= n_steps).min_by_key(|&s| cost(s)).unwrap_or(1);
        let shared_bytes = Self::several_bytes(n_steps, m, depth, split);
        Ok(Self { module: "gemv_mma", kernel, m, split, grid, warps: WARPS, shared_bytes })
    }

    /// Few rows, kernels/gemv_mma_few.cu: hardly a tile for every multiprocessor (fitted on an H200). None: they are not
    /// few, or the card has no clusters, or not all vectors fit.
    fn few(n: u32, n_steps: u32, m: u32, card: Card) -> Option<Self> {
        use several::{CLUSTER, SUMS_BYTES, TILE_ROWS, WARPS};
        let tiles = n.div_ceil(TILE_ROWS);
        let clusters = tiles.min(card.clusters);
        if clusters == 0 || m == 1 || tiles * 2 > card.n_multiprocessors * 3 {
            return None;
        }
        let tiles_per_cluster = tiles.div_ceil(clusters);
        // The steps that the busiest warp takes.
        let cost = |split: u32| tiles_per_cluster.div_ceil(WARPS / split) * n_steps.div_ceil(CLUSTER * split);
        let splits = [1, 2, 3, 4, 6, 12].into_iter().filter(|split| CLUSTER * split <= n_steps);
        let split = splits.min_by_key(|&split| cost(split))?;
        let sums_bytes = tiles_per_cluster.div_ceil(CLUSTER) * CLUSTER * split * SUMS_BYTES;
        let shared_bytes = Self::staged_bytes(n_steps.div_ceil(CLUSTER), m, 2) + sums_bytes;
        let (module, kernel, grid) = ("gemv_mma_few", "nvfp4_mma_few", clusters * CLUSTER);
        let plan = Self { module, kernel, m, split, grid, warps: WARPS, shared_bytes };
        (shared_bytes <= card.block_bytes).then_some(plan)
    }

    /// Dynamic shared memory of kernels/gemv_mma.cu: x, the weights in flight, and the sums of teams.
    fn several_bytes(n_steps: u32, m: u32, depth: u32, split: u32) -> u32 {
        use several::{SUMS_BYTES, WARPS};
        Self::staged_bytes(n_steps, m, depth) + if split > 1 { 2 * WARPS * SUMS_BYTES } else { 0 }
    }

    /// What kernels/gemv_mma.cu and gemv_mma_few.cu both have of it: x, and the weights in flight.
    fn staged_bytes(n_steps: u32, m: u32, depth: u32) -> u32 {
        use several::{SLOT_BYTES, STEP_K, WARPS};
        n_steps * STEP_K * 2 * m + WARPS * depth * SLOT_BYTES
    }
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

    /// The plan for `matrix` and `m` vectors on this card.
    ///
    /// # Errors
    /// The shape is no NVFP4 matrix, or a vector does not fit the card's shared memory.
    pub fn plan(&self, n: u32, k: u32, m: u32) -> Result<Plan> {
        let card = Card {
            n_multiprocessors: u32::try_from(self.n_multiprocessors)?,
            // What the kernels have of fixed shared memory, rounded up.
            block_bytes: self.shared_block_bytes.saturating_sub(1280),
            gemv_blocks: if self.capability >= (9, 0) { 2 } else { 1 },
            clusters: if m > 1 && self.capability >= (9, 0) { self.clusters()? } else { 0 },
        };
        Plan::new(n, k, m, card)
    }

    /// Clusters of kernels/gemv_mma_few.cu that the card runs at a time, each block with all its shared memory.
    fn clusters(&self) -> Result<u32> {
        let kernel = self.kernel("gemv_mma_few", "nvfp4_mma_few_logits")?;
        let shared_bytes = self.allow_shared(&kernel)?;
        most_clusters(&kernel, several::CLUSTER, several::WARPS * 32, shared_bytes)
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

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Card = Card { n_multiprocessors: 132, block_bytes: 231_424, gemv_blocks: 2, clusters: 15 };
    const SMALL: Card = Card { n_multiprocessors: 48, block_bytes: 100_352, gemv_blocks: 1, clusters: 0 };

    #[test]
    fn every_shape_of_a_drafter_gets_a_plan_that_fits() {
        for card in [H200, SMALL] {
            for (n, k) in
                [(64128, 2560), (64128, 5120), (248_320, 2560), (10240, 2560), (5120, 17408), (1, 16), (7, 2576)]
            {
                for m in 1..=MAX_M {
                    let plan = Plan::new(n, k, m, card).unwrap();
                    assert!(
                        plan.shared_bytes <= card.block_bytes && plan.m <= m && plan.warps.is_multiple_of(plan.split)
                    );
                    assert!(plan.grid <= n.min(card.n_multiprocessors * card.gemv_blocks));
                    assert_eq!(plan.module == "gemv", plan.m == 1 && k % 32 == 0, "{n} x {k}, {m}");
                    assert_eq!(plan.m > 1, m > 1 && (card.block_bytes > 200_000 || k < 17408), "{n} x {k}, {m}");
                }
            }
        }
    }

    #[test]
    fn the_constants_are_those_of_the_kernels() {
        let constant = |source: &str, name: &str, value: u32| {
            let line = source.lines().find(|line| line.starts_with(&format!("#define {name} "))).unwrap();
            assert_eq!(line.split_whitespace().nth(2).unwrap(), value.to_string(), "{name}");
        };
        let one = include_str!("../../kernels/gemv.cu");
        constant(one, "WARPS", one::WARPS);
        constant(one, "STEP_K", one::STEP_K);
        let several = include_str!("../../kernels/gemv_mma.cuh");
        constant(several, "WARPS", several::WARPS);
        constant(several, "TILE_ROWS", several::TILE_ROWS);
        constant(several, "STEP_K", several::STEP_K);
        constant(several, "SLOT_BYTES", several::SLOT_BYTES);
        constant(several, "SUMS", several::SUMS_BYTES / 128);
        constant(include_str!("../../kernels/gemv_mma_few.cu"), "CLUSTER", several::CLUSTER);
        constant(include_str!("../../kernels/gemv.cuh"), "MAX_M", MAX_M);
        constant(include_str!("../../kernels/gemv_bf16.cu"), "WARPS", BF16_WARPS);
    }
}
