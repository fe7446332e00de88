//! `?bench`: the benches of `semif bench` on the model that is loaded, here in the tab, with a table and JSON to copy.

use js_sys::{Array, Function, Object, Reflect};
use leptos::prelude::*;
use serde_json::json;
use wasm_bindgen::{JsCast, JsValue, prelude::Closure};
use wasm_bindgen_futures::spawn_local;

use super::notice::FaultNotice;
use super::{Shared, format, lasting, loading};
use crate::bench::suite::{Measured, Part, Sizes};
use crate::web::protocol::{Command, Event, Fault, FaultKind, LoadChoice, Model};

/// The browser reports tasks from this length on, seconds.
const LONG_TASK: f64 = 0.05;

/// What has been measured and what goes on. Copies are the same state.
#[derive(Clone, Copy)]
struct Bench {
    /// The sizes of `semif bench`, or a little of everything.
    full: RwSignal<bool>,
    /// Load the model anew first, on a GPU that has compiled nothing yet.
    reload: RwSignal<bool>,
    /// What is being measured, and how much of all is done; none while nothing is.
    doing: RwSignal<Option<(String, f64)>>,
    measured: RwSignal<Vec<Measured>>,
    /// What the measurements are of: the model, the sizes.
    of: RwSignal<Option<(Model, Sizes)>>,
    /// Seconds of the longest task of the page; none where the browser does not tell, 0 where all were short.
    longest_task: RwSignal<Option<f64>>,
    /// All was measured.
    complete: RwSignal<bool>,
    fault: RwSignal<Option<Fault>>,
}

/// What the address asks for: nothing, the bench, or its quick form (`?bench=quick`).
fn asked() -> Option<bool> {
    let search = web_sys::window()?.location().search().ok()?;
    let parameters = web_sys::UrlSearchParams::new_with_str(&search).ok()?;
    parameters.get("bench").map(|value| value != "quick")
}

/// Watches for long tasks of the page until it is dropped.
struct Watch {
    observer: JsValue,
    _heard: Closure<dyn FnMut(JsValue)>,
}

impl Watch {
    /// None where the browser does not report long tasks.
    fn start(longest: RwSignal<Option<f64>>) -> Option<Self> {
        let class: Function = Reflect::get(&js_sys::global(), &"PerformanceObserver".into()).ok()?.dyn_into().ok()?;
        let types = Reflect::get(&class, &"supportedEntryTypes".into()).ok().filter(JsValue::is_object)?;
        if !Array::from(&types).includes(&"longtask".into(), 0) {
            return None;
        }
        let heard = Closure::<dyn FnMut(JsValue)>::new(move |entries: JsValue| {
            let all = method(&entries, "getEntries", &Array::new()).map(|all| Array::from(&all)).unwrap_or_default();
            let seconds = |entry: JsValue| Some(Reflect::get(&entry, &"duration".into()).ok()?.as_f64()? / 1e3);
            let most = all.iter().filter_map(seconds).fold(0.0, f64::max);
            longest.update(|longest| *longest = longest.map(|before: f64| before.max(most)));
        });
        let observer = Reflect::construct(&class, &Array::of1(heard.as_ref())).ok()?;
        let options = Object::new();
        Reflect::set(&options, &"entryTypes".into(), &Array::of1(&"longtask".into())).ok()?;
        method(&observer, "observe", &Array::of1(&options))?;
        longest.set(Some(0.0));
        Some(Self { observer, _heard: heard })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        method(&self.observer, "disconnect", &Array::new());
    }
}

/// Calls a method of a JavaScript object; none where it has no such method or throws.
pub fn method(object: &JsValue, name: &str, arguments: &Array) -> Option<JsValue> {
    let method: Function = Reflect::get(object, &name.into()).ok()?.dyn_into().ok()?;
    Reflect::apply(&method, object, arguments).ok()
}

