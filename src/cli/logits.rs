//! `semif logits`: last-position logits of token sequences.

use serde::Serialize;

use crate::engine::{Ask, EngineError};

use super::args::{LogitsArgs, ModelArgs, PrecisionArg};
use super::fail::{Exit, Failure, print_json};
use super::input::sequences;
use super::load::ModelFile;
use super::prepare::check_budget;
use super::profile;
use super::runner::{self, Runner};
use super::view;

#[derive(Serialize)]
struct Line {
    n: usize,
    labels: Vec<f32>,
    top: Vec<(u32, f32)>,
    lse: Option<f32>,
    argmax: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logits: Option<Vec<f32>>,
}

pub fn run(args: &LogitsArgs) -> Result<Exit, Failure> {
    // Numbers to compare with others' are exact unless something else is asked for.
    let model = ModelArgs { precision: args.model.precision.or(Some(PrecisionArg::Exact)), ..args.model.clone() };
    runner::check_tier(&model)?;
    let sequences = sequences(&args.tokens.tokens, args.tokens.tokens_file.as_deref())?;
    let over: Vec<String> = sequences
        .iter()
        .enumerate()
        .filter_map(|(i, s)| check_budget(s.len(), args.model.max_tokens).err().map(|e| format!("sequence {}: {e}", i + 1)))
        .collect();
    if !over.is_empty() {
        return Err(Failure::input(over.join("\n")));
    }
    let file = ModelFile::open(&args.model.choice.path()?)?;
    let mut runner = Runner::load(&file, &model)?;
    check_ids(&sequences, &args.labels, runner.engine.info().vocab)?;
    let ask = Ask { labels: args.labels.clone(), top: args.top, full: args.full, stats: true };
    runner.warn_if_slow();
    for tokens in &sequences {
        let bar = runner::busy(view::reading(std::iter::once(tokens.len())));
        let read = pollster::block_on(runner.engine.logits(tokens, &ask));
        bar.finish_and_clear();
        let read = read?;
        if read.lse.is_some_and(|lse| !lse.is_finite()) {
            return Err(EngineError::NotFinite.into());
        }
        print_json(&Line {
            n: tokens.len(),
            labels: read.labels,
            top: read.top,
            lse: read.lse.map(|lse| lse as f32),
            argmax: read.argmax,
            logits: read.full,
        })?;
    }
    profile::report(&mut runner.engine)?;
    Ok(Exit::Done)
}

/// All ids are checked before the first line is printed.
fn check_ids(sequences: &[Vec<u32>], labels: &[u32], vocab: u32) -> Result<(), Failure> {
    if let Some(label) = labels.iter().find(|id| **id >= vocab) {
        return Err(Failure::input(format!("--labels: {label} is no token, the vocabulary has {vocab}")));
    }
    for (i, sequence) in sequences.iter().enumerate() {
        if let Some(id) = sequence.iter().find(|id| **id >= vocab) {
            return Err(Failure::input(format!("sequence {}: {id} is no token, the vocabulary has {vocab}", i + 1)));
        }
    }
    Ok(())
}
