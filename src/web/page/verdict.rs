//! What the newest run comes to, in one line and two bars. It is true at every moment: before a run, while it goes on, and however it ends.

use leptos::prelude::*;

use super::run::{self, Lane, Outcome, now, top};
use super::{Shared, format};
use crate::web::protocol::{Decision, Fault, FaultKind};

/// Allowed mass below which an answer is marked: under one half, something else was likelier than all the letters together.
const DOUBT: f64 = 0.5;

/// The share of the probability that the letters hold, where that is so little that the answer is doubtful.
pub fn doubt(decision: &Decision) -> Option<f64> {
    decision.mass.filter(|mass| *mass < DOUBT)
}

/// One way of answering, over all questions.
#[derive(Clone, Default, PartialEq)]
struct Way {
    done: usize,
    /// Seconds of what is done.
    seconds: f64,
    /// The step that is going on began at this time, in milliseconds of the page's clock.
    since: Option<f64>,
    waiting: bool,
    /// Why something was not answered.
    fault: Option<Fault>,
}

impl Way {
    fn add<T>(&mut self, lane: &Lane<T>, seconds: fn(&T) -> f64) {
        match lane {
            Lane::Off => {}
            Lane::Waiting => self.waiting = true,
            Lane::Running(since) => self.since = Some(*since),
            Lane::Done(value) => {
                self.done += 1;
                self.seconds += seconds(value);
            }
            Lane::Failed(fault) => self.fault = Some(fault.clone()),
        }
    }

    fn running(&self) -> bool {
        self.since.is_some() || self.waiting
    }

    /// Seconds of the step that is going on.
    fn elapsed(&self) -> f64 {
        self.since.map_or(0.0, |since| (now() - since) / 1e3)
    }

    /// The time beside the bar, `took` seconds so far.
    fn figure(&self, took: f64) -> String {
        match &self.fault {
            _ if self.since.is_some() => format!("{took:.1} s"),
            _ if self.done > 0 => format::seconds(self.seconds),
            Some(fault) if fault.kind == FaultKind::Cancelled => "stopped".into(),
            Some(_) => "failed".into(),
            None => "–".into(),
        }
    }
}

/// Sums over all questions of a run.
#[derive(Clone, Default, PartialEq)]
struct Totals {
    questions: usize,
    read: Way,
    written: Way,
    /// What was read, where there is one question: the first option's name and share.
    answer: Option<(String, f64)>,
    /// Answers that the model would rather not have given, and what share the letters of the last one had.
    doubtful: usize,
    mass: f64,
    /// Written answers that a program could use.
    usable: usize,
    /// Tokens that were written.
    tokens: u32,
    /// Tokens of the prompts' common beginning that an earlier run had left.
    kept: u32,
}

impl Totals {
    fn of(outcomes: &[Outcome]) -> Self {
        let mut sum = Self { questions: outcomes.len(), ..Self::default() };
        for outcome in outcomes {
            outcome.direct.with(|lane| {
                sum.read.add(lane, |decision| decision.total_seconds);
                let Some(decision) = lane.done() else { return };
                sum.kept = sum.kept.max(decision.reused_tokens);
                if let Some(mass) = doubt(decision) {
                    (sum.doubtful, sum.mass) = (sum.doubtful + 1, mass);
                }
                let first = top(&decision.probabilities);
                let name = outcome.names.with_value(|names| names.get(first).cloned());
                sum.answer = name.zip(decision.probabilities.get(first).copied()).filter(|_| outcomes.len() == 1);
            });
            outcome.written.with(|lane| {
                sum.written.add(lane, |generation| generation.total_seconds);
                let Some(generation) = lane.done() else { return };
                sum.tokens += generation.output_tokens;
                sum.usable += usize::from(generation.probabilities.is_some());
            });
        }
        sum
    }

    fn running(&self) -> bool {
        self.read.running() || self.written.running()
    }

    /// Every question has been answered both ways.
    fn compared(&self) -> bool {
        self.questions > 0 && self.read.done == self.questions && self.written.done == self.questions
    }

    fn headline(&self) -> String {
        let n = self.questions;
        let (read, written) = (format::seconds(self.read.seconds), format::seconds(self.written.seconds));
        let ratio = self.written.seconds / self.read.seconds;
        match &self.read.fault {
            _ if n == 0 => "Two ways to ask the same model".into(),
            _ if self.read.running() => format!("Reading… {:.1} s", self.read.elapsed()),
            Some(fault) if self.read.done == 0 && fault.kind == FaultKind::Cancelled => "Stopped before anything was read".into(),
            Some(_) if self.read.done == 0 => "Reading failed".into(),
            _ if self.compared() && self.usable == 0 => format!("Writing gave no usable answer in {written}; reading took {read}"),
            _ if self.compared() && self.usable < n => {
                format!("Writing gave {} of {n} usable answers in {written}; reading took {read}", self.usable)
            }
            _ if self.compared() && ratio >= 1.0 => format!("Reading was {} times faster than writing", format::times(ratio)),
            _ if self.compared() => format!("Writing was {} times faster than reading", format::times(1.0 / ratio)),
            _ => match &self.answer {
                Some((name, share)) => format!("Read in {read}: {name}, {}", format::share(*share)),
                None if self.read.done < n => format!("{} of {n} questions read in {read}", self.read.done),
                None => format!("{n} questions read in {read}"),
            },
        }
    }

