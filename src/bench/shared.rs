//! States times questions, read three ways: every prompt afresh, one after the other on a kept state, and a state's questions together.
//! The three must agree in every bit.

use super::story::Story;
use super::{Tokens, labels, percentile};
use crate::decision::{Choice, Json, Row, Wording};
use crate::engine::{Ask, Engine, EngineError, SharedAsk, shared_prefix};
use crate::gpu::now_seconds;
use crate::text::{Parse, TextModel};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;

/// Token lists of one state.
pub type Prompts = Vec<Vec<u32>>;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// Different states.
    pub states: usize,
    /// Questions on each.
    pub questions: usize,
    /// Tokens of a state, instructions included.
    pub state_tokens: usize,
    /// Tokens of a question with its options.
    pub suffix_tokens: usize,
    /// Options of a question, 2 (yes and no) to 4.
    pub options: usize,
    /// At most so many prompts in all: whole states first, the last one with fewer questions.
    pub rows: Option<usize>,
}

impl Default for Workload {
    fn default() -> Self {
        Self { states: 37, questions: 21, state_tokens: 1800, suffix_tokens: 80, options: 4, rows: None }
    }
}

impl Workload {
    /// The prompts of each state as `semif score` would make them: deterministic text of about the wanted lengths, real instructions. Also the options' letters. `None` where the model has no usable tokenizer, template or letters.
    pub fn text_prompts(&self, text: &TextModel) -> Option<(Vec<Prompts>, Vec<u32>)> {
        let wording = Wording::default();
        let prompt = |state: &str, question: &str| {
            let options = match self.options {
                2 => &["Yes", "No"][..],
                n => &["Yes, clearly", "Yes, with doubts", "No", "It is not said"][..n.min(4)],
            };
            let choices = options.iter().map(|text| Choice { id: (*text).into(), description: (*text).into() }).collect();
            let row = Row::new("bench", Json::String(state.into()), question, choices).ok()?;
            Some(text.chat_prompt(&wording.system, &wording.payload(&row)).ok()?.tokens)
        };
        let tokens = |of: &str| text.tokenizer.encode(of, Parse::Plain).ok().map(|tokens| tokens.len());
        // What stands around the two texts.
        let (a, b) = (prompt("A", "Q?")?, prompt("A", "R?")?);
        let before = shared_prefix(&[&a, &b]);
        let after = a.len() - before;
        let told = |story: &mut Story, most: usize| {
            let (mut text, mut length) = (String::new(), 0);
            while length < most {
                let sentence = story.sentence();
                length += tokens(&sentence)?;
                text.push_str(&sentence);
            }
            Some(text)
        };
        let mut states = Vec::new();
        for (state, questions) in self.portions() {
            let mut story = Story::new(1 + state);
            let about = told(&mut story, self.state_tokens.saturating_sub(before).max(1))?;
            let one = |question: usize| {
                let more = told(&mut story, self.suffix_tokens.saturating_sub(after + 6).max(1))?;
                prompt(&about, &format!("{question}. Is it said that: {}?", more.trim_end().trim_end_matches('.')))
            };
            states.push((0..questions).map(one).collect::<Option<_>>()?);
        }
        Some((states, text.letter_slots(self.options.min(4)).ok()?))
    }

    /// The same of token ids alone. They share exactly `state_tokens` tokens, as long as the vocabulary has more ids than there are questions.
    pub fn prompts(&self, vocab: u32) -> Vec<Prompts> {
        let of_state = |(state, questions): (u64, usize)| {
            let mut tokens = Tokens::new(1 + state);
            let start = tokens.take(self.state_tokens, vocab);
            let prompt = |question: usize| {
                let mut own = tokens.take(self.suffix_tokens.max(1), vocab);
                own[0] = question as u32 % vocab.max(1);
                start.iter().copied().chain(own).collect()
            };
            (0..questions).map(prompt).collect()
        };
        self.portions().map(of_state).collect()
    }

    /// Each state's number and questions, at least one, until the rows are used up.
    fn portions(&self) -> impl Iterator<Item = (u64, usize)> {
        let rows = self.rows.unwrap_or(usize::MAX);
        let questions = move |state: usize| self.questions.min(rows.saturating_sub(state.saturating_mul(self.questions)));
        (0..self.states).map(move |state| (state as u64, questions(state))).take_while(|(_, questions)| *questions > 0)
    }
}

