//! `semif generate`: greedy continuation.

use std::io::IsTerminal as _;

use serde::Serialize;

use crate::text::Parse;

use super::args::GenerateArgs;
use super::fail::{Exit, Failure, print, print_json, safe};
use super::input::text_argument;
use super::interrupt;
use super::load::ModelFile;
use super::profile;
use super::runner::{self, Runner};
use super::view;

#[derive(Serialize)]
struct Reply {
    /// Prompt tokens.
    n: usize,
    tokens: Vec<u32>,
    /// Null when the file has no usable tokenizer.
    text: Option<String>,
    /// The end-of-text token that ended it; null at the limit.
    stopped: Option<u32>,
    first_token_seconds: f64,
    total_seconds: f64,
    /// Of the tokens after the first; null for fewer than two.
    tokens_per_second: Option<f64>,
}

pub fn run(args: &GenerateArgs) -> Result<Exit, Failure> {
    runner::check_tier(&args.model)?;
    let text = args.prompt.text.as_deref().map(|text| text_argument(text, "--text")).transpose()?;
    let file = ModelFile::open(&args.model.choice.path()?)?;
    let tokens = match text {
        None => args.prompt.tokens.clone(),
        Some(text) => {
            let parse = if args.control { Parse::Control } else { Parse::Plain };
            file.text()?.tokenizer.encode(&text, parse).map_err(Failure::input)?
        }
    };
    if tokens.is_empty() {
        return Err(Failure::input("there is nothing to continue: the prompt has no tokens"));
    }
    let (budget, wanted) = (args.model.max_tokens, tokens.len() as u64 + u64::from(args.max_new));
    if wanted > u64::from(budget) {
        return Err(Failure::input(format!(
            "{} prompt tokens and {} new ones are more than the budget of {budget}: lower --max-new, or raise --max-tokens",
            tokens.len(),
            args.max_new
        )));
    }
    let mut runner = Runner::load(&file, &args.model)?;
    runner.warn_if_slow();
    let stop: Vec<u32> = match (args.ignore_eos, runner.engine.text()) {
        (false, Ok(text)) => text.eos_ids().to_vec(),
        _ => Vec::new(),
    };
    let bar = runner::busy(view::reading(std::iter::once(tokens.len())));
    let mut shown = 0;
    let mut on_token = |_| {
        shown += 1;
        bar.set_message(format!("writing, tokens so far: {shown}"));
        // What was generated when it is stopped is still printed; before the first token there is nothing to wait for.
        interrupt::graceful();
        interrupt::go_on()
    };
    let made = pollster::block_on(runner.engine.generate(&tokens, args.max_new as usize, &stop, &mut on_token));
    bar.finish_and_clear();
    let made = made?;
    profile::report(&mut runner.engine)?;
    let count = made.tokens.len();
    let rate = (count > 1).then(|| (count - 1) as f64 / (made.total_seconds - made.first_token_seconds).max(1e-9));
    let reply = Reply {
        n: tokens.len(),
        text: runner.engine.text().ok().map(|text| text.tokenizer.decode(&made.tokens)),
        tokens: made.tokens,
        stopped: made.stopped,
        first_token_seconds: made.first_token_seconds,
        total_seconds: made.total_seconds,
        tokens_per_second: rate,
    };
    if args.json || !std::io::stdout().is_terminal() {
        print_json(&reply)?;
        return ended(made.cancelled);
    }
    let ids: Vec<String> = reply.tokens.iter().map(u32::to_string).collect();
    let shown = reply.text.as_deref().unwrap_or("").split('\n').map(safe).collect::<Vec<_>>().join("\n");
    print(&format!(
        "{shown}\n\nids: {}\n{count} tokens, first after {}, {} in all{}, ended {}\n",
        ids.join(","),
        view::seconds(reply.first_token_seconds),
        view::seconds(reply.total_seconds),
        rate.map_or(String::new(), |r| format!(", {r:.1} tokens a second")),
        reply.stopped.map_or(if made.cancelled { "by Ctrl-C" } else { "at --max-new" }.to_owned(), |id| format!("by token {id}")),
    ))?;
    ended(made.cancelled)
}

fn ended(cancelled: bool) -> Result<Exit, Failure> {
    if cancelled { Err(Failure::interrupted("interrupted; the tokens so far are printed")) } else { Ok(Exit::Done) }
}
