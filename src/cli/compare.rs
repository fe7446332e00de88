//! `semif compare`: the same decision by one readout and by writing it out, both timed.

use std::ops::ControlFlow;

use serde::Serialize;

use crate::decision::baseline::{DISTRIBUTION_MAX_TOKENS, distribution_prompt, parse_distribution};
use crate::decision::{ResultRow, sha256_hex};
use crate::engine::{Ask, Engine, EngineError};
use crate::text::{ChatPrompt, StreamDecoder};

use super::args::{BaselineArg, CompareArgs};
use super::ask::Case;
use super::fail::{Exit, Failure, print, print_json, safe};
use super::input;
use super::interrupt;
use super::prepare::check_budget;
use super::runner;
use super::view::{self, Canvas};

/// Tokens of the warm-up: enough to bring every kernel of both paths into use.
const WARM_UP: usize = 32;

/// What was written about a criterion.
#[derive(Debug, Serialize)]
pub struct Answer {
    pub answer: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
}

/// What generation gave.
#[derive(Debug, Serialize)]
pub struct Generated {
    pub text: String,
    /// Tokens written.
    pub tokens: usize,
    pub input_tokens: usize,
    /// Ended by itself, not by the limit.
    pub finished: bool,
    /// It is a distribution that a program could use.
    pub valid: bool,
    /// Why it is not.
    pub problems: Vec<String>,
    /// In option order; null when invalid, absent for criteria.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probabilities: Option<Option<Vec<f64>>>,
    /// An answer for each criterion; null when invalid, absent for one question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<Option<Vec<Answer>>>,
    pub prompt_version: String,
    pub prompt_sha256: String,
    pub first_token_seconds: f64,
    pub total_seconds: f64,
    /// Ctrl-C ended it.
    #[serde(skip)]
    pub cancelled: bool,
}

#[derive(Debug, Serialize)]
struct Comparison<'a> {
    direct: &'a ResultRow,
    generated: &'a Generated,
    /// Generation's total seconds over the direct forward pass's; null when it was stopped.
    ratio: Option<f64>,
    /// The same option is on top; null when the written distribution is invalid.
    same_top: Option<bool>,
    /// Half the sum of absolute differences; null when invalid.
    total_variation: Option<f64>,
}

pub fn run(args: &CompareArgs) -> Result<Exit, Failure> {
    runner::check_tier(&args.model)?;
    match (args.baseline, &args.question) {
        (BaselineArg::Distribution, Some(question)) => one(args, question),
        (BaselineArg::Distribution, None) => Err(Failure::input("--criterion needs --baseline array or --baseline verbose")),
        (_, None) => super::compare_many::run(args),
        (_, Some(_)) => Err(Failure::input("--baseline array and verbose take --criterion, not --question and --option")),
    }
}

fn one(args: &CompareArgs, question: &str) -> Result<Exit, Failure> {
    let row = input::row(input::state(&args.state)?, question, &args.options)?;
    let wording = input::wording(args.state.prompt.as_deref())?;
    let mut case = Case::load(&args.model, row, wording, None, args.json)?;
    let baseline = distribution_prompt(&case.row, &case.wording);
    let engine = &mut case.runner.engine;
    let prompt = engine.text()?.chat_prompt(&baseline.system, &baseline.user).map_err(Failure::input)?;
    let room = room(prompt.tokens.len(), DISTRIBUTION_MAX_TOKENS, args.model.max_tokens)?;

    warm_up(engine, &prompt.tokens, &case.prompted.slots)?;
    let direct = case.decide()?;
    let mut generated = write(&mut case.runner.engine, &prompt, room, baseline.version)?;
    let parsed = parse_distribution(&generated.text, &baseline.keys, generated.finished);
    generated.judge(parsed.as_ref().err());
    let shares = parsed.ok();
    let comparison = Comparison {
        direct: &direct,
        ratio: generated.ratio(direct.forward_seconds),
        same_top: shares.as_ref().map(|p| top(p) == top(&direct.probabilities)),
        total_variation: shares.as_ref().map(|p| p.iter().zip(&direct.probabilities).map(|(a, b)| (a - b).abs()).sum::<f64>() / 2.0),
        generated: &Generated { probabilities: Some(shares), ..generated },
    };
    if args.json {
        print_json(&comparison)?;
    } else {
        print(&report(&case, &comparison, Canvas::of_stdout()))?;
    }
    comparison.generated.ended()
}

impl Generated {
    /// How the command ends, once all is printed.
    ///
    /// # Errors
    /// Exit code 130: it was stopped while it wrote.
    pub fn ended(&self) -> Result<Exit, Failure> {
        match self.cancelled {
            true => Err(Failure::interrupted("interrupted while it was written out; the comparison is of what there was")),
            false => Ok(Exit::Done),
        }
    }

    /// Its seconds over those of the direct way; none where it was stopped.
    pub fn ratio(&self, direct_seconds: f64) -> Option<f64> {
        (!self.cancelled).then(|| self.total_seconds / direct_seconds.max(1e-9))
    }

    /// Says whether what was written can be used.
    pub fn judge(&mut self, problems: Option<&Vec<String>>) {
        self.valid = problems.is_none();
        self.problems = problems.cloned().unwrap_or_default();
    }
}

