//! The row loop of `score`: planned rows in, result lines out, in input order, whatever happens in between.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::decision::result::{READOUT_DIRECT, RefusedRow};
use crate::decision::{ModelRef, PROBABILITY_STATUS, ResultRow, ServingConfig, allowed_token_mass, readout};

use super::fail::{Exit, Failure};
use super::output::{Output, Store};

/// A row that is ready for the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompted {
    pub id: String,
    /// How messages name the row.
    pub place: String,
    pub option_ids: Vec<String>,
    /// The prompt's tokens.
    pub tokens: Vec<u32>,
    /// The token of each option's letter.
    pub slots: Vec<u32>,
    pub prompt_sha256: String,
    /// Seconds spent on rendering and tokenising.
    pub prepare_seconds: f64,
    /// The template has no system turn: the text stands in front of the user's.
    pub system_folded: bool,
}

/// What becomes of one row of the input.
#[derive(Clone, Debug, PartialEq)]
pub enum Planned {
    Ready(Prompted),
    Refused(RefusedRow),
}

impl Planned {
    fn id(&self) -> Option<&str> {
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
}

/// What one forward pass says about a row.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The logit of each slot.
    pub logits: Vec<f32>,
    /// Log-sum-exp over the vocabulary, if asked for.
    pub lse: Option<f64>,
    /// Best token of the vocabulary, if asked for.
    pub argmax: Option<u32>,
    pub forward_seconds: f64,
}

/// The model as the row loop sees it.
pub trait Scorer {
    /// # Errors
    /// Whatever stops the run.
    fn read(&mut self, row: &Prompted) -> Result<Reading, Failure>;
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

/// Makes the result row of one reading.
///
/// # Errors
/// Logits that are not finite numbers.
pub fn result_row(row: &Prompted, reading: &Reading, facts: &Facts, total_seconds: f64) -> Result<ResultRow, Failure> {
    let read = readout(&reading.logits).map_err(|e| Failure { exit: Exit::Gpu, message: format!("{}: {e}", row.place) })?;
    let mut config = facts.config.clone();
    config.system_text = if row.system_folded { "in front of the user text" } else { "own turn" }.to_owned();
    Ok(ResultRow {
        id: row.id.clone(),
        option_ids: row.option_ids.clone(),
        probabilities: read.probabilities,
        option_logits: reading.logits.clone(),
        answer_token_ids: row.slots.clone(),
        input_tokens: row.tokens.len(),
        allowed_token_mass: reading.lse.map(|lse| allowed_token_mass(read.lse, lse)),
        full_vocab_argmax_id: reading.argmax,
        prompt_sha256: row.prompt_sha256.clone(),
        prompt_version: facts.prompt_version.clone(),
        model: facts.model.clone(),
        serving_config: config,
        readout: READOUT_DIRECT.to_owned(),
        probability_status: PROBABILITY_STATUS.to_owned(),
        forward_seconds: reading.forward_seconds,
        total_seconds,
    })
}

/// Scores `planned` and writes a line for each. Stops before the next row once `stop` is set.
///
/// # Errors
/// The scorer's or the disk's. All lines before it are in the file.
pub fn run<S: Store>(
    planned: &[Planned],
    facts: &Facts,
    scorer: &mut dyn Scorer,
    out: &mut Output<S>,
    stop: &AtomicBool,
    tick: &mut dyn FnMut(),
) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    for row in planned {
        if stop.load(Ordering::Relaxed) {
            tally.interrupted = true;
            break;
        }
        let line = match row {
            Planned::Refused(refused) => {
                tally.refused += 1;
                serde_json::to_string(refused)
            }
            Planned::Ready(row) => {
                let start = Instant::now();
                let reading = match scorer.read(row) {
                    Err(failure) if failure.exit == Exit::Interrupted => {
                        tally.interrupted = true;
                        break;
                    }
                    other => other?,
                };
                let seconds = row.prepare_seconds + start.elapsed().as_secs_f64();
                tally.decided += 1;
                serde_json::to_string(&result_row(row, &reading, facts, seconds)?)
            }
        };
        out.line(&line.map_err(|e| Failure::other(format!("a result cannot be written: {e}")))?)?;
        tick();
    }
    out.finish()?;
    Ok(tally)
}

/// What an existing output is compared with.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    pub planned: &'a [Planned],
    pub model: &'a ModelRef,
    pub prompt_version: &'a str,
    /// Rows carry the mass over the vocabulary.
    pub mass: bool,
}

