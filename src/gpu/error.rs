//! What can go wrong between us and the adapter, in words a user can act on.

use thiserror::Error;

/// An adapter, device or memory error.
#[derive(Debug, Clone, Error)]
pub enum GpuError {
    /// No adapter at all.
    #[error(
        "no GPU adapter was found: natively a Vulkan, Metal or DX12 driver is needed (on Linux without a GPU, the package mesa-vulkan-drivers brings a software one); in a browser, WebGPU must be available"
    )]
    NoAdapter,
    /// `--adapter NAME` matched nothing.
    #[error("no adapter matches {wanted:?}; there are: {}", present.join(", "))]
    NoSuchAdapter {
        /// What was asked for.
        wanted: String,
        /// The names of the adapters that exist.
        present: Vec<String>,
    },
    /// The device could not be opened.
    #[error("the adapter {adapter} could not be opened: {reason}")]
    Open {
        /// Adapter name.
        adapter: String,
        /// The driver's words.
        reason: String,
    },
    /// An allocation failed or would exceed a limit.
    #[error("out of GPU memory: {what} needs {needed} bytes ({detail}); a smaller model or a smaller --max-tokens would fit")]
    OutOfMemory {
        /// The buffer's purpose.
        what: String,
        /// Bytes asked for.
        needed: u64,
        /// The driver's words or the limit.
        detail: String,
    },
    /// The device was lost (driver reset, GPU removed, tab in the background).
    #[error(
        "the GPU device was lost ({0}): other programs may have reset the driver; try again, and if it happens again use a smaller model"
    )]
    Lost(String),
    /// GPU times were asked for.
    #[error("the adapter {0} gives no GPU timestamps; measure without --profile")]
    NoTimestamps(String),
    /// A kernel or command was refused: a fault in this program or the driver.
    #[error("the GPU refused a command: {0}")]
    Validation(String),
}
