//! The kernels inside the binary, and how one is launched.
//!
//! They travel as PTX 8.7, which driver 570 and later compile for the card they find, so a machine needs the driver and
//! nothing else of CUDA. `kernels/embed` makes the PTX from `kernels/*.cu` with a pinned compiler; a test compares the
//! hash of the sources that it notes with the sources here.

use std::{ffi::c_void, ptr};

use anyhow::{Context, Result, bail};
use cudarc::{
    driver::{
        CudaFunction, CudaStream,
        sys::{self, CUfunction_attribute},
    },
    nvrtc::Ptx,
};

use sha2::{Digest, Sha256};

use super::{Gpu, device::explain};

/// A file of kernels.
struct Module {
    name: &'static str,
    /// For compute capability 8.0 to 8.9; none where a kernel needs more.
    sm80: Option<&'static str>,
    /// For 9.0 and later: conversion from E4M3 and dependent launches in hardware.
    sm90: &'static str,
}

macro_rules! module {
    ($name:literal) => {
        Module {
            name: $name,
            sm80: Some(include_str!(concat!("../../kernels/ptx/", $name, ".sm80.ptx"))),
            sm90: include_str!(concat!("../../kernels/ptx/", $name, ".sm90.ptx")),
        }
    };
}

static MODULES: [Module; 8] = [
    module!("floor"),
    module!("gemv"),
    module!("gemv_bf16"),
    module!("gemv_mma"),
    Module { name: "gemv_mma_few", sm80: None, sm90: include_str!("../../kernels/ptx/gemv_mma_few.sm90.ptx") },
    module!("nvfp4_quantize"),
    module!("head_logits"),
    module!("row_errors"),
];

/// The identity of the kernels in this binary: sha256 over the name and the PTX of each, hexadecimal.
pub fn kernels_sha256() -> String {
    let mut sha256 = Sha256::new();
    for module in &MODULES {
        for text in [module.name, module.sm80.unwrap_or_default(), module.sm90] {
            sha256.update((text.len() as u64).to_le_bytes());
            sha256.update(text);
        }
    }
    crate::output::hex(&sha256.finalize())
}

/// The shape of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Launch {
    pub(super) n_blocks: u32,
    pub(super) threads: u32,
    /// Dynamic shared memory.
    pub(super) shared_bytes: u32,
    /// Whether the kernel may start before the one in front of it in the stream has ended (compute capability 9.0).
    pub(super) dependent: bool,
}

/// The arguments of a launch, each at most eight bytes.
#[derive(Debug, Default)]
pub(super) struct Arguments(Vec<u64>);

impl Arguments {
    pub(super) fn word(mut self, value: u32) -> Self {
        self.0.push(u64::from(value));
        self
    }
    pub(super) fn long(mut self, value: u64) -> Self {
        self.0.push(value);
        self
    }
    pub(super) fn float(self, value: f32) -> Self {
        self.word(value.to_bits())
    }
}

impl Gpu {
    /// The kernel `function` of module `module`; compiled by the driver at first use, and then from its cache.
    pub(super) fn kernel(&self, module: &'static str, function: &str) -> Result<CudaFunction> {
        let mut modules =
            self.modules.lock().map_err(|_| anyhow::anyhow!("a thread failed while it loaded kernels"))?;
        let loaded = match modules.get(module) {
            Some(loaded) => loaded.clone(),
            None => {
                let Some(found) = MODULES.iter().find(|m| m.name == module) else { bail!("no kernels `{module}`") };
                let ptx = if self.capability >= (9, 0) { Some(found.sm90) } else { found.sm80 };
                let ptx = ptx.with_context(|| format!("the kernels `{module}` need compute capability 9.0"))?;
                let loaded =
                    self.context.load_module(Ptx::from_src(ptx)).map_err(|e| explain(e, "load the kernels"))?;
                modules.insert(module, loaded.clone());
                loaded
            }
        };
        loaded.load_function(function).map_err(|e| explain(e, "find a kernel")).with_context(|| format!("`{function}`"))
    }

    /// Lets a kernel use all the shared memory that the card gives a block beyond what the kernel has fixed.
    pub(super) fn allow_shared(&self, function: &CudaFunction) -> Result<u32> {
        let own = function.shared_size_bytes().map_err(|e| explain(e, "ask for a kernel's shared memory"))?;
        let free = self.shared_block_bytes.saturating_sub(u32::try_from(own)?);
        function
            .set_attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, i32::try_from(free)?)
            .map_err(|e| explain(e, "reserve shared memory"))?;
        Ok(free)
    }
}

