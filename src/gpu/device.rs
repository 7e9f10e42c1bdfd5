//! Which processor does the work: `--device auto|cpu|cuda[:N]`, the probe, and the sentences for all that can be wrong.
//!
//! cudarc panics when no libcuda can be opened, so [`Gpu::open`] asks for the library first; every later failure is a
//! driver code that [`explain`] turns into one sentence and a hint.

use std::{
    collections::BTreeMap,
    fmt,
    str::FromStr,
    sync::{Arc, Mutex},
};

use anyhow::{Error, Result, anyhow, bail};
use cudarc::driver::{
    CudaContext, CudaModule, CudaStream, DriverError, result,
    sys::{self, CUdevice_attribute, CUresult},
};

use crate::error::{Hint, advise};

/// The oldest driver interface the embedded kernels load on: CUDA 12.8, which driver 570 brings.
const OLDEST_CUDA: i32 = 12_080;
/// The oldest compute capability the embedded kernels are made for (BF16 and `mma.m16n8k16`: Ampere).
const OLDEST_CAPABILITY: (i32, i32) = (8, 0);

/// What `--device` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceRequest {
    /// The first usable GPU, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// This GPU or an error: never a silent fallback.
    Cuda(usize),
}

impl FromStr for DeviceRequest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => match text.strip_prefix("cuda:").map(str::parse) {
                Some(Ok(ordinal)) => Ok(Self::Cuda(ordinal)),
                _ => bail!("`{text}` is no device: expected `auto`, `cpu`, `cuda` or `cuda:N`"),
            },
        }
    }
}

/// The processor that does the work.
#[derive(Debug)]
pub enum Device {
    /// The reference code, on all cores.
    Cpu,
    /// A CUDA device.
    Cuda(Gpu),
}

impl DeviceRequest {
    /// Opens what was asked for; the sentence (no final full stop) says what was taken and why.
    ///
    /// # Errors
    /// `Cuda`: no library, no device, a driver that is too old or a device that is busy. `Auto` and `Cpu`: never.
    pub fn open(self) -> Result<(Device, String)> {
        match self {
            Self::Cpu => Ok((Device::Cpu, "device: cpu, as asked".to_owned())),
            Self::Cuda(ordinal) => {
                let gpu = Gpu::open(ordinal).hint("`--device cpu` gives the same bytes without CUDA")?;
                let why = format!("device: cuda:{ordinal}, {gpu}, as asked");
                Ok((Device::Cuda(gpu), why))
            }
            Self::Auto => Ok(match Gpu::open(0) {
                Ok(gpu) => {
                    let why = format!("device: cuda:0, {gpu}, because it is there");
                    (Device::Cuda(gpu), why)
                }
                Err(error) => (Device::Cpu, format!("device: cpu, because {error}")),
            }),
        }
    }
}

/// An open CUDA device: its context, the stream that work goes through, and what it is.
#[derive(Debug)]
pub struct Gpu {
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    pub(super) modules: Mutex<BTreeMap<&'static str, Arc<CudaModule>>>,
    /// Shared memory that a block may have, in bytes.
    pub(super) shared_block_bytes: u32,
    /// The product's name, as the driver gives it.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// The CUDA version the driver speaks, major and minor.
    pub cuda_version: (i32, i32),
    /// Streaming multiprocessors.
    pub n_multiprocessors: usize,
    /// Level-2 cache in bytes.
    pub l2_bytes: usize,
    /// Device memory in bytes.
    pub memory_bytes: usize,
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((major, minor), (cuda, point)) = (self.capability, self.cuda_version);
        write!(f, "{} (compute capability {major}.{minor}, CUDA {cuda}.{point})", self.name)
    }
}

