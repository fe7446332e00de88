//! Many prompts on one prefix: the prefix is read once, then the suffixes run together, packed without padding. No path changes a bit:
//! each row is reduced in one order whatever stands beside it, and the delta rule is sequential wherever it is cut.

use super::prefix::PrefixUse;
use super::{Engine, EngineError, MOST_IDS};
use crate::gpu::{View, now_seconds};
use crate::kernels::attention::PAGE;
use crate::kernels::head;
use crate::model::{Batch, Sequence};
use std::ops::ControlFlow;

/// What to read at the end of each prompt.
#[derive(Debug, Clone, Default)]
pub struct SharedAsk {
    /// Token ids whose logits are wanted, the same for every prompt.
    pub labels: Vec<u32>,
    /// Log-sum-exp and argmax over the vocabulary too.
    pub stats: bool,
    /// Leading tokens that all prompts share and that are worth keeping (see [`super::shared_prefix`]); fewer than any prompt has.
    pub prefix: usize,
}

/// What was read at the end of a prompt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// Logits of [`SharedAsk::labels`].
    pub labels: Vec<f32>,
    /// log(sum(exp(logits))) over the vocabulary, if asked for.
    pub lse: Option<f64>,
    /// First id of the largest logit, if asked for.
    pub argmax: Option<u32>,
}

/// A batch's readings and what they took.
#[derive(Debug, Clone, Default)]
pub struct SharedReading {
    /// One for each prompt, in order.
    pub readings: Vec<Reading>,
    /// The prefix.
    pub prefix: PrefixUse,
    /// Seconds until the prefix stood in the cache (0 without one).
    pub prefill_seconds: f64,
    /// Seconds of the suffixes, up to the end of the readback.
    pub suffix_seconds: f64,
}

/// A prompt on its way.
struct Branch {
    prompt: usize,
    sequence: Sequence,
    done: usize,
}

