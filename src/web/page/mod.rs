//! The page: choose a model, edit a decision, see both ways of answering it.

mod bench;
mod client;
mod draft;
mod editor;
mod evaluate;
mod exchange;
mod format;
mod hook;
mod ladder;
mod loading;
mod locks;
mod models;
mod notice;
mod order;
mod pick;
mod recover;
mod results;
mod run;
mod selftest;
mod trust;
mod verdict;

use std::cell::RefCell;

use leptos::prelude::*;
use wasm_bindgen::JsCast;
use wasm_bindgen_futures::spawn_local;

use crate::decision::baseline::DISTRIBUTION_MAX_TOKENS;

use self::client::Client;
use self::draft::Draft;
use self::loading::Loading;
use super::protocol::{Answer, Command, Device, Event, Fault, FaultKind, Kept, Model, ModelSource};

/// Mounts the page into the element `app`. Called once, by the page's program.
pub fn run() {
    console_error_panic_hook::set_once();
    let element = web_sys::window().and_then(|w| w.document()).and_then(|d| d.get_element_by_id("app"));
    let Some(element) = element.and_then(|e| e.dyn_into::<web_sys::HtmlElement>().ok()) else {
        web_sys::console::error_1(&"the page has no element with the id app".into());
        return;
    };
    element.set_inner_html("");
    leptos::mount::mount_to(element, Page).forget();
}

thread_local!(static OWNER: RefCell<Option<Owner>> = const { RefCell::new(None) });

/// Makes signals that live as long as the page. Made in a click, they would go with the button that was clicked.
pub fn lasting<T>(make: impl FnOnce() -> T) -> T {
    match OWNER.with_borrow(Clone::clone) {
        Some(owner) => owner.with(make),
        None => make(),
    }
}

/// The state that all parts of the page share. Copies are the same state.
#[derive(Clone, Copy)]
pub struct Shared {
    pub client: StoredValue<Client, LocalStorage>,
    /// None while the GPU is being asked.
    pub device: RwSignal<Option<Result<Device, Fault>>>,
    /// Operations a second, once they are measured.
    pub pace: RwSignal<Option<f64>>,
    pub requests: RwSignal<trust::Requests>,
    pub kept: RwSignal<Kept>,
    pub loading: RwSignal<Option<Loading>>,
    /// Tells a paused download to go on.
    pub resume: StoredValue<Option<futures_channel::oneshot::Sender<bool>>, LocalStorage>,
    /// The model's way onto the GPU, once it is over: its steps with their times.
    pub way: RwSignal<Option<Loading>>,
    pub model: RwSignal<Option<Model>>,
    /// Where the model came from, so that it can be put back after the worker was ended.
    pub source: StoredValue<Option<ModelSource>, LocalStorage>,
    /// What went wrong with the model or the GPU, until the next try.
    pub fault: RwSignal<Option<Fault>>,
    /// Something worth saying that is no fault.
    pub remark: RwSignal<Option<String>>,
    pub draft: Draft,
    /// Most tokens of a written answer.
    pub limit: u32,
    pub runs: run::Runs,
    pub evaluation: evaluate::Evaluation,
}

impl Shared {
    /// Sends a command to the worker.
    pub fn call(&self, command: Command) -> client::Call {
        self.client.with_value(|client| client.call(command))
    }

    /// Asks the worker about the GPU.
    pub fn probe(self) {
        self.device.set(None);
        spawn_local(async move {
            match self.call(Command::Probe).answer().await {
                Ok(Answer::Device(device)) => {
                    self.device.set(Some(Ok(device)));
                    // Only an estimate hangs on it.
                    if let Ok(Answer::Pace(pace)) = self.call(Command::Pace).answer().await {
                        self.pace.set(Some(pace));
                    }
                }
                Ok(_) => {}
                Err(fault) => self.device.set(Some(Err(fault))),
            }
        });
    }

    /// Asks the worker what is kept.
    pub fn refresh_kept(self) {
        spawn_local(async move {
            if let Ok(Answer::Kept(kept)) = self.call(Command::List).answer().await {
                self.kept.set(kept);
            }
        });
    }
}

/// Registers the service worker, which keeps the page itself. Without one the page works as long as there is a network.
fn work_offline() {
    let container = web_sys::window().map(|window| window.navigator().service_worker());
    if let Some(container) = container.filter(|container| container.is_object()) {
        let registered = container.register("./sw.js");
        spawn_local(async move {
            let _ = wasm_bindgen_futures::JsFuture::from(registered).await;
        });
    }
}

#[component]
fn Page() -> impl IntoView {
    OWNER.set(Owner::current());
    let presets = draft::presets();
    let draft = Draft::open(exchange::take_from_address(), &presets);
    let (model, fault) = (RwSignal::new(None), RwSignal::new(None));
    let requests = RwSignal::new(trust::Requests::default());
    let client = Client::start(move |news| match news {
        Event::Requested { address } => requests.update(|requests| requests.add(&address)),
        Event::DeviceLost { reason } => {
            model.set(None);
            fault.set(Some(Fault::new(FaultKind::Gpu, format!("The GPU was lost ({reason})."))));
        }
        Event::Failed(crash) => {
            model.set(None);
            fault.set(Some(crash));
        }
        _ => {}
    });
    let shared = Shared {
        client: StoredValue::new_local(client),
        device: RwSignal::new(None),
        pace: RwSignal::new(None),
        requests,
        // Until the worker has looked.
        kept: RwSignal::new(Kept { available: true, ..Kept::default() }),
        loading: RwSignal::new(None),
        resume: StoredValue::new_local(None),
        way: RwSignal::new(None),
        model,
        source: StoredValue::new_local(None),
        fault,
        remark: RwSignal::new(None),
        draft,
        limit: hook::limit().unwrap_or(DISTRIBUTION_MAX_TOKENS as u32),
        runs: run::Runs::default(),
        evaluation: evaluate::Evaluation::new(),
    };
    shared.probe();
    shared.refresh_kept();
    hook::install(shared);
    // At once and not after a rest: a tab that is closed a moment later has lost nothing.
    Effect::new(move |first: Option<()>| {
        draft.get();
        if first.is_some() {
            untrack(|| draft.save());
        }
    });
    window_event_listener(leptos::ev::hashchange, move |_| {
        if let Some(linked) = exchange::take_from_address() {
            draft.replace(&linked);
        }
    });
    run::watch_visibility(shared);
    run::stop_on_escape(shared);
    work_offline();
    view! {
        <models::ModelStep shared=shared/>
        <editor::DecideStep shared=shared presets=presets/>
        <results::AnswerStep shared=shared/>
        <bench::BenchStep shared=shared/>
        <evaluate::EvaluateStep shared=shared/>
        <trust::Trust shared=shared/>
    }
}
