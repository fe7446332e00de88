//! The self-test: every kernel and a few tiny models on this visitor's adapter against known results, with a report to copy.

use leptos::prelude::*;
use wasm_bindgen_futures::spawn_local;

use super::Shared;
use crate::bench::references::MODEL;
use crate::web::protocol::{Answer, Command, Device, Event, Fault, KernelCheck};

/// How far a self-test is.
#[derive(Clone, PartialEq)]
enum State {
    Idle,
    /// The job; kernels that are done, of how many.
    Running(u32, u32, u32),
    Done(Vec<KernelCheck>),
    Failed(Fault),
}

fn run(shared: Shared, state: RwSignal<State>) {
    if matches!(state.get_untracked(), State::Running(..)) {
        return;
    }
    let call = shared.call(Command::SelfTest);
    let job = call.job;
    state.set(State::Running(job, 0, 0));
    spawn_local(async move {
        let on_event = |event| {
            if let Event::Checked { done, total } = event {
                state.set(State::Running(job, done, total));
            }
        };
        state.set(match call.finish(on_event).await {
            Ok(Answer::SelfTest(checks)) => State::Done(checks),
            Ok(_) => State::Idle,
            Err(fault) => State::Failed(fault),
        });
    });
}

fn verdict(checks: &[KernelCheck]) -> String {
    let (models, kernels): (Vec<_>, Vec<_>) = checks.iter().partition(|check| check.kernel.starts_with(MODEL));
    let wrong = |of: &[&KernelCheck]| of.iter().filter(|check| !check.passed).count();
    let worst = checks.iter().map(|check| check.error).fold(0.0, f64::max);
    let advice = "Do not trust its answers; another browser or driver may help.";
    match (wrong(&kernels), wrong(&models)) {
        (0, 0) => format!(
            "All {} kernels compute what they should, and so do {} whole models. The errors are at most {worst:.2}, where more than 1 would be wrong.",
            kernels.len(),
            models.len()
        ),
        (0, wrong) => {
            format!("All {} kernels compute what they should, but {wrong} of {} whole models do not. {advice}", kernels.len(), models.len())
        }
        (wrong, _) => format!("{wrong} of {} kernels compute something else on this adapter. {advice}", kernels.len()),
    }
}

/// Plain text for a bug report.
fn report(device: Option<Device>, checks: &[KernelCheck]) -> String {
    let mut text = format!("semif {} self-test\n", env!("CARGO_PKG_VERSION"));
    if let Some(device) = device {
        text += &format!("adapter: {} {}\n", device.name, device.detail);
        text += &format!(
            "buffer {} B, binding {} B, {} invocations, f16 {}\n",
            device.max_buffer, device.max_binding, device.max_invocations, device.f16
        );
    }
    if let Some(agent) = web_sys::window().and_then(|window| window.navigator().user_agent().ok()) {
        text += &format!("browser: {agent}\n");
    }
    for check in checks {
        text += &format!("{} {} {:.4}\n", if check.passed { "ok   " } else { "WRONG" }, check.kernel, check.error);
    }
    text + &verdict(checks)
}

/// A button with its verdict; starts by itself where the address says `?selftest`.
#[component]
pub fn SelfTest(shared: Shared) -> impl IntoView {
    let state = RwSignal::new(State::Idle);
    let search = web_sys::window().and_then(|window| window.location().search().ok()).unwrap_or_default();
    if web_sys::UrlSearchParams::new_with_str(&search).is_ok_and(|parameters| parameters.has("selftest")) {
        run(shared, state);
    }
    let running = move || matches!(state.get(), State::Running(..));
    let press = move |_| match state.get_untracked() {
        State::Running(job, ..) => shared.client.with_value(|client| client.cancel(job)),
        _ => run(shared, state),
    };
    // Apart from the verdict: hundreds of steps are nothing to be read out.
    let progress = move || match state.get() {
        State::Running(_, done, total) if total > 0 => format!("{done} of {total} checks"),
        _ => String::new(),
    };
    let words = Memo::new(move |_| match state.get() {
        State::Idle => String::new(),
        State::Running(..) => "Checking…".to_string(),
        State::Done(checks) => verdict(&checks),
        State::Failed(fault) => fault.message,
    });
    let text = move || match state.get() {
        State::Done(checks) => Some(report(shared.device.get().and_then(Result::ok), &checks)),
        _ => None,
    };
    view! {
        <div class="selftest">
            <div class="row">
                <button type="button" class="button small" id="selftest" on:click=press>{move || if running() { "Stop" } else { "Check this GPU" }}</button>
                <span class="soft" id="selftest-verdict" role="status">{move || words.get()}</span>
                <span class="soft" id="selftest-progress">{progress}</span>
            </div>
            {move || text().map(|text| view! {
                <details>
                    <summary class="soft">"Report"</summary>
                    <pre class="json" tabindex="0">{text.clone()}</pre>
                    <super::exchange::CopyButton text=Signal::stored(text) title="Copy the report"/>
                </details>
            })}
        </div>
    }
}
