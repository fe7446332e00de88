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
    pub parts: Vec<WantedPart<'a>>,
    /// Letters' tokens, enough for the row with the most options.
    pub slots: &'a [u32],
}

/// Prompts that begin alike.
#[derive(Clone, Debug)]
pub struct WantedPart<'a> {
    pub prompts: Vec<&'a [u32]>,
    /// Leading tokens that all share and that are kept; `None` reads one prompt by itself.
    pub prefix: Option<usize>,
}

/// What was read, and what it took.
#[derive(Clone, Debug, Default)]
pub struct Read {
    /// One for each prompt of all parts, in order.
    pub readings: Vec<Reading>,
    /// Each part's prefix; none where each prompt was read by itself.
    pub kept: Vec<Kept>,
    /// Until all prefixes were there.
    pub prefill_seconds: f64,
    /// Everything after the prefixes.
    pub forward_seconds: f64,
    /// What stopped it after the readings that there are.
    pub stopped: Option<Failure>,
}

/// A prefix that was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Its tokens; 0 where memory was too short to keep it.
    pub tokens: usize,
    /// Of these, tokens that were in the cache already.
    pub reused: usize,
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

    /// Are rows that share their state with no other quicker together?
    fn packs(&self) -> bool {
        false
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
    suffix_tokens: usize,
    /// The whole prefix was there whenever it was wanted.
    hit: bool,
    /// A prefix was wanted, and there was no memory to keep it.
    without: bool,
    /// Logits that are no numbers: nothing more is read.
    broken: Option<Failure>,
}

impl Gathered {
    /// Prompts of a row that are to be read next, up to this one; as many as are read where it is finished.
    fn upto(&self, row: &Prompted, orderings: Option<Orderings>) -> usize {
        let (read, all) = (self.readings.len(), row.prompts.len());
        match orderings {
            _ if self.broken.is_some() => read,
            Some(Orderings::Adaptive { confidence }) if settled(&self.by_option, all, confidence) => read,
            Some(Orderings::Adaptive { .. }) => (read + 1).max(2).min(all),
            _ => all,
        }
    }
}

/// Rows of one state and how they are read.
#[derive(Clone, Debug)]
pub struct Together<'a> {
    pub rows: Vec<&'a Prompted>,
    pub how: How,
}

/// What was decided, and what stopped the rest.
#[derive(Debug, Default)]
pub struct Decided {
    /// One for each row, in order; none where it was not finished.
    pub rows: Vec<Option<ResultRow>>,
    pub stopped: Option<Failure>,
}

impl Decided {
    /// All rows.
    ///
    /// # Errors
    /// What stopped it.
    pub fn all(self) -> Result<Vec<ResultRow>, Failure> {
        match self.stopped {
            Some(failure) => Err(failure),
            None => Ok(self.rows.into_iter().flatten().collect()),
        }
    }
}

/// What a row says of itself whose prefix could not be kept.
const NO_ROOM: &str = "the state was read with each prompt: GPU memory is too short to keep it";