impl Engine {
    /// Reads the end of every prompt. With a prefix, that is looked up in the cache or computed and kept there; the suffixes then branch from
    /// it. `progress` hears between chunks and may cancel; the cache stays consistent, and a computed prefix is kept.
    ///
    /// # Errors
    /// Prompts over the budget or with ids outside the vocabulary, GPU faults, [`EngineError::Cancelled`].
    pub async fn read_shared(
        &mut self,
        prompts: &[&[u32]],
        ask: &SharedAsk,
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<SharedReading, EngineError> {
        if ask.labels.len() > MOST_IDS {
            return Err(EngineError::Labels(ask.labels.len()));
        }
        self.check_ids(&ask.labels)?;
        for prompt in prompts {
            self.check_tokens(prompt, 0)?;
        }
        let Some(first) = prompts.first() else { return Ok(SharedReading::default()) };
        let longest = super::shared_prefix(prompts);
        let prefix = ask.prefix.min(longest);
        let start = now_seconds();
        let mut out = SharedReading::default();
        let held = if prefix > 0 {
            let (id, usage) = self.hold_prefix(&first[..prefix], progress).await?;
            out.prefix = usage;
            Some(id)
        } else {
            None
        };
        out.prefill_seconds = if held.is_some() { now_seconds() - start } else { 0.0 };
        let began = now_seconds();
        let result = self.read_branches(prompts, held, prefix, ask, progress).await;
        if let Some(id) = held {
            self.unpin(id);
        }
        if result.is_err() {
            self.rec.discard();
        }
        out.readings = result?;
        out.suffix_seconds = now_seconds() - began;
        let rows: usize = prompts.iter().map(|p| p.len() - prefix).sum();
        self.learn(self.operations(rows), out.suffix_seconds);
        Ok(out)
    }

    async fn read_branches(
        &mut self,
        prompts: &[&[u32]],
        held: Option<u64>,
        prefix: usize,
        ask: &SharedAsk,
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Vec<Reading>, EngineError> {
        let longest = prompts.iter().map(|p| p.len()).max().unwrap_or(0);
        self.forward.cover(&mut self.rec, &self.config, &self.weights, longest as u32).await?;
        // Prompts are taken in portions whose results fit one readback and whose own pages stay few.
        let width = ask.labels.len().max(1);
        let most = (MOST_IDS / width).clamp(1, 256);
        self.gpu.write(&self.ids, 0, bytemuck::cast_slice(&ask.labels));
        let mut readings = Vec::with_capacity(prompts.len());
        for portion in prompts.chunks(most) {
            let mut branches = Vec::new();
            let read = self.read_portion(&mut branches, portion, held, prefix, ask, progress).await;
            // Whatever happened, the pages go back (the commands that use them are already in the queue).
            branches.into_iter().for_each(|b| self.cache.release(b.sequence));
            readings.extend(read?);
        }
        Ok(readings)
    }

    async fn read_portion(
        &mut self,
        branches: &mut Vec<Branch>,
        prompts: &[&[u32]],
        held: Option<u64>,
        prefix: usize,
        ask: &SharedAsk,
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Vec<Reading>, EngineError> {
        let none = Sequence::default();
        let parent = held.and_then(|id| self.store.index_of(id)).map_or(&none, |i| &self.store.entries[i].sequence);
        let sequences = self.cache.branch(&mut self.rec, parent, prefix as u32, prompts.len() as u32).await?;
        branches.extend(sequences.into_iter().enumerate().map(|(prompt, sequence)| Branch { prompt, sequence, done: prefix }));
        let room = self.forward.max_rows() as usize;
        let (mut batch, mut order) = (Batch::default(), Vec::new());
        for branch in branches.iter_mut() {
            let tokens = prompts[branch.prompt];
            while branch.done < tokens.len() {
                let free = room - batch.len();
                let pages = tokens.len().div_ceil(PAGE as usize);
                if free == 0 || (batch.page_entries() + pages > self.forward.max_pages() && !batch.is_empty()) {
                    self.run_batch(&mut batch, &mut order, ask, progress).await?;
                    continue;
                }
                let rest = &tokens[branch.done..];
                let piece = &rest[..rest.len().min(free)];
                let last = piece.len() == rest.len();
                // A state of its own is needed only by a branch that is cut.
                self.cache.reserve(&mut self.rec, &mut branch.sequence, tokens.len() as u32, !last || branch.done > prefix).await?;
                batch.push(&mut branch.sequence, piece, last);
                branch.done += piece.len();
                if last {
                    order.push(branch.prompt);
                }
            }
        }
        if !batch.is_empty() {
            self.run_batch(&mut batch, &mut order, ask, progress).await?;
        }
        self.collect(prompts.len(), ask).await
    }

    /// Runs the collected rows; the finished prompts' results go to their places in the result buffers.
    async fn run_batch(
        &mut self,
        batch: &mut Batch,
        order: &mut Vec<usize>,
        ask: &SharedAsk,
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.forward.run(&mut self.rec, &self.config, &self.weights, &self.cache, batch)?;
        // Prompts finish in order, so a batch's outputs are consecutive.
        let at = order.first().copied().unwrap_or(0) as u32;
        let (count, labels) = (order.len() as u32, ask.labels.len() as u32);
        if count > 0 && labels > 0 {
            let last = self.forward.last_rows(&self.config);
            head::slots(&mut self.rec, self.weights.head(), last, count, self.ids.all(), labels, self.slot_logits.all(), at);
        }
        if ask.stats {
            for i in 0..count {
                self.forward.vocabulary_into(&mut self.rec, &self.weights, i, 0, self.slot_stats.all(), (at + i) * 3);
            }
        }
        let rows = batch.len();
        *batch = Batch::default();
        order.clear();
        self.end_chunk(rows, progress).await
    }

    async fn collect(&mut self, count: usize, ask: &SharedAsk) -> Result<Vec<Reading>, EngineError> {
        let width = ask.labels.len();
        let logits = self.slot_logits.range(0, (count * width * 4) as u64);
        let stats = self.slot_stats.range(0, if ask.stats { count as u64 * 12 } else { 0 });
        let wanted: Vec<View<'_>> = [logits, stats].into_iter().filter(|v| v.size > 0).collect();
        let mut bytes = self.gpu.read_all(&wanted).await?;
        let words: Vec<u32> = if ask.stats { bytemuck::pod_collect_to_vec(&bytes.pop().unwrap_or_default()) } else { Vec::new() };
        let logits: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes.pop().unwrap_or_default());
        let one = |i: usize| {
            let labels = logits[i * width..(i + 1) * width].to_vec();
            let stat = words.get(i * 3..i * 3 + 3);
            Reading {
                labels,
                lse: stat.map(|s| f64::from(f32::from_bits(s[0])) + f64::from(f32::from_bits(s[1])).ln()),
                argmax: stat.map(|s| s[2]),
            }
        };
        Ok((0..count).map(one).collect())
    }
}
