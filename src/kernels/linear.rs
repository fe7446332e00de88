//! The products of a model in one precision tier. A forward pass names inputs and matrices; which kernels run, and in which form an input
//! is handed over, is decided here, so that a tier adds kernels without touching a pass.

use super::attention::{self, Tiles, attention};
use super::delta::{Segments, Shape, States, Vectors, delta};
use super::half::to_half;
use super::matmul::{self, Epilogue, matmul_part};
use super::matmul_q8::{matmul_q8, padded, takes};
use super::matmul_tensor::{self, matmul_tensor};
use super::quantise::{Form, Quants, Target, quantise};
use super::rms_norm::rms_norm_to;
use super::rope::{Cache, Heads};
use super::split::Pieces;
use super::swiglu::swiglu_to;
use super::weight::Matrix;
use super::{Mat, attention_tensor, split};
use crate::gpu::{Buffer, Gpu, GpuError, GpuInfo, Recorder, View};

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
    pub fn check(self, gpu: &GpuInfo) -> Result<(), String> {
        match self {
            Tier::Exact => Ok(()),
            Tier::Fast if gpu.abilities.packed_dot => Ok(()),
            Tier::Fast => Err("this browser's shading language has no packed integer dot product".into()),
            Tier::Tensor => matmul_tensor::check(gpu),
        }
    }

    /// The fastest tier that is right on this device and pays.
    pub fn best(gpu: &GpuInfo) -> Tier {
        Self::fastest(gpu, None)
    }

    /// The fastest one beside `wrong`, which turned out to be wrong there.
    pub fn best_but(gpu: &GpuInfo, wrong: Tier) -> Tier {
        Self::fastest(gpu, Some(wrong))
    }

    fn fastest(gpu: &GpuInfo, but: Option<Tier>) -> Tier {
        let pays = |tier: &Tier| match tier {
            Tier::Exact => true,
            Tier::Fast => gpu.abilities.fast_dot,
            Tier::Tensor => gpu.abilities.matrices,
        };
        Self::ALL.into_iter().rev().find(|tier| Some(*tier) != but && tier.check(gpu).is_ok() && pays(tier)).unwrap_or(Tier::Exact)
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
}

/// The input of one or more products, in the forms that their weights read, until the next input is made.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    x: Mat<'a>,
    rows: Rows,
}

/// The kernels of a tier, and the scratch that they need.
#[derive(Debug)]
pub struct Linear {
    tier: Tier,
    /// The current input in 8-bit blocks.
    q8: Option<Quants>,
    /// The current input as f16.
    half: Option<Buffer>,
    /// Pieces of products whose k is cut.
    pieces: Buffer,
}

/// Rows that inputs and outputs of products must have in a tier, for so many rows or fewer.
pub fn padded_rows(tier: Tier, rows: u32) -> u32 {
    match tier {
        Tier::Tensor => matmul_tensor::padded(rows),
        _ => rows.next_multiple_of(super::matmul::ROW_PADDING),
    }
}

/// Row stride for outputs of `cols` columns: more than that makes room for whole tiles of a product.
pub fn row_stride(tier: Tier, cols: u32) -> u32 {
    match tier {
        Tier::Tensor => matmul_tensor::stride(cols),
        _ => cols,
    }
}

/// What the products of a model may be asked for.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Rows of a chunk, as [`padded_rows`] says.
    pub rows: u32,
    /// Columns of the widest input.
    pub widest: u32,
    /// Rows of the tallest matrix.
    pub tallest: u32,
}

fn half_bytes(sizes: Sizes) -> u64 {
    u64::from(sizes.rows) * u64::from(sizes.widest) * 2
}

fn pieces_bytes(tier: Tier, sizes: Sizes) -> u64 {
    match tier {
        Tier::Tensor => matmul_tensor::scratch_bytes(sizes.rows),
        _ => split::scratch(sizes.tallest, u64::from(sizes.rows)) * 4,
    }
}

impl Linear {
    /// The products of a model in a tier.
    ///
    /// # Errors
    /// Out of memory.
    pub async fn new(gpu: &Gpu, tier: Tier, sizes: Sizes) -> Result<Self, GpuError> {
        let q8 = match tier {
            Tier::Fast => Some(Quants::new(gpu, padded(sizes.rows), sizes.widest).await?),
            _ => None,
        };
        let half = match tier {
            Tier::Tensor => Some(gpu.buffer("f16 rows", half_bytes(sizes)).await?),
            _ => None,
        };
        let pieces = gpu.buffer("pieces of products", pieces_bytes(tier, sizes)).await?;
        Ok(Self { tier, q8, half, pieces })
    }

    /// GPU bytes of [`Linear::new`].
    pub fn bytes(tier: Tier, sizes: Sizes) -> u64 {
        let input = match tier {
            Tier::Exact => 0,
            Tier::Fast => Quants::bytes(u64::from(padded(sizes.rows)), sizes.widest),
            Tier::Tensor => half_bytes(sizes),
        };
        input + pieces_bytes(tier, sizes)
    }

