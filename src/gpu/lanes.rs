//! Page-locked buffers with a stream of their own, for work that goes to the card tile by tile: when several threads
//! bring tiles, the copies of one overlap with the kernel of another.

use std::sync::{Arc, Mutex};

use anyhow::{Result, anyhow};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DriverError, PinnedHostSlice, result};

use super::{Gpu, device::explain};

/// Inputs start at multiples of this many bytes, as the kernels' widest loads ask.
const ALIGNMENT: usize = 16;

/// Idle lanes of a card.
#[derive(Debug)]
pub(super) struct Lanes<'g> {
    gpu: &'g Gpu,
    idle: Mutex<Vec<Lane>>,
}

/// A stream with its buffers, here and on the card.
#[derive(Debug)]
struct Lane {
    stream: Arc<CudaStream>,
    input: PinnedHostSlice<u8>,
    output: PinnedHostSlice<u8>,
    input_there: CudaSlice<u8>,
    output_there: CudaSlice<u8>,
}

impl<'g> Lanes<'g> {
    pub(super) fn new(gpu: &'g Gpu) -> Self {
        Self { gpu, idle: Mutex::new(Vec::new()) }
    }

    /// Sends `inputs`, runs what `enqueue` puts into the stream, which gets the address of each input and of `n_output`
    /// bytes, and shows `read` what came of it. `doing` completes "cannot ...".
    ///
    /// # Errors
    /// The card is out of memory or was lost; what `enqueue` says.
    pub(super) fn run(
        &self,
        inputs: &[&[u8]],
        n_output: usize,
        doing: &str,
        enqueue: impl FnOnce(&CudaStream, &[u64], u64) -> Result<()>,
        read: impl FnOnce(&[u8]),
    ) -> Result<()> {
        let begins: Vec<usize> = inputs
            .iter()
            .scan(0, |end, input| {
                let begin = *end;
                *end = (begin + input.len()).next_multiple_of(ALIGNMENT);
                Some(begin)
            })
            .collect();
        let n_input = begins.last().zip(inputs.last()).map_or(0, |(begin, input)| begin + input.len());
        let mut lane = self.take(n_input, n_output, doing)?;
        let failed = |e: DriverError| explain(e, doing);
        let to = lane.input.as_mut_slice().map_err(failed)?;
        for (&begin, input) in begins.iter().zip(inputs) {
            to[begin..begin + input.len()].copy_from_slice(input);
        }
        lane.run(&begins, n_input, n_output, doing, enqueue)?;
        read(&lane.output.as_slice().map_err(failed)?[..n_output]);
        self.idle.lock().map_err(|_| anyhow!("a thread failed while it used the card"))?.push(lane);
        Ok(())
    }

    /// An idle lane that is large enough, or a new one.
    fn take(&self, n_input: usize, n_output: usize, doing: &str) -> Result<Lane> {
        let idle = self.idle.lock().map_err(|_| anyhow!("a thread failed while it used the card"))?.pop();
        match idle {
            Some(lane) if lane.input.len() >= n_input && lane.output.len() >= n_output => Ok(lane),
            _ => Lane::new(self.gpu, n_input, n_output).map_err(|e| explain(e, doing)),
        }
    }
}

impl Lane {
    fn new(gpu: &Gpu, n_input: usize, n_output: usize) -> Result<Self, DriverError> {
        let stream = gpu.context.new_stream()?;
        #[expect(unsafe_code, reason = "the buffers are written before they are read")]
        // SAFETY: `Lanes::run` fills the inputs, and its launches the outputs, before either is read.
        unsafe {
            Ok(Self {
                input: gpu.context.alloc_pinned_with_flags(n_input, 0)?,
                output: gpu.context.alloc_pinned_with_flags(n_output, 0)?,
                input_there: stream.alloc(n_input)?,
                output_there: stream.alloc(n_output)?,
                stream,
            })
        }
    }

    fn run(
        &mut self,
        begins: &[usize],
        n_input: usize,
        n_output: usize,
        doing: &str,
        enqueue: impl FnOnce(&CudaStream, &[u64], u64) -> Result<()>,
    ) -> Result<()> {
        let failed = |e: DriverError| explain(e, doing);
        let stream = &self.stream;
        let (input, output) = (self.input_there.device_ptr(stream).0, self.output_there.device_ptr(stream).0);
        let addresses: Vec<u64> = begins.iter().map(|&begin| input + begin as u64).collect();
        let from = self.input.as_slice().map_err(failed)?;
        #[expect(unsafe_code, reason = "asynchronous copies on buffers of this lane")]
        // SAFETY: the lane is this thread's alone, its buffers hold at least the bytes named (`Lanes::take`), and the
        // stream is waited for before anything is read or reused, also when `enqueue` fails.
        unsafe {
            result::memcpy_htod_async(input, &from[..n_input], stream.cu_stream()).map_err(failed)?;
            let enqueued = enqueue(stream, &addresses, output);
            let to = self.output.as_mut_slice().map_err(failed)?;
            let copied = result::memcpy_dtoh_async(&mut to[..n_output], output, stream.cu_stream());
            stream.synchronize().map_err(failed)?;
            enqueued?;
            copied.map_err(failed)
        }
    }
}
