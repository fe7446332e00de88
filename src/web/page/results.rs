//! Step three: both answers side by side, with what each of them cost.

use leptos::prelude::*;

use super::draft::{QuestionDraft, ROW_ID};
use super::run::{Lane, Outcome, now, top};
use super::verdict::{Verdict, doubt, ticks};
use super::{Shared, format};
use crate::decision::{entropy_in_bits, letter};
use crate::web::protocol::{Decision, FaultKind, Generation};

#[component]
pub fn AnswerStep(shared: Shared) -> impl IntoView {
    let questions = shared.draft.questions;
    let several = move || questions.with(Vec::len) > 1;
    view! {
        <section class="step" id="answer" aria-labelledby="answer-title">
            <h2 id="answer-title"><span class="number" aria-hidden="true">"3"</span>"Answer"</h2>
            <p class="visually-hidden" role="status">{move || shared.runs.said.get()}</p>
            <Verdict shared=shared/>
            <For each=move || questions.get() key=|question| question.key children=move |question| view! {
                <Show when=several><h3 class="asked">{move || question.text.get()}</h3></Show>
                <Lanes shared=shared question=question/>
            }/>
            <details class="soft definitions">
                <summary>"What the numbers are"</summary>
                <p>"Margin: by how much the first option's probability is greater than the second's. Entropy: how undecided the model is, from 0 (one option has everything) to the figure behind it (all options are equal). Allowed mass: how much of the probability of everything that the model could have written next stands on the answer letters; where it is less than half, the model wanted to say something else, and the answer is marked. Forward pass: the GPU's part of the time. Prompt: tokens that the model read; tokens that were kept from an earlier run are not read again."</p>
            </details>
            <p class="soft note">"The bars are a softmax over the answer letters' logits: how the model divides its vote among the options that you offered. They are not calibrated probabilities of being right."</p>
        </section>
    }
}

/// `846 tokens`, or what of it had to be read where the rest was kept: `34 new of 846`.
fn prompt_words(decision: &Decision) -> String {
    match decision.input_tokens.saturating_sub(decision.reused_tokens) {
        new if decision.reused_tokens > 0 => format!("{} new of {}", format::thousands(new), format::thousands(decision.input_tokens)),
        _ => format::plural(decision.input_tokens, "token"),
    }
}

#[component]
fn Lanes(shared: Shared, question: QuestionDraft) -> impl IntoView {
    let outcome = Memo::new(move |_| shared.runs.outcomes.with(|all| all.iter().position(|outcome| outcome.key == question.key)));
    let of = move || outcome.get().and_then(|i| shared.runs.outcomes.with(|all| all.get(i).copied()));
    let direct = Signal::derive(move || of().map_or(Lane::Off, |outcome| outcome.direct.get()));
    let written = Signal::derive(move || of().map_or(Lane::Off, |outcome| outcome.written.get()));
    let stream = Signal::derive(move || of().map(|outcome| outcome.stream.get()).unwrap_or_default());
    let stale = move || of().is_some_and(|outcome| shared.draft.row(&question, ROW_ID).ok().as_ref() != Some(&outcome.row.get_value()));
    // Before a run the bars already stand there, empty, so that nothing moves when numbers arrive.
    let names = Signal::derive(move || match of() {
        Some(outcome) => outcome.names.get_value(),
        None => question.option_names(),
    });
    view! {
        <div class="lanes" class:stale=stale>
            <Show when=stale><p class="remark">"Edited since this run."</p></Show>
            <DirectLane shared=shared outcome=Signal::derive(of) names=names lane=direct/>
            <WrittenLane names=names lane=written stream=stream/>
        </div>
    }
}

