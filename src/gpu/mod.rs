//! Device, limits, buffers, pipelines, command recording and readback. Knows nothing of models.

mod background;
mod buffer;
mod device;
mod error;
pub(crate) mod faults;
mod memory;
mod pace;
mod pipeline;
mod probe;
mod profile;
mod recorder;
pub mod template;

pub use background::{Background, background, beside, threads};
pub use buffer::{Buffer, View};
pub use device::{AdapterSummary, Gpu, GpuInfo, GpuOptions, Mark, adapters};
pub use error::GpuError;
pub use pipeline::{Access, Kernel};
pub use probe::Abilities;
pub use profile::{KernelTime, Work};
pub use recorder::{Recorder, now_seconds};
