//! States that stay: opened once, grown, asked and branched, each step costing only what is new. And batches in steps, so that a
//! click need not wait behind them.

use super::prefix::PrefixUse;
use super::{Engine, EngineError, SharedAsk, SharedReading};
use std::ops::ControlFlow;

/// A state held in an engine. Give it back with [`Engine::close_state`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateId(u64);

/// What an open state holds.
pub(super) struct OpenState {
    id: u64,
    entry: u64,
    tokens: Vec<u32>,
}

/// A batch is cut into steps of about this length.
const STEP_SECONDS: f64 = 0.05;

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
        self.checkpoint(tokens, progress).await?;
        let (entry, usage) = self.hold_prefix(tokens, progress).await?;
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
        self.checkpoint(tokens, progress).await?;
        let (entry, usage) = self.hold_prefix(tokens, progress).await?;
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

    /// Lets a state go; it may stay in the cache until its memory is needed.
    ///
    /// # Errors
    /// [`EngineError::NoState`].
    pub fn close_state(&mut self, id: StateId) -> Result<(), EngineError> {
        let i = self.state(id)?;
        let state = self.states.swap_remove(i);
        self.unpin(state.entry);
        self.make_room(0);
        Ok(())
    }
}

/// A batch that is run in steps of about 50 ms, so that more urgent questions can be asked in between.
pub struct SharedRun {
    prompts: Vec<Vec<u32>>,
    ask: SharedAsk,
    done: SharedReading,
}

impl SharedRun {
    /// A batch of prompts; nothing is computed yet.
    pub fn new(prompts: Vec<Vec<u32>>, ask: SharedAsk) -> Self {
        Self { prompts, ask, done: SharedReading::default() }
    }

    /// Prompts that are read.
    pub fn done(&self) -> usize {
        self.done.readings.len()
    }

    /// Runs the next few prompts; true when all are read. After an error the step can be tried again: finished prompts stay.
    ///
    /// # Errors
    /// As [`Engine::read_shared`].
    pub async fn step(&mut self, engine: &mut Engine, progress: &mut dyn FnMut() -> ControlFlow<()>) -> Result<bool, EngineError> {
        let start = self.done();
        let prefix = {
            let all: Vec<&[u32]> = self.prompts.iter().map(Vec::as_slice).collect();
            self.ask.prefix.min(super::shared_prefix(&all))
        };
        let rows = engine.rows_in(STEP_SECONDS);
        let (mut count, mut sum) = (0, 0);
        while let Some(prompt) = self.prompts.get(start + count) {
            sum += prompt.len() - prefix;
            if count > 0 && sum > rows {
                break;
            }
            count += 1;
        }
        if count > 0 {
            let portion: Vec<&[u32]> = self.prompts[start..start + count].iter().map(Vec::as_slice).collect();
            let ask = SharedAsk { prefix, ..self.ask.clone() };
            let read = engine.read_shared(&portion, &ask, progress).await?;
            if start == 0 {
                self.done.prefix = read.prefix;
            }
            self.done.prefill_seconds += read.prefill_seconds;
            self.done.suffix_seconds += read.suffix_seconds;
            self.done.readings.extend(read.readings);
        }
        Ok(self.done() == self.prompts.len())
    }

    /// What was read.
    pub fn finish(self) -> SharedReading {
        self.done
    }
}
