//! Keys, values and DeltaNet states: pages of one attention tile, and state slots, handed out to sequences.

use super::{Config, ModelError};
use crate::gpu::{Buffer, Gpu, Recorder};
use crate::kernels::attention::PAGE;
use crate::kernels::delta::{NO_STATE, States};
use crate::kernels::rope::Cache as LayerCache;

/// A sequence's share of the cache. Give it back with [`Cache::release`].
#[derive(Debug, Default)]
pub struct Sequence {
    /// Tokens that are in the cache.
    pub len: u32,
    pub(super) pages: Vec<u32>,
    pub(super) state: Option<u32>,
}

impl Sequence {
    /// The cache slot of a position that [`Cache::reserve`] covers.
    pub fn slot(&self, position: u32) -> u32 {
        self.pages[(position / PAGE) as usize] * PAGE + position % PAGE
    }

    /// State slot to read before the next rows.
    pub(super) fn state_in(&self) -> u32 {
        if self.len == 0 { NO_STATE } else { self.state.unwrap_or(NO_STATE) }
    }
}

enum LayerStore {
    Attention { keys: Buffer, values: Buffer },
    Delta { conv: Buffer, state: Buffer },
}

/// The caches of all layers. Pages and slots are the same in every layer.
pub struct Cache {
    gpu: Gpu,
    layers: Vec<LayerStore>,
    kv_bytes: u64,
    conv_bytes: u64,
    state_bytes: u64,
    is_delta: Vec<bool>,
    pages: u32,
    free_pages: Vec<u32>,
    slots: u32,
    free_slots: Vec<u32>,
}

/// Cache bytes of one token over all layers.
fn token_bytes(config: &Config) -> u64 {
    let h = &config.attention.heads;
    let layers = config.is_delta.iter().filter(|d| !**d).count() as u64;
    layers * 2 * u64::from(h.kv_heads * h.head_dim) * 4
}

/// Bytes of one sequence's DeltaNet states over all layers.
fn state_bytes(config: &Config) -> u64 {
    let layers = config.is_delta.iter().filter(|d| **d).count() as u64;
    config.delta.map_or(0, |d| layers * (u64::from(d.inner() * d.head_dim) + 3 * u64::from(d.channels())) * 4)
}

impl Cache {
    /// Bytes for one sequence of `tokens`.
    pub fn bytes(config: &Config, tokens: u32) -> u64 {
        u64::from(tokens.next_multiple_of(PAGE)) * token_bytes(config) + state_bytes(config)
    }

    /// An empty cache; it grows when sequences ask for room.
    pub fn new(gpu: &Gpu, config: &Config) -> Self {
        let h = &config.attention.heads;
        Self {
            gpu: gpu.clone(),
            layers: Vec::new(),
            kv_bytes: u64::from(h.kv_heads * h.head_dim) * 4 * u64::from(PAGE),
            conv_bytes: config.delta.map_or(0, |d| u64::from(d.channels()) * 3 * 4),
            state_bytes: config.delta.map_or(0, |d| u64::from(d.inner() * d.head_dim) * 4),
            is_delta: config.is_delta.clone(),
            pages: 0,
            free_pages: Vec::new(),
            slots: 0,
            free_slots: Vec::new(),
        }
    }

    /// Makes room for `tokens` tokens of `sequence` in all, growing the cache if needed.
    ///
    /// # Errors
    /// Out of memory, or more tokens than a storage binding can hold.
    pub async fn reserve(&mut self, rec: &mut Recorder, sequence: &mut Sequence, tokens: u32) -> Result<(), ModelError> {
        let missing = tokens.div_ceil(PAGE).saturating_sub(sequence.pages.len() as u32);
        let wants_state = self.state_bytes > 0 && sequence.state.is_none();
        let lacking = missing.saturating_sub(self.free_pages.len() as u32);
        let lacks_slot = wants_state && self.free_slots.is_empty();
        if lacking > 0 || lacks_slot {
            let pages = if lacking > 0 { (self.pages + lacking).next_power_of_two().max(16) } else { self.pages };
            let slots = if lacks_slot { (self.slots * 2).max(1) } else { self.slots };
            // A doubled cache may not fit where the exact one does.
            let most = u32::try_from(self.gpu.info().max_binding.min(self.gpu.info().max_buffer) / self.kv_bytes).unwrap_or(u32::MAX);
            let pages = if pages > most { self.pages + lacking } else { pages };
            if pages > most {
                let tokens = u64::from(most) * u64::from(PAGE);
                return Err(ModelError::Unsupported(format!(
                    "its cache on this adapter can hold {tokens} tokens, fewer than were asked for"
                )));
            }
            self.grow(rec, pages, slots).await?;
        }
        for _ in 0..missing {
            sequence.pages.extend(self.free_pages.pop());
        }
        if wants_state {
            sequence.state = self.free_slots.pop();
        }
        Ok(())
    }

    async fn grow(&mut self, rec: &mut Recorder, pages: u32, slots: u32) -> Result<(), ModelError> {
        rec.submit();
        let mut layers = Vec::new();
        for &delta in &self.is_delta {
            layers.push(if delta {
                LayerStore::Delta {
                    conv: self.gpu.buffer("convolution states", self.conv_bytes * u64::from(slots)).await?,
                    state: self.gpu.buffer("delta states", self.state_bytes * u64::from(slots)).await?,
                }
            } else {
                LayerStore::Attention {
                    keys: self.gpu.buffer("keys", self.kv_bytes * u64::from(pages)).await?,
                    values: self.gpu.buffer("values", self.kv_bytes * u64::from(pages)).await?,
                }
            });
        }
        for (old, new) in self.layers.iter().zip(&layers) {
            match (old, new) {
                (LayerStore::Attention { keys: k, values: v }, LayerStore::Attention { keys, values }) => {
                    rec.copy(k.all(), keys, 0);
                    rec.copy(v.all(), values, 0);
                }
                (LayerStore::Delta { conv: c, state: s }, LayerStore::Delta { conv, state }) => {
                    rec.copy(c.all(), conv, 0);
                    rec.copy(s.all(), state, 0);
                }
                _ => {}
            }
        }
        rec.submit();
        rec.forget_bind_groups();
        self.layers = layers;
        // Pages are popped from the end: lowest first.
        self.free_pages.splice(0..0, (self.pages..pages).rev());
        self.free_slots.splice(0..0, (self.slots..slots).rev());
        (self.pages, self.slots) = (pages, slots);
        Ok(())
    }

    /// Gives a sequence's pages and state back.
    pub fn release(&mut self, sequence: Sequence) {
        self.free_pages.extend(sequence.pages.into_iter().rev());
        self.free_slots.extend(sequence.state);
    }

    /// Keys and values of an attention layer.
    pub(super) fn attention(&self, layer: usize) -> Option<LayerCache<'_>> {
        match self.layers.get(layer)? {
            LayerStore::Attention { keys, values } => Some(LayerCache { keys: keys.all(), values: values.all() }),
            LayerStore::Delta { .. } => None,
        }
    }

    /// States of a DeltaNet layer.
    pub(super) fn delta(&self, layer: usize) -> Option<States<'_>> {
        match self.layers.get(layer)? {
            LayerStore::Delta { conv, state } => Some(States { conv: conv.all(), state: state.all() }),
            LayerStore::Attention { .. } => None,
        }
    }
}
