//! The precision tiers, by name.

use super::EngineError;
use std::fmt;
use std::str::FromStr;

/// Arithmetic of the matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// f32 activations.
    Exact,
    /// 8-bit activations and integer dot products.
    Fast,
    /// f16 cooperative matrices, native only.
    Tensor,
    /// The best tier that is there.
    Auto,
}

impl Precision {
    /// Refuses a tier that this build cannot run.
    ///
    /// # Errors
    /// [`EngineError::Precision`].
    pub fn check(self) -> Result<(), EngineError> {
        match self {
            Self::Exact => Ok(()),
            other => Err(EngineError::Precision {
                name: other.to_string(),
                reason: "this version computes in exact precision only; use --precision exact".into(),
            }),
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
