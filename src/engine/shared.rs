//! Many prompts on one prefix, or on one for each of several groups: the prefixes are read once, then the suffixes run together, packed
//! without padding. No path changes a bit: each row is reduced in one order whatever stands beside it, and the delta rule is sequential
//! wherever it is cut.

use super::prefix::PrefixUse;
use super::room::{Span, pieces};
use super::{Engine, EngineError, MOST_IDS};
use crate::gpu::{View, now_seconds};
use crate::kernels::head;
use crate::model::{Batch, Cache, Sequence};
use std::ops::ControlFlow;

/// What to read at the end of each prompt.
#[derive(Debug, Clone, Default)]
pub struct SharedAsk {
    /// Token ids whose logits are wanted, the same for every prompt.
    pub labels: Vec<u32>,
    /// Log-sum-exp and argmax over the vocabulary too.
    pub stats: bool,
    /// Leading tokens that all prompts share and that are worth keeping (see [`super::shared_prefix`]); fewer than any prompt has. Where
    /// groups are read, each group has its own.
    pub prefix: usize,
}

/// Prompts that begin alike.
#[derive(Debug, Clone, Default)]
pub struct Group<'a> {
    /// The prompts.
    pub prompts: Vec<&'a [u32]>,
    /// Leading tokens that are kept, as [`SharedAsk::prefix`]; 0 keeps nothing.
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
    /// The prefix; none where memory was too short to keep one.
    pub prefix: PrefixUse,
    /// Seconds until the prefix stood in the cache (0 without one).
    pub prefill_seconds: f64,
    /// Seconds of the suffixes, up to the end of the readback.
    pub suffix_seconds: f64,
}

/// The readings of several groups and what they took.
#[derive(Debug, Clone, Default)]
pub struct GroupsReading {
    /// One for each prompt of each group, in order.
    pub readings: Vec<Vec<Reading>>,
    /// Each group's prefix; without tokens where memory was too short to keep it.
    pub prefixes: Vec<PrefixUse>,
    /// Seconds until all prefixes stood in the cache.
    pub prefill_seconds: f64,
    /// Seconds of all suffixes, up to the end of the readback.
    pub suffix_seconds: f64,
}

/// A sequence on its way to the end of its tokens.
pub(super) struct Branch<'a> {
    pub tokens: &'a [u32],
    pub sequence: Sequence,
    /// Where its reading goes; a prefix has none.
    pub place: Option<u32>,
    /// It must be possible to go on after its end.
    pub keep: bool,
    done: usize,
    /// Tokens that it branched with.
    pub began: usize,
}

impl<'a> Branch<'a> {
    /// A sequence that holds the first of `tokens` already.
    pub fn new(tokens: &'a [u32], sequence: Sequence, place: Option<u32>) -> Self {
        let done = sequence.len as usize;
        Self { tokens, sequence, place, keep: place.is_none(), done, began: done }
    }
}

/// Prompts whose results fit one readback and whose own pages stay few.
pub(super) fn portion_size(labels: usize) -> usize {
    (MOST_IDS / labels.max(1)).clamp(1, 256)
}

/// A prompt with its group.
type Place<'a> = (usize, &'a [u32]);

