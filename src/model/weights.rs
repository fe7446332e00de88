//! A model's weights on the GPU: first all buffers, then their contents, so that everything else can be made ready meanwhile.

use super::plan::{LayerPlan, MatrixPlan, ModelPlan, PartPlan, vector_bytes};
use super::stream::{Piece, StreamTimes, Target, WINDOW, stream};
use super::{Config, ModelError};
use crate::gguf::{ByteSource, TensorInfo};
use crate::gpu::{Buffer, Gpu, View};
use crate::kernels::weight::{Matrix, Part};
use crate::quant::{GROUP, dequantize, plane_layout};
use std::ops::ControlFlow;
use std::sync::Arc;

/// How far an upload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadProgress {
    /// File bytes read, repacked and handed to the GPU.
    pub done: u64,
    /// File bytes in all.
    pub total: u64,
}

/// A vector in the vector arena.
#[derive(Debug, Clone)]
pub struct Vector {
    buffer: Arc<Buffer>,
    at: u64,
    size: u64,
}

impl Vector {
    /// The vector, ready to be bound.
    pub fn view(&self) -> View<'_> {
        self.buffer.range(self.at, self.size)
    }
}

/// What mixes positions in a layer.
#[derive(Debug, Clone)]
pub enum Mixer {
    /// Softmax attention.
    Attention {
        /// q | k | v (with an output gate beside each query head in qwen35).
        qkv: Matrix,
        /// Biases of q | k | v.
        bias: Option<Vector>,
        /// RMSNorm weights of query and key heads.
        norms: Option<(Vector, Vector)>,
        /// Output projection.
        out: Matrix,
    },
    /// Gated DeltaNet.
    Delta {
        /// q | k | v channels, output gate, alpha, beta.
        input: Matrix,
        /// Convolution taps `[channels, 4]`.
        conv: Vector,
        /// -exp(A) of each value head.
        a: Vector,
        /// Bias of alpha.
        dt: Vector,
        /// RMSNorm weight of a head.
        norm: Vector,
        /// Output projection.
        out: Matrix,
    },
}

impl Mixer {
    /// The matrix that reads the normed residual.
    pub fn input(&self) -> &Matrix {
        match self {
            Self::Attention { qkv: input, .. } | Self::Delta { input, .. } => input,
        }
    }

    /// Parts of both matrices.
    pub fn part_count(&self) -> usize {
        match self {
            Self::Attention { qkv, out, .. } => qkv.parts.len() + out.parts.len(),
            Self::Delta { input, out, .. } => input.parts.len() + out.parts.len(),
        }
    }
}

/// One layer's weights on the GPU.
#[derive(Debug, Clone)]
pub struct Layer {
    /// Norm before the mixer.
    pub mixer_norm: Vector,
    /// The mixer.
    pub mixer: Mixer,
    /// Norm before the feed-forward part.
    pub ffn_norm: Vector,
    /// gate | up.
    pub gate_up: Matrix,
    /// down.
    pub down: Matrix,
}

/// A model's weights on the GPU.
#[derive(Debug)]
pub struct Weights {
    /// Token embedding.
    pub embedding: Matrix,
    /// Output matrix; `None` when it is the embedding.
    pub output: Option<Matrix>,
    /// Final norm.
    pub output_norm: Vector,
    /// RoPE frequency factors.
    pub rope_freqs: Option<Vec<f32>>,
    /// Layers.
    pub layers: Vec<Layer>,
}

impl Weights {
    /// The matrix whose rows give the logits.
    pub fn head(&self) -> &Matrix {
        self.output.as_ref().unwrap_or(&self.embedding)
    }

