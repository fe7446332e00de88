//! A model on its way to the GPU: one tile for each step, with its progress and its time; pausing and cancelling.

use futures_channel::oneshot;
use leptos::prelude::*;

use super::run::now;
use super::{Shared, format};
use crate::web::protocol::{Answer, Command, Event, Fault, Phase, Progress};

/// The steps in the order of their tiles.
const PHASES: [Phase; 5] = [Phase::Fetch, Phase::Verify, Phase::Upload, Phase::Compile, Phase::WarmUp];

/// How far one step is.
#[derive(Clone, PartialEq)]
enum Step {
    Waits,
    /// Not needed, and why.
    Skipped(&'static str),
    /// Since this time (page clock, milliseconds), so many bytes (or kernels) of so many.
    Now(f64, f64, f64),
    /// Took so many seconds.
    Done(f64),
}

/// A model on its way.
#[derive(Clone, PartialEq)]
pub struct Loading {
    pub name: String,
    /// What the first tile does: `Download`, `Copy`; none where the bytes are here already.
    fetch: Option<&'static str>,
    /// The job to cancel.
    job: u32,
    steps: [Step; 5],
    stopping: bool,
    pub paused: bool,
}

impl Loading {
    pub fn new(name: &str, fetch: Option<&'static str>) -> Self {
        let steps = match fetch {
            Some("Copy") => [Step::Waits, Step::Skipped("while it is copied"), Step::Waits, Step::Waits, Step::Waits],
            Some(_) => [const { Step::Waits }; 5],
            None => [Step::Skipped("kept here"), Step::Skipped("when it was stored"), Step::Waits, Step::Waits, Step::Waits],
        };
        Self { name: name.into(), fetch, job: 0, steps, stopping: false, paused: false }
    }

    /// Begins a step and ends those before it. Kernels are compiled beside the others: they end with their last, or with the first run.
    pub fn enter(&mut self, phase: Phase) {
        if phase == Phase::Compile && matches!(self.steps[phase as usize], Step::Done(_)) {
            // Compiled while the bytes arrived; there is nothing left to do when they are on the GPU.
            return;
        }
        if !matches!(self.steps[phase as usize], Step::Now(..)) {
            self.steps[phase as usize] = Step::Now(now(), 0.0, 0.0);
        }
        if phase != Phase::Compile {
            for before in PHASES.into_iter().filter(|before| *before < phase) {
                self.end(before);
            }
            // The next part of a split model begins again with the first step.
            for after in PHASES.into_iter().filter(|after| *after > phase && *after != Phase::Compile) {
                if !matches!(self.steps[after as usize], Step::Skipped(_)) {
                    self.steps[after as usize] = Step::Waits;
                }
            }
        }
    }

    fn end(&mut self, phase: Phase) {
        let ended = match &self.steps[phase as usize] {
            Step::Now(since, ..) => Step::Done((now() - since) / 1e3),
            Step::Waits if phase == Phase::Compile => Step::Skipped("when they are needed"),
            Step::Waits => Step::Skipped("when it was stored"),
            other => other.clone(),
        };
        self.steps[phase as usize] = ended;
    }

    fn progress(&mut self, progress: Progress) {
        self.enter(progress.phase);
        if let Step::Now(_, done, total) = &mut self.steps[progress.phase as usize] {
            (*done, *total) = (progress.done, progress.total);
            if progress.phase == Phase::Compile && progress.done == progress.total {
                self.end(Phase::Compile);
            }
        }
    }

    /// The step that a person waits for.
    fn current(&self) -> Phase {
        let running = |phase: &&Phase| **phase != Phase::Compile && matches!(self.steps[**phase as usize], Step::Now(..));
        PHASES.iter().rev().find(running).copied().unwrap_or(Phase::Fetch)
    }

    /// Each step with its time, for when all is over.
    pub fn times(&self) -> Vec<(&'static str, String)> {
        PHASES.into_iter().map(|phase| (self.title(phase), self.words(phase))).collect()
    }