/// One way of reading the workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathReport {
    /// `fresh`, `serial`, `shared`.
    pub path: String,
    /// Prompts read.
    pub decisions: usize,
    /// Seconds for all of them.
    pub seconds: f64,
    /// Prompts a second.
    pub decisions_per_second: f64,
    /// Seconds for all questions of a state: the median state's.
    pub state_p50: f64,
    /// And the one that 95 % of the states do not exceed.
    pub state_p95: f64,
    /// The most GPU memory in use while it ran, weights included, bytes.
    pub peak_bytes: u64,
    /// Prompts whose best label is another one than when read afresh.
    pub flips: usize,
    /// Greatest difference of a logit from the fresh one.
    pub max_difference: f64,
    /// Every logit has the fresh one's bits.
    pub same_bits: bool,
    /// Fresh seconds over this path's.
    pub speedup: f64,
}

/// All paths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What was asked.
    pub workload: Workload,
    /// States and questions are text through the model's own tokenizer and template; otherwise token ids from a seed.
    pub text: bool,
    /// Tokens of a state and of what follows it, on average.
    pub state_tokens: f64,
    /// Of a question with its options.
    pub suffix_tokens: f64,
    /// Fresh, serial, shared.
    pub paths: Vec<PathReport>,
}

impl Report {
    /// No path changed a bit.
    pub fn agrees(&self) -> bool {
        self.paths.iter().all(|p| p.same_bits && p.flips == 0)
    }
}

fn top(logits: &[f32]) -> usize {
    logits.iter().enumerate().fold(0, |best, (i, l)| if *l > logits[best] { i } else { best })
}

/// Flips, greatest difference, and whether all bits are equal. What is no number agrees with nothing, not even with itself.
fn compare(fresh: &[Vec<f32>], other: &[Vec<f32>]) -> (usize, f64, bool) {
    let pairs = || fresh.iter().zip(other);
    let logits = || pairs().flat_map(|(a, b)| a.iter().zip(b));
    let finite = |logits: &[f32]| logits.iter().all(|l| l.is_finite());
    let flips = pairs().filter(|(a, b)| !finite(a) || !finite(b) || top(a) != top(b)).count();
    let apart = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)).abs();
    let difference = logits().map(apart).fold(0.0, |most: f64, d| if d.is_nan() { f64::INFINITY } else { most.max(d) });
    let all_finite = pairs().all(|(a, b)| finite(a) && finite(b));
    let same = all_finite
        && fresh.len() == other.len()
        && pairs().all(|(a, b)| a.len() == b.len())
        && logits().all(|(a, b)| a.to_bits() == b.to_bits());
    (flips, difference, same)
}

