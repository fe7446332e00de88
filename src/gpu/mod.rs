//! Device, limits, buffers, pipelines, command recording and readback. Knows nothing of models.

mod buffer;
mod device;
mod error;
mod memory;
mod pipeline;
mod probe;
mod recorder;
pub mod template;

pub use buffer::{Buffer, View};
pub use device::{AdapterSummary, Gpu, GpuInfo, GpuOptions, adapters};
pub use error::GpuError;
pub use pipeline::{Access, Kernel};
pub use probe::Abilities;
pub use recorder::{Recorder, now_seconds};
