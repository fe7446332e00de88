//! Decisions in text: rows become prompts, prompts with an equal state share it, and the work runs in steps, so that a click need not
//! wait behind a batch.

use super::{Engine, EngineError, PrefixUse, Reading, RunGroup, SharedAsk, SharedRun, common_prefix, shared_prefix};
use crate::decision::{Choice, Json, Orderings, Row, Wording};
use crate::text::{ChatPrompt, TextError, TextModel};
use std::ops::ControlFlow;

/// A shorter common prefix is not worth a branch.
const LEAST_PREFIX: usize = 16;

/// A row with its prompts, checked up to the answer letters.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The row.
    pub row: Row,
    /// Options as given, then in other orders where those are asked for.
    pub prompts: Vec<OrderedPrompt>,
    /// The token of each letter.
    pub slots: Vec<u32>,
}

/// One prompt of a row.
#[derive(Debug, Clone)]
pub struct OrderedPrompt {
    /// `order[position]` is the index of the option that stands there.
    pub order: Vec<usize>,
    /// The prompt.
    pub prompt: ChatPrompt,
}

/// Renders and encodes a row's prompts and checks its answer letters.
///
/// # Errors
/// In words: the template, a letter, too many options for the orderings.
pub fn prepare(text: &TextModel, wording: &Wording, row: Row, orderings: Option<Orderings>) -> Result<Prepared, String> {
    let options = row.options().len();
    let words = |error: TextError| error.to_string();
    let slots = text.letter_slots(options).map_err(words)?;
    let orders = orderings.map_or_else(|| Ok(vec![(0..options).collect()]), |orderings| orderings.orders(options))?;
    let one = |order: Vec<usize>| {
        let prompt = text.chat_prompt(&wording.system, &wording.payload(&row.reordered(&order))).map_err(words)?;
        text.check_boundary(&prompt, &slots).map_err(words)?;
        Ok(OrderedPrompt { order, prompt })
    };
    let prompts = orders.into_iter().map(one).collect::<Result<_, String>>()?;
    Ok(Prepared { row, prompts, slots })
}

/// The tokens that every prompt on a state begins with, whatever the question.
///
/// # Errors
/// In words, as [`prepare`].
pub fn state_tokens(text: &TextModel, wording: &Wording, state: &Json) -> Result<Vec<u32>, String> {
    // Beginnings that merge with what stands before them in different ways, or not at all.
    const PROBES: [&str; 9] = ["Is", "a", "1", " a", "\"", "\n", "é", "漢", "-"];
    let mut common: Option<Vec<u32>> = None;
    for probe in PROBES {
        let options = ["a", "b"].map(|id| Choice { id: id.into(), description: id.into() }).into();
        let row = Row::new("probe", state.clone(), &format!("{probe}?"), options).map_err(|problems| problems.join("; "))?;
        let prompt = text.chat_prompt(&wording.system, &wording.payload(&row)).map_err(|error| error.to_string())?;
        match &mut common {
            None => common = Some(prompt.tokens),
            Some(tokens) => tokens.truncate(common_prefix(tokens, &prompt.tokens)),
        }
    }
    Ok(common.unwrap_or_default())
}

/// A state that grew: text is appended to text, elements to a list, members to an object.
///
/// # Errors
/// In words: the two do not fit.
pub fn grown(state: &Json, more: &Json) -> Result<Json, String> {
    Ok(match (state, more) {
        (Json::String(text), Json::String(more)) => Json::String(format!("{text}{more}")),
        (Json::Array(items), Json::Array(more)) => Json::Array(items.iter().chain(more).cloned().collect()),
        (Json::Array(items), more) => Json::Array(items.iter().chain([more]).cloned().collect()),
        (Json::Object(members), Json::Object(more)) => {
            if let Some((key, _)) = more.iter().find(|(key, _)| members.iter().any(|(old, _)| old == key)) {
                return Err(format!("the state has a member {key:?} already; open a new state to change it"));
            }
            Json::Object(members.iter().chain(more).cloned().collect())
        }
        (state, more) => return Err(format!("{} cannot be appended to {}", more.kind(), state.kind())),
    })
}

/// What was read of a row.
#[derive(Debug, Clone, Default)]
pub struct Decided {
    /// One for each prompt of the row, labels being its slots.
    pub readings: Vec<Reading>,
    /// The prefix that its prompts were read on; without tokens where they were read alone.
    pub prefix: PrefixUse,
    /// Its part of the time: of the prefix in equal parts, of the rest by tokens.
    pub forward_seconds: f64,
}

/// Rows on their way to being decided.
pub struct Decisions {
    rows: Vec<Prepared>,
    run: SharedRun,
    /// For each group the row of each prompt.
    owners: Vec<Vec<usize>>,
    /// Tokens of each group's prompts.
    lengths: Vec<Vec<usize>>,
    gathered: Vec<Decided>,
    /// What has been gathered of the run: readings of each group, and its seconds.
    seen: (Vec<usize>, f64, f64),
}

