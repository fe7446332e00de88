//! Token prefixes whose keys, values and states stay on the GPU, least recently used out first.

use super::{Engine, EngineError};
use crate::model::{Batch, Sequence};
use std::ops::ControlFlow;

/// A kept prefix.
pub(super) struct Entry {
    /// Identity, for pinning across an await.
    pub id: u64,
    /// Its tokens; all of them are in the cache.
    pub tokens: Vec<u32>,
    pub sequence: Sequence,
    used: u64,
    /// Holders that must not lose it.
    pub pins: u32,
}

/// The kept prefixes of an engine.
#[derive(Default)]
pub(super) struct Store {
    pub entries: Vec<Entry>,
    clock: u64,
    next_id: u64,
}

/// How many tokens two lists have in common from the start.
pub fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The longest prefix that all prompts share and that leaves each at least one token of its own.
pub fn shared_prefix(prompts: &[&[u32]]) -> usize {
    let Some((first, rest)) = prompts.split_first() else { return 0 };
    let common = rest.iter().map(|p| common_prefix(first, p)).min().unwrap_or(first.len());
    prompts.iter().map(|p| p.len().saturating_sub(1)).min().map_or(0, |shortest| common.min(shortest))
}

impl Store {
    pub fn index_of(&self, id: u64) -> Option<usize> {
        self.entries.iter().position(|e| e.id == id)
    }

    fn touch(&mut self, i: usize) -> u64 {
        self.clock += 1;
        self.entries[i].used = self.clock;
        self.entries[i].id
    }

    fn insert(&mut self, tokens: Vec<u32>, sequence: Sequence) -> u64 {
        self.clock += 1;
        self.next_id += 1;
        self.entries.push(Entry { id: self.next_id, tokens, sequence, used: self.clock, pins: 0 });
        self.next_id
    }

    /// The entry to start from for `tokens`, and how many of them it covers. With states only a whole entry can be continued.
    fn best(&self, tokens: &[u32], has_states: bool) -> Option<(usize, usize)> {
        let usable = |e: &Entry| match common_prefix(&e.tokens, tokens) {
            n if has_states && n < e.tokens.len() => 0,
            n => n,
        };
        let best = self.entries.iter().enumerate().map(|(i, e)| (i, usable(e))).max_by_key(|(_, n)| *n)?;
        (best.1 > 0).then_some(best)
    }
}

/// What a prefix took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PrefixUse {
    /// Tokens of the prefix.
    pub tokens: u32,
    /// Of these, tokens that were in the cache already.
    pub reused: u32,
}