/// Runs the workload on all paths. `progress` hears the path, prompts done and prompts in all, and may stop it.
///
/// # Errors
/// Prompts over the engine's budget, GPU faults, [`EngineError::Cancelled`].
pub async fn run(
    engine: &mut Engine,
    workload: &Workload,
    progress: &mut dyn FnMut(&'static str, usize, usize) -> ControlFlow<()>,
) -> Result<Report, EngineError> {
    let told = engine.text().ok().and_then(|text| workload.text_prompts(text));
    let text = told.is_some();
    let vocab = engine.info().vocab;
    let (states, labels) = told.unwrap_or_else(|| (workload.prompts(vocab), labels(vocab)));
    let all: usize = states.iter().map(Vec::len).sum();
    let prefixes: Vec<usize> = states.iter().map(|prompts| shared(prompts)).collect();
    warm_up(engine, &states, &labels).await?;
    let (mut fresh, mut paths): (Vec<Vec<f32>>, Vec<PathReport>) = (Vec::new(), Vec::new());
    for path in ["fresh", "serial", "shared"] {
        engine.clear_cache();
        engine.gpu().reset_peak_memory();
        let (mut logits, mut times) = (Vec::new(), Vec::new());
        for (prompts, prefix) in states.iter().zip(&prefixes) {
            let start = now_seconds();
            if progress(path, logits.len(), all).is_break() {
                return Err(EngineError::Cancelled);
            }
            if path == "shared" {
                let (together, done) = (prompts.iter().map(Vec::as_slice).collect::<Vec<_>>(), logits.len());
                logits.extend(together_read(engine, &together, *prefix, &labels, &mut || progress(path, done, all)).await?);
            } else {
                for prompt in prompts {
                    let done = logits.len();
                    if progress(path, done, all).is_break() {
                        return Err(EngineError::Cancelled);
                    }
                    logits.push(match path {
                        "fresh" => {
                            let ask = Ask { labels: labels.clone(), ..Ask::default() };
                            engine.logits(prompt, &ask).await?.labels
                        }
                        _ => together_read(engine, &[prompt], *prefix, &labels, &mut || progress(path, done, all))
                            .await?
                            .pop()
                            .unwrap_or_default(),
                    });
                }
            }
            times.push(now_seconds() - start);
        }
        let seconds: f64 = times.iter().sum();
        if path == "fresh" {
            fresh.clone_from(&logits);
        }
        let (flips, max_difference, same_bits) = compare(&fresh, &logits);
        paths.push(PathReport {
            path: path.into(),
            decisions: logits.len(),
            seconds,
            decisions_per_second: logits.len() as f64 / seconds.max(1e-9),
            state_p50: percentile(&times, 0.5),
            state_p95: percentile(&times, 0.95),
            peak_bytes: engine.gpu().peak_memory(),
            flips,
            max_difference,
            same_bits,
            speedup: paths.first().map_or(1.0, |fresh| fresh.seconds / seconds.max(1e-9)),
        });
    }
    let tokens: usize = states.iter().flatten().map(Vec::len).sum();
    let state_tokens = prefixes.iter().sum::<usize>() as f64 / states.len().max(1) as f64;
    let shared_tokens: usize = states.iter().zip(&prefixes).map(|(prompts, prefix)| prompts.len() * prefix).sum();
    let suffix_tokens = (tokens - shared_tokens) as f64 / all.max(1) as f64;
    Ok(Report { workload: *workload, text, state_tokens, suffix_tokens, paths })
}

/// Reads the first state's questions together, once, with an empty cache.
///
/// # Errors
/// As [`run`].
pub async fn together(engine: &mut Engine, workload: &Workload) -> Result<(), EngineError> {
    let vocab = engine.info().vocab;
    let states = Workload { states: 1, ..*workload }.prompts(vocab);
    engine.clear_cache();
    for prompts in &states {
        let all: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        together_read(engine, &all, workload.state_tokens, &labels(vocab), &mut || ControlFlow::Continue(())).await?;
    }
    Ok(())
}

fn shared(prompts: &[Vec<u32>]) -> usize {
    shared_prefix(&prompts.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

async fn together_read(
    engine: &mut Engine,
    prompts: &[&[u32]],
    prefix: usize,
    labels: &[u32],
    go: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Vec<Vec<f32>>, EngineError> {
    let ask = SharedAsk { labels: labels.to_vec(), stats: false, prefix };
    let read = engine.read_shared(prompts, &ask, go).await?;
    Ok(read.readings.into_iter().map(|r| r.labels).collect())
}

/// Every kernel and buffer of all paths once, so that no path pays for being the first.
async fn warm_up(engine: &mut Engine, states: &[Vec<Vec<u32>>], labels: &[u32]) -> Result<(), EngineError> {
    let Some(prompts) = states.first() else { return Ok(()) };
    let all: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let ask = Ask { labels: labels.to_vec(), ..Ask::default() };
    let prefix = shared_prefix(&all);
    engine.logits(all[0], &ask).await?;
    // One question has other tiles than all of them.
    for together in [&all[..1], &all] {
        together_read(engine, together, prefix, labels, &mut || ControlFlow::Continue(())).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::shared_prefix;

    #[test]
    fn prompts_share_exactly_their_state() {
        let workload = Workload { states: 3, questions: 5, state_tokens: 40, suffix_tokens: 8, options: 4, rows: Some(12) };
        let states = workload.prompts(500);
        assert_eq!(states.iter().map(Vec::len).collect::<Vec<_>>(), [5, 5, 2]);
        for prompts in &states {
            let all: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
            assert_eq!((shared_prefix(&all), all[0].len()), (40, 48));
        }
        assert_ne!(states[0][0][..40], states[1][0][..40]);
        assert_eq!(Workload::default().prompts(1000).iter().map(Vec::len).sum::<usize>(), 777);
        assert_eq!(Workload { rows: Some(0), ..workload }.prompts(500).len(), 0);
    }

    #[test]
    fn comparing_sees_a_single_bit() {
        let fresh = [vec![1.0, 2.0], vec![3.0, 0.5]];
        assert_eq!(compare(&fresh, &fresh), (0, 0.0, true));
        let next = f32::from_bits(3.0f32.to_bits() + 1);
        let (flips, difference, same) = compare(&fresh, &[vec![1.0, 2.0], vec![next, 0.5]]);
        assert!(flips == 0 && difference > 0.0 && !same);
        assert_eq!(compare(&fresh, &[vec![2.0, 1.0], vec![3.0, 0.5]]), (1, 1.0, false));
        let nan = [vec![1.0, f32::NAN], vec![3.0, 0.5]];
        assert_eq!(compare(&nan, &nan), (1, f64::INFINITY, false));
        assert!(!compare(&[vec![0.0]], &[vec![-0.0]]).2 && !compare(&fresh, &fresh[..1]).2);
    }
}