    /// The GPU's part of it in a few words.
    pub fn summary(&self) -> String {
        let took = |phase: Phase| match self.steps[phase as usize] {
            Step::Done(seconds) => Some(format::seconds(seconds)),
            _ => None,
        };
        let first = took(Phase::WarmUp).map_or(String::new(), |first| format!(", first run {first}"));
        took(Phase::Upload).map_or(String::new(), |upload| format!("on the GPU in {upload}{first}"))
    }

    /// Ends what is still running; a software adapter left the first run out.
    pub fn close(&mut self, first_run: bool) {
        if !first_run {
            self.steps[Phase::WarmUp as usize] = Step::Skipped("left out on a software adapter");
        }
        PHASES.into_iter().for_each(|phase| self.end(phase));
    }

    /// Seconds since a running step began.
    fn elapsed(&self, phase: Phase) -> Option<f64> {
        match self.steps[phase as usize] {
            Step::Now(since, ..) => Some((now() - since) / 1e3),
            _ => None,
        }
    }

    fn words(&self, phase: Phase) -> String {
        match &self.steps[phase as usize] {
            Step::Waits => "waits".into(),
            Step::Skipped(why) => (*why).into(),
            Step::Done(seconds) => format!("done in {}", format::seconds(*seconds)),
            Step::Now(_, done, total) if self.paused && phase == Phase::Fetch => {
                format!("paused at {} of {}", format::bytes(*done), format::bytes(*total))
            }
            Step::Now(..) if phase == Phase::WarmUp => "running a token…".into(),
            Step::Now(_, done, total) if phase == Phase::Compile && *done > 0.0 => format!("{done:.0} of {total:.0}"),
            Step::Now(_, _, total) if phase == Phase::Compile => format!("{total:.0}, beside the rest"),
            Step::Now(_, done, total) if *total <= 0.0 => {
                if *done > 0.0 {
                    format::bytes(*done)
                } else {
                    "starting…".into()
                }
            }
            Step::Now(since, done, total) => {
                let elapsed = (now() - since) / 1e3;
                let pace = if elapsed > 0.5 && *done > 0.0 { format!(" · {}/s", format::bytes(done / elapsed)) } else { String::new() };
                format!("{} of {}{pace}", format::bytes(*done), format::bytes(*total))
            }
        }
    }

    fn share(&self, phase: Phase) -> f64 {
        match self.steps[phase as usize] {
            Step::Now(_, done, total) if total > 0.0 => (done / total).min(1.0),
            Step::Done(_) => 1.0,
            _ => 0.0,
        }
    }

    fn class(&self, phase: Phase) -> &'static str {
        match self.steps[phase as usize] {
            Step::Waits => "tile",
            Step::Skipped(_) => "tile skipped",
            Step::Now(..) => "tile now",
            Step::Done(_) => "tile done",
        }
    }

    fn title(&self, phase: Phase) -> &'static str {
        match phase {
            Phase::Fetch => self.fetch.unwrap_or("Kept here"),
            Phase::Verify => "Check",
            Phase::Upload => "Onto the GPU",
            Phase::Compile => "Kernels",
            Phase::WarmUp => "First run",
        }
    }
}

/// Changes what is shown, if anything is on its way.
pub fn change(shared: Shared, change: impl FnOnce(&mut Loading)) {
    shared.loading.update(|loading| {
        if let Some(loading) = loading {
            change(loading);
        }
    });
}

/// Follows a call and shows its progress.
pub async fn follow(shared: Shared, command: Command) -> Result<Answer, Fault> {
    let call = shared.call(command);
    let job = call.job;
    change(shared, |loading| loading.job = job);
    let on_event = |event| {
        if let Event::Progress(progress) = event {
            change(shared, |loading| loading.progress(progress));
        }
    };
    call.finish(on_event).await
}

/// Did the visitor cancel?
pub fn stopping(shared: Shared) -> bool {
    shared.loading.with_untracked(|loading| loading.as_ref().is_some_and(|loading| loading.stopping))
}