impl Gpu {
    /// Opens device `ordinal`.
    ///
    /// # Errors
    /// One sentence for each way in which a machine can fail to have a usable device.
    pub fn open(ordinal: usize) -> Result<Self> {
        let cuda_version = probe_driver()?;
        let n_devices = CudaContext::device_count().map_err(|e| explain(e, "count the devices"))?;
        if usize::try_from(n_devices).is_ok_and(|n| ordinal >= n) {
            return Err(match n_devices {
                0 => explain(DriverError(CUresult::CUDA_ERROR_NO_DEVICE), "count the devices"),
                n => anyhow!("there is no device `cuda:{ordinal}`: the driver shows {n}"),
            });
        }
        let context = CudaContext::new(ordinal).map_err(|e| explain(e, "open the device"))?;
        Self::describe(context, cuda_version).map_err(|error| match error.downcast::<DriverError>() {
            Ok(error) => explain(error, "open the device"),
            Err(error) => error,
        })
    }

    fn describe(context: Arc<CudaContext>, cuda_version: (i32, i32)) -> Result<Self> {
        let capability = context.compute_capability()?;
        if capability < OLDEST_CAPABILITY {
            bail!(
                "`{}` has compute capability {}.{}, expected {}.{} or later",
                context.name()?,
                capability.0,
                capability.1,
                OLDEST_CAPABILITY.0,
                OLDEST_CAPABILITY.1
            );
        }
        let number = |attribute| -> Result<usize> { Ok(usize::try_from(context.attribute(attribute)?)?) };
        let n_multiprocessors = number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let l2_bytes = number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?;
        let shared_block_bytes =
            u32::try_from(number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?)?;
        let (name, memory_bytes) = (context.name()?, context.total_mem()?);
        disable_event_tracking(&context);
        let stream = context.new_stream()?;
        let modules = Mutex::default();
        Ok(Self {
            context,
            stream,
            modules,
            shared_block_bytes,
            name,
            capability,
            cuda_version,
            n_multiprocessors,
            l2_bytes,
            memory_bytes,
        })
    }

    /// Device memory that is free now, in bytes.
    ///
    /// # Errors
    /// The device was lost.
    pub fn free_bytes(&self) -> Result<usize> {
        let (free, _) = self.context.mem_get_info().map_err(|e| explain(e, "ask for the free memory"))?;
        Ok(free)
    }

    /// The highest clock of the multiprocessors and of the memory, in MHz.
    ///
    /// # Errors
    /// The device was lost.
    pub fn max_clocks_mhz(&self) -> Result<(u32, u32)> {
        let khz = |attribute| self.context.attribute(attribute).map_err(|e| explain(e, "ask for the clocks"));
        let (cores, memory) = (
            khz(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
            khz(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        );
        Ok((u32::try_from(cores)? / 1000, u32::try_from(memory)? / 1000))
    }

    /// The version of the kernel's driver, `580.159.03`, where the system shows it.
    pub fn driver_version(&self) -> Option<String> {
        let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
        let version = |word: &&str| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit());
        text.lines().next()?.split_whitespace().find(version).map(str::to_owned)
    }

    /// Waits for all work in the stream.
    ///
    /// # Errors
    /// What a kernel did wrong, or a device that was lost.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().map_err(|e| explain(e, "finish the work"))
    }
}

/// Opens libcuda and reads the CUDA version of its driver.
fn probe_driver() -> Result<(i32, i32)> {
    #[expect(unsafe_code, reason = "loads a shared library, which runs its initialisers")]
    // SAFETY: the library is the system's own CUDA driver, under the names it is installed as.
    let present = unsafe { sys::is_culib_present() };
    if !present {
        return Err(anyhow!("no CUDA driver is installed (`libcuda.so.1` cannot be opened)"))
            .hint("in a container, start it with access to the GPU (`--gpus all`)");
    }
    result::init().map_err(|e| explain(e, "start the CUDA driver"))?;
    let version = driver_version().map_err(|e| explain(e, "ask the CUDA driver for its version"))?;
    if version < OLDEST_CUDA {
        let (major, minor) = split_version(version);
        return Err(anyhow!("the CUDA driver is too old: it speaks CUDA {major}.{minor}, expected 12.8 or later"))
            .hint("install NVIDIA driver 570 or later");
    }
    Ok(split_version(version))
}

