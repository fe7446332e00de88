//! Hyper-parameters of the supported architectures, from GGUF metadata alone.

use super::ModelError;
use crate::gguf::{Gguf, Metadata, MetadataError};
use crate::kernels::attention::{HEAD_DIMS, ROWS};
use crate::kernels::rope::{Heads, Pairs};
use std::fmt;

/// An architecture there is a forward pass for, by its GGUF name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Qwen2 and Qwen2.5: biases on q, k and v.
    Qwen2,
    /// Qwen3: RMSNorm of each query and key head.
    Qwen3,
    /// Llama and what is converted to it (MiniCPM5, SmolLM2): RoPE on adjacent pairs.
    Llama,
    /// Qwen3.5: Gated DeltaNet layers, and gated full attention every few layers.
    Qwen35,
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Llama => "llama",
            Self::Qwen35 => "qwen35",
        })
    }
}

/// Shape and position coding of the attention layers.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Heads and their sizes.
    pub heads: Heads,
    /// Which dimensions turn together.
    pub pairs: Pairs,
    /// Base of the RoPE frequencies.
    pub rope_base: f64,
    /// All positions are divided by this (linear RoPE scaling), 1 without.
    pub rope_divisor: f64,
    /// An output gate stands beside each query head (qwen35).
    pub gated: bool,
}

/// Shape of the Gated DeltaNet layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delta {
    /// Query and key heads.
    pub key_heads: u32,
    /// Value heads (a multiple of `key_heads`); value head n uses key head n mod `key_heads`.
    pub value_heads: u32,
    /// Values in a head, the same for keys and values.
    pub head_dim: u32,
    /// Taps of the causal convolution.
    pub taps: u32,
}

impl Delta {
    /// Channels of the convolution: q | k | v.
    pub fn channels(&self) -> u32 {
        (2 * self.key_heads + self.value_heads) * self.head_dim
    }

    /// Values of all value heads.
    pub fn inner(&self) -> u32 {
        self.value_heads * self.head_dim
    }
}

/// Everything the forward pass must know beside the weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Which forward pass.
    pub architecture: Architecture,
    /// `general.name`, if there.
    pub name: Option<String>,
    /// Layers that are run (multi-token-prediction blocks are not counted).
    pub layers: u32,
    /// Trailing blocks of the file that are not run.
    pub skipped_layers: u32,
    /// Width of the residual stream.
    pub dim: u32,
    /// Width of the feed-forward part.
    pub ffn: u32,
    /// Vocabulary: rows of the output matrix.
    pub vocab: u32,
    /// Tokens the model was made for.
    pub context: u32,
    /// RMSNorm epsilon.
    pub eps: f32,
    /// Attention layers.
    pub attention: Attention,
    /// DeltaNet layers, if the architecture has them.
    pub delta: Option<Delta>,
    /// For each layer: is it a DeltaNet layer?
    pub is_delta: Vec<bool>,
}

/// A limit no real model comes near; keeps hostile files from asking for absurd work.
const MOST: u32 = 1 << 20;

fn bounded(m: &Metadata, key: &str) -> Result<u32, ModelError> {
    match m.u32(key)? {
        0 => Err(ModelError::Unsupported(format!("metadata key {key} is zero"))),
        v if v > MOST => Err(ModelError::Unsupported(format!("metadata key {key} is {v}, more than {MOST}"))),
        v => Ok(v),
    }
}