    /// Takes the GPU memory of everything in `plan`. The weights are zero until [`Loading::stream`] has filled them. On any error all memory
    /// taken so far is given back. `progress` hears before each matrix and may stop it.
    ///
    /// # Errors
    /// Out of memory; RoPE factors that cannot be read or are none; `progress` asked to stop.
    pub async fn allocate(
        gpu: &Gpu,
        source: &impl ByteSource,
        config: &Config,
        plan: &ModelPlan,
        progress: &mut dyn FnMut(UploadProgress) -> ControlFlow<()>,
    ) -> Result<(Weights, Loading), ModelError> {
        let vectors: u64 = plan.vectors().map(vector_bytes).sum();
        let arena = Arc::new(gpu.buffer("vectors", vectors).await?);
        let total = plan.source_bytes();
        let place = Placing { gpu, pieces: Vec::new(), arena, arena_at: 0, progress, total, outline: false };
        let rope_freqs = match &plan.rope_freqs {
            Some(tensor) => Some(rope_factors(source, tensor).await?),
            None => None,
        };
        place.all(config, plan, rope_freqs).await
    }

    /// Weights that take no memory and have no contents, for a rehearsal: which kernels they need can be told, nothing can be run.
    ///
    /// # Errors
    /// A plan that lacks a tensor.
    pub async fn outline(gpu: &Gpu, config: &Config, plan: &ModelPlan) -> Result<Weights, ModelError> {
        let arena = Arc::new(gpu.outline("vectors", plan.vectors().map(vector_bytes).sum()));
        let progress = &mut |_| ControlFlow::Continue(());
        let place = Placing { gpu, pieces: Vec::new(), arena, arena_at: 0, progress, total: 0, outline: true };
        Ok(place.all(config, plan, None).await?.0)
    }
}

impl Placing<'_> {
    async fn all(mut self, config: &Config, plan: &ModelPlan, rope_freqs: Option<Vec<f32>>) -> Result<(Weights, Loading), ModelError> {
        let embedding = self.matrix(&plan.embedding).await?;
        let output = match &plan.output {
            Some(p) => Some(self.matrix(p).await?),
            None => None,
        };
        let output_norm = self.vector(std::slice::from_ref(&plan.output_norm));
        let mut layers = Vec::new();
        for (i, layer) in plan.layers.iter().enumerate() {
            layers.push(self.layer(layer, config.is_delta[i]).await?);
        }
        Ok((Weights { embedding, output, output_norm, rope_freqs, layers }, Loading { pieces: self.pieces }))
    }
}

/// What is still to be read into allocated weights.
pub struct Loading {
    pieces: Vec<Piece>,
}

impl Loading {
    /// Reads, repacks and uploads everything.
    ///
    /// # Errors
    /// Unreadable source, GPU faults, or `progress` asked to stop.
    pub async fn stream(
        self,
        gpu: &Gpu,
        source: &impl ByteSource,
        progress: &mut dyn FnMut(UploadProgress) -> ControlFlow<()>,
    ) -> Result<StreamTimes, ModelError> {
        stream(gpu, source, &self.pieces, progress).await
    }
}

async fn rope_factors(source: &impl ByteSource, tensor: &TensorInfo) -> Result<Vec<f32>, ModelError> {
    let mut bytes = vec![0; tensor.bytes as usize];
    source.read_at(tensor.offset, &mut bytes).await?;
    let mut factors = vec![0.0; tensor.dims.iter().product::<u64>() as usize];
    dequantize(tensor.ty, &bytes, &mut factors).map_err(|source| ModelError::Quant { name: tensor.name.clone(), source })?;
    match factors.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
        Some(bad) => Err(ModelError::Unsupported(format!("a RoPE frequency factor of {bad}"))),
        None => Ok(factors),
    }
}

/// Gives every tensor its place.
struct Placing<'a> {
    gpu: &'a Gpu,
    pieces: Vec<Piece>,
    arena: Arc<Buffer>,
    arena_at: u64,
    progress: &'a mut dyn FnMut(UploadProgress) -> ControlFlow<()>,
    total: u64,
    /// Take no memory.
    outline: bool,
}

