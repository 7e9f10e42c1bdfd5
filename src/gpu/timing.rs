//! Time on the card: launches captured as a graph and replayed, so that what is measured is the card and not the host.

use anyhow::{Context, Result, bail};
use cudarc::driver::{
    CudaFunction, CudaSlice, DevicePtr, DriverError,
    sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode},
};
use half::bf16;

use super::{
    Gpu,
    device::explain,
    gemv::{Nvfp4At, Output, Vectors},
    kernels::{Arguments, Launch, launch},
    plan::{MAX_M, Plan},
};

/// Bytes that the rotation of weights covers at least, in level-2 caches: enough that none of it is found there.
const ROTATION_CACHES: usize = 8;
/// Launches in a graph, at least: the graph's own start is spread over them.
const LAUNCHES: usize = 16;
/// Blocks a multiprocessor of the plain read.
const READ_BLOCKS: u32 = 4;

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// NVFP4 weights.
    Nvfp4(Output),
    /// BF16 weights.
    Bf16,
    /// A plain read of as many bytes as the NVFP4 matrix has: the floor.
    ReadNvfp4,
    /// A plain read of as many bytes as the BF16 matrix has.
    ReadBf16,
}

impl Work {
    /// Bytes of weights that one pass over an `n` x `k` matrix moves.
    pub fn bytes(self, n: u32, k: u32) -> u64 {
        let weights = u64::from(n) * u64::from(k);
        match self {
            Self::Nvfp4(_) | Self::ReadNvfp4 => weights / 2 + weights / 16,
            Self::Bf16 | Self::ReadBf16 => weights * 2,
        }
    }
}

/// Room for rotating copies of weights of any shape, filled with finite noise.
#[derive(Debug)]
pub struct Pool {
    codes: CudaSlice<u8>,
    scales: CudaSlice<u8>,
    bf16: CudaSlice<u8>,
}

impl Gpu {
    /// Room for shapes of up to `n_weights`, as many copies as the card's memory and the rotation ask for.
    ///
    /// # Errors
    /// The card is out of memory.
    pub fn pool(&self, n_weights: usize) -> Result<Pool> {
        let rotation = ROTATION_CACHES * self.l2_bytes;
        // A second copy of the largest matrix, and the nine bytes of a read where the codes have eight.
        let codes = (n_weights + n_weights / 8).max(rotation).next_multiple_of(256);
        let bf16 = (n_weights * 2).max(rotation).next_multiple_of(256);
        let doing = |e: DriverError| explain(e, "set up the benchmark's weights");
        let pool = Pool {
            codes: self.stream.alloc_zeros(codes).map_err(doing)?,
            scales: self.stream.alloc_zeros(codes / 8).map_err(doing)?,
            bf16: self.stream.alloc_zeros(bf16).map_err(doing)?,
        };
        self.fill(&pool.codes, 1, u32::MAX, 0)?;
        self.fill(&pool.scales, 2, 0x7777_7777, 0)?;
        self.fill(&pool.bf16, 3, 0x80FF_80FF, 0x3C00_3C00)?;
        self.synchronize()?;
        Ok(pool)
    }

    fn fill(&self, slice: &CudaSlice<u8>, seed: u32, keep: u32, set: u32) -> Result<()> {
        let kernel = self.kernel("floor", "fill")?;
        let arguments = Arguments::default()
            .long(slice.device_ptr(&self.stream).0)
            .long(slice.len() as u64 / 4)
            .word(seed)
            .word(keep)
            .word(set);
        let shape = Launch { n_blocks: 1024, threads: 256, shared_bytes: 0, dependent: false };
        #[expect(unsafe_code, reason = "a launch")]
        // SAFETY: the arguments are those of `fill`, and the buffer holds that many words.
        unsafe {
            launch(&self.stream, &kernel, shape, arguments)
        }
    }

    /// Microseconds of one pass over `products` (what, rows, columns) for `m` vectors, once for each of `n_replays` replays
    /// of a graph of such passes in which every launch takes another copy of the weights; `n_warmups` replays go before.
    ///
    /// # Errors
    /// The card is out of memory or was lost.
    pub fn time(
        &self,
        pool: &Pool,
        products: &[(Work, u32, u32)],
        m: u32,
        n_warmups: usize,
        n_replays: usize,
    ) -> Result<Vec<f64>> {
        let launchers = products.iter().map(|&(work, n, k)| self.launcher(pool, work, n, k, m));
        let launchers = launchers.collect::<Result<Vec<_>>>()?;
        let n_passes = LAUNCHES.div_ceil(launchers.len().max(1)).max(3);
        let doing = |e: DriverError| explain(e, "time a graph");
        self.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(doing)?;
        let captured = (0..n_passes * launchers.len())
            .try_for_each(|i| launchers[i % launchers.len()].launch(self, i as u64, i > 0));
        let graph = self.stream.end_capture(CUgraphInstantiate_flags(0)).map_err(doing)?;
        captured?;
        let graph = graph.context("the driver captured no graph")?;
        let event = || self.context.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let (begin, end) = (event().map_err(doing)?, event().map_err(doing)?);
        let mut samples = Vec::with_capacity(n_replays);
        for replay in 0..n_warmups + n_replays {
            begin.record(&self.stream).map_err(doing)?;
            graph.launch().map_err(doing)?;
            end.record(&self.stream).map_err(doing)?;
            end.synchronize().map_err(doing)?;
            if replay >= n_warmups {
                samples.push(f64::from(begin.elapsed_ms(&end).map_err(doing)?) * 1e3 / n_passes as f64);
            }
        }
        Ok(samples)
    }