fn optional<T>(r: Result<T, MetadataError>) -> Result<Option<T>, MetadataError> {
    match r {
        Ok(v) => Ok(Some(v)),
        Err(MetadataError::Missing { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

impl Config {
    /// The architecture that the metadata names, where there is a forward pass for it; needs no tensors.
    ///
    /// # Errors
    /// Another architecture (by name), a mixture of experts, a file that is no language model.
    pub fn architecture(m: &Metadata) -> Result<Architecture, ModelError> {
        let arch = m.str("general.architecture")?;
        // Adapters (LoRA), importance matrices and vision projectors carry the architecture of the model they belong to.
        if let Some(kind) = optional(m.str("general.type"))?
            && kind != "model"
        {
            return Err(ModelError::Unsupported(format!("the file is of type {kind:?}, which belongs to a model but is none")));
        }
        let architecture = match arch {
            "qwen2" => Architecture::Qwen2,
            "qwen3" => Architecture::Qwen3,
            "llama" => Architecture::Llama,
            "qwen35" => Architecture::Qwen35,
            other => return Err(ModelError::Architecture(other.to_string())),
        };
        if optional(m.u32(&format!("{arch}.expert_count")))?.unwrap_or(0) > 0 {
            return Err(ModelError::Unsupported("it is a mixture of experts, for which there are no kernels".into()));
        }
        Ok(architecture)
    }

    /// Reads and checks the hyper-parameters.
    ///
    /// # Errors
    /// An unsupported architecture (by name), missing or contradictory values.
    pub fn read(gguf: &Gguf) -> Result<Config, ModelError> {
        let m = &gguf.metadata;
        let architecture = Self::architecture(m)?;
        let arch = m.str("general.architecture")?;
        let key = |name: &str| format!("{arch}.{name}");
        let blocks = bounded(m, &key("block_count"))?;
        let mut skipped_layers = optional(m.u32(&key("nextn_predict_layers")))?.unwrap_or(0);
        // Prediction blocks that the metadata does not mention have tensors of their own.
        let predicts = |i: u32| gguf.tensor(&format!("blk.{i}.nextn.eh_proj.weight")).is_some();
        while skipped_layers < blocks && predicts(blocks - skipped_layers - 1) {
            skipped_layers += 1;
        }
        if skipped_layers >= blocks || blocks > 1024 {
            return Err(ModelError::Unsupported(format!("{blocks} blocks, {skipped_layers} of them for multi-token prediction")));
        }
        let layers = blocks - skipped_layers;
        // A count that is too high would leave an ordinary layer out without a word.
        let has = |start: String| gguf.tensors.iter().any(|tensor| tensor.name.starts_with(&start));
        if let Some(i) = (layers..blocks).find(|i| has(format!("blk.{i}.")) && !has(format!("blk.{i}.nextn."))) {
            return Err(ModelError::Unsupported(format!(
                "{skipped_layers} trailing blocks for multi-token prediction are declared ({arch}.nextn_predict_layers), but block {i} is an ordinary layer"
            )));
        }
        let is_delta: Vec<bool> = (0..layers).map(|i| gguf.tensor(&format!("blk.{i}.ssm_a")).is_some()).collect();
        if architecture != Architecture::Qwen35 && is_delta.contains(&true) {
            return Err(ModelError::Unsupported(format!("state-space tensors in a {arch} file")));
        }
        let dim = bounded(m, &key("embedding_length"))?;
        let embedding = gguf.tensor("token_embd.weight").ok_or_else(|| ModelError::MissingTensor("token_embd.weight".into()))?;
        let vocab = u32::try_from(embedding.rows()).unwrap_or(u32::MAX);
        if vocab > 1 << 24 {
            return Err(ModelError::Unsupported(format!("a vocabulary of {vocab} tokens")));
        }
        if !dim.is_multiple_of(32) {
            return Err(ModelError::Unsupported(format!("an embedding length of {dim}, not a multiple of 32")));
        }
        let attention = Self::attention(m, arch, architecture, dim, &is_delta)?;
        Self::check_unknown_steps(m, arch, attention.heads.head_dim)?;
        let delta = if is_delta.contains(&true) { Some(Self::delta(m, arch)?) } else { None };
        let eps = m.f32(&key("attention.layer_norm_rms_epsilon"))?;
        if !(eps.is_finite() && eps >= 0.0) {
            return Err(ModelError::Unsupported(format!("an RMSNorm epsilon of {eps}")));
        }
        Ok(Config {
            architecture,
            name: optional(m.str("general.name"))?.map(str::to_string),
            layers,
            skipped_layers,
            dim,
            ffn: Self::same(m, &key("feed_forward_length"), layers, |_| true)?,
            vocab,
            context: optional(m.u32(&key("context_length")))?.unwrap_or(4096).max(1),
            eps,
            attention,
            delta,
            is_delta,
        })
    }

    /// Keys that would change the computation and that no kernel here knows, unless they stand at their neutral value.
    fn check_unknown_steps(m: &Metadata, arch: &str, head_dim: u32) -> Result<(), ModelError> {
        let usual = 1.0 / f64::from(head_dim).sqrt();
        for (name, neutral) in [
            ("logit_scale", 1.0),
            ("embedding_scale", 1.0),
            ("residual_scale", 1.0),
            ("attention.scale", usual),
            ("attn_logit_softcapping", 0.0),
            ("final_logit_softcapping", 0.0),
        ] {
            let key = format!("{arch}.{name}");
            if let Some(value) = optional(m.f32(&key))?.map(f64::from)
                && value != 0.0
                && (value - neutral).abs() > 1e-6
            {
                return Err(ModelError::Unsupported(format!("metadata key {key} is {value}, a step that is not supported")));
            }
        }
        let key = format!("{arch}.attention.sliding_window");
        let context = optional(m.u32(&format!("{arch}.context_length")))?.unwrap_or(0);
        match optional(m.u32(&key))? {
            Some(window) if window > 0 && window < context => {
                Err(ModelError::Unsupported(format!("metadata key {key} is {window}: sliding windows are not supported")))
            }
            _ => Ok(()),
        }
    }

    /// A value that may be given once or for each layer, and must be the same for all layers that `counts`.
    fn same(m: &Metadata, key: &str, layers: u32, counts: impl Fn(usize) -> bool) -> Result<u32, ModelError> {
        let values = m.per_layer_u32(key, layers as usize)?;
        let mut used = values.iter().enumerate().filter(|(i, _)| counts(*i)).map(|(_, v)| *v);
        let first = used.next().unwrap_or(0);
        if used.any(|v| v != first) {
            return Err(ModelError::Unsupported(format!("{key} differs between layers")));
        }
        if first == 0 || first > MOST {
            return Err(ModelError::Unsupported(format!("{key} is {first}")));
        }
        Ok(first)
    }

    fn attention(m: &Metadata, arch: &str, architecture: Architecture, dim: u32, is_delta: &[bool]) -> Result<Attention, ModelError> {
        let layers = is_delta.len() as u32;
        let key = |name: &str| format!("{arch}.{name}");
        let full = |i: usize| !is_delta.get(i).copied().unwrap_or(true);
        let heads = Self::same(m, &key("attention.head_count"), layers, full)?;
        let kv_heads = match m.get(&key("attention.head_count_kv")) {
            None => heads,
            Some(_) => Self::same(m, &key("attention.head_count_kv"), layers, full)?,
        };
        let head_dim = match optional(m.u32(&key("attention.key_length")))? {
            Some(d) => d,
            None => dim / heads,
        };
        let value_dim = optional(m.u32(&key("attention.value_length")))?.unwrap_or(head_dim);
        if !HEAD_DIMS.contains(&head_dim) || value_dim != head_dim {
            return Err(ModelError::Unsupported(format!(
                "heads of {head_dim} key and {value_dim} value dimensions; there are kernels for {HEAD_DIMS:?}"
            )));
        }
        if !heads.is_multiple_of(kv_heads) || heads / kv_heads > ROWS[0] {
            return Err(ModelError::Unsupported(format!("{heads} query heads for {kv_heads} key heads")));
        }
        let rotated = optional(m.u32(&key("rope.dimension_count")))?.unwrap_or(head_dim);
        if rotated > head_dim || !rotated.is_multiple_of(2) || rotated == 0 {
            return Err(ModelError::Unsupported(format!("RoPE over {rotated} of {head_dim} dimensions")));
        }
        let rope_base = f64::from(optional(m.f32(&key("rope.freq_base")))?.unwrap_or(10000.0));
        if !(rope_base.is_finite() && rope_base > 0.0) {
            return Err(ModelError::Unsupported(format!("a RoPE base of {rope_base}")));
        }
        let rope_divisor = match optional(m.str(&key("rope.scaling.type")))? {
            Some("none") => 1.0,
            // A factor alone means linear scaling; files from before there were types call it scale_linear.
            None | Some("linear") => {
                let factor = match optional(m.f32(&key("rope.scaling.factor")))? {
                    Some(factor) => Some(factor),
                    None => optional(m.f32(&key("rope.scale_linear")))?,
                };
                // Converters write 0 for "no scaling".
                factor.filter(|f| *f != 0.0).map_or(1.0, f64::from)
            }
            Some(other) => return Err(ModelError::Unsupported(format!("RoPE scaling of type {other:?}"))),
        };
        if !(rope_divisor.is_finite() && rope_divisor > 0.0) {
            return Err(ModelError::Unsupported(format!("a RoPE scaling factor of {rope_divisor}")));
        }
        let gated = architecture == Architecture::Qwen35;
        let heads = Heads { heads, kv_heads, head_dim, rotated, q_stride: if gated { 2 * head_dim } else { head_dim } };
        let pairs = if architecture == Architecture::Llama { Pairs::Adjacent } else { Pairs::Halves };
        Ok(Attention { heads, pairs, rope_base, rope_divisor, gated })
    }

    fn delta(m: &Metadata, arch: &str) -> Result<Delta, ModelError> {
        let key = |name: &str| bounded(m, &format!("{arch}.ssm.{name}"));
        let delta = Delta {
            key_heads: key("group_count")?,
            value_heads: key("time_step_rank")?,
            head_dim: key("state_size")?,
            taps: key("conv_kernel")?,
        };
        if delta.head_dim != 128 || delta.taps != 4 {
            return Err(ModelError::Unsupported(format!(
                "DeltaNet heads of {} with {} convolution taps; 128 and 4 are supported",
                delta.head_dim, delta.taps
            )));
        }
        let inner = key("inner_size")?;
        if !delta.value_heads.is_multiple_of(delta.key_heads) || inner != delta.inner() || delta.value_heads > 1024 {
            return Err(ModelError::Unsupported(format!(
                "DeltaNet with {} key heads, {} value heads and an inner size of {inner}",
                delta.key_heads, delta.value_heads
            )));
        }
        Ok(delta)
    }
}