/// Puts a launch into `stream`.
///
/// # Safety
/// The arguments have the types, order and meaning that the kernel declares, and pointers among them stay valid until the
/// stream has run the launch.
#[expect(unsafe_code, reason = "a launch cannot be checked by the compiler")]
pub(super) unsafe fn launch(
    stream: &CudaStream,
    function: &CudaFunction,
    shape: Launch,
    mut arguments: Arguments,
) -> Result<()> {
    stream.context().bind_to_thread().map_err(|e| explain(e, "use the device"))?;
    let mut pointers: Vec<*mut c_void> = arguments.0.iter_mut().map(|cell| ptr::from_mut(cell).cast()).collect();
    let mut attribute = sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    };
    let config = sys::CUlaunchConfig {
        gridDimX: shape.n_blocks,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: shape.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shape.shared_bytes,
        hStream: stream.cu_stream(),
        attrs: &raw mut attribute,
        numAttrs: u32::from(shape.dependent),
    };
    // SAFETY: `config` and the argument cells live through the call, which copies them; a cell is as large as the largest
    // argument and little-endian, so a smaller one reads its own bytes. The rest is the caller's promise.
    unsafe { sys::cuLaunchKernelEx(&raw const config, function.cu_function(), pointers.as_mut_ptr(), ptr::null_mut()) }
        .result()
        .map_err(|e| explain(e, "launch a kernel"))
}

/// Clusters of `cluster` blocks that the card runs at a time.
pub(super) fn most_clusters(function: &CudaFunction, cluster: u32, threads: u32, shared_bytes: u32) -> Result<u32> {
    let mut attribute = sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue {
            clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: cluster, y: 1, z: 1 },
        },
    };
    let config = sys::CUlaunchConfig {
        gridDimX: cluster,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shared_bytes,
        hStream: ptr::null_mut(),
        attrs: &raw mut attribute,
        numAttrs: 1,
    };
    let mut n_clusters = 0;
    #[expect(unsafe_code, reason = "cudarc has no safe form of this call")]
    // SAFETY: all pointers are to live values, and the function is of a loaded module.
    unsafe { sys::cuOccupancyMaxActiveClusters(&mut n_clusters, function.cu_function(), &raw const config) }
        .result()
        .map_err(|e| explain(e, "ask how many clusters fit"))?;
    Ok(u32::try_from(n_clusters)?)
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::nvfp4::{BLOCK, E2M1_MAX, E4M3_MAX, KERNEL_SAFE_MIN_CODE};

    const HEADER: &str = include_str!("../../kernels/nvfp4.cuh");
    const QUANTIZER: &str = include_str!("../../kernels/nvfp4_block.cuh");
    const MSE: &str = include_str!("../../kernels/nvfp4_mse.cuh");
    const HEADERS: [&str; 5] =
        [HEADER, include_str!("../../kernels/gemv.cuh"), include_str!("../../kernels/gemv_mma.cuh"), QUANTIZER, MSE];

    #[test]
    fn the_embedded_ptx_was_made_from_these_sources() {
        let sources = [
            include_str!("../../kernels/floor.cu"),
            include_str!("../../kernels/gemv.cu"),
            include_str!("../../kernels/gemv_bf16.cu"),
            include_str!("../../kernels/gemv_mma.cu"),
            include_str!("../../kernels/gemv_mma_few.cu"),
            include_str!("../../kernels/nvfp4_quantize.cu"),
            include_str!("../../kernels/head_logits.cu"),
        ];
        for (module, source) in MODULES.iter().zip(sources) {
            let hash = Sha256::digest([&HEADERS.concat(), source].concat());
            let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            let expected = format!("// sources sha256: {hash}");
            for ptx in module.sm80.into_iter().chain([module.sm90]) {
                assert_eq!(ptx.lines().next(), Some(expected.as_str()), "`{}`: run kernels/embed", module.name);
                assert!(ptx.contains("\n.version 8.7\n"), "`{}`: not the PTX that driver 570 loads", module.name);
            }
        }
    }

    #[test]
    fn kernels_and_rust_share_their_constants() {
        let constant = |source: &str, name: &str| -> f64 {
            let line = source.lines().find(|line| line.starts_with(&format!("#define {name} "))).unwrap();
            let value = line.split_whitespace().nth(2).unwrap();
            value
                .trim_end_matches('f')
                .parse()
                .unwrap_or_else(|_| f64::from(u32::from_str_radix(value.trim_start_matches("0x"), 16).unwrap()))
        };
        assert_eq!(constant(HEADER, "BLOCK"), BLOCK as f64);
        assert_eq!(constant(HEADER, "E2M1_MAX"), f64::from(E2M1_MAX));
        assert_eq!(constant(HEADER, "E4M3_MAX"), f64::from(E4M3_MAX));
        assert_eq!(constant(HEADER, "KERNEL_SAFE_MIN_CODE"), f64::from(KERNEL_SAFE_MIN_CODE));
        assert_eq!(constant(QUANTIZER, "MAX_CODE"), f64::from(crate::nvfp4::e4m3::MAX_CODE));
        assert_eq!(constant(QUANTIZER, "ONE_CODE"), f64::from(crate::nvfp4::e4m3::ONE));
        assert_eq!(constant(MSE, "QUANTIZE_THREADS"), f64::from(crate::gpu::quantize::THREADS));
    }
}
