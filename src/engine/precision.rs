//! The precision tiers, by name.

use super::EngineError;
use crate::gguf::Gguf;
use crate::gpu::{Gpu, GpuInfo};
use crate::kernels::linear::Tier;
use crate::kernels::selftest::tensor_works;
use crate::kernels::weight::TYPES;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Arithmetic of the matrix products, as it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// f32 activations.
    Exact,
    /// 8-bit activations and integer dot products.
    Fast,
    /// f16 cooperative matrices, native only.
    Tensor,
    /// The fastest tier that this device runs correctly.
    Auto,
}

impl Precision {
    /// The tier that runs on this device when this precision is asked for.
    ///
    /// # Errors
    /// [`EngineError::Precision`]: the device cannot run it, and why.
    pub fn tier(self, gpu: &GpuInfo) -> Result<Tier, EngineError> {
        let tier = match self {
            Self::Exact => Tier::Exact,
            Self::Fast => Tier::Fast,
            Self::Tensor => Tier::Tensor,
            Self::Auto => Tier::best(gpu),
        };
        match tier.check(gpu) {
            Ok(()) => Ok(tier),
            Err(reason) => Err(EngineError::Precision { name: tier.to_string(), reason, best: Tier::best(gpu) }),
        }
    }

    /// The tier after the tensor kernels have been tried on this device, with the types of the file's matrices: what gets them wrong does not
    /// run them. `auto` then falls back by name, which results record.
    ///
    /// # Errors
    /// [`EngineError::Precision`] when the tensor tier was asked for and is wrong here, or a lost device.
    pub(super) async fn proven(self, gpu: &Gpu, tier: Tier, gguf: &Gguf, head_dim: u32) -> Result<Tier, EngineError> {
        if tier != Tier::Tensor {
            return Ok(tier);
        }
        let types: BTreeSet<_> = gguf.tensors.iter().filter(|t| t.dims.len() == 2).map(|t| t.ty.name()).collect();
        let types: Vec<_> = TYPES.into_iter().filter(|ty| types.contains(ty.name())).collect();
        let Err(reason) = tensor_works(gpu, &types, head_dim).await? else { return Ok(tier) };
        let best = Tier::best_but(gpu.info(), Tier::Tensor);
        match self {
            Self::Auto => Ok(best),
            _ => Err(EngineError::Precision { name: tier.to_string(), reason, best }),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact",
            Self::Fast => "fast",
            Self::Tensor => "tensor",
            Self::Auto => "auto",
        })
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "exact" => Ok(Self::Exact),
            "fast" => Ok(Self::Fast),
            "tensor" => Ok(Self::Tensor),
            "auto" => Ok(Self::Auto),
            other => Err(format!("{other:?} is not a precision; there are exact, fast, tensor and auto")),
        }
    }
}