/// An existing output that fits.
#[derive(Debug)]
pub struct Resumed {
    pub output: Output,
    /// Rows that need not be scored again.
    pub done: usize,
    /// Refused rows among them.
    pub refused: usize,
    /// How the last of them was served.
    pub config: Option<ServingConfig>,
}

/// Opens an output that an earlier run left behind and checks that it is the beginning of this run's: same rows in the
/// same order, same prompts, same model, same method.
///
/// # Errors
/// The first line that does not fit and why; the file is left as it is.
pub fn resume(path: &Path, expected: Expected<'_>) -> Result<Resumed, Failure> {
    let (mut done, mut refused, mut config) = (0, 0, None);
    let refuse = |number: usize, problem: String| {
        Failure::input(format!("--resume: line {} of {} {problem}; it is left as it is: name another output", number + 1, path.display()))
    };
    let output = Output::resume(
        path,
        &mut |number, text| {
            let Some(planned) = expected.planned.get(number) else {
                return Err(refuse(number, format!("is one too many: the input has {} rows", expected.planned.len())));
            };
            let seen = check_line(text, planned, &expected).map_err(|problem| refuse(number, problem))?;
            match seen {
                Some(seen) if config.as_ref().is_some_and(|c: &ServingConfig| c.precision != seen.precision) => {
                    return Err(refuse(number, format!("was computed in another precision ({})", seen.precision)));
                }
                Some(seen) => config = Some(seen),
                None => refused += 1,
            }
            done += 1;
            Ok(())
        },
        &mut |number, torn| {
            let Some(planned) = expected.planned.get(number) else {
                return Err(refuse(number, format!("is one too many: the input has {} rows", expected.planned.len())));
            };
            // What is cut away must be the torn beginning of this very row, not somebody's other file.
            let start = serde_json::to_string(&planned.id()).map(|id| format!("{{\"id\":{id},")).unwrap_or_default();
            let shorter = torn.len().min(start.len());
            if torn[..shorter] != start.as_bytes()[..shorter] {
                return Err(refuse(number, "is not the beginning of this row's result".to_owned()));
            }
            Ok(())
        },
    )?;
    Ok(Resumed { output, done, refused, config })
}

/// Checks one line; the serving configuration of a decided row, `None` for a refused one.
fn check_line(text: &str, planned: &Planned, expected: &Expected<'_>) -> Result<Option<ServingConfig>, String> {
    let other_row = |id: Option<&str>| {
        let shown = |id: Option<&str>| id.map_or("no id".to_owned(), |id| format!("the id {id:?}"));
        format!("has {}, but this input has {} there", shown(id), shown(planned.id()))
    };
    if let Ok(row) = serde_json::from_str::<ResultRow>(text) {
        if Some(row.id.as_str()) != planned.id() {
            return Err(other_row(Some(&row.id)));
        }
        let Planned::Ready(planned) = planned else {
            return Err("is a result, but the row is refused now".to_owned());
        };
        let same_model = match (&row.model.sha256, &expected.model.sha256) {
            (Some(a), Some(b)) => a == b,
            _ => (&row.model.file, row.model.bytes) == (&expected.model.file, expected.model.bytes),
        };
        let problem = if row.option_ids != planned.option_ids {
            "has other options".to_owned()
        } else if !same_model {
            format!("is from another model ({}, {} bytes)", row.model.file, row.model.bytes)
        } else if row.prompt_version != expected.prompt_version {
            format!("was made with another prompt ({})", row.prompt_version)
        } else if row.prompt_sha256 != planned.prompt_sha256 {
            "was made from another prompt text: the row, the wording or the template has changed".to_owned()
        } else if row.answer_token_ids != planned.slots {
            "used other answer tokens".to_owned()
        } else if row.readout != READOUT_DIRECT {
            format!("was read by another method ({})", row.readout)
        } else if row.allowed_token_mass.is_some() != expected.mass {
            match expected.mass {
                true => "was made without --mass".to_owned(),
                false => "was made with --mass, which is not given now".to_owned(),
            }
        } else {
            return Ok(Some(row.serving_config));
        };
        return Err(problem);
    }
    match serde_json::from_str::<RefusedRow>(text) {
        Ok(row) if row.id.as_deref() != planned.id() => Err(other_row(row.id.as_deref())),
        Ok(_) if matches!(planned, Planned::Ready(_)) => Err("is a refused row that is in order now".to_owned()),
        Ok(_) => Ok(None),
        Err(_) => Err("is not a result row of this program".to_owned()),
    }
}