/// 12080 is CUDA 12.8.
fn split_version(version: i32) -> (i32, i32) {
    (version / 1000, version % 1000 / 10)
}

fn driver_version() -> Result<i32, DriverError> {
    let mut version = 0;
    #[expect(unsafe_code, reason = "cudarc has no safe form of this call")]
    // SAFETY: the pointer is to a live `i32`, and the library was opened.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
    Ok(version)
}

fn disable_event_tracking(context: &Arc<CudaContext>) {
    #[expect(unsafe_code, reason = "the caller orders all work itself")]
    // SAFETY: all kernels and copies on a buffer go through one stream, or the host waits between streams.
    unsafe {
        context.disable_event_tracking();
    }
}

/// The sentence for a driver's error code; `doing` completes "cannot ...".
pub(super) fn explain(error: DriverError, doing: &str) -> Error {
    let (sentence, hint) = match error.0 {
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            let sentence = "the `libcuda.so.1` that was found is the toolkit's stub, not a driver".to_owned();
            (sentence, "remove the toolkit's `stubs` folder from `LD_LIBRARY_PATH`")
        }
        CUresult::CUDA_ERROR_NO_DEVICE => {
            let sentence = "the CUDA driver shows no device".to_owned();
            (sentence, "see whether `nvidia-smi` lists one and whether `CUDA_VISIBLE_DEVICES` hides it")
        }
        CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => {
            let sentence = format!("cannot {doing}: it is busy (another process holds it exclusively)");
            (sentence, "wait for that process, or name another device with `--device cuda:N`")
        }
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            let sentence = format!("cannot {doing}: the device is out of memory");
            (sentence, "free device memory: `nvidia-smi` lists the processes that hold it")
        }
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH | CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            let sentence = format!("cannot {doing}: `libcuda.so.1` and the kernel's driver are of different versions");
            (sentence, "restart after a driver update; in a container, drop its own CUDA compatibility libraries")
        }
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION | CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => {
            let sentence = format!("cannot {doing}: the driver does not take the kernels of this build");
            (sentence, "install NVIDIA driver 570 or later")
        }
        code => {
            let text = error.error_string().ok().and_then(|s| s.to_str().ok()).unwrap_or("no description");
            let sentence = format!("cannot {doing}: the CUDA driver says `{text}` ({})", code as u32);
            (sentence, "`nvidia-smi` and the kernel log say whether the device is well")
        }
    };
    advise(anyhow!(sentence), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_of_the_four_forms() {
        let parse = |text: &str| text.parse::<DeviceRequest>();
        assert_eq!(parse("auto").unwrap(), DeviceRequest::Auto);
        assert_eq!(parse("cpu").unwrap(), DeviceRequest::Cpu);
        assert_eq!(parse("cuda").unwrap(), DeviceRequest::Cuda(0));
        assert_eq!(parse("cuda:3").unwrap(), DeviceRequest::Cuda(3));
        for wrong in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "CUDA"] {
            assert!(parse(wrong).unwrap_err().to_string().contains("`auto`, `cpu`, `cuda` or `cuda:N`"), "{wrong}");
        }
    }

    #[test]
    fn auto_never_fails_and_says_why() {
        let (device, why) = DeviceRequest::Auto.open().unwrap();
        match device {
            Device::Cpu => assert!(why.starts_with("device: cpu, because "), "{why}"),
            Device::Cuda(_) => assert!(why.starts_with("device: cuda:0, "), "{why}"),
        }
    }

    #[test]
    fn versions_split_as_the_driver_counts_them() {
        assert_eq!(split_version(OLDEST_CUDA), (12, 8));
        assert_eq!(split_version(13_000), (13, 0));
    }
}