fn start(shared: Shared, bench: Bench) {
    let runs = shared.runs;
    if runs.job.with_untracked(Option::is_some) || shared.loading.with_untracked(Option::is_some) {
        return;
    }
    bench.fault.set(None);
    bench.measured.set(Vec::new());
    bench.complete.set(false);
    bench.longest_task.set(None);
    bench.doing.set(Some(("starting".into(), 0.0)));
    runs.hidden.set(super::run::is_hidden());
    runs.begin();
    spawn_local(async move {
        let watch = Watch::start(bench.longest_task);
        let result = measure(shared, bench).await;
        // What was observed last is told in a task of its own.
        a_moment().await;
        drop(watch);
        runs.end();
        bench.doing.set(None);
        match result {
            Ok(()) => bench.complete.set(true),
            Err(fault) if fault.kind == FaultKind::Cancelled => {
                if shared.model.with_untracked(Option::is_none) && shared.loading.with_untracked(Option::is_none) {
                    shared.remark.set(Some("Stopped while the model was loaded anew: choose it again.".into()));
                }
            }
            Err(fault) => bench.fault.set(Some(fault)),
        }
    });
}

/// Lets the browser's own tasks have their turn.
async fn a_moment() {
    let (sender, receiver) = futures_channel::oneshot::channel();
    set_timeout(
        move || {
            let _ = sender.send(());
        },
        std::time::Duration::ZERO,
    );
    let _ = receiver.await;
}

async fn measure(shared: Shared, bench: Bench) -> Result<(), Fault> {
    if bench.reload.get_untracked()
        && let Some(source) = shared.source.get_value()
    {
        bench.doing.set(Some(("loading the model".into(), 0.0)));
        let name = shared.model.with_untracked(|model| model.as_ref().map_or(String::new(), |model| model.name.clone()));
        shared.loading.set(Some(loading::Loading::new(&name, None)));
        let loaded = super::models::upload(shared, source, LoadChoice { fresh: true, ..LoadChoice::default() }).await;
        shared.loading.set(None);
        loaded?;
        // The click may have come during the first run, which does not listen.
        if shared.runs.stopping.get_untracked() {
            return Err(Fault::new(FaultKind::Cancelled, "Stopped."));
        }
    }
    let model = shared.model.get_untracked().ok_or_else(|| Fault::new(FaultKind::NoModel, "No model is loaded."))?;
    let sizes = if bench.full.get_untracked() { Sizes::full() } else { Sizes::quick() };
    bench.of.set(Some((model, sizes.clone())));
    let call = shared.call(Command::Bench { sizes });
    shared.runs.job.set(Some(call.job));
    let on_event = |event| match event {
        Event::Measuring { index, total, what } => bench.doing.set(Some((what, f64::from(index) / f64::from(total.max(1))))),
        Event::Measured(measured) => bench.measured.update(|all| all.push(*measured)),
        _ => {}
    };
    call.finish(on_event).await.map(|_| ())
}

/// Everything as JSON, with what a reader needs to place it.
fn report(shared: Shared, bench: Bench) -> String {
    let device = shared.device.get_untracked().and_then(Result::ok);
    let agent = web_sys::window().and_then(|window| window.navigator().user_agent().ok());
    let of = bench.of.get_untracked();
    let longest = bench.measured.with_untracked(|all| longest_submit(all));
    let report = json!({
        "bench": "page",
        "semif": env!("CARGO_PKG_VERSION"),
        "model": of.as_ref().map(|(model, _)| json!({
            "name": model.name, "architecture": model.architecture, "bytes": model.bytes, "gpu_bytes": model.gpu_bytes, "max_tokens": model.max_tokens,
        })),
        "precision": of.as_ref().map(|(model, _)| &model.precision),
        "adapter": device.as_ref().map(|device| format!("{} {}", device.name, device.detail).trim().to_string()),
        "software": device.as_ref().map(|device| device.software),
        "browser": agent,
        "sizes": of.as_ref().map(|(_, sizes)| sizes),
        "complete": bench.complete.get_untracked(),
        "tab_was_hidden": shared.runs.hidden.get_untracked(),
        "longest_submit_seconds": longest,
        "longest_task_seconds": bench.longest_task.get_untracked(),
        "results": bench.measured.get_untracked(),
    });
    serde_json::to_string_pretty(&report).unwrap_or_default() + "\n"
}

fn longest_submit(all: &[Measured]) -> f64 {
    all.iter().map(|measured| measured.longest_submit).fold(0.0, f64::max)
}

