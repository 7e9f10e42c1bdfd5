//! All CUDA: the device that was found, the kernels that run on it, and the clock that times them.
//!
//! CUDA is opened at run time, so one binary serves machines with and without it. [`DeviceRequest::open`] is the only
//! way in: it answers with a [`Device`] and a sentence that says why this one. Every `unsafe` block of the program that
//! is not a memory map stands in this room.

mod device;
mod gemv;
mod head_logits;
mod kernels;
mod lanes;
mod plan;
mod quantize;
mod row_errors;
mod timing;

pub use device::{Device, DeviceRequest, Gpu};
pub use gemv::{Nvfp4Matrix, Output, Vectors};
pub use kernels::kernels_sha256;
pub use plan::{Card, MAX_M, Plan};
pub use quantize::{Quantizer, Rows};
pub use row_errors::ErrorMeter;
pub use timing::{Pool, Work};
