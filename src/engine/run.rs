//! Logits of a last position, and greedy generation.

use super::{Engine, EngineError, MOST_IDS};
use crate::gpu::now_seconds;
use crate::kernels::head;
use crate::model::{Batch, Forward, Sequence};
use std::ops::ControlFlow;

/// What to read at the last position of a prompt.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    /// Token ids whose logits are wanted, in order.
    pub labels: Vec<u32>,
    /// The largest so many logits over the vocabulary.
    pub top: usize,
    /// All logits.
    pub full: bool,
    /// Log-sum-exp and argmax over the vocabulary.
    pub stats: bool,
}

/// What was read.
#[derive(Debug, Clone, Default)]
pub struct Logits {
    /// Logits of [`Ask::labels`].
    pub labels: Vec<f32>,
    /// Largest logits, largest first; the lower id first where equal.
    pub top: Vec<(u32, f32)>,
    /// log(sum(exp(logits))) over the vocabulary, if asked for.
    pub lse: Option<f64>,
    /// First id of the largest logit, if asked for.
    pub argmax: Option<u32>,
    /// All logits, if asked for.
    pub full: Option<Vec<f32>>,
    /// From the first upload of inputs to the end of the readback.
    pub forward_seconds: f64,
}

/// What was generated.
#[derive(Debug, Clone, Default)]
pub struct Generation {
    /// The new tokens, without the stop token.
    pub tokens: Vec<u32>,
    /// The stop token that ended it, if one did.
    pub stopped: Option<u32>,
    /// Prompt to first token.
    pub first_token_seconds: f64,
    /// Prompt to last token.
    pub total_seconds: f64,
    /// The caller asked to stop.
    pub cancelled: bool,
}

/// Lengths of prompts whose kernels are compiled while a model is loaded: products have other tiles for other numbers of rows, and nobody should
/// wait for a compiler at the first click, or take its time for the model's.
pub(super) const USUAL: [usize; 6] = [2, 24, 64, 150, 264, 400];

/// A submit should not hold the GPU longer than this.
pub(super) const SUBMIT_SECONDS: f64 = 0.04;
/// Generation steps in flight are chosen so that a readback comes about this often.
const READBACK_SECONDS: f64 = 0.03;
/// A chunk should not take longer than this: cancels and clicks are heard between chunks.
const CHUNK_SECONDS: f64 = 0.3;
/// Fewer rows do not tell that an adapter is slow.
const TELLING_ROWS: usize = 128;
/// Measurements of speed that count.
const LATE: usize = 8;

impl Engine {
    /// A few runs, so that what a driver does at the first one is done, and the GPU's speed is measured. A software adapter would spend
    /// seconds to minutes on that.
    pub(super) async fn warm_up(&mut self) -> Result<(), EngineError> {
        if self.gpu.info().software {
            return Ok(());
        }
        self.runs(&[2, 64, 64]).await
    }

    /// Prompts of so many tokens, as far as the budget allows, and a generation: what meets every kernel of decisions of such lengths.
    pub(super) async fn runs(&mut self, lengths: &[usize]) -> Result<(), EngineError> {
        let ask = Ask { labels: vec![0], stats: true, ..Ask::default() };
        let longest = self.max_tokens as usize;
        for n in lengths {
            self.logits(&vec![0; longest.min(*n)], &ask).await?;
        }
        if longest > 2 {
            self.generate(&[0], 2, &[], &mut |_| ControlFlow::Continue(())).await?;
        }
        Ok(())
    }

