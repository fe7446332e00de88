//! `window.semif`: the worker's commands as functions that give promises, for scripts on the page and for our own tests. docs/hook.md
//! describes it for those who use it.

use std::cell::RefCell;
use std::rc::Rc;

use js_sys::{Function, JSON, Object, Promise, Reflect};
use leptos::prelude::{Set, WithValue};
use serde::Serialize;
use wasm_bindgen::{JsCast, JsValue, prelude::Closure};
use wasm_bindgen_futures::future_to_promise;
use web_sys::{AbortSignal, UrlSearchParams};

use super::Shared;
use crate::web::protocol::{Answer, Class, Command, Decision, Event, Fault, LoadChoice, ModelSource, Phase};

type Made = Result<Command, JsValue>;

/// Installs the functions.
pub fn install(shared: Shared) {
    let Some(window) = web_sys::window() else { return };
    let hook = Object::new();
    let add = |name: &str, make: fn(JsValue, JsValue, &Options) -> Made, options_at: usize| {
        function(&hook, name, make, options_at, shared);
    };
    add("device", |_, _, _| Ok(Command::Probe), 0);
    add("load", load, 1);
    add(
        "decide",
        |row, _, o| Ok(Command::Decide { rows: vec![json(&row)?], orderings: o.orderings.clone(), mass: false, keep: o.keep }),
        1,
    );
    add(
        "decideAll",
        |rows, _, o| Ok(Command::Decide { rows: jsons(&rows)?, orderings: o.orderings.clone(), mass: false, keep: o.keep }),
        1,
    );
    add("generate", |row, _, o| Ok(Command::Generate { row: json(&row)?, limit: o.limit }), 1);
    add("complete", |tokens, _, o| Ok(Command::Complete { tokens: plain(tokens)?, limit: o.limit }), 1);
    add("logits", |tokens, labels, _| Ok(Command::Logits { tokens: plain(tokens)?, labels: plain(labels)? }), 2);
    add("read", |groups, labels, _| Ok(Command::Read { groups: plain(groups)?, labels: plain(labels)? }), 2);
    add("open", |state, _, _| Ok(Command::Open { state: stringify(&state)? }), 1);
    add("append", |id, more, _| Ok(Command::Append { id: plain(id)?, more: stringify(&more)? }), 2);
    let ask =
        |id, questions, o: &Options| Ok(Command::Ask { id: plain(id)?, questions: jsons(&questions)?, orderings: o.orderings.clone() });
    add("ask", ask, 2);
    add("fork", |id, _, _| Ok(Command::Fork { id: plain(id)? }), 1);
    add("drop", |id, _, _| Ok(Command::Drop { id: plain(id)? }), 1);
    add("cache", |bytes, _, _| Ok(Command::Cache { bytes: bytes.as_f64() }), 1);
    let _ = Reflect::set(&window, &"semif".into(), &hook);
}

/// `?test&limit=N`: a shorter written answer, since a model with random weights never ends by itself.
pub fn limit() -> Option<u32> {
    let search = web_sys::window()?.location().search().ok()?;
    let parameters = UrlSearchParams::new_with_str(&search).ok().filter(|parameters| parameters.has("test"))?;
    parameters.get("limit")?.parse().ok()
}

fn load(source: JsValue, _: JsValue, options: &Options) -> Made {
    let source = match source.dyn_into::<web_sys::File>() {
        Ok(file) => ModelSource::File { file },
        Err(url) => ModelSource::Url { url: url.as_string().ok_or("load() takes an address or a File")? },
    };
    Ok(Command::Load { source, options: options.load.clone() })
}

/// What the last argument may say.
#[derive(Default)]
struct Options {
    orderings: Option<String>,
    keep: bool,
    limit: u32,
    load: LoadChoice,
    class: Class,
    signal: Option<AbortSignal>,
    on_event: Option<Function>,
}

impl Options {
    fn new(value: &JsValue, shared: Shared) -> Self {
        let get = |key: &str| Reflect::get(value, &key.into()).unwrap_or(JsValue::UNDEFINED);
        let number = |key: &str| get(key).as_f64();
        Self {
            orderings: get("orderings").as_string(),
            keep: get("keep").is_truthy(),
            limit: number("limit").map_or(shared.limit, |limit| limit as u32),
            load: LoadChoice {
                precision: get("precision").as_string(),
                max_tokens: number("maxTokens").map(|n| n as u32),
                chunk: number("chunk").map(|n| n as u32),
                cache_bytes: number("cacheBytes"),
                fresh: get("fresh").is_truthy(),
            },
            class: if get("batch").is_truthy() { Class::Batch } else { Class::Click },
            signal: get("signal").dyn_into().ok(),
            on_event: get("onEvent").dyn_into().ok(),
        }
    }
}

/// What `onEvent` hears.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Told {
    Progress { phase: Phase, done: f64, total: f64 },
    Written { text: String, tokens: u32, seconds: f64 },
    Decided { index: u32, decision: Box<Decision> },
    Stepped { done: u32, total: u32 },
}