#[component]
fn DirectLane(shared: Shared, outcome: Signal<Option<Outcome>>, names: Signal<Vec<String>>, lane: Signal<Lane<Decision>>) -> impl IntoView {
    let shares = Signal::derive(move || lane.with(|lane| lane.done().map(|decision| decision.probabilities.clone())));
    let fact = move |f: fn(&Decision) -> String| move || lane.with(|lane| lane.done().map_or("–".to_string(), f));
    let row = move || lane.with(|lane| lane.done().map(|decision| decision.row.clone()));
    let empty = move || lane.with(|lane| lane.done().is_none());
    let doubted = move || lane.with(|lane| lane.done().and_then(doubt));
    let validity = move || match doubted() {
        Some(mass) => format!("With care: {} of the probability is on other words.", format::share(1.0 - mass)),
        None => "Always valid: nothing is parsed.".into(),
    };
    view! {
        <article class="lane read">
            <header>
                <h3>"Read"</h3>
                <Clock lane=Signal::derive(move || clock(&lane.get(), |d| d.total_seconds))/>
                <p class="soft">"One forward pass, then the logits of the answer letters"</p>
            </header>
            <Bars names=names shares=shares/>
            <LaneLine failure=Signal::derive(move || failure(&lane.get()))>
                <p class="verdict-line read-line" class:soft=empty class:doubtful=move || doubted().is_some()>{validity}</p>
            </LaneLine>
            <pre class="json stream" tabindex="0" aria-label="Result row as JSON">
                {row}
                <Show when=empty><span class="soft">"The result row for programs appears here: probabilities, logits, token ids, the prompt's hash, the model and how it ran."</span></Show>
            </pre>
            <super::order::OrderLine shared=shared outcome=outcome/>
            <dl class="facts">
                <div><dt>"Prompt"</dt><dd>{fact(prompt_words)}</dd></div>
                <div><dt>"Written"</dt><dd>{fact(|_| "0 tokens".into())}</dd></div>
                <div><dt>"Forward pass"</dt><dd>{fact(|d| format::seconds(d.forward_seconds))}</dd></div>
                <div><dt>"Margin"</dt><dd>{fact(|d| format::share(d.margin))}</dd></div>
                <div><dt>"Entropy"</dt><dd>{fact(entropy)}</dd></div>
                <div class:doubtful=move || doubted().is_some()><dt>"Allowed mass"</dt><dd>{fact(mass)}</dd></div>
            </dl>
        </article>
    }
}

#[component]
fn WrittenLane(names: Signal<Vec<String>>, lane: Signal<Lane<Generation>>, stream: Signal<super::run::Stream>) -> impl IntoView {
    let shares = Signal::derive(move || lane.with(|lane| lane.done().and_then(|generation| generation.probabilities.clone())));
    let fact = move |f: fn(&Generation) -> String| move || lane.with(|lane| lane.done().map_or("–".to_string(), f));
    let text = move || match lane.get() {
        Lane::Done(generation) => generation.text,
        Lane::Off => String::new(),
        _ => stream.get().text,
    };
    let empty = move || text().is_empty();
    let tokens = move || match lane.get() {
        Lane::Done(generation) => format::plural(generation.output_tokens, "token"),
        Lane::Running(_) => format::plural(stream.get().tokens, "token"),
        _ => "–".to_string(),
    };
    let validity = move || {
        lane.with(|lane| match lane.done() {
            Some(generation) => match &generation.problem {
                None => ("verdict-line good", "Valid JSON with a probability for every option.".to_string()),
                Some(problem) => ("verdict-line bad", format!("Not usable: {problem}.")),
            },
            None => ("verdict-line soft", "Usable only where the model writes the JSON that was asked for.".to_string()),
        })
    };
    view! {
        <article class="lane write">
            <header>
                <h3>"Written"</h3>
                <Clock lane=Signal::derive(move || clock(&lane.get(), |g| g.total_seconds))/>
                <p class="soft">"The same distribution as JSON, token by token"</p>
            </header>
            <Bars names=names shares=shares/>
            <LaneLine failure=Signal::derive(move || failure(&lane.get()))>
                <p class=move || validity().0>{move || validity().1}</p>
            </LaneLine>
            <pre class="json stream" tabindex="0" aria-label="Text that the model writes">
                {text}
                <Show when=empty><span class="soft">"What the model writes appears here as it writes it."</span></Show>
                <Show when=move || matches!(lane.get(), Lane::Running(_))><span class="caret" aria-hidden="true"></span></Show>
            </pre>
            <Timeline stream=stream/>
            <dl class="facts">
                <div><dt>"Prompt"</dt><dd>{fact(|g| format::plural(g.input_tokens, "token"))}</dd></div>
                <div><dt>"Written"</dt><dd>{tokens}</dd></div>
                <div><dt>"First token"</dt><dd>{fact(|g| format::seconds(g.first_token_seconds))}</dd></div>
                <div><dt>"Pace"</dt><dd>{fact(pace)}</dd></div>
                <div><dt>"Ended"</dt><dd>{fact(|g| if g.finished { "by itself".into() } else { "at the limit".into() })}</dd></div>
            </dl>
        </article>
    }
}