/// Reads rows that belong together and makes their results, part by part. All prompts of all rows go in one reading where there are several parts or
/// the rows are shared, one after the other otherwise; adaptive orderings take rounds until every row is settled. A failure of the scorer comes with the place of
/// a row and leaves the rows that were finished before it; logits that are not finite numbers leave all other rows.
pub fn decide(parts: &[Together<'_>], facts: &Facts, scorer: &mut dyn Scorer) -> Decided {
    let start = Instant::now();
    let rows: Vec<(usize, &Prompted)> = parts.iter().enumerate().flat_map(|(p, part)| part.rows.iter().map(move |row| (p, *row))).collect();
    let mut gathered: Vec<Gathered> = rows.iter().map(|_| Gathered { hit: true, ..Gathered::default() }).collect();
    let together = parts.len() > 1 || parts.iter().any(|part| matches!(part.how, How::Shared { .. }));
    let mut stopped = None;
    while stopped.is_none() {
        // The next round: (row, prompt) of everything that is still wanted.
        let mut round: Vec<(usize, usize)> = Vec::new();
        for (i, ((_, row), so_far)) in rows.iter().zip(&gathered).enumerate() {
            round.extend((so_far.readings.len()..so_far.upto(row, facts.orderings)).map(|prompt| (i, prompt)));
        }
        if round.is_empty() {
            break;
        }
        let mut asks = round.chunks(if together { round.len() } else { 1 });
        stopped = asks.find_map(|asks| read_round(parts, &rows, asks, facts, scorer, &mut gathered).err());
    }
    let seconds = start.elapsed().as_secs_f64() / rows.len().max(1) as f64;
    let timings: Vec<Option<SharedTiming>> = (0..parts.len()).map(|p| timing(parts, p, &rows, &gathered)).collect();
    let result = |(p, row): &(usize, &Prompted), gathered: &Gathered| {
        let mut result = result_row(row, gathered, facts, row.prepare_seconds + seconds.max(gathered.part))?;
        let how = if gathered.without { How::Direct } else { parts[*p].how };
        result.serving_config.mode = how.name().to_owned();
        if gathered.without {
            result.serving_config.fallbacks.push(NO_ROOM.to_owned());
        }
        match (how, &timings[*p]) {
            (How::Serial { prefix }, Some(timing)) => {
                result.cache_hit = Some(gathered.hit);
                result.prefix_tokens = Some(prefix);
                result.prefix_sha256 = Some(timing.prefix_sha256.clone());
                result.prefill_seconds = Some(gathered.prefill_seconds);
                result.suffix_forward_seconds = Some(gathered.forward_seconds);
            }
            (How::Shared { .. }, Some(timing)) => result.shared_timing = Some(timing.clone()),
            _ => {}
        }
        Ok::<_, Failure>(result)
    };
    let mut decided = Decided { rows: Vec::new(), stopped };
    for (row, gathered) in rows.iter().zip(&mut gathered) {
        let finished = gathered.upto(row.1, facts.orderings) == gathered.readings.len();
        let made = match gathered.broken.take() {
            Some(failure) => Err(failure),
            None => finished.then(|| result(row, gathered)).transpose(),
        };
        decided.rows.push(made.unwrap_or_else(|failure| {
            decided.stopped.get_or_insert(failure);
            None
        }));
    }
    decided
}

/// One reading of some prompts of some rows; each row gets its part of the time.
fn read_round(
    parts: &[Together<'_>],
    rows: &[(usize, &Prompted)],
    asks: &[(usize, usize)],
    facts: &Facts,
    scorer: &mut dyn Scorer,
    gathered: &mut [Gathered],
) -> Result<(), Failure> {
    let first = rows[asks[0].0].1;
    let slots = asks.iter().map(|(row, _)| &rows[*row].1.slots).max_by_key(|slots| slots.len()).unwrap_or(&first.slots);
    let of_part = |asks: &[(usize, usize)]| WantedPart {
        prompts: asks.iter().map(|(row, prompt)| &rows[*row].1.prompts[*prompt].tokens[..]).collect(),
        prefix: parts[rows[asks[0].0].0].how.prefix(),
    };
    let by_part: Vec<&[(usize, usize)]> = asks.chunk_by(|(a, _), (b, _)| rows[*a].0 == rows[*b].0).collect();
    let wanted = Wanted { parts: by_part.iter().map(|asks| of_part(asks)).collect(), slots };
    let read = scorer.read(&wanted).map_err(|failure| at(&first.place, failure))?;
    let kept = |part: usize| read.kept.get(part).copied().unwrap_or_default();
    // New tokens of all prefixes, and of everything after them.
    let prefill: usize = (0..by_part.len()).map(|part| kept(part).tokens - kept(part).reused).sum();
    let own = |part: usize| wanted.parts[part].prompts.iter().map(move |p| p.len() - kept(part).tokens);
    let suffixes: usize = (0..by_part.len()).flat_map(own).take(read.readings.len()).sum();
    let mut readings = read.readings.into_iter();
    for (part, asks) in by_part.iter().enumerate() {
        let kept = kept(part);
        let of_prefill = match prefill {
            0 => 1.0 / by_part.len() as f64,
            all => (kept.tokens - kept.reused) as f64 / all as f64,
        };
        let prefill_seconds = read.prefill_seconds * of_prefill / asks.len() as f64;
        for (row, prompt) in asks.iter() {
            let (so_far, row) = (&mut gathered[*row], rows[*row].1);
            let prompt = &row.prompts[*prompt];
            let Some(mut reading) = readings.next() else {
                let failure = read.stopped.unwrap_or_else(|| Failure::other("the model gave no reading"));
                return Err(at(&row.place, failure));
            };
            reading.logits.truncate(row.slots.len());
            if facts.orderings.is_some() {
                match log_probabilities(&prompt.order, &reading.logits) {
                    Ok(by_option) => so_far.by_option.push(by_option),
                    Err(error) => {
                        so_far.broken.get_or_insert_with(|| nonsense(&row.place, &error));
                        continue;
                    }
                }
            }
            so_far.readings.push(reading);
            let own = prompt.tokens.len() - kept.tokens;
            let forward_seconds = read.forward_seconds * own as f64 / suffixes.max(1) as f64;
            so_far.part += prefill_seconds + forward_seconds;
            so_far.prefill_seconds += prefill_seconds;
            so_far.forward_seconds += forward_seconds;
            so_far.suffix_tokens += own;
            so_far.hit &= kept.reused == kept.tokens;
            so_far.reused = so_far.reused.max(kept.reused);
            so_far.without |= wanted.parts[part].prefix.is_some_and(|prefix| prefix > kept.tokens);
        }
    }
    read.stopped.map_or(Ok(()), Err)
}

/// What a part took, for each of its rows; none where nothing was kept.
fn timing(parts: &[Together<'_>], p: usize, rows: &[(usize, &Prompted)], gathered: &[Gathered]) -> Option<SharedTiming> {
    let prefix = parts[p].how.prefix()?;
    let own = || rows.iter().zip(gathered).filter(|((of, _), _)| *of == p).map(|(_, gathered)| gathered);
    let tokens = &parts[p].rows.first()?.prompts[0].tokens[..prefix];
    Some(SharedTiming {
        states: parts.len(),
        rows: parts[p].rows.len(),
        prompts: own().map(|g| g.readings.len()).sum(),
        prefix_tokens: prefix,
        prefix_reused: own().map(|g| g.reused).max().unwrap_or(0),
        prefix_sha256: tokens_sha256(tokens),
        suffix_tokens: own().map(|g| g.suffix_tokens).sum(),
        prefill_seconds: own().map(|g| g.prefill_seconds).sum(),
        suffix_seconds: own().map(|g| g.forward_seconds).sum(),
    })
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
    let units = schedule(planned, &|row| out.has(row), facts.mode, scorer.portion(), scorer.packs());
    for unit in units {
        if stop.load(Ordering::Relaxed) {
            tally.interrupted = true;
            break;
        }
        let ready = |i: &usize| if let Planned::Ready(row) = &planned[*i] { Some(row) } else { None };
        let parts: Vec<Together<'_>> =
            unit.parts.iter().map(|part| Together { rows: part.rows.iter().filter_map(ready).collect(), how: part.how }).collect();
        let decided = decide(&parts, facts, scorer);
        let mut results = decided.rows.into_iter();
        for index in unit.rows() {
            let line = match &planned[index] {
                Planned::Refused(refused) => {
                    tally.refused += 1;
                    serde_json::to_string(refused)
                }
                Planned::Ready(_) => {
                    let Some(result) = results.next().flatten() else { continue };
                    tally.decided += 1;
                    serde_json::to_string(&result)
                }
            };
            out.put(index, line.map_err(|e| Failure::other(format!("a result cannot be written: {e}")))?)?;
            tick();
        }
        match decided.stopped {
            Some(failure) if failure.exit == Exit::Interrupted => {
                tally.interrupted = true;
                break;
            }
            Some(failure) => {
                // A disk in trouble too must not hide why it stopped.
                let _ = out.finish();
                return Err(failure);
            }
            None => {}
        }
    }
    out.finish()?;
    Ok(tally)
}