    /// What stands below the bars.
    fn words(&self) -> String {
        if self.questions == 0 {
            return "“Read and write” asks the model both ways on this device and times them: once its probabilities for the answer letters are read, once it writes them down as JSON. “Read only” does the first alone.".into();
        }
        if self.read.running() {
            return "One forward pass over the prompt, then the probability of every answer letter is there at once.".into();
        }
        let mut words = vec![self.care()];
        match &self.read.fault {
            Some(fault) if fault.kind == FaultKind::Cancelled => words.push("Run it again for an answer.".into()),
            Some(fault) => words.push(fault.message.clone()),
            None => {}
        }
        match &self.written.fault {
            _ if self.read.done == 0 => {}
            _ if self.written.running() => {
                let which = match self.questions {
                    1 => "its answer".to_string(),
                    all => format!("answer {} of {all}", self.written.done + 1),
                };
                words.push(format!("Now the same model writes {which} as JSON, one forward pass for each token."));
            }
            Some(fault) if fault.kind == FaultKind::Cancelled => {
                words.push("Writing was stopped before it was done, so there is nothing to compare.".into());
            }
            Some(fault) => words.push(format!("Writing failed: {}", fault.message)),
            None if self.compared() => words.push(self.comparison()),
            None => words.push(
                "Nothing was written. “Read and write” also lets the model write its answer as JSON, and shows what that costs.".into(),
            ),
        }
        words.retain(|words| !words.is_empty());
        words.join(" ")
    }

    /// Says where the model was made to choose among answers none of which it would have given.
    fn care(&self) -> String {
        match (self.doubtful, self.questions) {
            (0, _) => String::new(),
            (_, 1) => format!(
                "Take the answer with care: the letters hold {} of the probability, the model would rather have said something else.",
                format::share(self.mass)
            ),
            (some, all) => format!("Take {some} of {all} answers with care: there the model would rather have said something else."),
        }
    }

    /// What was compared, and what makes the comparison less than even.
    fn comparison(&self) -> String {
        let cases = if self.questions > 1 { "same cases" } else { "same case" };
        let shared = if self.questions > 1 {
            " Reading read what the questions have in common once, writing read it with each of them."
        } else {
            ""
        };
        let kept = if self.kept > 0 {
            format!(
                " An earlier run had left the first {} of the prompt, which reading did not read again and writing did: for a time from nothing, change the state.",
                format::plural(self.kept, "token")
            )
        } else {
            String::new()
        };
        format!(
            "Same model, {cases}, same GPU, one after the other; writing took {}, one forward pass each. Both times run from the click's turn to the last number, with prompt and tokenizer.{shared}{kept}",
            format::plural(self.tokens, "token")
        )
    }
}

/// Changes ten times a second, for what shows a running time.
pub fn ticks() -> RwSignal<u32> {
    let tick = RwSignal::new(0u32);
    let timer = set_interval_with_handle(move || tick.update(|t| *t = t.wrapping_add(1)), std::time::Duration::from_millis(100));
    on_cleanup(move || {
        if let Ok(timer) = timer {
            timer.clear();
        }
    });
    tick
}

#[component]
pub fn Verdict(shared: Shared) -> impl IntoView {
    let runs = shared.runs;
    let sums = Memo::new(move |_| runs.outcomes.with(|outcomes| Totals::of(outcomes)));
    let tick = ticks();
    // What has ended does not change with the clock.
    let with = move |f: fn(&Totals) -> String| {
        move || {
            sums.with(|sums| {
                if sums.running() {
                    tick.track();
                }
                f(sums)
            })
        }
    };
    let stale = move || sums.with(|sums| sums.questions > 0) && runs.last.with_value(|last| last.as_ref() != Some(&shared.draft.get()));
    let read = with(|sums| sums.read.figure(sums.read.elapsed()));
    let written = with(|sums| sums.written.figure(sums.written.seconds + sums.written.elapsed()));
    // While it reads there is nothing yet to hold its time against.
    let bar = with(|sums| share(sums.read.seconds, sums.written.seconds + sums.written.elapsed()));
    let written_bar = with(|sums| share(sums.written.seconds + sums.written.elapsed(), sums.read.seconds));
    let running = move || sums.with(Totals::running);
    view! {
        <div class="verdict" class:idle=move || sums.with(|sums| sums.questions == 0) class:empty=move || !sums.with(Totals::compared)>
            <div class="verdict-head">
                <p class="headline" id="verdict">{with(Totals::headline)}</p>
                // On a narrow screen the other one is out of sight.
                <Show when=running>
                    <button type="button" class="button small" id="stop-here" on:click=move |_| run::stop(shared)>{move || runs.stop_words()}</button>
                </Show>
            </div>
            <dl class="race">
                <div class="read"><dt>"Read"</dt><dd><span class="track" aria-hidden="true"><span class="fill" style:transform=bar></span></span><span class="figure">{read}</span></dd></div>
                <div class="write"><dt>"Written"</dt><dd><span class="track" aria-hidden="true"><span class="fill" style:transform=written_bar></span></span><span class="figure">{written}</span></dd></div>
            </dl>
            <p class="soft" id="compared">{move || if stale() { "Edited since this run. " } else { "" }}{with(Totals::words)}</p>
            <Show when=move || runs.hidden.get() && !running() && sums.with(|sums| sums.read.done > 0)>
                <p class="remark">"This tab was hidden during the run. Browsers slow hidden tabs down, so these times may be too long."</p>
            </Show>
        </div>
    }
}

/// A bar's length: this time's share of the longer one.
fn share(this: f64, other: f64) -> String {
    let share = if this > 0.0 { (this / this.max(other)).max(0.003) } else { 0.0 };
    format!("scaleX({share:.4})")
}
