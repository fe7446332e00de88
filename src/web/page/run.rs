//! Running decisions: first every question by one forward pass, then every question by writing.

use leptos::prelude::*;
use wasm_bindgen::{JsCast, prelude::Closure};
use wasm_bindgen_futures::spawn_local;

use super::draft::{ROW_ID, SavedDraft};
use super::{Shared, lasting, loading, recover};
use crate::web::protocol::{Answer, Command, Decision, Event, Fault, FaultKind, Generation};

/// What is being run and what has come out. Copies are the same state.
#[derive(Clone, Copy)]
pub struct Runs {
    pub outcomes: RwSignal<Vec<Outcome>>,
    /// The job in progress; none while nothing runs.
    pub job: RwSignal<Option<u32>>,
    /// Set from the click on Stop until the run has ended.
    pub stopping: RwSignal<bool>,
    /// Read again after each change.
    pub live: RwSignal<bool>,
    /// The draft that was run last.
    pub last: StoredValue<Option<SavedDraft>>,
    /// What a screen reader is told.
    pub said: RwSignal<String>,
    /// The tab was hidden while the newest answers were made: their times may be too long.
    pub hidden: RwSignal<bool>,
    /// The button that began what runs; empty where none had the focus.
    from: StoredValue<String>,
}

/// Buttons that begin something, and those that take their place until it ends.
const BEGIN: [&str; 4] = ["run", "read", "start-bench", "start-evaluation"];
const STOP: [&str; 4] = ["stop", "stop-here", "stop-bench", "stop-evaluation"];

impl Runs {
    /// Something begins. The button that was pressed gives way to one that stops, and the focus goes with it.
    pub fn begin(&self) {
        let from = focused().filter(|id| BEGIN.contains(&id.as_str())).unwrap_or_default();
        self.stopping.set(false);
        self.job.set(Some(0));
        if !from.is_empty() {
            focus_one_of(STOP.map(String::from).to_vec());
        }
        self.from.set_value(from);
    }

    /// What stands on a button that stops: the second click does not wait.
    pub fn stop_words(&self) -> &'static str {
        if self.stopping.get() { "Stop at once" } else { "Stop" }
    }

    /// It has ended; the focus goes back to where it came from.
    pub fn end(&self) {
        let on_stop = focused().is_some_and(|id| STOP.contains(&id.as_str()));
        self.job.set(None);
        self.stopping.set(false);
        if on_stop {
            focus_one_of(vec![self.from.get_value()]);
        }
    }
}

fn document() -> Option<web_sys::Document> {
    web_sys::window()?.document()
}

/// The id of what has the focus.
fn focused() -> Option<String> {
    Some(document()?.active_element()?.id())
}

/// Puts the focus on the first of these that is there once the page has been drawn, without scrolling to it.
fn focus_one_of(ids: Vec<String>) {
    request_animation_frame(move || {
        let found = ids.iter().filter(|id| !id.is_empty()).find_map(|id| document()?.get_element_by_id(id));
        if let Some(button) = found {
            let options = js_sys::Object::new();
            let _ = js_sys::Reflect::set(&options, &"preventScroll".into(), &true.into());
            super::bench::method(&button, "focus", &js_sys::Array::of1(&options));
        }
    });
}

/// Escape stops whatever runs, wherever the focus is.
pub fn stop_on_escape(shared: Shared) {
    window_event_listener(leptos::ev::keydown, move |event| {
        // Held down it would say twice what ends the worker.
        if event.key() == "Escape" && !event.repeat() && !event.default_prevented() && shared.runs.job.with_untracked(Option::is_some) {
            stop(shared);
        }
    });
}

impl Default for Runs {
    fn default() -> Self {
        Self {
            outcomes: RwSignal::default(),
            job: RwSignal::default(),
            stopping: RwSignal::default(),
            live: RwSignal::default(),
            last: StoredValue::new(None),
            said: RwSignal::default(),
            hidden: RwSignal::default(),
            from: StoredValue::default(),
        }
    }
}

/// The outcome of one question. Copies are the same state.
#[derive(Clone, Copy)]
pub struct Outcome {
    /// The question's key in the draft.
    pub key: u32,
    /// The row that was run, to tell whether the draft has changed since.
    pub row: StoredValue<String>,
    /// Option ids in option order.
    pub names: StoredValue<Vec<String>>,
    pub direct: RwSignal<Lane<Decision>>,
    pub written: RwSignal<Lane<Generation>>,
    pub stream: RwSignal<Stream>,
    /// Order sensitivity, when it was asked for.
    pub order: RwSignal<Lane<super::order::Order>>,
}

impl Outcome {
    /// Gives the signals back; nothing shows this outcome any more.
    fn dispose(self) {
        self.row.dispose();
        self.names.dispose();
        self.direct.dispose();
        self.written.dispose();
        self.stream.dispose();
        self.order.dispose();
    }
}

/// What has been written so far.
#[derive(Clone, Default, PartialEq)]
pub struct Stream {
    pub text: String,
    pub tokens: u32,
    pub seconds: f64,
    /// When each token came, in seconds.
    pub times: Vec<f64>,
}