    /// The tier.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// Where a kernel puts an input of products with `w`: `y`, f16 rows, 8-bit blocks, or both `y` and blocks where the matrix mixes float
    /// and integer weights.
    fn target<'a>(&'a self, y: Mat<'a>, w: &Matrix) -> Target<'a> {
        if let Some(half) = &self.half {
            return Target::half(half.all(), w.cols);
        }
        match &self.q8 {
            Some(q8) if w.parts.iter().any(|p| takes(p.ty)) => Target::q8(q8, y, w.parts.iter().any(|p| !takes(p.ty))),
            _ => Target::floats(y),
        }
    }

    /// RMSNorm of `x`, with what is `left` of a product added to it, as the input of products with `w`; `y` is scratch of the same shape.
    #[allow(clippy::too_many_arguments)]
    pub fn norm<'a>(
        &self,
        rec: &mut Recorder,
        x: Mat<'_>,
        left: Option<Pieces<'_>>,
        weight: View<'_>,
        eps: f32,
        y: Mat<'a>,
        rows: Rows,
        w: &Matrix,
    ) -> Input<'a> {
        rms_norm_to(rec, x, left, weight, self.target(y, w), w.cols, rows.count, eps);
        Input { x: y, rows }
    }

    /// silu(gate) * up as the input of products with `w`; `y` is scratch of `w.cols` columns.
    pub fn swiglu<'a>(&self, rec: &mut Recorder, gate_up: Mat<'_>, y: Mat<'a>, rows: Rows, w: &Matrix) -> Input<'a> {
        swiglu_to(rec, gate_up, self.target(y, w), w.cols, rows.count);
        Input { x: y, rows }
    }

    /// What stands in `x` as the input of products with `w`.
    pub fn input<'a>(&self, rec: &mut Recorder, x: Mat<'a>, rows: Rows, w: &Matrix) -> Input<'a> {
        match (self.target(x, w).form(), &self.q8, &self.half) {
            (Form::Half, _, Some(half)) => to_half(rec, x, half.all(), w.cols, rows.count),
            (Form::Q8 | Form::Both, Some(q8), _) => quantise(rec, x, q8, w.cols, rows.count),
            _ => {}
        }
        Input { x, rows }
    }

    /// A Gated DeltaNet layer between its projections, as the input of products with `w`; `o` is scratch of `w.cols` columns.
    #[allow(clippy::too_many_arguments)]
    pub fn delta<'a>(
        &self,
        rec: &mut Recorder,
        projected: Mat<'_>,
        shape: &Shape,
        vectors: Vectors<'_>,
        states: States<'_>,
        segments: Segments<'_>,
        convolved: Mat<'_>,
        o: Mat<'a>,
        rows: Rows,
        w: &Matrix,
    ) -> Input<'a> {
        delta(rec, projected, shape, vectors, states, segments, convolved, o, self.target(o, w));
        Input { x: o, rows }
    }

    /// Rows (positions x query heads of a group) of an attention tile of a batch of so many positions.
    pub fn attention_rows(&self, gpu: &GpuInfo, positions: u32, heads: &Heads) -> u32 {
        match self.half.is_some() && attention_tensor::takes(gpu, heads) {
            true => attention_tensor::ROWS,
            false => attention::rows_for(positions, heads),
        }
    }

    /// Attention as the input of products with `w`; `y` is scratch of `w.cols` columns.
    #[allow(clippy::too_many_arguments)]
    pub fn attention<'a>(
        &self,
        rec: &mut Recorder,
        qkv: Mat<'_>,
        heads: &Heads,
        gate: bool,
        cache: Cache<'_>,
        tiles: Tiles<'_>,
        y: Mat<'a>,
        rows: Rows,
        w: &Matrix,
    ) -> Input<'a> {
        match &self.half {
            Some(half) if attention_tensor::takes(rec.gpu().info(), heads) => {
                attention_tensor::attention_tensor(rec, qkv, heads, gate, cache, tiles, half.all());
                Input { x: y, rows }
            }
            _ => {
                attention(rec, qkv, heads, gate, cache, tiles, y);
                self.input(rec, y, rows, w)
            }
        }
    }

    /// `y (+)= x w^T (+ bias)` for each row of an input that was made for `w`. With [`Epilogue::later`] some of it may be left for the norm of
    /// y that comes next.
    pub fn product(&self, rec: &mut Recorder, w: &Matrix, input: Input<'_>, y: Mat<'_>, epilogue: Epilogue<'_>) -> Option<Pieces<'_>> {
        let Input { x, rows } = input;
        let later = epilogue.later && epilogue.add && epilogue.bias.is_none() && w.parts.len() == 1 && w.rows.is_multiple_of(4);
        let epilogue = Epilogue { later, ..epilogue };
        if let Some(half) = &self.half {
            return matmul_tensor(rec, w, half.all(), y, rows.count, epilogue, self.pieces.all());
        }
        let mut left = None;
        for part in &w.parts {
            left = match &self.q8 {
                Some(q8) if takes(part.ty) => matmul_q8(rec, part, w.blocks(), q8, y, rows.count, epilogue, self.pieces.all()),
                _ => {
                    let tile = matmul::tile(rec.gpu().info(), rows.count);
                    matmul_part(rec, part, w.blocks(), x, y, rows.count, epilogue, self.pieces.all(), tile)
                }
            };
        }
        left
    }
}
