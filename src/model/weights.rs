//! Streams tensors into GPU planes through one small window; the file never stands in memory as a whole.

use super::plan::{LayerPlan, MatrixPlan, ModelPlan, Source, vector_bytes};
use super::{Config, ModelError};
use crate::gguf::{ByteSource, TensorInfo};
use crate::gpu::{Buffer, Gpu, View};
use crate::kernels::weight::{Matrix, Part};
use crate::quant::{GROUP, Planes, dequantize, repack_groups};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Bytes of a file window; also bounds the repacked copy.
const WINDOW: u64 = 8 << 20;
/// Bytes written before the queue is flushed, so that staging memory stays small.
const FLUSH: u64 = 64 << 20;

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

    /// Reads, repacks and uploads everything in `plan`. On any error all GPU memory taken so far is given back.
    ///
    /// # Errors
    /// Unreadable source, out of memory, or `progress` asked to stop.
    pub async fn upload(
        gpu: &Gpu,
        source: &impl ByteSource,
        config: &Config,
        plan: &ModelPlan,
        progress: &mut dyn FnMut(UploadProgress) -> ControlFlow<()>,
    ) -> Result<Weights, ModelError> {
        let vectors: u64 = plan.vectors().map(vector_bytes).sum();
        let arena = Arc::new(gpu.buffer("vectors", vectors).await?);
        let state = UploadProgress { done: 0, total: plan.source_bytes() };
        let mut up = Upload { gpu, source, progress, state, pending: 0, window: Vec::new(), planes: Planes::default(), arena, arena_at: 0 };
        let embedding = up.matrix(&plan.embedding).await?;
        let output = match &plan.output {
            Some(p) => Some(up.matrix(p).await?),
            None => None,
        };
        let output_norm = up.vector(std::slice::from_ref(&plan.output_norm)).await?;
        let rope_freqs = match &plan.rope_freqs {
            Some(t) => {
                let factors = up.values(std::slice::from_ref(t)).await?;
                if let Some(bad) = factors.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
                    return Err(ModelError::Unsupported(format!("a RoPE frequency factor of {bad}")));
                }
                Some(factors)
            }
            None => None,
        };
        let mut layers = Vec::new();
        for (i, layer) in plan.layers.iter().enumerate() {
            layers.push(up.layer(layer, config.is_delta[i]).await?);
        }
        gpu.flush_writes();
        gpu.wait().await?;
        Ok(Weights { embedding, output, output_norm, rope_freqs, layers })
    }
}

struct Upload<'a, S: ByteSource> {
    gpu: &'a Gpu,
    source: &'a S,
    progress: &'a mut dyn FnMut(UploadProgress) -> ControlFlow<()>,
    state: UploadProgress,
    pending: u64,
    window: Vec<u8>,
    planes: Planes,
    arena: Arc<Buffer>,
    arena_at: u64,
}

