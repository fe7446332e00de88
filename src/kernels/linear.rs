//! The products of a model in one precision tier. A forward pass names inputs and matrices; which kernels run, and in which form an input
//! is handed over, is decided here, so that a tier adds kernels without touching a pass.

use super::Mat;
use super::matmul::{Epilogue, matmul, matvec};
use super::rms_norm::rms_norm;
use super::swiglu::swiglu;
use super::weight::Matrix;
use crate::gpu::{Gpu, GpuError, GpuInfo, Recorder, View};

/// Arithmetic of the products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tier {
    /// f32 activations.
    Exact,
    /// 8-bit activations and integer dot products.
    Fast,
    /// f16 cooperative matrices, native only.
    Tensor,
}

impl Tier {
    /// All tiers, slowest first.
    pub const ALL: [Tier; 3] = [Tier::Exact, Tier::Fast, Tier::Tensor];

    /// Can this device run it?
    ///
    /// # Errors
    /// Why not, as half a sentence.
    pub fn check(self, _gpu: &GpuInfo) -> Result<(), String> {
        match self {
            Tier::Exact => Ok(()),
            _ => Err("this version computes in exact precision only".into()),
        }
    }

    /// The fastest tier that is right on this device and pays.
    pub fn best(gpu: &GpuInfo) -> Tier {
        let pays = |tier: &Tier| match tier {
            Tier::Exact => true,
            Tier::Fast => gpu.abilities.fast_dot,
            Tier::Tensor => gpu.abilities.matrices,
        };
        Self::ALL.into_iter().rev().find(|tier| tier.check(gpu).is_ok() && pays(tier)).unwrap_or(Tier::Exact)
    }

    /// Its name, as results record it.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Exact => "exact",
            Tier::Fast => "fast",
            Tier::Tensor => "tensor",
        }
    }
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Rows that are about to be multiplied with a matrix.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    /// How many.
    pub count: u32,
    /// The single row of a generation step: matrix-vector products. No decision ever reads its states, so that another order of
    /// summation is allowed there.
    pub step: bool,
}

/// The input of one or more products, until the next input is made.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    x: Mat<'a>,
    rows: Rows,
}

/// The kernels of a tier, and the scratch that they need.
#[derive(Debug)]
pub struct Linear {
    tier: Tier,
}

impl Linear {
    /// For chunks of up to `max_rows` rows (padded to [`super::matmul::ROW_PADDING`]) and inputs of up to `widest` columns.
    ///
    /// # Errors
    /// Out of memory.
    pub async fn new(_gpu: &Gpu, tier: Tier, _max_rows: u64, _widest: u32) -> Result<Self, GpuError> {
        Ok(Self { tier })
    }

    /// GPU bytes of [`Linear::new`].
    pub fn bytes(_tier: Tier, _max_rows: u64, _widest: u32) -> u64 {
        0
    }

    /// The tier.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// RMSNorm of `x` as the input of products with `w`; `y` is scratch of the same shape.
    #[allow(clippy::too_many_arguments)]
    pub fn norm<'a>(&self, rec: &mut Recorder, x: Mat<'_>, weight: View<'_>, eps: f32, y: Mat<'a>, rows: Rows, w: &Matrix) -> Input<'a> {
        rms_norm(rec, x, weight, y, w.cols, rows.count, eps);
        Input { x: y, rows }
    }

    /// silu(gate) * up as the input of products with `w`; `y` is scratch of `w.cols` columns.
    pub fn swiglu<'a>(&self, rec: &mut Recorder, gate_up: Mat<'_>, y: Mat<'a>, rows: Rows, w: &Matrix) -> Input<'a> {
        swiglu(rec, gate_up, y, w.cols, rows.count);
        Input { x: y, rows }
    }

    /// What stands in `x` as the input of products with `w`.
    pub fn input<'a>(&self, _rec: &mut Recorder, x: Mat<'a>, rows: Rows, _w: &Matrix) -> Input<'a> {
        Input { x, rows }
    }

    /// `y (+)= x w^T (+ bias)` for each row of an input that was made for `w`. y is padded as [`matmul()`] wants it.
    pub fn product(&self, rec: &mut Recorder, w: &Matrix, input: Input<'_>, y: Mat<'_>, epilogue: Epilogue<'_>) {
        if input.rows.step {
            matvec(rec, w, input.x, 0, y.view, 0, epilogue);
        } else {
            matmul(rec, w, input.x, y, input.rows.count, epilogue);
        }
    }
}