impl Engine {
    /// Makes sure that `tokens` stand in the cache, and pins them; [`Engine::unpin`] must follow.
    pub(super) async fn hold_prefix(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(u64, PrefixUse), EngineError> {
        let mut usage = PrefixUse { tokens: tokens.len() as u32, reused: 0 };
        let found = self.store.best(tokens, self.cache.has_states());
        if let Some((i, n)) = found {
            usage.reused = n as u32;
            if n == tokens.len() && self.store.entries[i].tokens.len() == n {
                let id = self.store.touch(i);
                self.store.entries[i].pins += 1;
                return Ok((id, usage));
            }
        }
        // The base must survive the making of room.
        let base = found.map(|(i, n)| {
            self.store.touch(i);
            self.store.entries[i].pins += 1;
            (self.store.entries[i].id, n)
        });
        let made = self.extend(base, tokens, progress).await;
        if let Some((id, _)) = base {
            self.unpin(id);
        }
        let sequence = made?;
        let id = self.store.insert(tokens.to_vec(), sequence);
        if let Some(i) = self.store.index_of(id) {
            self.store.entries[i].pins += 1;
        }
        self.make_room(0);
        Ok((id, usage))
    }

    async fn extend(
        &mut self,
        base: Option<(u64, usize)>,
        tokens: &[u32],
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Sequence, EngineError> {
        let mut sequence = Sequence::default();
        if let Some((id, n)) = base
            && let Some(i) = self.store.index_of(id)
        {
            let parent = &self.store.entries[i].sequence;
            sequence = self.cache.branch(&mut self.rec, parent, n as u32, 1).await?.pop().unwrap_or_default();
        }
        let done = sequence.len as usize;
        match self.fill(&mut sequence, &tokens[done..], progress).await {
            Ok(()) => Ok(sequence),
            Err(e) => {
                self.rec.discard();
                self.cache.release(sequence);
                Err(e)
            }
        }
    }

    /// Runs tokens into the cache without reading anything.
    async fn fill(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let total = sequence.len + tokens.len() as u32;
        self.make_room(total - sequence.len);
        self.cache.reserve(&mut self.rec, sequence, total, true).await?;
        self.forward.cover(&mut self.rec, &self.config, &self.weights, total).await?;
        for chunk in tokens.chunks(self.forward.max_rows() as usize) {
            let mut batch = Batch::default();
            batch.push(sequence, chunk, false);
            self.forward.run(&mut self.rec, &self.config, &self.weights, &self.cache, &batch)?;
            self.end_chunk(chunk.len(), progress).await?;
        }
        Ok(())
    }

    /// Submits a chunk, and where the adapter is slow waits for it, so that a cancel is heard and a browser stays alive.
    pub(super) async fn end_chunk(&mut self, rows: usize, progress: &mut dyn FnMut() -> ControlFlow<()>) -> Result<(), EngineError> {
        self.rec.submit();
        if self.rate > 0.0 && self.operations(rows) / self.rate > super::run::SUBMIT_SECONDS {
            self.gpu.wait().await?;
        } else {
            self.gpu.check()?;
        }
        match progress() {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(EngineError::Cancelled),
        }
    }

    pub(super) fn unpin(&mut self, id: u64) {
        if let Some(i) = self.store.index_of(id) {
            let pins = &mut self.store.entries[i].pins;
            *pins = pins.saturating_sub(1);
        }
    }

    /// Drops least recently used prefixes until the rest and `tokens` more fit the cache budget.
    pub(super) fn make_room(&mut self, tokens: u32) {
        let more = crate::model::Cache::bytes(&self.config, tokens);
        loop {
            let held: u64 = self.store.entries.iter().map(|e| self.cache.bytes_of(&e.sequence)).sum();
            if held + more <= self.cache_budget {
                return;
            }
            let oldest = self.store.entries.iter().enumerate().filter(|(_, e)| e.pins == 0).min_by_key(|(_, e)| e.used);
            let Some((i, _)) = oldest else { return };
            let entry = self.store.entries.swap_remove(i);
            self.cache.release(entry.sequence);
        }
    }

    /// Forgets all prefixes that nobody holds and gives their memory back.
    pub fn clear_cache(&mut self) {
        let (kept, dropped) = std::mem::take(&mut self.store.entries).into_iter().partition(|e| e.pins > 0);
        self.store.entries = kept;
        dropped.into_iter().for_each(|e: Entry| self.cache.release(e.sequence));
        self.cache.shrink(&mut self.rec);
    }

    /// Sets how many bytes kept prefixes may take; what exceeds it is dropped, oldest first.
    pub fn set_cache_budget(&mut self, bytes: u64) {
        self.cache_budget = bytes;
        self.make_room(0);
    }

    /// Tokens of kept prefixes, and GPU bytes they take (pages shared between prefixes are counted for each).
    pub fn cache_usage(&self) -> (usize, u64) {
        let entries = &self.store.entries;
        (entries.iter().map(|e| e.tokens.len()).sum(), entries.iter().map(|e| self.cache.bytes_of(&e.sequence)).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_prefix_leaves_each_prompt_a_token() {
        assert_eq!(shared_prefix(&[&[1, 2, 3, 4], &[1, 2, 3, 5]]), 3);
        assert_eq!(shared_prefix(&[&[1, 2, 3], &[1, 2, 3]]), 2);
        assert_eq!(shared_prefix(&[&[1, 2], &[1, 2, 3]]), 1);
        assert_eq!(shared_prefix(&[&[1, 2, 3]]), 2);
        assert_eq!(shared_prefix(&[&[1], &[2]]), 0);
        assert_eq!(shared_prefix(&[]), 0);
    }
}
