//! Which tensors a model needs, how they are joined and split into GPU buffers, and what that costs, before anything is loaded.

use super::{Architecture, Config, ModelError};
use crate::gguf::{Gguf, TensorInfo, TensorType};
use crate::quant::{GROUP, plane_layout};
use std::collections::{BTreeMap, HashSet};

/// What a tensor is for, as memory is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Token embedding (and output matrix where they are one).
    Embedding,
    /// A separate output matrix.
    Output,
    /// Attention and DeltaNet projections.
    Mixer,
    /// Gate, up and down.
    FeedForward,
    /// Norm weights, biases and other vectors, as f32.
    Vectors,
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Embedding => "embedding",
            Self::Output => "output",
            Self::Mixer => "attention",
            Self::FeedForward => "feed-forward",
            Self::Vectors => "vectors",
        })
    }
}

/// Rows of one tensor that go into a part.
#[derive(Debug, Clone)]
pub struct Source {
    /// The tensor.
    pub tensor: TensorInfo,
    /// First row.
    pub row: u64,
    /// Rows.
    pub rows: u64,
}

/// Rows of one type in one buffer.
#[derive(Debug, Clone)]
pub struct PartPlan {
    /// Tensor type.
    pub ty: TensorType,
    /// First row within the matrix.
    pub first: u32,
    /// Rows.
    pub rows: u32,
    /// Byte offset and size of each plane (offsets multiples of 256).
    pub planes: Vec<(u64, u64)>,
    /// Bytes of the buffer.
    pub bytes: u64,
    /// Where the rows come from, in order.
    pub sources: Vec<Source>,
}

/// A matrix as it will stand on the GPU.
#[derive(Debug, Clone)]
pub struct MatrixPlan {
    /// Name for buffers and errors.
    pub label: String,
    /// Values in a row.
    pub cols: u32,
    /// Rows.
    pub rows: u32,
    /// What it is for.
    pub class: Class,
    /// Parts in row order.
    pub parts: Vec<PartPlan>,
}

/// The largest buffers weights are put into: small enough for every driver, large enough to be few.
const LARGEST_BUFFER: u64 = 1 << 30;

/// What the device allows, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// A storage binding.
    pub binding: u64,
    /// A buffer.
    pub buffer: u64,
}

fn shape(t: &TensorInfo) -> String {
    format!("{:?}", t.dims)
}

fn part(ty: TensorType, cols: u64, sources: Vec<Source>, name: &str) -> Result<PartPlan, ModelError> {
    let rows: u64 = sources.iter().map(|s| s.rows).sum();
    let layout = plane_layout(ty, rows, cols).map_err(|source| ModelError::Quant { name: name.into(), source })?;
    let mut at = 0;
    let mut planes = Vec::new();
    for size in [layout.quants, layout.high, layout.scales, layout.scales2] {
        if size > 0 {
            planes.push((at, size));
            at += size.next_multiple_of(256);
        }
    }
    Ok(PartPlan { ty, first: 0, rows: rows as u32, planes, bytes: at, sources })
}

fn fits(p: &PartPlan, limits: Limits) -> bool {
    p.bytes <= limits.buffer.min(LARGEST_BUFFER) && p.planes.iter().all(|(_, size)| *size <= limits.binding)
}