    pub(super) fn check_tokens(&self, tokens: &[u32], more: usize) -> Result<(), EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::Empty);
        }
        if tokens.len() + more > self.max_tokens as usize {
            return Err(EngineError::Budget { tokens: tokens.len() + more, budget: self.max_tokens });
        }
        self.check_ids(tokens)
    }

    pub(super) fn check_ids(&self, ids: &[u32]) -> Result<(), EngineError> {
        match ids.iter().find(|id| **id >= self.config.vocab) {
            Some(&id) => Err(EngineError::Token { id, vocab: self.config.vocab }),
            None => Ok(()),
        }
    }

    /// Runs a prompt chunk by chunk; its last row's final state is then the only one in the scratch. `progress` hears between chunks.
    async fn prefill(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        room: usize,
        mut progress: Option<&mut dyn FnMut() -> ControlFlow<()>>,
    ) -> Result<(), EngineError> {
        let total = (tokens.len() + room) as u32;
        match self.room_for(sequence, total).await {
            // Kept prefixes, and a cache that grew ahead, live on memory that a prompt may need.
            Err(error) if error.is_out_of_memory() => {
                self.forget_prefixes();
                self.room_for(sequence, total).await?;
            }
            other => other?,
        }
        let step = self.chunk_rows();
        let count = tokens.len().div_ceil(step);
        for (i, chunk) in tokens.chunks(step).enumerate() {
            let mut batch = Batch::default();
            batch.push(sequence, chunk, i + 1 == count);
            self.forward.run(&mut self.rec, &self.config, &self.weights, &self.cache, &batch)?;
            match &mut progress {
                _ if i + 1 == count => {}
                Some(progress) => self.end_chunk(chunk.len(), progress).await?,
                None => self.rec.submit(),
            }
        }
        Ok(())
    }

    /// Makes room for a sequence of `total` tokens. The table of positions comes first: a cache that grows ahead of its need leaves
    /// nothing over.
    async fn room_for(&mut self, sequence: &mut Sequence, total: u32) -> Result<(), EngineError> {
        self.forward.cover(&mut self.rec, &self.config, &self.weights, total).await?;
        self.cache.reserve(&mut self.rec, sequence, total, true).await?;
        Ok(())
    }

    /// Learns the adapter's speed from rows and the seconds they took: the best of late. A few rows, a smaller share of what it can do than a
    /// full chunk, tell only what it can do at least.
    pub(super) fn learn(&mut self, rows: usize, seconds: f64) {
        let operations = self.operations(rows);
        let rate = operations / seconds;
        if operations > 1e8 && seconds > 0.0 && (rows >= TELLING_ROWS || rate > self.rate()) {
            self.rates.push_back(rate);
            if self.rates.len() > LATE {
                self.rates.pop_front();
            }
        }
    }

    /// Operations a second of late; 0 before the first measurement.
    pub(super) fn rate(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// Seconds of the longest submit since the last call, as far as can be told: what a browser's page waited for at most.
    pub fn longest_submit(&mut self) -> f64 {
        self.rec.longest_submit()
    }

    pub(super) fn operations(&self, tokens: usize) -> f64 {
        let weights: u64 = self.weights.layers.iter().map(|l| u64::from(l.gate_up.cols) * u64::from(l.gate_up.rows + l.down.cols)).sum();
        2.0 * tokens as f64 * weights as f64
    }

    /// Rows that take about so many seconds on this adapter (a chunk where that is not known yet).
    pub(super) fn rows_in(&self, seconds: f64) -> usize {
        let all = self.forward.max_rows() as usize;
        if self.rate() > 0.0 { ((self.rate() * seconds / self.operations(1)) as usize).max(1) } else { all }
    }

    /// Rows of the next chunks: what the scratch holds or, on an adapter that is too slow for that, what it reads in a moment.
    pub(super) fn chunk_rows(&self) -> usize {
        let all = self.forward.max_rows() as usize;
        if self.fixed_chunk { all } else { super::chunk::in_a_moment(self.rows_in(CHUNK_SECONDS), all) }
    }

    /// Logits at the last position of `tokens`.
    ///
    /// # Errors
    /// Tokens outside the vocabulary, a prompt over the budget, too many labels, GPU faults.
    pub async fn logits(&mut self, tokens: &[u32], ask: &Ask) -> Result<Logits, EngineError> {
        self.logits_until(tokens, ask, None).await
    }

    /// The same; `progress` hears between the chunks of a long prompt and may cancel.
    ///
    /// # Errors
    /// As [`Engine::logits`], and [`EngineError::Cancelled`].
    pub async fn logits_with(
        &mut self,
        tokens: &[u32],
        ask: &Ask,
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Logits, EngineError> {
        self.logits_until(tokens, ask, Some(progress)).await
    }

    async fn logits_until(
        &mut self,
        tokens: &[u32],
        ask: &Ask,
        progress: Option<&mut dyn FnMut() -> ControlFlow<()>>,
    ) -> Result<Logits, EngineError> {
        self.check_tokens(tokens, 0)?;
        self.check_ids(&ask.labels)?;
        if ask.labels.len() > MOST_IDS {
            return Err(EngineError::Labels(ask.labels.len()));
        }
        let start = now_seconds();
        let mut sequence = Sequence::default();
        let result = self.logits_of(&mut sequence, tokens, ask, progress).await;
        self.cache.release(sequence);
        let mut logits = self.settle(result)?;
        logits.forward_seconds = now_seconds() - start;
        self.learn(tokens.len(), logits.forward_seconds);
        Ok(logits)
    }

    async fn logits_of(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        ask: &Ask,
        progress: Option<&mut dyn FnMut() -> ControlFlow<()>>,
    ) -> Result<Logits, EngineError> {
        self.prefill(sequence, tokens, 0, progress).await?;
        let mut out = Logits::default();
        let last = self.forward.last_rows(&self.config);
        let n = ask.labels.len() as u64 * 4;
        if n > 0 {
            self.gpu.write(&self.ids, 0, bytemuck::cast_slice(&ask.labels));
            head::slots(&mut self.rec, self.weights.head(), last, 1, self.ids.all(), ask.labels.len() as u32, self.slot_logits.all(), 0);
        }
        let all = ask.full || ask.top > 0;
        if ask.stats || all {
            self.forward.vocabulary(&mut self.rec, &self.weights, 0, 0);
        }
        if n > 0 {
            let bytes = self.rec.finish_and_read(self.slot_logits.range(0, n)).await?;
            out.labels = bytemuck::pod_collect_to_vec(&bytes);
        }
        if all {
            let bytes = self.rec.finish_and_read(self.forward.vocab_logits()).await?;
            let mut full: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
            full.truncate(self.config.vocab as usize);
            out.top = top(&full, ask.top);
            if ask.stats {
                let first = top(&full, 1);
                out.argmax = first.first().map(|t| t.0);
                let m = first.first().map_or(0.0, |t| f64::from(t.1));
                out.lse = Some(m + full.iter().map(|v| (f64::from(*v) - m).exp()).sum::<f64>().ln());
            }
            out.full = ask.full.then_some(full);
        } else if ask.stats {
            let bytes = self.rec.finish_and_read(self.forward.vocab_stats()).await?;
            let words: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes);
            out.lse = Some(f64::from(f32::from_bits(words[0])) + f64::from(f32::from_bits(words[1])).ln());
            out.argmax = Some(words[2]);
        }
        self.rec.submit();
        Ok(out)
    }

    /// Greedy generation of up to `max_new` tokens, ended early by a token of `stop` or by `on_token` (called for each new token).
    ///
    /// # Errors
    /// Tokens outside the vocabulary, prompt and answer over the budget, GPU faults.
    pub async fn generate(
        &mut self,
        tokens: &[u32],
        max_new: usize,
        stop: &[u32],
        on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generation, EngineError> {
        self.generate_until(tokens, max_new, stop, None, on_token).await
    }

    /// The same; `progress` hears between the chunks of a long prompt and may cancel there.
    ///
    /// # Errors
    /// As [`Engine::generate`], and [`EngineError::Cancelled`].
    pub async fn generate_with(
        &mut self,
        tokens: &[u32],
        max_new: usize,
        stop: &[u32],
        progress: &mut dyn FnMut() -> ControlFlow<()>,
        on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generation, EngineError> {
        self.generate_until(tokens, max_new, stop, Some(progress), on_token).await
    }

    async fn generate_until(
        &mut self,
        tokens: &[u32],
        max_new: usize,
        stop: &[u32],
        progress: Option<&mut dyn FnMut() -> ControlFlow<()>>,
        on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generation, EngineError> {
        self.check_tokens(tokens, max_new)?;
        let mut sequence = Sequence::default();
        let result = self.generate_in(&mut sequence, tokens, max_new, stop, progress, on_token).await;
        self.cache.release(sequence);
        self.settle(result)
    }

    async fn generate_in(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        max_new: usize,
        stop: &[u32],
        progress: Option<&mut dyn FnMut() -> ControlFlow<()>>,
        on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generation, EngineError> {
        let mut out = Generation::default();
        if max_new == 0 {
            return Ok(out);
        }
        let start = now_seconds();
        self.prefill(sequence, tokens, max_new, progress).await?;
        self.forward.vocabulary(&mut self.rec, &self.weights, 0, 1);
        let bytes = self.rec.finish_and_read(self.forward.chosen(1)).await?;
        out.first_token_seconds = now_seconds() - start;
        self.learn(tokens.len(), out.first_token_seconds);
        let mut fresh: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes);
        let mut in_flight = 1;
        loop {
            for &token in &fresh {
                // The largest of no numbers is no token.
                if token >= self.config.vocab {
                    return Err(EngineError::NotFinite);
                }
                if stop.contains(&token) {
                    out.stopped = Some(token);
                } else {
                    out.tokens.push(token);
                    out.cancelled = on_token(token).is_break();
                }
                if out.stopped.is_some() || out.cancelled || out.tokens.len() == max_new {
                    out.total_seconds = now_seconds() - start;
                    return Ok(out);
                }
            }
            let steps = in_flight.min(max_new - out.tokens.len()) as u32;
            let last = *fresh.last().unwrap_or(&0);
            let began = now_seconds();
            self.forward.generate(&mut self.rec, &self.config, &self.weights, &self.cache, sequence, last, steps);
            let bytes = self.rec.finish_and_read(self.forward.chosen(steps)).await?;
            fresh = bytemuck::pod_collect_to_vec(&bytes);
            let each = (now_seconds() - began) / f64::from(steps);
            in_flight = ((READBACK_SECONDS / each) as usize).clamp(1, (Forward::max_steps() as usize).min(2 * in_flight).min(16));
        }
    }
}

impl Engine {
    /// All logits of the last position that the vocabulary was read at: after [`Engine::generate`] that ran to its full length, those
    /// that its last token was chosen by.
    ///
    /// # Errors
    /// GPU faults.
    pub async fn last_logits(&self) -> Result<Vec<f32>, EngineError> {
        let bytes = self.gpu.read_all(&[self.forward.vocab_logits()]).await?.pop().unwrap_or_default();
        let mut logits: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
        logits.truncate(self.config.vocab as usize);
        Ok(logits)
    }
}

/// The `count` largest, largest first, lower id first where equal.
fn top(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let count = count.min(all.len());
    if count == 0 {
        return Vec::new();
    }
    if count < all.len() {
        all.select_nth_unstable_by(count - 1, order);
        all.truncate(count);
    }
    all.sort_unstable_by(order);
    all
}

#[cfg(test)]
mod tests {
    use super::top;

    #[test]
    fn top_is_ordered_and_stable() {
        let logits = [1.0, 5.0, f32::NEG_INFINITY, 5.0, 2.0];
        assert_eq!(top(&logits, 3), [(1, 5.0), (3, 5.0), (4, 2.0)]);
        assert_eq!(top(&logits, 9).len(), 5);
        assert!(top(&logits, 0).is_empty());
    }
}
