//! `semif compare` with criteria: many yes-or-no questions on one state, by readouts that share it and by one written answer.

use std::time::Instant;

use serde::Serialize;

use crate::decision::baseline::{
    ARRAY_MAX_TOKENS, VERBOSE_MAX_TOKENS, Verdict, array_prompt, parse_answers, parse_verbose, verbose_prompt,
};
use crate::decision::{ResultRow, Row};

use super::args::{BaselineArg, CompareArgs};
use super::batch::{Facts, Prompted, Together, decide};
use super::compare::{Answer, Generated, room, times_as_long, warm_up, write, written};
use super::fail::{Exit, Failure, print, print_json, safe};
use super::input;
use super::load::ModelFile;
use super::prepare::Preparer;
use super::profile;
use super::runner::{self, Runner};
use super::schedule::{Mode, how};
use super::view;

/// Most criteria: answers beyond would not fit an array's token limit anyway.
const MOST_CRITERIA: usize = 256;

#[derive(Serialize)]
struct Comparison<'a> {
    baseline: &'a str,
    /// One result for each criterion.
    direct: &'a [ResultRow],
    /// Tokens read for them: of the state once, and of what follows it.
    direct_tokens: Tokens,
    /// Seconds for all of them together.
    direct_seconds: f64,
    decisions_per_second: f64,
    generated: &'a Generated,
    /// Generation's seconds over the readouts'; null when it was stopped.
    ratio: Option<f64>,
    /// Share of the criteria that both answer alike; null when what was written is invalid.
    agreement: Option<f64>,
}

#[derive(Serialize)]
struct Tokens {
    state: usize,
    rest: usize,
}

impl Tokens {
    /// A state that was not shared is part of each prompt.
    fn of(direct: &[ResultRow]) -> Tokens {
        match direct.first().and_then(|row| row.shared_timing.as_ref()) {
            Some(timing) => Tokens { state: timing.prefix_tokens, rest: timing.suffix_tokens },
            None => Tokens { state: 0, rest: direct.iter().map(|row| row.input_tokens).sum() },
        }
    }
}

pub fn run(args: &CompareArgs) -> Result<Exit, Failure> {
    if args.criteria.len() > MOST_CRITERIA {
        return Err(Failure::input(format!("{} criteria; at most {MOST_CRITERIA} are compared", args.criteria.len())));
    }
    let state = input::state(&args.state)?;
    let rows = input::criteria(&state, &args.criteria)?;
    let criteria: Vec<String> = rows.iter().map(|row| row.question().to_owned()).collect();
    let wording = input::wording(args.state.prompt.as_deref())?;
    let verbose = args.baseline == BaselineArg::Verbose;
    let (baseline, most) = match verbose {
        true => (verbose_prompt(&state, &criteria, &wording), VERBOSE_MAX_TOKENS),
        false => (array_prompt(&state, &criteria, &wording), ARRAY_MAX_TOKENS),
    };
    let file = ModelFile::open(&args.model.choice.path()?)?;
    let (prompted, prompt) = {
        let text = file.text()?;
        let preparer = Preparer::new(&text, &wording, args.model.max_tokens, file.context(), 2)?;
        let prompted: Vec<Prompted> = rows.iter().map(|row| preparer.prompt(row)).collect::<Result<_, _>>().map_err(Failure::input)?;
        (prompted, text.chat_prompt(&baseline.system, &baseline.user).map_err(Failure::input)?)
    };
    let room = room(prompt.tokens.len(), most, args.model.max_tokens)?;
    let model = if args.json { runner::model_ref(&file)? } else { file.reference() };
    let mut runner = Runner::load(&file, &args.model)?;
    runner.warn_if_slow();
    let config = runner.config.clone();
    let facts = Facts { prompt_version: wording.version.clone(), model, config, mode: Mode::Auto, orderings: None };

    warm_up(&mut runner.engine, &prompt.tokens, &prompted[0].slots)?;
    let rows_of_state: Vec<&Prompted> = prompted.iter().collect();
    let together = Together { how: how(&rows_of_state, Mode::Auto), rows: rows_of_state };
    let start = Instant::now();
    let bar = runner::busy(format!("reading the state and {} questions", criteria.len()));
    let direct = decide(&[together], &facts, &mut runner).all();
    let direct_seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let direct = direct?;
    let mut generated = write(&mut runner.engine, &prompt, room, baseline.version)?;
    let parsed: Result<Vec<Answer>, Vec<String>> = match verbose {
        true => parse_verbose(&generated.text, &baseline.keys, generated.finished).map(|all| all.into_iter().map(answer).collect()),
        false => parse_answers(&generated.text, criteria.len(), generated.finished)
            .map(|all| all.into_iter().map(|yes| Answer { answer: word(yes), confidence: None }).collect()),
    };
    generated.judge(parsed.as_ref().err());
    profile::report(&mut runner.engine)?;
    let answers = parsed.ok();
    let same = |answers: &Vec<Answer>| direct.iter().zip(answers).filter(|(row, answer)| decided(row) == answer.answer).count();
    let agreement = answers.as_ref().map(|answers| same(answers) as f64 / direct.len().max(1) as f64);
    let comparison = Comparison {
        baseline: if verbose { "verbose" } else { "array" },
        direct: &direct,
        direct_tokens: Tokens::of(&direct),
        direct_seconds,
        decisions_per_second: direct.len() as f64 / direct_seconds.max(1e-9),
        ratio: generated.ratio(direct_seconds),
        agreement,
        generated: &Generated { answers: Some(answers), ..generated },
    };
    match args.json {
        true => print_json(&comparison)?,
        false => print(&report(&rows, &comparison))?,
    }
    comparison.generated.ended()
}

fn word(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

fn answer(verdict: Verdict) -> Answer {
    Answer { answer: word(verdict.answer), confidence: Some(verdict.confidence) }
}

/// `yes` stands first and wins a tie.
fn decided(row: &ResultRow) -> &'static str {
    word(row.probabilities.first() >= row.probabilities.get(1))
}

fn line(read: &str, share: &str, written: &str, criterion: &str) -> String {
    format!("  {read:<4} {share:>10}   {written:<10} {criterion}\n")
}

fn report(rows: &[Row], comparison: &Comparison<'_>) -> String {
    let direct = comparison.direct;
    let tokens = match &comparison.direct_tokens {
        Tokens { state: 0, rest } => format!("{rest} tokens"),
        Tokens { state, rest } => format!("{state} tokens once and {rest} after them"),
    };
    let mut out = format!(
        "Direct: {} decisions on one state, {tokens}, {} ({})\n",
        direct.len(),
        view::seconds(comparison.direct_seconds),
        view::pace(comparison.decisions_per_second)
    );
    let answers = comparison.generated.answers.as_ref().and_then(Option::as_ref);
    out.push_str(&line("read", "", "written", "criterion"));
    for (i, (row, result)) in rows.iter().zip(direct).enumerate() {
        let share = result.probabilities.first().copied().unwrap_or(0.0);
        let other = answers.and_then(|answers| answers.get(i)).map_or("-".to_owned(), |a| match a.confidence {
            Some(confidence) => format!("{} ({confidence:.2})", a.answer),
            None => a.answer.to_owned(),
        });
        out.push_str(&line(decided(result), &format!("{} yes", view::percent(share)), &other, &safe(row.question())));
    }
    out.push_str(&written(comparison.generated));
    out.push_str(&format!("\n{}", times_as_long(comparison.ratio)));
    if let Some(agreement) = comparison.agreement {
        out.push_str(&format!(" Both answer {} of the criteria alike.", view::percent(agreement)));
    }
    out.push('\n');
    out
}