/// Plans one matrix from tensors whose rows follow each other. Tensors of one type are joined into one part; what exceeds a limit is
/// split by rows.
fn matrix(label: String, class: Class, tensors: &[&TensorInfo], cols: u32, limits: Limits) -> Result<MatrixPlan, ModelError> {
    let mut parts: Vec<PartPlan> = Vec::new();
    for t in tensors {
        let whole = Source { tensor: (*t).clone(), row: 0, rows: t.rows() };
        if let Some(last) = parts.last_mut()
            && last.ty == t.ty
            && (last.rows as usize).is_multiple_of(GROUP)
        {
            let mut sources = last.sources.clone();
            sources.push(whole.clone());
            let joined = part(t.ty, u64::from(cols), sources, &t.name)?;
            if fits(&joined, limits) {
                *last = joined;
                continue;
            }
        }
        let all = part(t.ty, u64::from(cols), vec![whole], &t.name)?;
        if fits(&all, limits) {
            parts.push(all);
            continue;
        }
        // Split: as many groups of rows as the tightest limit allows.
        let group = part(t.ty, u64::from(cols), vec![Source { tensor: (*t).clone(), row: 0, rows: GROUP as u64 }], &t.name)?;
        let widest = group.planes.iter().map(|(_, size)| *size).max().unwrap_or(1);
        let groups = (limits.binding / widest).min(limits.buffer.min(LARGEST_BUFFER) / group.bytes);
        if groups == 0 {
            return Err(ModelError::Unsupported(format!(
                "rows of tensor {} exceed the adapter's binding limit of {} bytes",
                t.name, limits.binding
            )));
        }
        let step = groups * GROUP as u64;
        let mut row = 0;
        while row < t.rows() {
            let rows = step.min(t.rows() - row);
            parts.push(part(t.ty, u64::from(cols), vec![Source { tensor: (*t).clone(), row, rows }], &t.name)?);
            row += rows;
        }
    }
    let mut rows = 0;
    for p in &mut parts {
        p.first = rows;
        rows += p.rows;
    }
    Ok(MatrixPlan { label, cols, rows, class, parts })
}

/// The matrices and vectors of one layer, by role.
#[derive(Debug, Clone, Default)]
pub struct LayerPlan {
    /// Matrices by role name.
    pub matrices: BTreeMap<&'static str, MatrixPlan>,
    /// Vectors by role name; several tensors are joined.
    pub vectors: BTreeMap<&'static str, Vec<TensorInfo>>,
}

/// Everything that will be loaded.
#[derive(Debug, Clone)]
pub struct ModelPlan {
    /// Token embedding.
    pub embedding: MatrixPlan,
    /// Output matrix, when it is not the embedding.
    pub output: Option<MatrixPlan>,
    /// Final norm.
    pub output_norm: TensorInfo,
    /// RoPE frequency factors.
    pub rope_freqs: Option<TensorInfo>,
    /// Layers.
    pub layers: Vec<LayerPlan>,
}

/// GPU memory by class, in bytes.
#[derive(Debug, Clone, serde::Serialize)]
pub struct MemoryPlan {
    /// Weight planes by class.
    pub weights: BTreeMap<Class, u64>,
    /// Keys, values and DeltaNet states for the token budget.
    pub cache: u64,
    /// Of these, DeltaNet states: as many bytes for a short prompt as for a long one.
    pub states: u64,
    /// Activations of a chunk.
    pub scratch: u64,
}

impl MemoryPlan {
    /// All weight planes.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.values().sum()
    }

    /// Everything.
    pub fn total(&self) -> u64 {
        self.weight_bytes() + self.cache + self.scratch
    }
}

/// Looks tensors up and checks their shapes.
struct Finder<'a> {
    gguf: &'a Gguf,
    limits: Limits,
}

impl<'a> Finder<'a> {
    fn get(&self, name: &str) -> Result<&'a TensorInfo, ModelError> {
        self.gguf.tensor(name).ok_or_else(|| ModelError::MissingTensor(name.into()))
    }

    fn matrix(&self, label: String, class: Class, names: &[(String, u32)], cols: u32) -> Result<MatrixPlan, ModelError> {
        let mut tensors = Vec::new();
        for (name, rows) in names {
            let t = self.get(name)?;
            if t.dims != [u64::from(cols), u64::from(*rows)] {
                return Err(ModelError::Shape { name: name.clone(), found: shape(t), wanted: format!("[{cols}, {rows}]") });
            }
            tensors.push(t);
        }
        matrix(label, class, &tensors, cols, self.limits)
    }

    fn vector(&self, name: &str, n: u32) -> Result<TensorInfo, ModelError> {
        let t = self.get(name)?;
        if t.dims.iter().product::<u64>() != u64::from(n) {
            return Err(ModelError::Shape { name: name.into(), found: shape(t), wanted: format!("{n} values") });
        }
        Ok(t.clone())
    }
}