/// One line for each token at the time it came; before the first stands the reading of the prompt.
#[component]
fn Timeline(stream: Signal<super::run::Stream>) -> impl IntoView {
    let end = move || stream.with(|stream| stream.times.last().copied().unwrap_or(0.0));
    let path = move || {
        stream.with(|stream| {
            let end = stream.times.last().copied().filter(|end| *end > 0.0).unwrap_or(1.0);
            stream.times.iter().map(|time| format!("M{:.1} 0v20", time / end * 1000.0)).collect::<String>()
        })
    };
    let words = move || match stream.with(|stream| (stream.times.first().copied(), stream.tokens)) {
        (Some(first), tokens) => {
            format!("first token after {}, {} in {}", format::seconds(first), format::plural(tokens, "token"), format::seconds(end()))
        }
        (None, _) => "each line is a token, at the time it came".to_string(),
    };
    view! {
        <div class="timeline">
            <svg viewBox="0 0 1000 20" preserveAspectRatio="none" aria-hidden="true"><path d=path/></svg>
            <p class="soft">{words}</p>
        </div>
    }
}

/// `4.0 %, low`
fn mass(decision: &Decision) -> String {
    let low = if doubt(decision).is_some() { ", low" } else { "" };
    decision.mass.map_or("–".into(), |mass| format!("{}{low}", format::share(mass)))
}

/// `1.36 of 2.00 bits`, as the terminal says it.
fn entropy(decision: &Decision) -> String {
    entropy_in_bits(decision.entropy, decision.probabilities.len())
}

fn pace(generation: &Generation) -> String {
    let seconds = generation.total_seconds - generation.first_token_seconds;
    if generation.output_tokens < 2 || seconds <= 0.0 {
        return "–".into();
    }
    let pace = f64::from(generation.output_tokens - 1) / seconds;
    if pace >= 10.0 { format!("{pace:.0} tokens/s") } else { format!("{pace:.1} tokens/s") }
}

/// What a lane's clock shows.
#[derive(Clone, PartialEq)]
enum ClockFace {
    Still(String),
    Since(f64),
}

fn clock<T>(lane: &Lane<T>, total: fn(&T) -> f64) -> ClockFace {
    match lane {
        Lane::Off => ClockFace::Still("–".into()),
        Lane::Waiting => ClockFace::Still("waits".into()),
        Lane::Running(since) => ClockFace::Since(*since),
        Lane::Done(value) => ClockFace::Still(format::seconds(total(value))),
        Lane::Failed(_) => ClockFace::Still("stopped".into()),
    }
}

fn failure<T>(lane: &Lane<T>) -> String {
    match lane {
        Lane::Failed(fault) if fault.kind == FaultKind::Cancelled => "Stopped before it was done.".into(),
        Lane::Failed(fault) => fault.message.clone(),
        _ => String::new(),
    }
}

#[component]
fn Clock(lane: Signal<ClockFace>) -> impl IntoView {
    let tick = ticks();
    let words = move || match lane.get() {
        ClockFace::Still(words) => words,
        ClockFace::Since(since) => {
            tick.track();
            format!("{:.1} s", (now() - since) / 1e3)
        }
    };
    view! { <p class="clock">{words}</p> }
}

/// Why there is no answer, or else the line about it.
#[component]
fn LaneLine(failure: Signal<String>, children: ChildrenFn) -> impl IntoView {
    view! {
        <Show when=move || failure.with(|f| !f.is_empty()) fallback=move || children()>
            <p class="verdict-line bad" role="alert">{move || failure.get()}</p>
        </Show>
    }
}

#[component]
fn Bars(names: Signal<Vec<String>>, shares: Signal<Option<Vec<f64>>>) -> impl IntoView {
    let winner = move || shares.with(|shares| shares.as_ref().map(|shares| top(shares)));
    let bar = move |i: usize, name: String| {
        let share = move || shares.with(|shares| shares.as_ref().and_then(|shares| shares.get(i).copied()));
        view! {
            <li class:top=move || winner() == Some(i)>
                <span class="letter" aria-hidden="true">{letter(i)}</span>
                <span class="bar-name" title=name.clone()>{name.clone()}</span>
                <span class="track" aria-hidden="true"><span class="fill" style:transform=move || format!("scaleX({:.4})", share().unwrap_or(0.0))></span></span>
                <span class="figure">{move || share().map_or("–".into(), format::share)}</span>
            </li>
        }
    };
    let numbered = move || -> Vec<(usize, String)> { names.get().into_iter().enumerate().collect() };
    let key = |numbered: &(usize, String)| numbered.clone();
    view! {
        <ol class="bars">
            <For each=numbered key=key children=move |(i, name)| bar(i, name)/>
        </ol>
    }
}