/// One way of answering.
#[derive(Clone, PartialEq)]
pub enum Lane<T> {
    /// Not asked for.
    Off,
    Waiting,
    /// Started at this time, in milliseconds of the page's clock.
    Running(f64),
    Done(T),
    Failed(Fault),
}

impl<T> Lane<T> {
    pub fn done(&self) -> Option<&T> {
        match self {
            Lane::Done(value) => Some(value),
            _ => None,
        }
    }
}

/// Milliseconds of the page's clock.
pub fn now() -> f64 {
    web_sys::window().and_then(|window| window.performance()).map_or_else(js_sys::Date::now, |clock| clock.now())
}

/// Is the tab hidden now?
pub fn is_hidden() -> bool {
    web_sys::window().and_then(|window| window.document()).is_some_and(|document| document.hidden())
}

/// Notes when the tab is hidden during a run: browsers slow hidden tabs down, so the times of that run are no measure.
pub fn watch_visibility(shared: Shared) {
    let Some(document) = web_sys::window().and_then(|window| window.document()) else { return };
    let changed = Closure::<dyn Fn()>::new(move || {
        if is_hidden() && shared.runs.job.with_untracked(Option::is_some) {
            shared.runs.hidden.set(true);
        }
    });
    let _ = document.add_event_listener_with_callback("visibilitychange", changed.as_ref().unchecked_ref());
    changed.forget();
}

/// Which ways are run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ways {
    Read,
    Both,
}

/// Runs the whole draft. Does nothing while a run is going on, without a model, or with a question that is not complete.
pub fn start(shared: Shared, ways: Ways) {
    let runs = shared.runs;
    if runs.job.get_untracked().is_some() || shared.model.with_untracked(Option::is_none) {
        return;
    }
    let questions = shared.draft.questions.get_untracked();
    let mut outcomes = Vec::new();
    for question in &questions {
        let Ok(row) = untrack(|| shared.draft.row(question, ROW_ID)) else { return };
        let names = untrack(|| question.option_names());
        let written = if ways == Ways::Both { Lane::Waiting } else { Lane::Off };
        outcomes.push(lasting(|| Outcome {
            key: question.key,
            row: StoredValue::new(row),
            names: StoredValue::new(names),
            direct: RwSignal::new(Lane::Waiting),
            written: RwSignal::new(written),
            stream: RwSignal::default(),
            order: RwSignal::new(Lane::Off),
        }));
    }
    runs.last.set_value(Some(untrack(|| shared.draft.get())));
    let before = runs.outcomes.get_untracked();
    runs.outcomes.set(outcomes.clone());
    before.into_iter().for_each(Outcome::dispose);
    runs.hidden.set(is_hidden());
    runs.begin();
    spawn_local(async move {
        read(shared, &outcomes).await;
        if ways == Ways::Both {
            for outcome in &outcomes {
                let stream = outcome.stream;
                let on_event = move |event| {
                    if let Event::Written { text, tokens, seconds } = event {
                        stream.update(|stream| {
                            // Begun anew after a fault, it starts again with the first token.
                            stream.times.truncate(tokens.saturating_sub(1) as usize);
                            if tokens > 0 {
                                stream.times.push(seconds);
                            }
                            (stream.text, stream.tokens, stream.seconds) = (text, tokens, seconds);
                        });
                    }
                };
                lane(
                    shared,
                    outcome.written,
                    Command::Generate { row: outcome.row.get_value(), limit: shared.limit },
                    on_event,
                    |answer| match answer {
                        Answer::Generated(generation) => Some(generation),
                        _ => None,
                    },
                )
                .await;
                outcome.written.with_untracked(|lane| say_written(runs, lane));
            }
        }
        runs.end();
    });
}

/// Runs the draft as [`start`] does and, where the page is one column and the answer below the fold, shows the answer. The focus stays.
pub fn start_and_show(shared: Shared, ways: Ways) {
    start(shared, ways);
    let matches = |query: &str| web_sys::window().and_then(|window| window.match_media(query).ok().flatten()).is_some_and(|m| m.matches());
    if shared.runs.job.with_untracked(Option::is_none) || !matches("(max-width: 56rem)") {
        return;
    }
    let still = matches("(prefers-reduced-motion: reduce)");
    // Once the buttons above have changed, which moves what is below them.
    request_animation_frame(move || {
        let options = web_sys::ScrollIntoViewOptions::new();
        options.set_behavior(if still { web_sys::ScrollBehavior::Instant } else { web_sys::ScrollBehavior::Smooth });
        if let Some(answer) = document().and_then(|page| page.get_element_by_id("answer")) {
            answer.scroll_into_view_with_scroll_into_view_options(&options);
        }
    });
}

