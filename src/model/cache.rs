//! Keys, values and DeltaNet states: pages of one attention tile, and state slots, handed out to sequences.

use super::{Config, ModelError};
use crate::gpu::{Buffer, Gpu, GpuError, Recorder};
use crate::kernels::attention::PAGE;
use crate::kernels::copy_pages::copy_pages;
use crate::kernels::delta::{NO_STATE, States};
use crate::kernels::rope::Cache as LayerCache;

/// A sequence's share of the cache. Give it back with [`Cache::release`].
#[derive(Debug, Default)]
pub struct Sequence {
    /// Tokens that are in the cache.
    pub len: u32,
    pub(super) pages: Vec<u32>,
    /// State slot to read before the next rows (its own, or the one of the sequence it branched from).
    pub(super) read: Option<u32>,
    /// Its own state slot, which every further row goes into. Without one the state after the next rows is lost.
    pub(super) write: Option<u32>,
}

impl Sequence {
    /// The cache slot of a position that [`Cache::reserve`] covers.
    pub fn slot(&self, position: u32) -> u32 {
        self.pages[(position / PAGE) as usize] * PAGE + position % PAGE
    }

    /// State slot before the next rows.
    pub(super) fn state_in(&self) -> u32 {
        self.read.unwrap_or(NO_STATE)
    }

    /// State slot after them.
    pub(super) fn state_out(&self) -> u32 {
        self.write.unwrap_or(NO_STATE)
    }