impl ModelPlan {
    /// Plans a model for a device with `limits`.
    ///
    /// # Errors
    /// Missing tensors, shapes that contradict the hyper-parameters, rows that no kernel can read.
    pub fn new(gguf: &Gguf, config: &Config, limits: Limits) -> Result<ModelPlan, ModelError> {
        let f = Finder { gguf, limits };
        let embedding = f.matrix("token_embd".into(), Class::Embedding, &[("token_embd.weight".into(), config.vocab)], config.dim)?;
        let output = match gguf.tensor("output.weight") {
            Some(_) => Some(f.matrix("output".into(), Class::Output, &[("output.weight".into(), config.vocab)], config.dim)?),
            None => None,
        };
        let rope_freqs = match gguf.tensor("rope_freqs.weight") {
            Some(_) => Some(f.vector("rope_freqs.weight", config.attention.heads.rotated / 2)?),
            None => None,
        };
        let layers = (0..config.layers).map(|i| Self::layer(&f, config, i)).collect::<Result<_, _>>()?;
        let plan = ModelPlan { embedding, output, output_norm: f.vector("output_norm.weight", config.dim)?, rope_freqs, layers };
        plan.check_nothing_is_left(gguf, config)?;
        Ok(plan)
    }

    /// A tensor that no step reads means that the file computes something else than this engine would: refused by name. Blocks for
    /// multi-token prediction are left out knowingly.
    fn check_nothing_is_left(&self, gguf: &Gguf, config: &Config) -> Result<(), ModelError> {
        let matrices = self.matrices().flat_map(|m| &m.parts).flat_map(|p| &p.sources).map(|s| &s.tensor);
        let used: HashSet<&str> =
            matrices.chain(self.vectors().flatten()).chain(&self.rope_freqs).map(|tensor| tensor.name.as_str()).collect();
        let skipped = |name: &str| {
            let block = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok());
            block.is_some_and(|block: u32| (config.layers..config.layers + config.skipped_layers).contains(&block))
        };
        match gguf.tensors.iter().find(|tensor| !used.contains(tensor.name.as_str()) && !skipped(&tensor.name)) {
            Some(tensor) => Err(ModelError::Unsupported(format!(
                "tensor {} is no part of this architecture as it is known here; without it the answers would be another model's",
                tensor.name
            ))),
            None => Ok(()),
        }
    }

    fn layer(f: &Finder<'_>, config: &Config, i: u32) -> Result<LayerPlan, ModelError> {
        let mut plan = LayerPlan::default();
        let name = |role: &str| format!("blk.{i}.{role}");
        let weight = |role: &str| format!("blk.{i}.{role}.weight");
        let has = |role: &str| f.gguf.tensor(&name(role)).is_some();
        let (dim, ffn) = (config.dim, config.ffn);
        plan.vectors.insert("mixer_norm", vec![f.vector(&weight("attn_norm"), dim)?]);
        let ffn_norm = if config.architecture == Architecture::Qwen35 { "post_attention_norm" } else { "ffn_norm" };
        plan.vectors.insert("ffn_norm", vec![f.vector(&weight(ffn_norm), dim)?]);
        let gate_up = [(weight("ffn_gate"), ffn), (weight("ffn_up"), ffn)];
        plan.matrices.insert("gate_up", f.matrix(name("ffn_gate_up"), Class::FeedForward, &gate_up, dim)?);
        plan.matrices.insert("down", f.matrix(name("ffn_down"), Class::FeedForward, &[(weight("ffn_down"), dim)], ffn)?);
        if config.is_delta[i as usize] {
            let d =
                config.delta.as_ref().ok_or_else(|| ModelError::Unsupported("DeltaNet tensors without their hyper-parameters".into()))?;
            // One product for everything that is read from the same input: q|k|v, output gate, alpha, beta.
            let names = [
                (weight("attn_qkv"), d.channels()),
                (weight("attn_gate"), d.inner()),
                (weight("ssm_alpha"), d.value_heads),
                (weight("ssm_beta"), d.value_heads),
            ];
            plan.matrices.insert("in", f.matrix(name("delta_in"), Class::Mixer, &names, dim)?);
            plan.matrices.insert("out", f.matrix(name("ssm_out"), Class::Mixer, &[(weight("ssm_out"), dim)], d.inner())?);
            plan.vectors.insert("conv", vec![f.vector(&weight("ssm_conv1d"), d.channels() * d.taps)?]);
            plan.vectors.insert("a", vec![f.vector(&name("ssm_a"), d.value_heads)?]);
            plan.vectors.insert("dt", vec![f.vector(&name("ssm_dt.bias"), d.value_heads)?]);
            plan.vectors.insert("head_norm", vec![f.vector(&weight("ssm_norm"), d.head_dim)?]);
            return Ok(plan);
        }
        let h = &config.attention.heads;
        let (q, kv) = (h.k_at(), h.kv_heads * h.head_dim);
        let qkv = [(weight("attn_q"), q), (weight("attn_k"), kv), (weight("attn_v"), kv)];
        plan.matrices.insert("in", f.matrix(name("attn_qkv"), Class::Mixer, &qkv, dim)?);
        plan.matrices.insert("out", f.matrix(name("attn_output"), Class::Mixer, &[(weight("attn_output"), dim)], h.heads * h.head_dim)?);
        let biases = ["attn_q.bias", "attn_k.bias", "attn_v.bias"];
        match biases.iter().filter(|b| has(b)).count() {
            0 => {}
            3 => {
                let parts = biases.iter().zip([q, kv, kv]).map(|(b, n)| f.vector(&name(b), n)).collect::<Result<_, _>>()?;
                plan.vectors.insert("bias", parts);
            }
            _ => return Err(ModelError::MissingTensor(format!("blk.{i}.attn_q.bias, attn_k.bias or attn_v.bias"))),
        }
        let normed = matches!(config.architecture, Architecture::Qwen3 | Architecture::Qwen35);
        if normed || has("attn_q_norm.weight") || has("attn_k_norm.weight") {
            plan.vectors.insert("q_norm", vec![f.vector(&weight("attn_q_norm"), h.head_dim)?]);
            plan.vectors.insert("k_norm", vec![f.vector(&weight("attn_k_norm"), h.head_dim)?]);
        }
        Ok(plan)
    }

    /// All matrices.
    pub fn matrices(&self) -> impl Iterator<Item = &MatrixPlan> {
        [&self.embedding].into_iter().chain(&self.output).chain(self.layers.iter().flat_map(|l| l.matrices.values()))
    }

    /// All vectors, each with the tensors it is joined from.
    pub fn vectors(&self) -> impl Iterator<Item = &[TensorInfo]> {
        std::iter::once(std::slice::from_ref(&self.output_norm))
            .chain(self.layers.iter().flat_map(|l| l.vectors.values().map(Vec::as_slice)))
    }

    /// GPU bytes of the weights by class.
    pub fn weight_bytes(&self) -> BTreeMap<Class, u64> {
        let mut by = BTreeMap::new();
        for m in self.matrices() {
            *by.entry(m.class).or_default() += m.parts.iter().map(|p| p.bytes).sum::<u64>();
        }
        by.insert(Class::Vectors, self.vectors().map(vector_bytes).sum());
        by
    }

    /// Bytes of the file that are read.
    pub fn source_bytes(&self) -> u64 {
        let matrices = self.matrices().flat_map(|m| &m.parts).flat_map(|p| &p.sources);
        let matrices: u64 = matrices.map(|s| s.tensor.bytes / s.tensor.rows().max(1) * s.rows).sum();
        matrices + self.vectors().flatten().map(|t| t.bytes).sum::<u64>()
    }
}

/// GPU bytes of a joined vector: f32, padded to the binding alignment.
pub(super) fn vector_bytes(tensors: &[TensorInfo]) -> u64 {
    (tensors.iter().map(|t| t.dims.iter().product::<u64>()).sum::<u64>() * 4).next_multiple_of(256)
}
