//! What a model is and what it takes, for `inspect`, result rows and the page.

use crate::gguf::Gguf;
use crate::gpu::GpuInfo;
use crate::kernels::linear::Tier;
use crate::model::{Cache, Config, Forward, MemoryPlan, ModelPlan};
use std::collections::BTreeMap;

/// Facts about a model file on a device.
#[derive(Debug, Clone, serde::Serialize)]
pub struct ModelInfo {
    /// `general.name`.
    pub name: Option<String>,
    /// Architecture.
    pub architecture: String,
    /// Layers that run.
    pub layers: u32,
    /// Of these, Gated DeltaNet layers.
    pub delta_layers: u32,
    /// Trailing blocks of the file that are left out.
    pub skipped_layers: u32,
    /// Width of the residual stream.
    pub dim: u32,
    /// Width of the feed-forward part.
    pub ffn: u32,
    /// Query heads, key heads, head size.
    pub heads: (u32, u32, u32),
    /// Vocabulary.
    pub vocab: u32,
    /// Context length the model was made for.
    pub context: u32,
    /// Tensors by type: name to (count, bytes), as in the file.
    pub types: BTreeMap<String, (u32, u64)>,
    /// GPU memory.
    pub memory: MemoryPlan,
    /// Bytes of the file.
    pub file_bytes: u64,
}

impl ModelInfo {
    /// Collects the facts; scratch for `chunk` rows in a precision tier, and a cache for `max_tokens`.
    pub fn new(gguf: &Gguf, config: &Config, plan: &ModelPlan, tier: Tier, max_tokens: u32, chunk: u32) -> Self {
        let mut types: BTreeMap<String, (u32, u64)> = BTreeMap::new();
        for t in &gguf.tensors {
            let entry = types.entry(t.ty.name().to_string()).or_default();
            *entry = (entry.0 + 1, entry.1 + t.bytes);
        }
        let h = &config.attention.heads;
        Self {
            name: config.name.clone(),
            architecture: config.architecture.to_string(),
            layers: config.layers,
            delta_layers: config.is_delta.iter().filter(|d| **d).count() as u32,
            skipped_layers: config.skipped_layers,
            dim: config.dim,
            ffn: config.ffn,
            heads: (h.heads, h.kv_heads, h.head_dim),
            vocab: config.vocab,
            context: config.context,
            types,
            memory: MemoryPlan {
                weights: plan.weight_bytes(),
                cache: Cache::bytes(config, max_tokens),
                states: Cache::bytes(config, 0),
                scratch: Forward::bytes(config, tier, chunk, max_tokens),
            },
            file_bytes: gguf.file_len,
        }
    }
}

impl From<&GpuInfo> for crate::model::Limits {
    fn from(info: &GpuInfo) -> Self {
        Self { binding: info.max_binding, buffer: info.max_buffer }
    }
}