/// A line of the table: what, time, rate, longest submit.
fn lines(measured: &Measured) -> Vec<[String; 4]> {
    let submit = if measured.longest_submit > 0.0 { format::seconds(measured.longest_submit) } else { "–".into() };
    let rate = |rate: f64, of: &str| {
        let number = if rate >= 100.0 { format::thousands(rate.round() as u32) } else { format!("{rate:.1}") };
        format!("{number} {of}/s")
    };
    match &measured.part {
        Part::Load(times) => {
            let read =
                if times.stream.read > 0.0 { format!(", of it {} reading", format::seconds(times.stream.read)) } else { String::new() };
            let weights = format!("{}{read}", format::seconds(times.weights));
            vec![
                ["Loading".into(), format::seconds(times.all), String::new(), submit],
                ["Loading: header".into(), format::seconds(times.header), String::new(), String::new()],
                ["Loading: weights".into(), weights, String::new(), String::new()],
                ["Loading: tokenizer".into(), format::seconds(times.tokenizer), String::new(), String::new()],
                ["Loading: first run".into(), format::seconds(times.warm_up), String::new(), String::new()],
            ]
        }
        Part::Prompt(prompt) => vec![[
            format!("Prompt of {}", format::plural(prompt.tokens as u32, "token")),
            format::seconds(prompt.seconds),
            rate(prompt.tokens_per_second, "tokens"),
            submit,
        ]],
        Part::Generate(written) => vec![[
            format!("Writing {} after {}", format::plural(written.tokens as u32, "token"), format::thousands(written.prompt as u32)),
            format!("{} to the first", format::seconds(written.first_token_seconds)),
            rate(written.tokens_per_second, "tokens"),
            submit,
        ]],
        Part::Shared(report) => {
            let what = |path: &str| match path {
                "fresh" => "each afresh",
                "serial" => "one after the other",
                _ => "together",
            };
            let about = format!(
                "{:.0} questions on {:.0} tokens",
                report.paths.first().map_or(0.0, |path| path.decisions as f64),
                report.state_tokens
            );
            let line = |path: &crate::bench::shared::PathReport| {
                let bits = if path.same_bits { "" } else { ", OTHER BITS" };
                [
                    format!("{about}, {}{bits}", what(&path.path)),
                    format::seconds(path.seconds),
                    rate(path.decisions_per_second, "decisions"),
                    if path.path == "shared" { submit.clone() } else { String::new() },
                ]
            };
            report.paths.iter().map(line).collect()
        }
    }
}

/// The bench, where the address asks for it.
#[component]
pub fn BenchStep(shared: Shared) -> impl IntoView {
    asked().map(|full| {
        let bench = lasting(|| Bench {
            full: RwSignal::new(full),
            reload: RwSignal::new(true),
            doing: RwSignal::new(None),
            measured: RwSignal::default(),
            of: RwSignal::new(None),
            longest_task: RwSignal::new(None),
            complete: RwSignal::new(false),
            fault: RwSignal::new(None),
        });
        // The full sizes would take a software adapter an hour.
        Effect::new(move |_| {
            if shared.device.with(|device| matches!(device, Some(Ok(device)) if device.software)) {
                bench.full.set(false);
            }
        });
        view! { <BenchPanel shared=shared bench=bench/> }
    })
}