    /// Notes that `rows` more tokens are in the cache.
    pub(super) fn advance(&mut self, rows: u32) {
        self.len += rows;
        self.read = self.write;
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
    /// How many sequences hold each page.
    page_refs: Vec<u32>,
    free_pages: Vec<u32>,
    slots: u32,
    free_slots: Vec<u32>,
    pairs: Option<Buffer>,
    /// The largest buffer that can be made and bound.
    limit: u64,
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
        u64::from(tokens).next_multiple_of(u64::from(PAGE)).saturating_mul(token_bytes(config)).saturating_add(state_bytes(config))
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
            page_refs: Vec::new(),
            free_pages: Vec::new(),
            slots: 0,
            free_slots: Vec::new(),
            pairs: None,
            limit: gpu.info().max_binding.min(gpu.info().max_buffer),
        }
    }

    /// Has the model DeltaNet layers? Then a sequence can be branched only where its state stands.
    pub fn has_states(&self) -> bool {
        self.state_bytes > 0
    }

    /// GPU bytes of a sequence's own pages and state over all layers.
    pub fn bytes_of(&self, sequence: &Sequence) -> u64 {
        let attention = self.is_delta.iter().filter(|d| !**d).count() as u64;
        let delta = self.is_delta.len() as u64 - attention;
        let pages: u64 = sequence.pages.len() as u64 * attention * 2 * self.kv_bytes;
        pages + if sequence.write.is_some() { delta * (self.state_bytes + self.conv_bytes) } else { 0 }
    }

    /// Tests: an adapter with smaller buffers.
    #[cfg(test)]
    pub fn set_limit(&mut self, bytes: u64) {
        self.limit = bytes;
    }

    /// Tests: state slots, free or not.
    #[cfg(test)]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// GPU bytes of all buffers.
    pub fn allocated(&self) -> u64 {
        let buffers = self.layers.iter().flat_map(|l| match l {
            LayerStore::Attention { keys, values } => [keys, values],
            LayerStore::Delta { conv, state } => [conv, state],
        });
        buffers.map(|b| b.size).sum()
    }

    /// Makes room for `tokens` tokens of `sequence` in all, growing the cache if needed. With `keep_state` it gets a state slot of its own,
    /// without which it can take only one more piece of rows.
    ///
    /// # Errors
    /// Out of memory, or more tokens than a storage binding can hold. The sequence is then unchanged.
    pub async fn reserve(&mut self, rec: &mut Recorder, sequence: &mut Sequence, tokens: u32, keep_state: bool) -> Result<(), ModelError> {
        let missing = tokens.div_ceil(PAGE).saturating_sub(sequence.pages.len() as u32);
        let wants_state = keep_state && self.has_states() && sequence.write.is_none();
        self.provide(rec, missing, u32::from(wants_state)).await?;
        sequence.pages.extend((0..missing).filter_map(|_| self.take_page()));
        if wants_state {
            sequence.write = self.free_slots.pop();
        }
        Ok(())
    }

    fn take_page(&mut self) -> Option<u32> {
        let page = self.free_pages.pop()?;
        self.page_refs[page as usize] = 1;
        Some(page)
    }

    /// Makes sure that so many pages and state slots are free: what sequences then reserve does not grow the cache.
    ///
    /// # Errors
    /// Out of memory, or more tokens or states than a storage binding can hold. What sequences hold is unchanged.
    pub async fn provide(&mut self, rec: &mut Recorder, pages: u32, slots: u32) -> Result<(), ModelError> {
        let have = self.page_refs.len() as u32;
        let lacking = pages.saturating_sub(self.free_pages.len() as u32);
        let lacking_slots = slots.saturating_sub(self.free_slots.len() as u32);
        if lacking == 0 && lacking_slots == 0 {
            return Ok(());
        }
        // A doubled cache may not fit where the exact one does.
        let most_of = |bytes: u64| u32::try_from(self.limit / bytes.max(1)).unwrap_or(u32::MAX);
        // The least that WebGPU allows holds dozens of states; tests of split weights allow less than one.
        let (most, most_slots) = (most_of(self.kv_bytes), most_of(self.state_bytes).max(1));
        let wanted = if lacking == 0 { have } else { (have + lacking).next_power_of_two().max(16).min(most.max(have + lacking)) };
        if wanted > most {
            let tokens = u64::from(most) * u64::from(PAGE);
            let detail = format!("this adapter's limits allow {tokens} tokens of this model");
            let needed = u64::from(wanted) * self.kv_bytes;
            return Err(GpuError::OutOfMemory { what: "the cache of keys and values".into(), needed, detail }.into());
        }
        let exact_slots = self.slots + lacking_slots;
        if lacking_slots > 0 && exact_slots > most_slots {
            let detail = format!("this adapter's limits allow {most_slots} states of this model");
            let needed = u64::from(exact_slots) * self.state_bytes;
            return Err(GpuError::OutOfMemory { what: "the cache of states".into(), needed, detail }.into());
        }
        let slots = if lacking_slots == 0 { self.slots } else { exact_slots.next_power_of_two().min(most_slots) };
        // With nothing in the old buffers there is nothing to copy, and old and new need not stand side by side.
        self.shrink(rec);
        match self.grow(rec, wanted, slots).await {
            Err(ModelError::Gpu(GpuError::OutOfMemory { .. })) if wanted > have + lacking || slots > exact_slots => {
                self.grow(rec, have + lacking, exact_slots).await
            }
            other => other,
        }
    }

    /// Branches of a sequence after its first `len` tokens: full pages are shared, a partly filled last page is copied for each. The
    /// copies are recorded before whatever is recorded next.
    ///
    /// With DeltaNet layers `len` must be the sequence's length, and it must outlive the branches (they read its state).
    ///
    /// # Errors
    /// Out of memory.
    pub async fn branch(&mut self, rec: &mut Recorder, parent: &Sequence, len: u32, count: u32) -> Result<Vec<Sequence>, ModelError> {
        debug_assert!(len <= parent.len && (!self.has_states() || len == parent.len || len == 0));
        let shared = &parent.pages[..(len / PAGE) as usize];
        let partial = if len.is_multiple_of(PAGE) { None } else { Some(parent.pages[(len / PAGE) as usize]) };
        let mut pairs = Vec::new();
        if partial.is_some() {
            self.provide(rec, count, 0).await?;
        }
        let mut branches = Vec::new();
        for _ in 0..count {
            let mut pages = shared.to_vec();
            pages.iter().for_each(|p| self.page_refs[*p as usize] += 1);
            if let Some(from) = partial
                && let Some(to) = self.take_page()
            {
                pairs.push([from, to]);
                pages.push(to);
            }
            branches.push(Sequence { len, pages, read: if len == 0 { None } else { parent.read }, write: None });
        }
        if !pairs.is_empty() {
            // What is recorded may still use the old pairs.
            rec.submit();
            let bytes: &[u8] = bytemuck::cast_slice(&pairs);
            if self.pairs.as_ref().is_none_or(|b| b.size < bytes.len() as u64) {
                match self.gpu.buffer("page copies", bytes.len() as u64).await {
                    Ok(buffer) => self.pairs = Some(buffer),
                    Err(e) => {
                        branches.into_iter().for_each(|b| self.release(b));
                        return Err(e.into());
                    }
                }
            }
            if let Some(buffer) = &self.pairs {
                self.gpu.write(buffer, 0, bytes);
                for layer in 0..self.layers.len() {
                    if let Some(kv) = self.attention(layer) {
                        copy_pages(rec, buffer.all(), pairs.len() as u32, kv, (self.kv_bytes / 4) as u32);
                    }
                }
                rec.submit();
            }
        }
        Ok(branches)
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
        self.free_pages.splice(0..0, (self.page_refs.len() as u32..pages).rev());
        self.free_slots.splice(0..0, (self.slots..slots).rev());
        self.page_refs.resize(pages as usize, 0);
        self.slots = slots;
        Ok(())
    }

    /// Gives memory back when no sequence holds any.
    pub fn shrink(&mut self, rec: &mut Recorder) {
        if self.free_pages.len() == self.page_refs.len() && self.free_slots.len() == self.slots as usize {
            rec.submit();
            rec.forget_bind_groups();
            self.layers.clear();
            self.page_refs.clear();
            self.free_pages.clear();
            self.free_slots.clear();
            self.slots = 0;
        }
    }

    /// Gives a sequence's pages and state back.
    pub fn release(&mut self, sequence: Sequence) {
        for page in sequence.pages.into_iter().rev() {
            let refs = &mut self.page_refs[page as usize];
            *refs -= 1;
            if *refs == 0 {
                self.free_pages.push(page);
            }
        }
        self.free_slots.extend(sequence.write);
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
