//! An output that an earlier run left behind: its rows are checked against this run's before anything is added.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use crate::decision::result::{READOUT_DIRECT, RefusedRow};
use crate::decision::{ModelRef, ResultRow, ServingConfig};

use super::batch::{Planned, Prompted};
use super::fail::Failure;
use super::output::Output;

/// What an existing output is compared with.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    pub planned: &'a [Planned],
    pub model: &'a ModelRef,
    pub prompt_version: &'a str,
    /// Rows carry the mass over the vocabulary.
    pub mass: bool,
    /// Name of the orders of the options that are read besides the given one.
    pub orderings: Option<&'a str>,
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

/// Lines by the row that they belong to, and the file they are in.
pub type Waiting = (BTreeMap<usize, String>, Output);

/// Opens the file in which an earlier run left results waiting for their turn, see [`super::held`]. `None` where there is none.
///
/// # Errors
/// The first line that does not fit this run's rows and why; the file is left as it is.
pub fn waiting(path: &Path, expected: Expected<'_>) -> Result<Option<Waiting>, Failure> {
    if path.symlink_metadata().is_err() {
        return Ok(None);
    }
    // A row that is refused because its id was used before must not stand for the one that has the id by right.
    let mut rows: HashMap<&str, usize> = HashMap::new();
    for (i, row) in expected.planned.iter().enumerate() {
        match (row, row.id()) {
            (Planned::Ready(_), Some(id)) => drop(rows.insert(id, i)),
            (_, Some(id)) => drop(rows.entry(id).or_insert(i)),
            _ => {}
        }
    }
    let refuse = |number: usize, problem: &str| {
        let (number, path) = (number + 1, path.display());
        Failure::input(format!("--resume: line {number} of {path} {problem}; it is left as it is: remove it to compute its rows again"))
    };
    let mut lines = BTreeMap::new();
    let output = Output::resume(
        path,
        &mut |number, text| {
            let id = serde_json::from_str::<ResultRow>(text).map_err(|_| refuse(number, "is not a result row of this program"))?.id;
            let row = *rows.get(&id[..]).ok_or_else(|| refuse(number, &format!("has the id {id:?}, which this input has not")))?;
            check_line(text, &expected.planned[row], &expected).map_err(|problem| refuse(number, &problem))?;
            lines.insert(row, text.to_owned());
            Ok(())
        },
        // A torn line is a row to be computed again.
        &mut |_, _| Ok(()),
    )?;
    Ok(Some((lines, output)))
}

/// How the row of a result line was served.
pub fn config(line: &str) -> Option<ServingConfig> {
    serde_json::from_str::<ResultRow>(line).ok().map(|row| row.serving_config)
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
        } else if planned.prompts.first().is_none_or(|prompt| row.prompt_sha256 != prompt.sha256) {
            "was made from another prompt text: the row, the wording or the template has changed".to_owned()
        } else if row.answer_token_ids != planned.slots {
            "used other answer tokens".to_owned()
        } else if row.readout != READOUT_DIRECT {
            format!("was read by another method ({})", row.readout)
        } else if row.serving_config.orderings.as_deref() != expected.orderings {
            let name = |orderings: Option<&str>| orderings.map_or("no other orderings".to_owned(), |name| format!("--orderings {name}"));
            format!("was made with {}, this run would be with {}", name(row.serving_config.orderings.as_deref()), name(expected.orderings))
        } else if !orders_fit(&row, planned) {
            "has other orders of the options".to_owned()
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

/// The orders that were read are the first ones of those wanted now.
fn orders_fit(row: &ResultRow, planned: &Prompted) -> bool {
    let read = row.orderings.as_deref().unwrap_or_default();
    read.len() <= planned.prompts.len() && read.iter().zip(&planned.prompts).all(|(a, b)| a.prompt_sha256 == b.sha256)
}