impl<S: ByteSource> Upload<'_, S> {
    async fn advance(&mut self, bytes: u64) -> Result<(), ModelError> {
        self.state.done += bytes;
        self.pending += bytes;
        if self.pending >= FLUSH {
            self.pending = 0;
            self.gpu.flush_writes();
            // Waiting keeps the browser's staging memory bounded too.
            self.gpu.wait().await?;
        }
        match (self.progress)(self.state) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ModelError::Cancelled),
        }
    }

    async fn matrix(&mut self, plan: &MatrixPlan) -> Result<Matrix, ModelError> {
        let mut parts = Vec::new();
        for p in &plan.parts {
            let buffer = self.gpu.buffer(&plan.label, p.bytes).await?;
            let mut written = [0u64; 4];
            for source in &p.sources {
                self.rows(source, u64::from(plan.cols), &buffer, &p.planes, &mut written).await?;
            }
            parts.push(Part { ty: p.ty, first: p.first, rows: p.rows, buffer: Arc::new(buffer), planes: p.planes.clone() });
        }
        Ok(Matrix { cols: plan.cols, rows: plan.rows, parts })
    }

    /// Streams rows of a tensor to the ends of the planes in `buffer`.
    async fn rows(
        &mut self,
        s: &Source,
        cols: u64,
        buffer: &Buffer,
        planes: &[(u64, u64)],
        written: &mut [u64; 4],
    ) -> Result<(), ModelError> {
        let name = || s.tensor.name.clone();
        let row_bytes = s.tensor.bytes / s.tensor.rows();
        let step = (WINDOW / row_bytes / GROUP as u64).max(1) * GROUP as u64;
        let mut row = 0;
        while row < s.rows {
            let rows = step.min(s.rows - row);
            self.window.resize((rows * row_bytes) as usize, 0);
            self.source.read_at(s.tensor.offset + (s.row + row) * row_bytes, &mut self.window).await?;
            self.planes.clear();
            repack_groups(s.tensor.ty, cols, &self.window, &mut self.planes)
                .map_err(|source| ModelError::Quant { name: name(), source })?;
            let p = &self.planes;
            let full = [&p.quants, &p.high, &p.scales, &p.scales2].into_iter().filter(|data| !data.is_empty());
            for (i, (data, &(at, size))) in full.zip(planes).enumerate() {
                debug_assert!(written[i] + data.len() as u64 <= size);
                self.gpu.write(buffer, at + written[i], data);
                written[i] += data.len() as u64;
            }
            row += rows;
            self.advance(rows * row_bytes).await?;
        }
        Ok(())
    }

    /// The values of joined tensors, as f32.
    async fn values(&mut self, tensors: &[TensorInfo]) -> Result<Vec<f32>, ModelError> {
        let mut all = Vec::new();
        for t in tensors {
            let mut bytes = vec![0; t.bytes as usize];
            self.source.read_at(t.offset, &mut bytes).await?;
            let start = all.len();
            all.resize(start + t.dims.iter().product::<u64>() as usize, 0.0);
            dequantize(t.ty, &bytes, &mut all[start..]).map_err(|source| ModelError::Quant { name: t.name.clone(), source })?;
        }
        Ok(all)
    }

    async fn vector(&mut self, tensors: &[TensorInfo]) -> Result<Vector, ModelError> {
        let values = self.values(tensors).await?;
        let (at, size) = (self.arena_at, vector_bytes(tensors));
        self.gpu.write(&self.arena, at, bytemuck::cast_slice(&values));
        self.arena_at += size;
        self.advance(tensors.iter().map(|t| t.bytes).sum()).await?;
        Ok(Vector { buffer: self.arena.clone(), at, size })
    }

    async fn layer(&mut self, plan: &LayerPlan, delta: bool) -> Result<Layer, ModelError> {
        let m = |role: &str| plan.matrices.get(role).ok_or_else(|| ModelError::MissingTensor(role.into()));
        let v = |role: &str| plan.vectors.get(role).map(Vec::as_slice).ok_or_else(|| ModelError::MissingTensor(role.into()));
        let mixer_norm = self.vector(v("mixer_norm")?).await?;
        let input = self.matrix(m("in")?).await?;
        let out = self.matrix(m("out")?).await?;
        let mixer = if delta {
            let conv = self.vector(v("conv")?).await?;
            let a = self.vector(v("a")?).await?;
            let dt = self.vector(v("dt")?).await?;
            let norm = self.vector(v("head_norm")?).await?;
            Mixer::Delta { input, conv, a, dt, norm, out }
        } else {
            let bias = match plan.vectors.get("bias") {
                Some(t) => Some(self.vector(t).await?),
                None => None,
            };
            let norms = match (plan.vectors.get("q_norm"), plan.vectors.get("k_norm")) {
                (Some(q), Some(k)) => Some((self.vector(q).await?, self.vector(k).await?)),
                _ => None,
            };
            Mixer::Attention { qkv: input, bias, norms, out }
        };
        let ffn_norm = self.vector(v("ffn_norm")?).await?;
        let gate_up = self.matrix(m("gate_up")?).await?;
        let down = self.matrix(m("down")?).await?;
        Ok(Layer { mixer_norm, mixer, ffn_norm, gate_up, down })
    }
}
