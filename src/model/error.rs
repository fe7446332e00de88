//! Why a file cannot be run.

use crate::gguf::{GgufError, MetadataError, SourceError};
use crate::gpu::GpuError;
use crate::quant::QuantError;
use thiserror::Error;

/// A model file that is not supported or not consistent, or a GPU that cannot hold it.
#[derive(Debug, Error)]
pub enum ModelError {
    /// An architecture there is no forward pass for.
    #[error("the architecture {0:?}{kind} is not supported; supported are qwen2, qwen3, llama and qwen35", kind = what_it_is(.0))]
    Architecture(String),
    /// A property of a supported architecture that there is no code for.
    #[error("this model cannot be run: {0}")]
    Unsupported(String),
    /// A missing or wrong hyper-parameter.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A missing tensor.
    #[error("tensor {0} is missing from the file")]
    MissingTensor(String),
    /// A tensor whose shape contradicts the hyper-parameters.
    #[error("tensor {name} has the shape {found}, expected {wanted}")]
    Shape {
        /// Tensor.
        name: String,
        /// Shape in the file.
        found: String,
        /// Shape that the hyper-parameters ask for.
        wanted: String,
    },
    /// Rows that cannot be repacked.
    #[error("tensor {name}: {source}")]
    Quant {
        /// Tensor.
        name: String,
        /// Reason.
        source: QuantError,
    },
    /// The index cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The data cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The GPU refused.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The caller asked to stop.
    #[error("loading was cancelled")]
    Cancelled,
}

/// A word about architectures that users will meet, so that they need not look them up.
fn what_it_is(architecture: &str) -> &'static str {
    match architecture {
        "clip" => " (the vision part of a model, not a language model)",
        moe if moe.ends_with("moe") => " (a mixture of experts)",
        _ => "",
    }
}