/// Did the visitor pause the download?
pub fn paused(shared: Shared) -> bool {
    shared.loading.with_untracked(|loading| loading.as_ref().is_some_and(|loading| loading.paused))
}

/// Waits until a paused download should go on; false when it should not.
pub async fn wait(shared: Shared) -> bool {
    let (sender, receiver) = oneshot::channel();
    shared.resume.set_value(Some(sender));
    let on = receiver.await.unwrap_or(false);
    change(shared, |loading| loading.paused = false);
    on
}

fn pause(shared: Shared) {
    let Some(loading) = shared.loading.get_untracked() else { return };
    if loading.paused {
        answer(shared, true);
        return;
    }
    change(shared, |loading| loading.paused = true);
    shared.client.with_value(|client| client.cancel(loading.job));
}

fn answer(shared: Shared, on: bool) {
    let mut sender = None;
    shared.resume.update_value(|resume| sender = resume.take());
    if let Some(sender) = sender {
        let _ = sender.send(on);
    }
}

/// Ends the way of a model onto the GPU; the second time at once.
pub fn cancel(shared: Shared) {
    let Some(loading) = shared.loading.get_untracked() else { return };
    if loading.paused {
        answer(shared, false);
    } else if loading.stopping {
        // The second click does not wait for the step to end.
        shared.client.with_value(|client| client.kill());
    } else {
        change(shared, |loading| loading.stopping = true);
        shared.client.with_value(|client| client.cancel(loading.job));
    }
}

#[component]
pub fn LoadingTiles(shared: Shared) -> impl IntoView {
    let loading = move || shared.loading.get().unwrap_or_else(|| Loading::new("", None));
    // Some steps tell nothing on their way, and a person wants to know that they go on.
    let tick = RwSignal::new(());
    let timer = set_interval_with_handle(move || tick.set(()), std::time::Duration::from_millis(500));
    on_cleanup(move || {
        if let Ok(timer) = timer {
            timer.clear();
        }
    });
    let elapsed = move |phase: Phase| {
        tick.track();
        loading().elapsed(phase).filter(|elapsed| *elapsed >= 1.0).map_or(String::new(), |elapsed| format!("{elapsed:.0} s"))
    };
    let tile = move |phase: Phase| {
        view! {
            <li class=move || loading().class(phase)>
                <span class="tile-title">{move || loading().title(phase)}<span class="tile-time">{move || elapsed(phase)}</span></span>
                <span class="tile-words">{move || loading().words(phase)}</span>
                <span class="track" aria-hidden="true"><span class="fill" style:transform=move || format!("scaleX({:.4})", loading().share(phase))></span></span>
            </li>
        }
    };
    let percent = move || {
        let loading = loading();
        (loading.share(loading.current()) * 100.0).floor()
    };
    let said = move || {
        let loading = loading();
        loading.words(loading.current())
    };
    let may_pause = move || {
        let loading = loading();
        loading.fetch == Some("Download") && loading.current() == Phase::Fetch && !loading.stopping
    };
    view! {
        <div class="loading" id="loading">
            <p class="loaded-name">{move || loading().name}</p>
            <div class="visually-hidden" role="progressbar" aria-label="Loading the model" aria-valuemin="0" aria-valuemax="100" aria-valuenow=percent aria-valuetext=said></div>
            <ol class="tiles">{PHASES.map(tile).into_iter().collect_view()}</ol>
            <div class="row">
                <Show when=may_pause>
                    <button type="button" class="button" id="pause-load" on:click=move |_| pause(shared)>{move || if loading().paused { "Go on" } else { "Pause" }}</button>
                </Show>
                <button type="button" class="button" id="cancel-load" on:click=move |_| cancel(shared)>
                    {move || if loading().stopping { "Stop at once" } else { "Cancel" }}
                </button>
                <Show when=move || loading().stopping><span class="soft">"Ending the current step…"</span></Show>
            </div>
        </div>
    }
}
