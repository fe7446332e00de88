//! `semif compare`: the same decision by one readout and by writing it out, both timed.

use std::io::IsTerminal as _;
use std::io::Write as _;
use std::ops::ControlFlow;

use serde::Serialize;

use crate::decision::baseline::{DISTRIBUTION_MAX_TOKENS, distribution_prompt, parse_distribution};
use crate::decision::{ResultRow, sha256_hex};
use crate::engine::{Ask, EngineError};
use crate::text::StreamDecoder;

use super::args::CompareArgs;
use super::ask::Case;
use super::fail::{Exit, Failure, print, print_json, safe};
use super::input;
use super::interrupt;
use super::prepare::check_budget;
use super::runner;
use super::view::{self, Canvas};

/// Tokens of the warm-up: enough to bring every kernel of both paths into use.
const WARM_UP: usize = 32;

/// What generation gave.
#[derive(Debug, Serialize)]
struct Generated {
    text: String,
    /// Tokens written.
    tokens: usize,
    input_tokens: usize,
    /// Ended by itself, not by the limit.
    finished: bool,
    /// It is a distribution that a program could use.
    valid: bool,
    /// Why it is not.
    problems: Vec<String>,
    /// In option order; null when invalid.
    probabilities: Option<Vec<f64>>,
    prompt_version: String,
    prompt_sha256: String,
    first_token_seconds: f64,
    total_seconds: f64,
}

#[derive(Debug, Serialize)]
struct Comparison<'a> {
    direct: &'a ResultRow,
    generated: &'a Generated,
    /// Generation's total seconds over the direct forward pass's.
    ratio: f64,
    /// The same option is on top; null when the written distribution is invalid.
    same_top: Option<bool>,
    /// Half the sum of absolute differences; null when invalid.
    total_variation: Option<f64>,
}

pub fn run(args: &CompareArgs) -> Result<Exit, Failure> {
    runner::precision(&args.model)?;
    let row = input::case(&args.case)?;
    let wording = input::wording(args.case.prompt.as_deref())?;
    let mut case = Case::load(&args.model, row, wording, None, args.json)?;
    let baseline = distribution_prompt(&case.row, &case.wording);
    let prompt = {
        let text = case.runner.engine.text()?;
        text.chat_prompt(&baseline.system, &baseline.user).map_err(Failure::input)?
    };
    let room = DISTRIBUTION_MAX_TOKENS.min((args.model.max_tokens as usize).saturating_sub(prompt.tokens.len()));
    check_budget(prompt.tokens.len() + room.max(1), args.model.max_tokens)
        .map_err(|problem| Failure::input(format!("the generation prompt: {problem}")))?;

    warm_up(&mut case, &prompt.tokens)?;
    let direct = case.decide()?;
    let stop = case.runner.engine.text()?.eos_ids().to_vec();
    let live = std::io::stderr().is_terminal();
    // Writing can take minutes on a slow adapter; what is there when it is stopped is still shown.
    interrupt::graceful();
    let (generation, text) = generate(&mut case, &prompt.tokens, room, &stop, live)?;
    let parsed = parse_distribution(&text, &baseline.keys, generation.stopped.is_some());
    let generated = Generated {
        tokens: generation.tokens.len(),
        input_tokens: prompt.tokens.len(),
        finished: generation.stopped.is_some(),
        valid: parsed.is_ok(),
        problems: parsed.as_ref().err().cloned().unwrap_or_default(),
        probabilities: parsed.ok(),
        prompt_version: baseline.version,
        prompt_sha256: sha256_hex(prompt.text.as_bytes()),
        first_token_seconds: generation.first_token_seconds,
        total_seconds: generation.total_seconds,
        text,
    };
    let comparison = Comparison {
        direct: &direct,
        generated: &generated,
        ratio: generated.total_seconds / direct.forward_seconds.max(1e-9),
        same_top: generated.probabilities.as_ref().map(|p| top(p) == top(&direct.probabilities)),
        total_variation: generated
            .probabilities
            .as_ref()
            .map(|p| p.iter().zip(&direct.probabilities).map(|(a, b)| (a - b).abs()).sum::<f64>() / 2.0),
    };
    if args.json {
        print_json(&comparison)?;
    } else {
        print(&report(&case, &comparison, Canvas::of_stdout()))?;
    }
    if generation.cancelled {
        return Err(Failure::interrupted("interrupted while the distribution was written; the comparison is of what there was"));
    }
    Ok(Exit::Done)
}