impl Told {
    fn new(event: Event) -> Option<Self> {
        Some(match event {
            Event::Progress(p) => Self::Progress { phase: p.phase, done: p.done, total: p.total },
            Event::Written { text, tokens, seconds } => Self::Written { text, tokens, seconds },
            Event::Decided { index, decision } => Self::Decided { index, decision },
            Event::Stepped { done, total } => Self::Stepped { done, total },
            _ => return None,
        })
    }
}

fn function(hook: &Object, name: &str, make: fn(JsValue, JsValue, &Options) -> Made, options_at: usize, shared: Shared) {
    let one = name == "decide";
    let called = Closure::<dyn Fn(JsValue, JsValue, JsValue) -> Promise>::new(move |a: JsValue, b: JsValue, c: JsValue| {
        let options = Options::new([&a, &b, &c][options_at], shared);
        match make(a, b, &options) {
            Ok(command) => future_to_promise(run(shared, command, options, one)),
            Err(error) => Promise::reject(&error),
        }
    });
    let _ = Reflect::set(hook, &name.into(), called.as_ref().unchecked_ref());
    called.forget();
}

/// Sends a command and follows it. `one`: of a list of decisions, the only one.
async fn run(shared: Shared, command: Command, options: Options, one: bool) -> Result<JsValue, JsValue> {
    let call = shared.client.with_value(|client| client.call_as(options.class, command));
    let job = call.job;
    let cancel = move || shared.client.with_value(|client| client.cancel(job));
    let on_abort = Closure::<dyn Fn()>::new(cancel);
    let listener: &Function = on_abort.as_ref().unchecked_ref();
    if let Some(signal) = &options.signal {
        if signal.aborted() {
            cancel();
        }
        signal.add_event_listener_with_callback("abort", listener)?;
    }
    let thrown: Rc<RefCell<Option<JsValue>>> = Rc::default();
    let note = thrown.clone();
    let on_event = options.on_event;
    let answer = call
        .finish(move |event| {
            if let (Some(hear), Some(told)) = (&on_event, Told::new(event))
                && let Ok(told) = serde_wasm_bindgen::to_value(&told)
                && let Err(error) = hear.call1(&JsValue::UNDEFINED, &told)
            {
                note.borrow_mut().get_or_insert(error);
            }
        })
        .await;
    if let Some(signal) = &options.signal {
        signal.remove_event_listener_with_callback("abort", listener)?;
    }
    // A listener that throws has a fault of its own, which must not go unheard.
    if let Some(error) = thrown.take() {
        return Err(error);
    }
    let answer = answer.map_err(failed)?;
    if let Answer::Loaded(model) = &answer {
        shared.model.set(Some(model.clone()));
    }
    match answer {
        Answer::Decided(mut decisions) if one => Ok(serde_wasm_bindgen::to_value(&decisions.pop())?),
        answer => value(answer),
    }
}

fn failed(fault: Fault) -> JsValue {
    let error = js_sys::Error::new(&fault.message);
    error.set_name(&format!("{:?}", fault.kind));
    error.into()
}

fn value(answer: Answer) -> Result<JsValue, JsValue> {
    let value = match answer {
        Answer::Device(device) => serde_wasm_bindgen::to_value(&device),
        Answer::Logits(logits) => serde_wasm_bindgen::to_value(&logits),
        Answer::Decided(decisions) => serde_wasm_bindgen::to_value(&decisions),
        Answer::Completed(completion) => serde_wasm_bindgen::to_value(&completion),
        Answer::Generated(generation) => serde_wasm_bindgen::to_value(&generation),
        Answer::Loaded(model) => serde_wasm_bindgen::to_value(&model),
        Answer::Read(reading) => serde_wasm_bindgen::to_value(&reading),
        Answer::State(state) => serde_wasm_bindgen::to_value(&state),
        Answer::Cache(usage) => serde_wasm_bindgen::to_value(&usage),
        Answer::Dropped => return Ok(JsValue::UNDEFINED),
        other => serde_wasm_bindgen::to_value(&other),
    };
    value.map_err(JsValue::from)
}

fn plain<T: serde::de::DeserializeOwned>(value: JsValue) -> Result<T, JsValue> {
    serde_wasm_bindgen::from_value(value).map_err(JsValue::from)
}

/// Any value as JSON text.
fn stringify(value: &JsValue) -> Result<String, JsValue> {
    JSON::stringify(value)?.as_string().ok_or_else(|| JsValue::from_str("a value that JSON can hold was expected"))
}

/// A row: JSON text as it stands, or an object.
fn json(row: &JsValue) -> Result<String, JsValue> {
    row.as_string().map_or_else(|| stringify(row), Ok)
}

fn jsons(rows: &JsValue) -> Result<Vec<String>, JsValue> {
    if !js_sys::Array::is_array(rows) {
        return Err(JsValue::from_str("a list was expected"));
    }
    js_sys::Array::from(rows).iter().map(|row| json(&row)).collect()
}
