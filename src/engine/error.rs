//! Errors of a loaded model, and their kind for exit codes and pages.

use crate::gpu::GpuError;
use crate::kernels::linear::Tier;
use crate::model::{MemoryPlan, ModelError};
use thiserror::Error;

/// What an error means to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is at fault.
    Input,
    /// The model file is at fault, or not supported.
    ModelFile,
    /// The GPU, its driver or its memory.
    Gpu,
    /// Stopped on request.
    Interrupted,
}

/// Anything that can go wrong with a model.
#[derive(Debug, Error)]
pub enum EngineError {
    /// Loading or running.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The device.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// A precision that this device cannot run.
    #[error("precision {name:?} is not available: {reason}; use --precision {best}")]
    Precision {
        /// What was asked for.
        name: String,
        /// Why not.
        reason: String,
        /// What would run.
        best: Tier,
    },
    /// No tokenizer or template.
    #[error("this model file has no usable tokenizer: {0}")]
    NoText(String),
    /// The plan says that the model will not fit.
    #[error("the model needs {} of GPU memory ({}), {} are available", gigabytes(plan.total()), parts(plan), gigabytes(*available))]
    TooLarge {
        /// What it would take.
        plan: Box<MemoryPlan>,
        /// Bytes there are.
        available: u64,
    },
    /// Token ids outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab}")]
    Token {
        /// The id.
        id: u32,
        /// Vocabulary size.
        vocab: u32,
    },
    /// A prompt without tokens.
    #[error("the prompt has no tokens")]
    Empty,
    /// A prompt over the budget.
    #[error("the prompt has {tokens} tokens, over the budget of {budget}: shorten it or raise --max-tokens (it is never truncated)")]
    Budget {
        /// Tokens of the prompt (and of the answer to be generated).
        tokens: usize,
        /// Budget.
        budget: u32,
    },
    /// The caller asked to stop.
    #[error("stopped on request")]
    Cancelled,
    /// A state that was closed, or is another engine's.
    #[error("there is no such open state")]
    NoState,
    /// Logits that are no numbers.
    #[error("the model's logits are not finite numbers: its file is damaged, or this GPU computes something else (semif doctor tests it)")]
    NotFinite,
    /// More labels than can be read at once.
    #[error("{0} labels asked for; at most 4096 can be read at once")]
    Labels(usize),
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

fn parts(plan: &MemoryPlan) -> String {
    let classes = plan.weights.iter().map(|(class, bytes)| format!("{class} {}", gigabytes(*bytes)));
    let rest = [format!("cache {}", gigabytes(plan.cache)), format!("scratch {}", gigabytes(plan.scratch))];
    classes.chain(rest).collect::<Vec<_>>().join(", ")
}

impl EngineError {
    /// The GPU's memory is too short for what was tried; with less in it, it may work.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Model(ModelError::Gpu(GpuError::OutOfMemory { .. })) | Self::Gpu(GpuError::OutOfMemory { .. }))
    }

    /// What it means to the caller.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Model(ModelError::Cancelled) | Self::Cancelled => ErrorKind::Interrupted,
            Self::Model(ModelError::Gpu(_)) | Self::Gpu(_) | Self::TooLarge { .. } | Self::NotFinite => ErrorKind::Gpu,
            Self::Model(_) | Self::NoText(_) => ErrorKind::ModelFile,
            Self::Precision { .. } | Self::Token { .. } | Self::Empty | Self::Budget { .. } | Self::NoState | Self::Labels(_) => {
                ErrorKind::Input
            }
        }
    }
}