/// Tokens that may be written: at most `most`, within the budget.
///
/// # Errors
/// Exit code 2: none.
pub fn room(prompt: usize, most: usize, max_tokens: u32) -> Result<usize, Failure> {
    let room = most.min((max_tokens as usize).saturating_sub(prompt));
    check_budget(prompt + room.max(1), max_tokens).map_err(|problem| Failure::input(format!("the generation prompt: {problem}")))?;
    Ok(room)
}

fn top(shares: &[f64]) -> usize {
    shares.iter().enumerate().fold(0, |best, (i, share)| if *share > shares[best] { i } else { best })
}

/// Runs both paths once over a few tokens, so that neither pays for the first use of a kernel.
pub fn warm_up(engine: &mut Engine, tokens: &[u32], slots: &[u32]) -> Result<(), Failure> {
    let few = &tokens[..tokens.len().min(WARM_UP)];
    let ask = Ask { labels: slots.to_vec(), ..Ask::default() };
    let bar = runner::busy("warming up");
    let done = pollster::block_on(async {
        engine.logits(few, &ask).await?;
        engine.generate(few, 2, &[], &mut |_| ControlFlow::Continue(())).await?;
        Ok::<(), EngineError>(())
    });
    bar.finish_and_clear();
    Ok(done?)
}

/// Writes greedily; counts the tokens on stderr where somebody is watching. What was written is still to be judged.
pub fn write(engine: &mut Engine, prompt: &ChatPrompt, room: usize, version: String) -> Result<Generated, Failure> {
    let stop = engine.text()?.eos_ids().to_vec();
    let bar = runner::busy(view::reading(std::iter::once(prompt.tokens.len())));
    let mut shown = 0;
    let mut on_token = |_: u32| {
        shown += 1;
        bar.set_message(format!("writing it out, tokens so far: {shown}"));
        // Writing can take minutes on a slow adapter; what is there when it is stopped is still shown.
        interrupt::graceful();
        interrupt::go_on()
    };
    let generation = pollster::block_on(engine.generate(&prompt.tokens, room, &stop, &mut on_token));
    bar.finish_and_clear();
    let generation = generation?;
    let text = engine.text()?;
    let mut decoder = StreamDecoder::new();
    let mut written: String = generation.tokens.iter().map(|id| decoder.push(&text.tokenizer, *id)).collect();
    written.push_str(&decoder.finish());
    Ok(Generated {
        text: written,
        tokens: generation.tokens.len(),
        input_tokens: prompt.tokens.len(),
        finished: generation.stopped.is_some(),
        valid: false,
        problems: Vec::new(),
        probabilities: None,
        answers: None,
        prompt_version: version,
        prompt_sha256: sha256_hex(prompt.text.as_bytes()),
        first_token_seconds: generation.first_token_seconds,
        total_seconds: generation.total_seconds,
        cancelled: generation.cancelled,
    })
}

/// The lines about what was written, up to its use.
pub fn written(generated: &Generated) -> String {
    let mut out = format!(
        "\nWritten as JSON: {} tokens after a prompt of {}, first after {}, {} in all\n{}\n",
        generated.tokens,
        generated.input_tokens,
        view::seconds(generated.first_token_seconds),
        view::seconds(generated.total_seconds),
        indented(&generated.text)
    );
    if !generated.valid {
        out.push_str("  Not usable:\n");
        for problem in &generated.problems {
            out.push_str(&format!("  - {}\n", safe(problem)));
        }
    }
    out
}

/// What a model wrote, line by line, as it set them.
fn indented(text: &str) -> String {
    text.trim().lines().map(|line| format!("  {}", safe(line))).collect::<Vec<_>>().join("\n")
}

/// What the comparison comes to, as a sentence.
pub fn times_as_long(ratio: Option<f64>) -> String {
    ratio.map_or("Writing was stopped before its end.".to_owned(), |ratio| format!("Writing took {ratio:.1} times as long."))
}

fn report(case: &Case, comparison: &Comparison<'_>, canvas: Canvas) -> String {
    let (direct, generated) = (comparison.direct, comparison.generated);
    let labels = view::labels(&case.row);
    let mut out = format!("{}\n\n", safe(case.row.question()));
    out.push_str(&format!("Direct: one forward pass over {} tokens, {}\n", direct.input_tokens, view::seconds(direct.forward_seconds)));
    out.push_str(&view::bars(&labels, &direct.probabilities, canvas));
    out.push_str(&written(generated));
    if let Some(Some(shares)) = &generated.probabilities {
        out.push_str(&view::bars(&labels, shares, canvas));
    }
    out.push_str(&format!("\n{}", times_as_long(comparison.ratio)));
    match comparison.same_top {
        Some(true) => out.push_str(" Both put the same option on top."),
        Some(false) => out.push_str(" They put different options on top."),
        None => {}
    }
    out.push_str("\n\n");
    out.push_str(&view::footer(direct, canvas));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_keeps_its_lines() {
        assert_eq!(indented("\n{\n  \"a\": 1\u{1b}\n}\n"), "  {\n    \"a\": 1\\u{1b}\n  }");
        assert_eq!(indented(" "), "");
    }

    #[test]
    fn a_stopped_comparison_has_no_ratio() {
        assert_eq!(times_as_long(Some(2.04)), "Writing took 2.0 times as long.");
        assert_eq!(times_as_long(None), "Writing was stopped before its end.");
    }
}
