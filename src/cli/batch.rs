//! The row loop of `score`: planned rows in, result lines out, in input order, whatever happens in between.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::decision::orderings::{combine, log_probabilities, settled};
use crate::decision::result::{READOUT_DIRECT, RefusedRow};
use crate::decision::{
    ModelRef, OrderReading, Orderings, PROBABILITY_STATUS, ResultRow, ServingConfig, SharedTiming, allowed_token_mass, readout,
    tokens_sha256,
};

use super::fail::{Exit, Failure};
use super::held::Held;
use super::output::Store;
use super::schedule::{How, Mode, schedule};

/// A row that is ready for the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompted {
    pub id: String,
    /// How messages name the row.
    pub place: String,
    pub option_ids: Vec<String>,
    /// Equal for rows with an equal state.
    pub state_key: String,
    /// The prompts: options as given, then in other orders where those are asked for.
    pub prompts: Vec<Prompt>,
    /// The token of each letter.
    pub slots: Vec<u32>,
    /// Seconds spent on rendering and tokenising.
    pub prepare_seconds: f64,
    /// The template has no system turn: the text stands in front of the user's.
    pub system_folded: bool,
}

/// One prompt of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// `order[position]` is the index of the option that stands there.
    pub order: Vec<usize>,
    pub tokens: Vec<u32>,
    pub sha256: String,
}

/// What becomes of one row of the input.
#[derive(Clone, Debug, PartialEq)]
pub enum Planned {
    Ready(Prompted),
    Refused(RefusedRow),
}

impl Planned {
    pub fn id(&self) -> Option<&str> {
        match self {
            Planned::Ready(row) => Some(&row.id),
            Planned::Refused(row) => row.id.as_deref(),
        }
    }
}

/// What is the same for all rows of a run.
#[derive(Clone, Debug)]
pub struct Facts {
    pub prompt_version: String,
    pub model: ModelRef,
    pub config: ServingConfig,
    pub mode: Mode,
    /// Orders of the options besides the given one.
    pub orderings: Option<Orderings>,
}

/// What one prompt's end says.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The logit of each slot.
    pub logits: Vec<f32>,
    /// Log-sum-exp over the vocabulary, if asked for.
    pub lse: Option<f64>,
    /// Best token of the vocabulary, if asked for.
    pub argmax: Option<u32>,
}

/// Prompts to be read in one go.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    pub prompts: Vec<&'a [u32]>,
    /// Letters' tokens, enough for the row with the most options.
    pub slots: &'a [u32],
    /// Leading tokens that all share and that are kept; `None` reads one prompt by itself.
    pub prefix: Option<usize>,
}

/// What was read, and what it took.
#[derive(Clone, Debug, Default)]
pub struct Read {
    /// One for each prompt.
    pub readings: Vec<Reading>,
    /// Tokens of the prefix that were in the cache already.
    pub reused: usize,
    pub prefill_seconds: f64,
    /// Everything after the prefix.
    pub forward_seconds: f64,
}