/// Reads all questions in one request: they share the state.
async fn read(shared: Shared, outcomes: &[Outcome]) {
    let runs = shared.runs;
    outcomes.iter().for_each(|outcome| outcome.direct.set(Lane::Running(now())));
    let rows = outcomes.iter().map(|outcome| outcome.row.get_value()).collect();
    // While typing, the next question is almost the same one.
    let keep = runs.live.get_untracked();
    let call = shared.call(Command::Decide { rows, orderings: None, mass: true, keep });
    runs.job.set(Some(call.job));
    let on_event = |event| {
        if let Event::Decided { index, decision } = event
            && let Some(outcome) = outcomes.get(index as usize)
        {
            outcome.direct.set(Lane::Done(*decision));
            outcome.direct.with_untracked(|lane| say_read(runs, outcome, lane));
        }
    };
    let Err(fault) = call.finish(on_event).await else { return };
    let open = || outcomes.iter().filter(|outcome| outcome.direct.with_untracked(|lane| matches!(lane, Lane::Running(_))));
    // One question that cannot be asked must not keep the others from being answered. And when the GPU or the worker is gone, the questions
    // are not.
    let alone = fault.kind == FaultKind::Input && outcomes.len() > 1;
    if alone || recover::possible(&fault) && recover::again(shared, &fault).await.is_ok() {
        for outcome in open() {
            let command = Command::Decide { rows: vec![outcome.row.get_value()], orderings: None, mass: true, keep };
            let take = |answer| if let Answer::Decided(mut decisions) = answer { decisions.pop() } else { None };
            lane(shared, outcome.direct, command, |_| {}, take).await;
            outcome.direct.with_untracked(|lane| say_read(runs, outcome, lane));
        }
        return;
    }
    stop_after(shared, &fault);
    open().for_each(|outcome| outcome.direct.set(Lane::Failed(fault.clone())));
}

/// After a fault of the engine the rest would only fail the same way.
fn stop_after(shared: Shared, fault: &Fault) {
    if !matches!(fault.kind, FaultKind::Input | FaultKind::Cancelled) {
        shared.runs.stopping.set(true);
        shared.fault.set(Some(fault.clone()));
    }
}

async fn lane<T: Send + Sync + Clone + PartialEq + 'static>(
    shared: Shared,
    lane: RwSignal<Lane<T>>,
    command: Command,
    mut on_event: impl FnMut(Event),
    take: impl FnOnce(Answer) -> Option<T>,
) {
    let runs = shared.runs;
    if runs.stopping.get_untracked() {
        lane.set(Lane::Failed(Fault::new(FaultKind::Cancelled, "Stopped.")));
        return;
    }
    lane.set(Lane::Running(now()));
    let call = shared.call(command.clone());
    runs.job.set(Some(call.job));
    let mut result = call.finish(&mut on_event).await;
    // The GPU or the worker is gone, the question is not: once more with the model loaded again.
    if let Err(fault) = &result
        && recover::possible(fault)
        && recover::again(shared, fault).await.is_ok()
    {
        on_event(Event::Written { text: String::new(), tokens: 0, seconds: 0.0 });
        lane.set(Lane::Running(now()));
        let call = shared.call(command);
        runs.job.set(Some(call.job));
        result = call.finish(on_event).await;
    }
    lane.set(match result.map(take) {
        Ok(Some(value)) => Lane::Done(value),
        Ok(None) => Lane::Failed(Fault::new(FaultKind::Crash, "The engine gave an answer of another kind.")),
        Err(fault) => {
            stop_after(shared, &fault);
            Lane::Failed(fault)
        }
    });
}

fn say_read(runs: Runs, outcome: &Outcome, lane: &Lane<Decision>) {
    let Some(decision) = lane.done() else { return };
    let top = top(&decision.probabilities);
    let name = outcome.names.with_value(|names| names.get(top).cloned()).unwrap_or_default();
    let share = decision.probabilities.get(top).copied().unwrap_or_default();
    runs.said.set(format!("Read in {}: {name}, {}.", super::format::seconds(decision.total_seconds), super::format::share(share)));
}

fn say_written(runs: Runs, lane: &Lane<Generation>) {
    let Some(generation) = lane.done() else { return };
    let valid = if generation.probabilities.is_some() { "valid JSON" } else { "not the JSON that was asked for" };
    runs.said.set(format!(
        "Written in {}: {} tokens, {valid}.",
        super::format::seconds(generation.total_seconds),
        generation.output_tokens
    ));
}

/// The first largest.
pub fn top(values: &[f64]) -> usize {
    let mut best = 0;
    for (i, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = i;
        }
    }
    best
}

/// The first click asks the running step to end; the second ends the worker and loads the model again. While a model is fetched or loaded for
/// the run, that is stopped.
pub fn stop(shared: Shared) {
    let runs = shared.runs;
    if shared.loading.with_untracked(Option::is_some) {
        runs.stopping.set(true);
        return loading::cancel(shared);
    }
    let Some(job) = runs.job.get_untracked() else { return };
    if runs.stopping.get_untracked() {
        shared.model.set(None);
        shared.client.with_value(|client| client.kill());
        if let Some(source) = shared.source.get_value() {
            // The run's own end comes later, so this does not wait for it as a click on a model does.
            spawn_local(async move {
                let chosen = super::models::Chosen::Source(source);
                if let Err(fault) = super::models::bring_now(shared, chosen).await {
                    shared.fault.set(Some(fault));
                }
            });
        }
        return;
    }
    runs.stopping.set(true);
    shared.client.with_value(|client| client.cancel(job));
}