impl Decisions {
    /// Groups rows by their states. `held` are the tokens of a state that is open, which its rows then read on even when they are few.
    /// With `stats`, each reading has the log-sum-exp and the argmax of the whole vocabulary.
    pub fn new(rows: Vec<Prepared>, held: Option<&[u32]>, stats: bool) -> Self {
        let (mut keys, mut owners): (Vec<String>, Vec<Vec<usize>>) = (Vec::new(), Vec::new());
        for (i, row) in rows.iter().enumerate() {
            let key = row.row.state().to_string();
            let at = keys.iter().position(|k| *k == key).unwrap_or(keys.len());
            if at == keys.len() {
                keys.push(key);
                owners.push(Vec::new());
            }
            owners[at].extend(std::iter::repeat_n(i, row.prompts.len()));
        }
        let group = |(g, owners): (usize, &Vec<usize>)| {
            let mut rows_of: Vec<usize> = owners.clone();
            rows_of.dedup();
            let prompts: Vec<Vec<u32>> = rows_of.iter().flat_map(|i| rows[*i].prompts.iter().map(|p| p.prompt.tokens.clone())).collect();
            let all: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
            let shared = shared_prefix(&all);
            // The open state is that of the first row; rows of others share theirs.
            let prefix = match held.filter(|_| g == 0) {
                Some(state) => all.iter().map(|p| common_prefix(p, state)).min().unwrap_or(0).min(shared),
                None if prompts.len() < 2 || shared < LEAST_PREFIX => 0,
                None => shared,
            };
            RunGroup { prompts, prefix }
        };
        let groups: Vec<RunGroup> = owners.iter().enumerate().map(group).collect();
        let lengths = groups.iter().map(|g| g.prompts.iter().map(Vec::len).collect()).collect();
        let labels = rows.iter().map(|row| &row.slots).max_by_key(|slots| slots.len()).cloned().unwrap_or_default();
        let gathered = vec![Decided::default(); rows.len()];
        let seen = (vec![0; owners.len()], 0.0, 0.0);
        let run = SharedRun::of_groups(groups, SharedAsk { labels, stats, prefix: 0 });
        Self { rows, run, owners, lengths, gathered, seen }
    }

    /// The rows.
    pub fn rows(&self) -> &[Prepared] {
        &self.rows
    }

    /// Prompts read, and all of them.
    pub fn progress(&self) -> (usize, usize) {
        (self.run.done(), self.run.total())
    }

    /// Runs the next few prompts and gives the rows that are now decided. All are when it gives none and [`Decisions::progress`] is at
    /// its end. After an error the step can be tried again, and gives what the failed one finished too.
    ///
    /// # Errors
    /// As [`Engine::read_shared`].
    pub async fn step(
        &mut self,
        engine: &mut Engine,
        progress: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Vec<(usize, Decided)>, EngineError> {
        self.run.step(engine, progress).await?;
        let read = self.run.read();
        let now = (read.readings.iter().map(Vec::len).collect(), read.prefill_seconds, read.suffix_seconds);
        let (before, prefill, suffix) = std::mem::replace(&mut self.seen, now);
        let (prefill, suffix) = (read.prefill_seconds - prefill, read.suffix_seconds - suffix);
        let new = |g: usize| before[g]..read.readings[g].len();
        let own = |g: usize, i: usize| self.lengths[g][i] - read.prefixes[g].tokens as usize;
        let tokens: usize = (0..before.len()).flat_map(|g| new(g).map(move |i| own(g, i))).sum();
        // Prefixes are read with the first prompt of their group.
        let fresh = |g: usize| {
            let prefix = read.prefixes[g];
            if before[g] == 0 && !new(g).is_empty() { f64::from(prefix.tokens - prefix.reused) } else { 0.0 }
        };
        let all_fresh: f64 = (0..before.len()).map(fresh).sum();
        let mut decided = Vec::new();
        for g in 0..before.len() {
            let each = if all_fresh > 0.0 { prefill * fresh(g) / all_fresh / self.owners[g].len() as f64 } else { 0.0 };
            for row in self.owners[g].iter().filter(|_| each > 0.0) {
                self.gathered[*row].forward_seconds += each;
            }
            for i in new(g) {
                let row = self.owners[g][i];
                let gathered = &mut self.gathered[row];
                let mut reading = read.readings[g][i].clone();
                reading.labels.truncate(self.rows[row].slots.len());
                gathered.readings.push(reading);
                gathered.prefix = read.prefixes[g];
                gathered.forward_seconds += suffix * own(g, i) as f64 / tokens.max(1) as f64;
                if gathered.readings.len() == self.rows[row].prompts.len() {
                    decided.push((row, gathered.clone()));
                }
            }
        }
        Ok(decided)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text).unwrap()
    }

    #[test]
    fn states_grow_by_their_kind() {
        let grow = |a: &str, b: &str| grown(&json(a), &json(b)).map(|state| state.to_string());
        assert_eq!(grow(r#""a""#, r#""b""#).unwrap(), r#""ab""#);
        assert_eq!(grow("[1]", "[2, 3]").unwrap(), json("[1, 2, 3]").to_string());
        assert_eq!(grow("[1]", r#"{"x": 2}"#).unwrap(), json(r#"[1, {"x": 2}]"#).to_string());
        assert_eq!(grow(r#"{"a": 1}"#, r#"{"b": 2}"#).unwrap(), json(r#"{"a": 1, "b": 2}"#).to_string());
        assert!(grow(r#"{"a": 1}"#, r#"{"a": 2}"#).unwrap_err().contains("\"a\" already"));
        assert!(grow(r#""a""#, "[1]").is_err());
    }
}
