//! States that stay: opened once, grown, asked and branched, each step costing only what is new. And batches in steps, so that a
//! click need not wait behind them.

use super::prefix::PrefixUse;
use super::{Engine, EngineError, Group, GroupsReading, SharedAsk, SharedReading};
use std::ops::ControlFlow;

/// A state held in an engine. Give it back with [`Engine::close_state`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateId(u64);

/// What an open state holds.
pub(super) struct OpenState {
    id: u64,
    pub entry: u64,
    pub tokens: Vec<u32>,
}

/// A batch is cut into steps of about this length: each ends with a readback, while which the GPU has nothing to do. A click need not wait so
/// long, since a step is given up between two chunks.
const STEP_SECONDS: f64 = 0.2;

impl Engine {
    /// Reads a state's tokens into the cache and holds them there.
    ///
    /// # Errors
    /// Tokens over the budget or outside the vocabulary, GPU faults, [`EngineError::Cancelled`].
    pub async fn open_state(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(StateId, PrefixUse), EngineError> {
        self.check_tokens(tokens, 1)?;
        let (entry, usage) = self.hold_state(tokens, progress).await?;
        self.next_state += 1;
        let id = self.next_state;
        self.states.push(OpenState { id, entry, tokens: tokens.to_vec() });
        Ok((StateId(id), usage))
    }

    /// With DeltaNet layers a state can be continued only where it was kept: keep it also shortly before the end, where a text that grows
    /// usually still agrees (its last tokens may merge with what follows).
    async fn checkpoint(&mut self, tokens: &[u32], progress: &mut dyn FnMut() -> ControlFlow<()>) -> Result<(), EngineError> {
        let at = tokens.len().saturating_sub(16) / 32 * 32;
        if self.cache.has_states() && at > 0 {
            let (id, _) = self.hold_prefix(&tokens[..at], progress).await?;
            self.unpin(id);
        }
        Ok(())
    }

    /// Holds a state's tokens; where memory is too short beside what is kept, instead of it.
    async fn hold_state(&mut self, tokens: &[u32], progress: &mut dyn FnMut() -> ControlFlow<()>) -> Result<(u64, PrefixUse), EngineError> {
        let mut held = self.checkpoint(tokens, progress).await;
        if held.is_ok() {
            let result = self.hold_prefix(tokens, progress).await;
            match self.settle(result) {
                Ok(done) => return Ok(done),
                Err(error) => held = Err(error),
            }
        }
        match self.settle(held) {
            Err(error) if error.is_out_of_memory() => {}
            Err(error) => return Err(error),
            Ok(()) => {}
        }
        let result = self.hold_prefix(tokens, progress).await;
        self.settle(result)
    }

    fn state(&self, id: StateId) -> Result<usize, EngineError> {
        self.states.iter().position(|s| s.id == id.0).ok_or(EngineError::NoState)
    }

    /// The tokens of a state.
    ///
    /// # Errors
    /// [`EngineError::NoState`].
    pub fn state_tokens(&self, id: StateId) -> Result<&[u32], EngineError> {
        Ok(&self.states[self.state(id)?].tokens)
    }

    /// Replaces a state's tokens, usually by a longer list; only what differs from the start on is computed. On an error the state is as before.
    ///
    /// # Errors
    /// As [`Engine::open_state`].
    pub async fn update_state(
        &mut self,
        id: StateId,
        tokens: &[u32],
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<PrefixUse, EngineError> {
        self.state(id)?;
        self.check_tokens(tokens, 1)?;
        let (entry, usage) = self.hold_state(tokens, progress).await?;
        let i = self.state(id)?;
        let before = std::mem::replace(&mut self.states[i], OpenState { id: id.0, entry, tokens: tokens.to_vec() });
        self.unpin(before.entry);
        Ok(usage)
    }

    /// Appends tokens to a state.
    ///
    /// # Errors
    /// As [`Engine::open_state`].
    pub async fn append_state(
        &mut self,
        id: StateId,
        more: &[u32],
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<PrefixUse, EngineError> {
        let mut tokens = self.state_tokens(id)?.to_vec();
        tokens.extend_from_slice(more);
        self.update_state(id, &tokens, progress).await
    }

    /// Reads the end of each suffix (at least one token) on a state. State that generation wrote is never read.
    ///
    /// # Errors
    /// As [`Engine::read_shared`].
    pub async fn ask_state(
        &mut self,
        id: StateId,
        suffixes: &[&[u32]],
        labels: &[u32],
        stats: bool,
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<SharedReading, EngineError> {
        let state = self.state_tokens(id)?;
        let prompts: Vec<Vec<u32>> = suffixes.iter().map(|s| [state, s].concat()).collect();
        if suffixes.iter().any(|s| s.is_empty()) {
            return Err(EngineError::Empty);
        }
        let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        let ask = SharedAsk { labels: labels.to_vec(), stats, prefix: state.len() };
        self.read_shared(&prompts, &ask, progress).await
    }

    /// A second state with the same tokens, which may grow differently. Costs nothing until then.
    ///
    /// # Errors
    /// [`EngineError::NoState`].
    pub fn fork_state(&mut self, id: StateId) -> Result<StateId, EngineError> {
        let i = self.state(id)?;
        let (entry, tokens) = (self.states[i].entry, self.states[i].tokens.clone());
        if let Some(e) = self.store.index_of(entry) {
            self.store.entries[e].pins += 1;
        }
        self.next_state += 1;
        self.states.push(OpenState { id: self.next_state, entry, tokens });
        Ok(StateId(self.next_state))
    }

    /// Lets a state go; it may stay in the cache until its memory is needed. Where the cache budget has no room for it, its GPU memory is
    /// given back once nothing else is kept.
    ///
    /// # Errors
    /// [`EngineError::NoState`].
    pub fn close_state(&mut self, id: StateId) -> Result<(), EngineError> {
        let i = self.state(id)?;
        let state = self.states.swap_remove(i);
        self.unpin(state.entry);
        self.make_room(0);
        self.cache.shrink(&mut self.rec);
        Ok(())
    }
}

/// A batch that is run in steps of about 0.2 s, so that more urgent questions can be asked in between. Prompts come in groups, each on a
/// prefix of its own.
pub struct SharedRun {
    groups: Vec<RunGroup>,
    ask: SharedAsk,
    done: GroupsReading,
}

/// Prompts of a batch that begin alike.
#[derive(Debug, Clone, Default)]
pub struct RunGroup {
    /// The prompts.
    pub prompts: Vec<Vec<u32>>,
    /// Leading tokens that are kept, as [`SharedAsk::prefix`].
    pub prefix: usize,
}

impl RunGroup {
    /// Rows that a prompt takes to read; the first one takes the prefix's too.
    fn rows(&self, i: usize) -> usize {
        self.prompts[i].len() - if i == 0 { 0 } else { self.prefix }
    }
}

impl SharedRun {
    /// A batch of prompts on one prefix; nothing is computed yet.
    pub fn new(prompts: Vec<Vec<u32>>, ask: SharedAsk) -> Self {
        Self::of_groups(vec![RunGroup { prompts, prefix: ask.prefix }], ask)
    }

    /// A batch of several groups.
    pub fn of_groups(mut groups: Vec<RunGroup>, ask: SharedAsk) -> Self {
        for group in &mut groups {
            let all: Vec<&[u32]> = group.prompts.iter().map(Vec::as_slice).collect();
            group.prefix = group.prefix.min(super::shared_prefix(&all));
        }
        let done = GroupsReading {
            readings: vec![Vec::new(); groups.len()],
            prefixes: vec![PrefixUse::default(); groups.len()],
            ..GroupsReading::default()
        };
        Self { groups, ask, done }
    }

    /// Prompts that are read.
    pub fn done(&self) -> usize {
        self.done.readings.iter().map(Vec::len).sum()
    }

    /// All prompts.
    pub fn total(&self) -> usize {
        self.groups.iter().map(|g| g.prompts.len()).sum()
    }

    /// What is read so far.
    pub fn read(&self) -> &GroupsReading {
        &self.done
    }

    /// Rows of the next step, where `rows` take as long as a step should. A quarter more is allowed so that no few are left over for a step of
    /// their own, and beside a prompt that is longer than that with its prefix: few rows take a GPU nearly as long as many.
    fn limit(&self, rows: usize) -> usize {
        let left = || self.groups.iter().zip(&self.done.readings).flat_map(|(g, read)| (read.len()..g.prompts.len()).map(|i| g.rows(i)));
        let (first, all): (usize, usize) = (left().next().unwrap_or(0), left().sum());
        if all <= rows.saturating_add(rows / 4) {
            all
        } else if first > rows {
            first.saturating_add(rows / 4)
        } else {
            rows
        }
    }

    /// Runs the next few prompts; true when all are read. After an error the step can be tried again: finished prompts stay, and so does
    /// what a cancelled step computed of a prefix.
    ///
    /// # Errors
    /// As [`Engine::read_shared`].
    pub async fn step(&mut self, engine: &mut Engine, progress: &mut dyn FnMut() -> ControlFlow<()>) -> Result<bool, EngineError> {
        let limit = self.limit(engine.rows_in(STEP_SECONDS));
        let (mut portion, mut places, mut sum) = (Vec::new(), Vec::new(), 0);
        for (g, group) in self.groups.iter().enumerate() {
            let start = self.done.readings[g].len();
            let mut count = 0;
            for i in start..group.prompts.len() {
                sum += group.rows(i);
                if sum > limit && !(count == 0 && places.is_empty()) {
                    break;
                }
                count += 1;
            }
            if count > 0 {
                let prompts = group.prompts[start..start + count].iter().map(Vec::as_slice).collect();
                portion.push(Group { prompts, prefix: group.prefix });
                places.push(g);
            }
            if start + count < group.prompts.len() {
                break;
            }
        }
        if !portion.is_empty() {
            let mut read = GroupsReading::default();
            let result = engine.read_groups_into(&portion, &self.ask, progress, &mut read).await;
            for ((g, readings), prefix) in places.into_iter().zip(read.readings).zip(read.prefixes) {
                if self.done.readings[g].is_empty() && !readings.is_empty() {
                    self.done.prefixes[g] = prefix;
                }
                self.done.readings[g].extend(readings);
            }
            self.done.prefill_seconds += read.prefill_seconds;
            self.done.suffix_seconds += read.suffix_seconds;
            result?;
        }
        Ok(self.done() == self.total())
    }

    /// What was read, group by group.
    pub fn finish(self) -> GroupsReading {
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_leave_no_few_rows_over() {
        // 21 questions of 78 tokens on 1812.
        let prompts = |n: u32| (0..n).map(|i| (0..1812).chain([2000 + i]).chain(0..77).collect()).collect();
        let run = |n| SharedRun::new(prompts(n), SharedAsk { prefix: 1812, ..SharedAsk::default() });
        // Little fits beside the state, which is longer than a step.
        assert_eq!(run(21).limit(1380), 1812 + 78 + 345);
        // All of it is at most a quarter more than a step.
        assert_eq!(run(21).limit(2760), 3450);
        assert_eq!(run(21).limit(2759), 2759);
        assert_eq!(run(21).limit(usize::MAX), 3450);
        // The state is read: 16 questions are 1248 rows.
        let mut later = run(21);
        later.done.readings[0] = vec![super::super::Reading::default(); 5];
        assert_eq!(later.limit(1380), 1248);
        assert_eq!(later.limit(900), 900);
        later.done.readings[0] = vec![super::super::Reading::default(); 21];
        assert_eq!(later.limit(1380), 0);
    }
}