/// The model as the row loop sees it.
pub trait Scorer {
    /// # Errors
    /// Whatever stops the run.
    fn read(&mut self, wanted: &Wanted<'_>) -> Result<Read, Failure>;

    /// Suffix tokens that are read in one go: few enough that an interruption loses little.
    fn portion(&self) -> usize {
        2048
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Rows decided in this run.
    pub decided: usize,
    /// Refused rows written in this run.
    pub refused: usize,
    pub interrupted: bool,
}

/// What is known of a row so far.
#[derive(Debug, Default)]
struct Gathered {
    /// In the order of the row's prompts.
    readings: Vec<Reading>,
    /// Each reading's log-probabilities in the row's order of options, where several orders are read.
    by_option: Vec<Vec<f64>>,
    prefill_seconds: f64,
    forward_seconds: f64,
    /// The row's part of both.
    part: f64,
    reused: usize,
    /// The whole prefix was there whenever it was wanted.
    hit: bool,
}

/// Reads rows that belong together and makes their results. All prompts of all rows go in one reading where the rows are shared, one
/// after the other otherwise; adaptive orderings take rounds until every row is settled.
///
/// # Errors
/// The scorer's, with the place of the row; logits that are not finite numbers.
pub fn decide(rows: &[&Prompted], how: How, facts: &Facts, scorer: &mut dyn Scorer) -> Result<Vec<ResultRow>, Failure> {
    let start = Instant::now();
    let mut gathered: Vec<Gathered> = rows.iter().map(|_| Gathered { hit: true, ..Gathered::default() }).collect();
    let (mut prompts, mut suffix_tokens) = (0, 0);
    loop {
        // The next round: (row, prompt) of everything that is still wanted.
        let mut round: Vec<(usize, usize)> = Vec::new();
        for (i, (row, so_far)) in rows.iter().zip(&gathered).enumerate() {
            let (read, all) = (so_far.readings.len(), row.prompts.len());
            let upto = match facts.orderings {
                Some(Orderings::Adaptive { confidence }) if settled(&so_far.by_option, all, confidence) => read,
                Some(Orderings::Adaptive { .. }) => (read + 1).max(2).min(all),
                _ => all,
            };
            round.extend((read..upto).map(|prompt| (i, prompt)));
        }
        if round.is_empty() {
            break;
        }
        let together = if let How::Shared { .. } = how { round.len() } else { 1 };
        for asks in round.chunks(together) {
            let first = rows[asks[0].0];
            let slots = asks.iter().map(|(row, _)| &rows[*row].slots).max_by_key(|slots| slots.len()).unwrap_or(&first.slots);
            let wanted = Wanted {
                prompts: asks.iter().map(|(row, prompt)| &rows[*row].prompts[*prompt].tokens[..]).collect(),
                slots,
                prefix: how.prefix(),
            };
            let read = scorer.read(&wanted).map_err(|failure| at(&first.place, failure))?;
            let prefix = how.prefix().unwrap_or(0);
            let suffixes: usize = wanted.prompts.iter().map(|p| p.len() - prefix).sum();
            prompts += asks.len();
            suffix_tokens += suffixes;
            for ((row, prompt), mut reading) in asks.iter().zip(read.readings) {
                let (so_far, row) = (&mut gathered[*row], rows[*row]);
                let prompt = &row.prompts[*prompt];
                reading.logits.truncate(row.slots.len());
                if facts.orderings.is_some() {
                    let by_option = log_probabilities(&prompt.order, &reading.logits).map_err(|e| nonsense(&row.place, &e))?;
                    so_far.by_option.push(by_option);
                }
                so_far.readings.push(reading);
                let share = (prompt.tokens.len() - prefix) as f64 / suffixes.max(1) as f64;
                so_far.part += read.prefill_seconds / asks.len() as f64 + read.forward_seconds * share;
                so_far.prefill_seconds += read.prefill_seconds / asks.len() as f64;
                so_far.forward_seconds += read.forward_seconds * share;
                so_far.hit &= read.reused == prefix;
                so_far.reused = so_far.reused.max(read.reused);
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64() / rows.len().max(1) as f64;
    let timing = how.prefix().map(|prefix| SharedTiming {
        rows: rows.len(),
        prompts,
        prefix_tokens: prefix,
        prefix_reused: gathered.iter().map(|g| g.reused).max().unwrap_or(0),
        prefix_sha256: rows.first().map(|row| tokens_sha256(&row.prompts[0].tokens[..prefix])).unwrap_or_default(),
        suffix_tokens,
        prefill_seconds: gathered.iter().map(|g| g.prefill_seconds).sum(),
        suffix_seconds: gathered.iter().map(|g| g.forward_seconds).sum(),
    });
    let result = |(row, gathered): (&&Prompted, &Gathered)| {
        let mut result = result_row(row, gathered, facts, row.prepare_seconds + seconds.max(gathered.part))?;
        result.serving_config.mode = how.name().to_owned();
        match (how, &timing) {
            (How::Serial { prefix }, Some(timing)) => {
                result.cache_hit = Some(gathered.hit);
                result.prefix_tokens = Some(prefix);
                result.prefix_sha256 = Some(timing.prefix_sha256.clone());
                result.prefill_seconds = Some(gathered.prefill_seconds);
                result.suffix_forward_seconds = Some(gathered.forward_seconds);
            }
            (How::Shared { .. }, Some(_)) => result.shared_timing = timing.clone(),
            _ => {}
        }
        Ok(result)
    };
    rows.iter().zip(&gathered).map(result).collect()
}

fn at(place: &str, failure: Failure) -> Failure {
    match failure.exit {
        Exit::Interrupted => failure,
        _ => Failure { message: format!("{place}: {}", failure.message), ..failure },
    }
}

fn nonsense(place: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure { exit: Exit::Gpu, message: format!("{place}: {error}") }
}

/// Makes the result row of a row's readings.
fn result_row(row: &Prompted, gathered: &Gathered, facts: &Facts, total_seconds: f64) -> Result<ResultRow, Failure> {
    let short = || Failure::other(format!("{}: the model gave no reading", row.place));
    let (prompt, reading) = row.prompts.first().zip(gathered.readings.first()).ok_or_else(short)?;
    let read = readout(&reading.logits).map_err(|e| nonsense(&row.place, &e))?;
    let mut config = facts.config.clone();
    config.system_text = if row.system_folded { "in front of the user text" } else { "own turn" }.to_owned();
    config.orderings = facts.orderings.map(Orderings::name);
    let mut result = ResultRow {
        id: row.id.clone(),
        option_ids: row.option_ids.clone(),
        probabilities: read.probabilities,
        option_logits: reading.logits.clone(),
        answer_token_ids: row.slots.clone(),
        input_tokens: prompt.tokens.len(),
        allowed_token_mass: reading.lse.map(|lse| allowed_token_mass(read.lse, lse)),
        full_vocab_argmax_id: reading.argmax,
        prompt_sha256: prompt.sha256.clone(),
        prompt_version: facts.prompt_version.clone(),
        model: facts.model.clone(),
        serving_config: config,
        readout: READOUT_DIRECT.to_owned(),
        probability_status: PROBABILITY_STATUS.to_owned(),
        forward_seconds: gathered.part,
        total_seconds,
        ..ResultRow::default()
    };
    if facts.orderings.is_some() {
        let native = |(prompt, reading): (&Prompt, &Reading)| {
            let read = readout(&reading.logits).map_err(|e| nonsense(&row.place, &e))?;
            Ok(OrderReading {
                order: prompt.order.iter().filter_map(|i| row.option_ids.get(*i).cloned()).collect(),
                probabilities: read.probabilities,
                option_logits: reading.logits.clone(),
                input_tokens: prompt.tokens.len(),
                allowed_token_mass: reading.lse.map(|lse| allowed_token_mass(read.lse, lse)),
                full_vocab_argmax_id: reading.argmax,
                prompt_sha256: prompt.sha256.clone(),
            })
        };
        result.orderings = Some(row.prompts.iter().zip(&gathered.readings).map(native).collect::<Result<_, Failure>>()?);
        result.combined = Some(combine(&row.option_ids, &gathered.by_option, row.prompts.len()));
    }
    Ok(result)
}

/// Scores `planned`, whose lines go to `out` in input order. Lines that `out` has already are left out. Stops before the next step once
/// `stop` is set.
///
/// # Errors
/// The scorer's or the disk's. All lines before it are kept.
pub fn run<S: Store>(
    planned: &[Planned],
    facts: &Facts,
    scorer: &mut dyn Scorer,
    out: &mut Held<S>,
    stop: &AtomicBool,
    tick: &mut dyn FnMut(),
) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    let units = schedule(planned, &|row| out.has(row), facts.mode, scorer.portion());
    for unit in units {
        if stop.load(Ordering::Relaxed) {
            tally.interrupted = true;
            break;
        }
        let rows: Vec<&Prompted> =
            unit.rows.iter().filter_map(|i| if let Planned::Ready(row) = &planned[*i] { Some(row) } else { None }).collect();
        let results = match decide(&rows, unit.how, facts, scorer) {
            Err(failure) if failure.exit == Exit::Interrupted => {
                tally.interrupted = true;
                break;
            }
            other => other?,
        };
        let mut results = results.into_iter();
        for index in unit.rows {
            let line = match &planned[index] {
                Planned::Refused(refused) => {
                    tally.refused += 1;
                    serde_json::to_string(refused)
                }
                Planned::Ready(row) => {
                    tally.decided += 1;
                    let result = results.next().ok_or_else(|| Failure::other(format!("{}: the model gave no reading", row.place)))?;
                    serde_json::to_string(&result)
                }
            };
            out.put(index, line.map_err(|e| Failure::other(format!("a result cannot be written: {e}")))?)?;
            tick();
        }
    }
    out.finish()?;
    Ok(tally)
}