impl Engine {
    /// Reads the end of every prompt. With a prefix, that is looked up in the cache or computed and kept there; the suffixes then branch from
    /// it. `progress` hears between chunks and may cancel; the cache stays consistent, and what was computed of a prefix is kept.
    ///
    /// # Errors
    /// Prompts over the budget or with ids outside the vocabulary, GPU faults, [`EngineError::Cancelled`].
    pub async fn read_shared(
        &mut self,
        prompts: &[&[u32]],
        ask: &SharedAsk,
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<SharedReading, EngineError> {
        let group = Group { prompts: prompts.to_vec(), prefix: ask.prefix };
        let mut read = self.read_groups(&[group], ask, progress).await?;
        Ok(SharedReading {
            readings: read.readings.pop().unwrap_or_default(),
            prefix: read.prefixes.pop().unwrap_or_default(),
            prefill_seconds: read.prefill_seconds,
            suffix_seconds: read.suffix_seconds,
        })
    }

    /// Reads the end of every prompt of several groups, each on a prefix of its own. Missing prefixes are computed together, as many as the
    /// cache budget has room for, and so are the suffixes of their groups. Where GPU memory is too short for that, fewer run together, and in
    /// the end without a kept prefix.
    ///
    /// # Errors
    /// As [`Engine::read_shared`].
    pub async fn read_groups(
        &mut self,
        groups: &[Group<'_>],
        ask: &SharedAsk,
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<GroupsReading, EngineError> {
        let mut out = GroupsReading::default();
        self.read_groups_into(groups, ask, progress, &mut out).await?;
        Ok(out)
    }

    /// The same into `out`, where the first prompts' readings stay that were finished before an error.
    ///
    /// # Errors
    /// As [`Engine::read_shared`].
    pub async fn read_groups_into(
        &mut self,
        groups: &[Group<'_>],
        ask: &SharedAsk,
        progress: &mut dyn FnMut() -> ControlFlow<()>,
        out: &mut GroupsReading,
    ) -> Result<(), EngineError> {
        *out = GroupsReading {
            readings: vec![Vec::new(); groups.len()],
            prefixes: vec![PrefixUse::default(); groups.len()],
            ..GroupsReading::default()
        };
        if ask.labels.len() > MOST_IDS {
            return Err(EngineError::Labels(ask.labels.len()));
        }
        self.check_ids(&ask.labels)?;
        for prompt in groups.iter().flat_map(|g| &g.prompts) {
            self.check_tokens(prompt, 0)?;
        }
        let groups: Vec<Group<'_>> =
            groups.iter().map(|g| Group { prompts: g.prompts.clone(), prefix: g.prefix.min(super::shared_prefix(&g.prompts)) }).collect();
        let mut at = 0;
        while at < groups.len() {
            let together = &groups[at..at + self.fitting(&groups[at..])];
            match self.try_groups(together, ask, progress, at, out).await {
                Err(error) if error.is_out_of_memory() => {
                    for (group, place) in together.iter().zip(at..) {
                        self.read_frugally(group, ask, progress, place, out).await?;
                    }
                }
                other => other?,
            }
            at += together.len();
        }
        Ok(())
    }

    /// How many of the first groups, one at least, have prefixes that fit the cache budget together.
    pub(super) fn fitting(&self, groups: &[Group<'_>]) -> usize {
        let mut sum: u64 = 0;
        let fits = groups.iter().take_while(|g| {
            sum += if g.prefix > 0 { Cache::bytes(&self.config, g.prefix as u32) } else { 0 };
            sum <= self.cache_budget
        });
        fits.count().max(1)
    }

    /// Reads what is left of one group with as little memory as it takes: fewer prompts at a time, at last one by one and without a prefix.
    async fn read_frugally(
        &mut self,
        group: &Group<'_>,
        ask: &SharedAsk,
        progress: &mut dyn FnMut() -> ControlFlow<()>,
        at: usize,
        out: &mut GroupsReading,
    ) -> Result<(), EngineError> {
        let (mut prefix, mut most) = (group.prefix, group.prompts.len().min(64));
        while let Some(rest) = group.prompts.get(out.readings[at].len()..).filter(|rest| !rest.is_empty()) {
            let part = Group { prompts: rest[..most.min(rest.len())].to_vec(), prefix };
            match self.try_groups(&[part], ask, progress, at, out).await {
                Err(error) if error.is_out_of_memory() && most > 1 => most = most.div_ceil(4),
                Err(error) if error.is_out_of_memory() && prefix > 0 => {
                    prefix = 0;
                    out.prefixes[at] = PrefixUse::default();
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// Reads groups whose places in `out` begin at `at`; what it has finished when an error comes stays there.
    async fn try_groups(
        &mut self,
        groups: &[Group<'_>],
        ask: &SharedAsk,
        progress: &mut dyn FnMut() -> ControlFlow<()>,
        at: usize,
        out: &mut GroupsReading,
    ) -> Result<(), EngineError> {
        let start = now_seconds();
        let prefixes: Vec<&[u32]> = groups.iter().filter(|g| g.prefix > 0).filter_map(|g| Some(&g.prompts.first()?[..g.prefix])).collect();
        let ahead = self.room_ahead(groups, &prefixes, ask.labels.len()).await;
        let ahead = self.settle(ahead)?;
        let begun = now_seconds();
        let held = self.hold_prefixes(&prefixes, progress).await;
        ahead.into_iter().for_each(|id| self.unpin(id));
        let held = self.settle(held)?;
        let mut each = held.iter();
        let mut parents: Vec<Option<u64>> = Vec::new();
        for (group, place) in groups.iter().zip(at..) {
            let (id, usage) = if group.prefix > 0 { each.next().copied().unzip() } else { (None, None) };
            parents.push(id);
            // A group that is read in parts says what its first one found.
            if out.readings[place].is_empty() {
                out.prefixes[place] = usage.unwrap_or_default();
            }
        }
        out.prefill_seconds += if held.is_empty() { 0.0 } else { now_seconds() - start };
        let began = now_seconds();
        let mut readings = Vec::new();
        let result = self.read_branches(groups, &parents, ask, progress, &mut readings).await;
        held.iter().for_each(|(id, _)| self.unpin(*id));
        self.make_room(0);
        let mut readings = readings.into_iter();
        for (group, place) in groups.iter().zip(at..) {
            out.readings[place].extend(readings.by_ref().take(group.prompts.len()));
        }
        out.suffix_seconds += now_seconds() - began;
        self.settle(result)?;
        let suffixes: usize = groups.iter().flat_map(|g| g.prompts.iter().map(|p| p.len() - g.prefix)).sum();
        let fresh: u32 = held.iter().map(|(_, usage)| usage.tokens - usage.reused).sum();
        self.learn(suffixes + fresh as usize, now_seconds() - begun);
        Ok(())
    }

    async fn read_branches(
        &mut self,
        groups: &[Group<'_>],
        parents: &[Option<u64>],
        ask: &SharedAsk,
        progress: &mut dyn FnMut() -> ControlFlow<()>,
        readings: &mut Vec<Reading>,
    ) -> Result<(), EngineError> {
        let places: Vec<Place<'_>> = groups.iter().enumerate().flat_map(|(g, group)| group.prompts.iter().map(move |p| (g, *p))).collect();
        let longest = places.iter().map(|(_, p)| p.len()).max().unwrap_or(0);
        self.forward.cover(&mut self.rec, &self.config, &self.weights, longest as u32).await?;
        self.gpu.write(&self.ids, 0, bytemuck::cast_slice(&ask.labels));
        for portion in places.chunks(portion_size(ask.labels.len())) {
            let mut branches = Vec::new();
            let read = self.read_portion(&mut branches, portion, groups, parents, ask, progress).await;
            // Whatever happened, the pages go back (the commands that use them are already in the queue).
            branches.into_iter().for_each(|b| self.cache.release(b.sequence));
            readings.extend(read?);
        }
        Ok(())
    }

    async fn read_portion<'a>(
        &mut self,
        branches: &mut Vec<Branch<'a>>,
        places: &[Place<'a>],
        groups: &[Group<'_>],
        parents: &[Option<u64>],
        ask: &SharedAsk,
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Vec<Reading>, EngineError> {
        for of_group in places.chunk_by(|(a, _), (b, _)| a == b) {
            let none = Sequence::default();
            let parent = match parents[of_group[0].0] {
                Some(id) => &self.store.entries[self.store.index_of(id).ok_or(EngineError::NoState)?].sequence,
                None => &none,
            };
            let prefix = groups[of_group[0].0].prefix as u32;
            let sequences = self.cache.branch(&mut self.rec, parent, prefix, of_group.len() as u32).await?;
            let at = branches.len() as u32;
            branches.extend((at..).zip(of_group).zip(sequences).map(|((place, (_, tokens)), s)| Branch::new(tokens, s, Some(place))));
        }
        self.pack(branches, ask, progress).await?;
        self.collect(places.len(), ask).await
    }

    /// Runs all branches to their ends, packed into chunks without padding, in order.
    pub(super) async fn pack(
        &mut self,
        branches: &mut [Branch<'_>],
        ask: &SharedAsk,
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let spans: Vec<Span> = branches.iter().map(|b| Span { done: b.done, all: b.tokens.len() }).collect();
        let (mut batch, mut finished) = (Batch::default(), Vec::new());
        for piece in pieces(&spans, self.chunk_rows(), self.forward.max_pages()) {
            if piece.fresh {
                self.run_batch(&mut batch, &mut finished, ask, progress).await?;
            }
            let branch = &mut branches[piece.prompt];
            let tokens = branch.tokens;
            let next = branch.done + piece.rows;
            let last = next == tokens.len();
            // A state of its own is needed only by a branch that is cut, or that others go on from.
            let state = branch.keep || !last || branch.done > branch.began;
            self.cache.reserve(&mut self.rec, &mut branch.sequence, tokens.len() as u32, state).await?;
            batch.push(&mut branch.sequence, &tokens[branch.done..next], last && branch.place.is_some());
            branch.done = next;
            if last {
                finished.extend(branch.place);
            }
        }
        if !batch.is_empty() {
            self.run_batch(&mut batch, &mut finished, ask, progress).await?;
        }
        Ok(())
    }

    /// Runs the collected rows; the finished prompts' results go to their places in the result buffers.
    async fn run_batch(
        &mut self,
        batch: &mut Batch,
        finished: &mut Vec<u32>,
        ask: &SharedAsk,
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.forward.run(&mut self.rec, &self.config, &self.weights, &self.cache, batch)?;
        // Prompts finish in order, so a batch's outputs are consecutive.
        let at = finished.first().copied().unwrap_or(0);
        let (count, labels) = (finished.len() as u32, ask.labels.len() as u32);
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
        finished.clear();
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
