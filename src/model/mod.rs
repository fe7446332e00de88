//! Hyper-parameters from metadata, weight planning and upload, and the forward pass.

mod cache;
mod config;
mod error;
mod forward;
mod plan;
mod step;
mod stream;
mod turns;
mod weights;

#[cfg(test)]
mod tests;

pub use cache::{Cache, Sequence};
pub use config::{Architecture, Attention, Config, Delta};
pub use error::ModelError;
pub use forward::{Batch, BatchRow, Forward, Outputs};
pub use plan::{Class, Limits, MatrixPlan, MemoryPlan, ModelPlan};
pub use stream::StreamTimes;
pub use weights::{Layer, Loading, Mixer, UploadProgress, Weights};
