//! Token prefixes whose keys, values and states stay on the GPU, least recently used out first.

use super::shared::{Branch, SharedAsk};
use super::{Engine, EngineError, ErrorKind};
use crate::model::{Cache, Sequence};
use std::ops::ControlFlow;

/// A common start of several prefixes shorter than this is not worth a place of its own.
const LEAST_COMMON: usize = 32;
/// A cancel is heard at the latest after about so much work that nobody waited for.
const UNDER_WAY_SECONDS: f64 = 0.15;
/// A chunk that takes longer has the queue to itself.
const LONG_SECONDS: f64 = 0.1;

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

    /// The entry with exactly these tokens.
    pub fn exact(&self, tokens: &[u32]) -> Option<usize> {
        self.entries.iter().position(|e| e.tokens == tokens)
    }

    pub fn touch(&mut self, i: usize) -> u64 {
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
    pub fn best(&self, tokens: &[u32], has_states: bool) -> Option<(usize, usize)> {
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
        let held = self.hold_each(&[tokens], progress).await?;
        held.first().copied().ok_or(EngineError::Empty)
    }

    /// The same for several prefixes; those that are missing are computed together.
    pub(super) async fn hold_prefixes(
        &mut self,
        wanted: &[&[u32]],
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Vec<(u64, PrefixUse)>, EngineError> {
        let start = match self.common_start(wanted) {
            Some(common) => Some(self.hold_each(&[common], progress).await?[0].0),
            None => None,
        };
        let held = self.hold_each(wanted, progress).await;
        if let Some(id) = start {
            self.unpin(id);
        }
        held
    }

    /// What several prefixes that are missing begin with (the instructions), where it is missing too: it is read once, as a prefix of its own.
    pub(super) fn common_start<'a>(&self, wanted: &[&'a [u32]]) -> Option<&'a [u32]> {
        let missing = self.missing(wanted);
        let common = if missing.len() > 1 { shared_prefix(&missing) } else { 0 };
        let start = &missing.first()?[..common];
        let covered = self.store.best(start, self.cache.has_states()).map_or(0, |(_, n)| n);
        (common >= LEAST_COMMON && covered < common).then_some(start)
    }

    /// Prefixes that are not kept yet, each once.
    pub(super) fn missing<'a>(&self, wanted: &[&'a [u32]]) -> Vec<&'a [u32]> {
        let mut missing: Vec<&[u32]> = Vec::new();
        for tokens in wanted {
            if self.store.exact(tokens).is_none() && !missing.contains(tokens) {
                missing.push(tokens);
            }
        }
        missing
    }

    async fn hold_each(
        &mut self,
        wanted: &[&[u32]],
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Vec<(u64, PrefixUse)>, EngineError> {
        let mut held = Vec::with_capacity(wanted.len());
        // Prefixes to be made: the place in `held`, and what each starts from.
        let (mut places, mut bases) = (Vec::new(), Vec::new());
        // Places whose prefix an earlier place makes already.
        let mut twins: Vec<(usize, usize)> = Vec::new();
        let mut more = 0;
        for (place, tokens) in wanted.iter().enumerate() {
            let usage = PrefixUse { tokens: tokens.len() as u32, reused: 0 };
            if let Some(i) = self.store.exact(tokens) {
                self.store.entries[i].pins += 1;
                held.push((self.store.touch(i), PrefixUse { reused: usage.tokens, ..usage }));
                continue;
            }
            if let Some(twin) = places.iter().find(|p| wanted[**p] == *tokens) {
                twins.push((place, *twin));
                held.push((0, PrefixUse { reused: usage.tokens, ..usage }));
                continue;
            }
            // The base must survive the making of room.
            let base = self.store.best(tokens, self.cache.has_states()).map(|(i, n)| {
                self.store.entries[i].pins += 1;
                (self.store.touch(i), n)
            });
            let reused = base.map_or(0, |(_, n)| n as u32);
            more += Cache::bytes(&self.config, usage.tokens - reused);
            held.push((0, PrefixUse { reused, ..usage }));
            places.push(place);
            bases.push(base);
        }
        let mut branches: Vec<Branch<'_>> = Vec::new();
        let made = if places.is_empty() { Ok(()) } else { self.make(&mut branches, wanted, &places, &bases, more, progress).await };
        bases.iter().flatten().for_each(|(id, _)| self.unpin(*id));
        if let Err(error) = made {
            held.iter().filter(|(id, _)| *id > 0).for_each(|(id, _)| self.unpin(*id));
            self.rec.discard();
            for branch in branches {
                let done = branch.sequence.len as usize;
                // All that a cancelled run has computed is in the queue, and worth keeping. After a fault nobody knows what it left.
                if matches!(error, EngineError::Cancelled) && done > branch.began && self.store.exact(&branch.tokens[..done]).is_none() {
                    self.store.insert(branch.tokens[..done].to_vec(), branch.sequence);
                } else {
                    self.cache.release(branch.sequence);
                }
            }
            self.make_room(0);
            return Err(error);
        }
        for (place, branch) in places.into_iter().zip(branches) {
            let id = self.store.insert(branch.tokens.to_vec(), branch.sequence);
            self.pin(id);
            self.hand_to_states(id);
            held[place].0 = id;
        }
        for (place, twin) in twins {
            held[place].0 = held[twin].0;
            self.pin(held[twin].0);
        }
        self.make_room(0);
        Ok(held)
    }

    /// Open states lose what they hold to a fault, or to a lack of memory. Once their tokens are kept again, they hold them again.
    fn hand_to_states(&mut self, id: u64) {
        let Some(i) = self.store.index_of(id) else { return };
        for at in 0..self.states.len() {
            if self.store.index_of(self.states[at].entry).is_none() && self.states[at].tokens == self.store.entries[i].tokens {
                self.states[at].entry = id;
                self.store.entries[i].pins += 1;
            }
        }
    }

    /// Branches from the bases and runs the rest of each prefix into the cache, without reading anything.
    async fn make<'a>(
        &mut self,
        branches: &mut Vec<Branch<'a>>,
        wanted: &[&'a [u32]],
        places: &[usize],
        bases: &[Option<(u64, usize)>],
        more: u64,
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.make_room(more);
        let longest = places.iter().map(|place| wanted[*place].len()).max().unwrap_or(0);
        self.forward.cover(&mut self.rec, &self.config, &self.weights, longest as u32).await?;
        for (place, base) in places.iter().zip(bases) {
            let mut sequence = Sequence::default();
            if let Some((id, n)) = *base {
                let i = self.store.index_of(id).ok_or(EngineError::NoState)?;
                let parent = &self.store.entries[i].sequence;
                sequence = self.cache.branch(&mut self.rec, parent, n as u32, 1).await?.pop().unwrap_or_default();
            }
            branches.push(Branch::new(wanted[*place], sequence, None));
        }
        // Room for all at once: a cache that grows again and again would be copied as often.
        for branch in branches.iter_mut() {
            self.cache.reserve(&mut self.rec, &mut branch.sequence, branch.tokens.len() as u32, true).await?;
        }
        self.pack(branches, &SharedAsk::default(), progress).await
    }

    /// Submits a chunk, and where much work is under way waits, so that a cancel is heard and a browser stays alive: for a long chunk itself,
    /// else for the one before it, so that the GPU has work while the next one is recorded.
    pub(super) async fn end_chunk(&mut self, rows: usize, progress: &mut dyn FnMut() -> ControlFlow<()>) -> Result<(), EngineError> {
        self.rec.submit();
        // Before the first measurement it may be any time.
        let seconds = if self.rate() > 0.0 { self.operations(rows) / self.rate() } else { f64::INFINITY };
        self.under_way += seconds;
        let before = self.chunk.take();
        if seconds > LONG_SECONDS {
            self.under_way = 0.0;
            self.gpu.wait().await?;
        } else if seconds > super::run::SUBMIT_SECONDS || self.under_way > UNDER_WAY_SECONDS {
            self.under_way = seconds;
            self.chunk = Some(self.gpu.flush_writes());
            if let Some(before) = before {
                self.gpu.reached(before).await?;
            }
        } else {
            self.chunk = before;
        }
        self.gpu.check()?;
        match progress() {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(EngineError::Cancelled),
        }
    }

    /// Clears up after work that failed: what is recorded is forgotten, and after a fault of the GPU all kept prefixes too, since nobody
    /// knows which of them were complete. Open states are read again when they are asked next.
    pub(super) fn settle<T>(&mut self, result: Result<T, EngineError>) -> Result<T, EngineError> {
        if let Err(error) = &result {
            self.rec.discard();
            if error.kind() == ErrorKind::Gpu {
                self.forget_prefixes();
            }
        }
        result
    }

    /// Drops all prefixes, held or not, and gives their memory back.
    pub(super) fn forget_prefixes(&mut self) {
        for entry in std::mem::take(&mut self.store.entries) {
            self.cache.release(entry.sequence);
        }
        self.cache.shrink(&mut self.rec);
    }

    fn pin(&mut self, id: u64) {
        if let Some(i) = self.store.index_of(id) {
            self.store.entries[i].pins += 1;
        }
    }

    pub(super) fn unpin(&mut self, id: u64) {
        if let Some(i) = self.store.index_of(id) {
            let pins = &mut self.store.entries[i].pins;
            *pins = pins.saturating_sub(1);
        }
    }

    /// Drops least recently used prefixes until the rest and `more` bytes fit the cache budget. Their pages stay for the next sequence:
    /// giving them back each time would make every decision grow the cache anew.
    pub(super) fn make_room(&mut self, more: u64) {
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

    /// Sets how many bytes kept prefixes may take; what exceeds it is dropped, oldest first. GPU memory is given back once nothing is kept.
    pub fn set_cache_budget(&mut self, bytes: u64) {
        self.cache_budget = bytes;
        self.make_room(0);
        self.cache.shrink(&mut self.rec);
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