#[component]
fn BenchPanel(shared: Shared, bench: Bench) -> impl IntoView {
    let runs = shared.runs;
    let going = move || bench.doing.with(Option::is_some);
    let why_not = move || {
        if shared.model.with(Option::is_none) {
            Some("Choose a model first.")
        } else if runs.job.with(Option::is_some) || shared.loading.with(Option::is_some) {
            Some("Something else is running.")
        } else {
            None
        }
    };
    let words = move || match bench.doing.get() {
        Some((what, _)) if runs.stopping.get() => format!("Stopping after {what}…"),
        Some((what, _)) => format!("Measuring: {what}…"),
        None if bench.complete.get() => "Everything is measured.".into(),
        None if bench.measured.with(|all| !all.is_empty()) => "Stopped. What was measured until then stands below.".into(),
        None => why_not().unwrap_or_default().to_string(),
    };
    let share = move || bench.doing.with(|doing| doing.as_ref().map_or(0.0, |(_, share)| *share));
    let some = Memo::new(move |_| bench.measured.with(|all| !all.is_empty()));
    let drawn = move || {
        let longest = bench.measured.with(|all| longest_submit(all));
        let submit = if longest > 0.0 {
            format!("The longest submit took {}", format::seconds(longest))
        } else {
            "Every submit was too short to time".into()
        };
        let task = match bench.longest_task.get() {
            Some(task) if task > 0.0 => format!("the longest task of the page {}.", format::seconds(task)),
            Some(_) => format!("no task of the page as much as {}.", format::seconds(LONG_TASK)),
            None => "this browser does not tell of long tasks of the page.".into(),
        };
        format!("{submit}, {task}")
    };
    let text = move || {
        bench.measured.track();
        bench.complete.track();
        bench.longest_task.track();
        untrack(|| report(shared, bench))
    };
    let save = move |_| super::exchange::save_file("bench.json", "application/json", &untrack(text));
    let choice = move |label: &'static str, full: bool, id: &'static str| {
        view! {
            <input type="radio" class="visually-hidden" name="bench-size" id=id prop:checked=move || bench.full.get() == full disabled=going on:change=move |_| bench.full.set(full)/>
            <label for=id>{label}</label>
        }
    };
    view! {
        <section class="step" id="bench" aria-labelledby="bench-title">
            <h2 id="bench-title">"Bench"</h2>
            <div class="panel">
                <p class="soft lead">"The loaded model on this device: how fast it loads, reads prompts, writes, and answers many questions on one state. The same work as "<code>"semif bench"</code>" does outside a browser, from fixed seeds. Close what else uses the GPU; times of a busy one are upper bounds."</p>
                <div class="row">
                    <div class="segmented" role="radiogroup" aria-label="How much is measured">
                        {choice("Quick", false, "bench-quick")}
                        {choice("Full", true, "bench-full")}
                    </div>
                    <label class="check"><input type="checkbox" id="bench-reload" prop:checked=move || bench.reload.get() disabled=going on:change=move |event| bench.reload.set(event_target_checked(&event))/>"Load the model anew first"</label>
                </div>
                <div class="run-bar evaluate-bar">
                    <Show when=going fallback=move || view! {
                        <button type="button" class="button strong big" id="start-bench" disabled=move || why_not().is_some() on:click=move |_| start(shared, bench)>"Measure"</button>
                    }>
                        <button type="button" class="button strong big" id="stop-bench" on:click=move |_| super::run::stop(shared)>
                            {move || if runs.stopping.get() { "Stop at once" } else { "Stop" }}
                        </button>
                    </Show>
                    <div class="progress">
                        <p class="soft" id="bench-progress" role="status">{words}</p>
                        <span class="track" aria-hidden="true"><span class="fill" style:transform=move || format!("scaleX({:.4})", share())></span></span>
                    </div>
                </div>
                {move || bench.fault.get().map(|fault| view! {
                    <FaultNotice fault=fault>
                        <button type="button" class="button quiet" on:click=move |_| bench.fault.set(None)>"Close this message"</button>
                    </FaultNotice>
                })}
                <Show when=move || some.get()>
                    <div class="found">
                        <table class="scores" id="bench-table">
                            <thead><tr>
                                <th scope="col">"What"</th>
                                <th scope="col">"Time, median"</th>
                                <th scope="col">"Rate"</th>
                                <th scope="col">"Longest submit"</th>
                            </tr></thead>
                            <tbody>
                                {move || bench.measured.get().iter().flat_map(lines).map(|[what, time, rate, submit]| view! {
                                    <tr>
                                        <th scope="row">{what}</th>
                                        <td data-label="Time, median">{time}</td>
                                        <td data-label="Rate">{rate}</td>
                                        <td data-label="Longest submit">{submit}</td>
                                    </tr>
                                }).collect_view()}
                            </tbody>
                        </table>
                        <p class="soft" id="bench-drawn">{drawn}</p>
                        <div class="row">
                            <super::exchange::CopyButton text=Signal::derive(text) title="Copy as JSON"/>
                            <button type="button" class="button quiet small" id="save-bench" on:click=save>"Download as JSON"</button>
                        </div>
                        <details>
                            <summary class="soft">"JSON"</summary>
                            <pre class="json" id="bench-json" tabindex="0">{text}</pre>
                        </details>
                    </div>
                </Show>
            </div>
        </section>
    }
}