    fn launcher(&self, pool: &Pool, work: Work, n: u32, k: u32, m: u32) -> Result<Launcher> {
        let x: Vec<bf16> = (0..m * k)
            .map(|i| bf16::from_f32(((i.wrapping_mul(2_654_435_761) >> 16) as f32 - 32768.0) / 16384.0))
            .collect();
        let global_scale = self.stream.clone_htod(&[1e-4f32]).map_err(|e| explain(e, "send a scale"))?;
        let (kernel, plan) = match work {
            Work::Nvfp4(output) => {
                let plan = self.plan(n, k, m)?;
                (self.gemv_kernel(&plan, output)?, Some(plan))
            }
            Work::Bf16 => (self.kernel("gemv_bf16", if m == 1 { "bf16_gemv1" } else { "bf16_gemv8" })?, None),
            Work::ReadNvfp4 | Work::ReadBf16 => (self.kernel("floor", "plain_read")?, None),
        };
        let token_ids: Vec<i32> = (0..i32::try_from(n)?).collect();
        let vectors = self.vectors(&x, m, n, Some(&token_ids))?;
        let at = |slice: &CudaSlice<u8>| (slice.device_ptr(&self.stream).0, slice.len() as u64);
        let (codes, scales, bf16) = (at(&pool.codes), at(&pool.scales), at(&pool.bf16));
        Ok(Launcher { work, n, k, kernel, plan, vectors, global_scale, codes, scales, bf16 })
    }
}

/// One product, ready to be launched. The pool outlives it: both belong to one call of [`Gpu::time`].
struct Launcher {
    work: Work,
    n: u32,
    k: u32,
    kernel: CudaFunction,
    plan: Option<Plan>,
    vectors: Vectors,
    global_scale: CudaSlice<f32>,
    /// Address and bytes.
    codes: (u64, u64),
    scales: (u64, u64),
    bf16: (u64, u64),
}

impl Launcher {
    /// The address of the `i`-th copy of `bytes` bytes in a buffer, around and around.
    fn copy((start, room): (u64, u64), bytes: u64, i: u64) -> u64 {
        start + i % (room / bytes.max(1)).max(1) * bytes
    }

    /// Launch `i`, after another one or not.
    fn launch(&self, gpu: &Gpu, i: u64, after: bool) -> Result<()> {
        let (bytes, weights) = (self.work.bytes(self.n, self.k), u64::from(self.n) * u64::from(self.k));
        match (self.work, &self.plan) {
            (Work::Nvfp4(output), Some(plan)) => {
                let matrix = Nvfp4At {
                    codes: Self::copy(self.codes, weights / 2, i),
                    scales: Self::copy(self.scales, weights / 16, i),
                    global_scale: self.global_scale.device_ptr(&gpu.stream).0,
                    n: self.n,
                    k: self.k,
                };
                gpu.multiply_at(&self.kernel, matrix, &self.vectors, plan, output, after)
            }
            (Work::Nvfp4(_), None) => bail!("an NVFP4 product without a plan"),
            (Work::Bf16, _) => {
                let weights = Self::copy(self.bf16, bytes, i);
                gpu.multiply_bf16_at(&self.kernel, weights, (self.n, self.k), &self.vectors)
            }
            (Work::ReadNvfp4, _) => self.read(gpu, Self::copy(self.codes, bytes, i), bytes),
            (Work::ReadBf16, _) => self.read(gpu, Self::copy(self.bf16, bytes, i), bytes),
        }
    }

    fn read(&self, gpu: &Gpu, from: u64, bytes: u64) -> Result<()> {
        let sink = self.vectors.y.device_ptr(&gpu.stream).0;
        let arguments = Arguments::default().long(from / 16 * 16).long(bytes / 16).long(sink);
        let n_blocks = u32::try_from(gpu.n_multiprocessors)? * READ_BLOCKS;
        let shape = Launch { n_blocks, threads: 512, shared_bytes: 0, dependent: false };
        #[expect(unsafe_code, reason = "a launch")]
        // SAFETY: the arguments are those of `plain_read`, and the bytes lie in the pool, which is larger than they are.
        unsafe {
            launch(&gpu.stream, &self.kernel, shape, arguments)
        }
    }
}

const _: () = assert!(MAX_M == 8, "the BF16 control has a kernel for one and one for up to eight vectors");