impl Placing<'_> {
    async fn matrix(&mut self, plan: &MatrixPlan) -> Result<Matrix, ModelError> {
        if (self.progress)(UploadProgress { done: 0, total: self.total }).is_break() {
            return Err(ModelError::Cancelled);
        }
        let mut parts = Vec::new();
        for p in &plan.parts {
            let buffer = Arc::new(match self.outline {
                true => self.gpu.outline(&plan.label, p.bytes),
                false => self.gpu.buffer(&plan.label, p.bytes).await?,
            });
            self.pieces_of(p, u64::from(plan.cols), &buffer)?;
            parts.push(Part { ty: p.ty, first: p.first, rows: p.rows, buffer, planes: p.planes.clone() });
        }
        Ok(Matrix { cols: plan.cols, rows: plan.rows, parts })
    }

    /// Cuts the rows of a part into pieces of a window at most, each of whole row groups, which go to the planes one after the other.
    fn pieces_of(&mut self, plan: &PartPlan, cols: u64, buffer: &Arc<Buffer>) -> Result<(), ModelError> {
        let mut done = 0;
        for s in &plan.sources {
            let row_bytes = s.tensor.bytes / s.tensor.rows().max(1);
            let step = (WINDOW / row_bytes.max(1) / GROUP as u64).max(1) * GROUP as u64;
            let mut row = 0;
            while row < s.rows {
                let rows = step.min(s.rows - row);
                let before =
                    plane_layout(plan.ty, done, cols).map_err(|source| ModelError::Quant { name: s.tensor.name.clone(), source })?;
                // Planes that a type lacks have no place in the plan.
                let mut places = plan.planes.iter().map(|(at, _)| *at);
                let whole = plane_layout(plan.ty, GROUP as u64, cols).unwrap_or_default();
                let sizes = [
                    (whole.quants, before.quants),
                    (whole.high, before.high),
                    (whole.scales, before.scales),
                    (whole.scales2, before.scales2),
                ];
                let at = sizes.map(|(size, before)| if size > 0 { places.next().unwrap_or(0) + before } else { 0 });
                let target = Target::Planes(at);
                self.pieces.push(Piece { tensor: s.tensor.clone(), row: s.row + row, rows, buffer: buffer.clone(), target });
                row += rows;
                done += rows;
            }
        }
        Ok(())
    }

    fn vector(&mut self, tensors: &[TensorInfo]) -> Vector {
        let (at, size) = (self.arena_at, vector_bytes(tensors));
        let mut next = at;
        for tensor in tensors {
            let target = Target::Values(next);
            self.pieces.push(Piece { tensor: tensor.clone(), row: 0, rows: tensor.rows(), buffer: self.arena.clone(), target });
            next += tensor.dims.iter().product::<u64>() * 4;
        }
        self.arena_at += size;
        Vector { buffer: self.arena.clone(), at, size }
    }

    async fn layer(&mut self, plan: &LayerPlan, delta: bool) -> Result<Layer, ModelError> {
        let m = |role: &str| plan.matrices.get(role).ok_or_else(|| ModelError::MissingTensor(role.into()));
        let v = |role: &str| plan.vectors.get(role).map(Vec::as_slice).ok_or_else(|| ModelError::MissingTensor(role.into()));
        let mixer_norm = self.vector(v("mixer_norm")?);
        let input = self.matrix(m("in")?).await?;
        let out = self.matrix(m("out")?).await?;
        let mixer = if delta {
            let conv = self.vector(v("conv")?);
            let a = self.vector(v("a")?);
            let dt = self.vector(v("dt")?);
            let norm = self.vector(v("head_norm")?);
            Mixer::Delta { input, conv, a, dt, norm, out }
        } else {
            let bias = plan.vectors.get("bias").map(|tensors| self.vector(tensors));
            let norms = match (plan.vectors.get("q_norm"), plan.vectors.get("k_norm")) {
                (Some(q), Some(k)) => Some((self.vector(q), self.vector(k))),
                _ => None,
            };
            Mixer::Attention { qkv: input, bias, norms, out }
        };
        let ffn_norm = self.vector(v("ffn_norm")?);
        let gate_up = self.matrix(m("gate_up")?).await?;
        let down = self.matrix(m("down")?).await?;
        Ok(Layer { mixer_norm, mixer, ffn_norm, gate_up, down })
    }
}