fn top(shares: &[f64]) -> usize {
    shares.iter().enumerate().fold(0, |best, (i, share)| if *share > shares[best] { i } else { best })
}

/// Runs both paths once over a few tokens, so that neither pays for the first use of a kernel.
fn warm_up(case: &mut Case, tokens: &[u32]) -> Result<(), Failure> {
    let engine = &mut case.runner.engine;
    let few = &tokens[..tokens.len().min(WARM_UP)];
    let ask = Ask { labels: case.prompted.slots.clone(), ..Ask::default() };
    pollster::block_on(async {
        engine.logits(few, &ask).await?;
        engine.generate(few, 2, &[], &mut |_| ControlFlow::Continue(())).await?;
        Ok::<(), EngineError>(())
    })?;
    Ok(())
}

/// Writes greedily; shows the text on stderr as it comes where somebody is watching.
fn generate(
    case: &mut Case,
    tokens: &[u32],
    room: usize,
    stop: &[u32],
    live: bool,
) -> Result<(crate::engine::Generation, String), Failure> {
    let engine = &mut case.runner.engine;
    // The tokens are decoded while the engine is busy with the next ones, so the text model must not borrow from it.
    let mut fresh: Vec<u32> = Vec::new();
    if live {
        eprintln!("writing the distribution out:");
    }
    let generation = {
        let mut shown = 0;
        let mut on_token = |token: u32| {
            fresh.push(token);
            if live {
                shown += 1;
                eprint!("\r{shown} tokens");
                let _ = std::io::stderr().flush();
            }
            if interrupt::asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        pollster::block_on(engine.generate(tokens, room, stop, &mut on_token))?
    };
    if live {
        eprint!("\r");
    }
    let text = engine.text()?;
    let mut decoder = StreamDecoder::new();
    let mut written: String = generation.tokens.iter().map(|id| decoder.push(&text.tokenizer, *id)).collect();
    written.push_str(&decoder.finish());
    Ok((generation, written))
}

fn report(case: &Case, comparison: &Comparison<'_>, canvas: Canvas) -> String {
    let (direct, generated) = (comparison.direct, comparison.generated);
    let labels = view::labels(&case.row);
    let mut out = format!("{}\n\n", safe(case.row.question()));
    out.push_str(&format!("Direct: one forward pass over {} tokens, {}\n", direct.input_tokens, view::seconds(direct.forward_seconds)));
    out.push_str(&view::bars(&labels, &direct.probabilities, canvas));
    out.push_str(&format!(
        "\nWritten as JSON: {} tokens after {}, first after {}, {} in all\n",
        generated.tokens,
        generated.input_tokens,
        view::seconds(generated.first_token_seconds),
        view::seconds(generated.total_seconds)
    ));
    out.push_str(&format!("  {}\n", safe(generated.text.trim())));
    match &generated.probabilities {
        Some(shares) => out.push_str(&view::bars(&labels, shares, canvas)),
        None => {
            out.push_str("  Not usable:\n");
            for problem in &generated.problems {
                out.push_str(&format!("  - {}\n", safe(problem)));
            }
        }
    }
    out.push_str(&format!("\nWriting took {:.1} times as long.", comparison.ratio));
    match comparison.same_top {
        Some(true) => out.push_str(" Both put the same option on top."),
        Some(false) => out.push_str(" They put different options on top."),
        None => {}
    }
    out.push_str("\n\n");
    out.push_str(&view::footer(direct, canvas));
    out
}
