//! `?test`: the worker's commands as functions of `window.semif`, for browser tests. Nothing of this exists otherwise.

use js_sys::{Object, Promise, Reflect};
use wasm_bindgen::{JsCast, JsValue, prelude::Closure};
use wasm_bindgen_futures::future_to_promise;
use web_sys::UrlSearchParams;

use super::Shared;
use crate::web::protocol::{Answer, Command, Fault, ModelSource};

/// Installs the functions when the address asks for them.
pub fn install(shared: Shared) {
    let (Some(window), Some(_)) = (web_sys::window(), parameters()) else { return };
    let hook = Object::new();
    // load(url): puts a model on the GPU without keeping it.
    function(&hook, "load", |url, _, _| Ok(Command::Load { source: ModelSource::Url { url: text(&url)? } }), shared);
    // logits([[token, ...], ...], [label, ...]): last-position logits of the labels, one list for each sequence.
    function(
        &hook,
        "logits",
        |tokens, labels, _| {
            Ok(Command::Logits { tokens: serde_wasm_bindgen::from_value(tokens)?, labels: serde_wasm_bindgen::from_value(labels)? })
        },
        shared,
    );
    function(&hook, "decide", |row, _, _| Ok(Command::Decide { row: text(&row)? }), shared);
    function(&hook, "generate", move |row, _, _| Ok(Command::Generate { row: text(&row)?, limit: shared.limit }), shared);
    let _ = Reflect::set(&window, &"semif".into(), &hook);
}

/// The address's parameters, when it asks for tests.
fn parameters() -> Option<UrlSearchParams> {
    let search = web_sys::window()?.location().search().ok()?;
    UrlSearchParams::new_with_str(&search).ok().filter(|parameters| parameters.has("test"))
}

/// `?test&limit=N`: a shorter written answer, since a model with random weights never ends by itself.
pub fn limit() -> Option<u32> {
    parameters()?.get("limit")?.parse().ok()
}

fn text(value: &JsValue) -> Result<String, JsValue> {
    value.as_string().ok_or_else(|| JsValue::from_str("a string was expected"))
}

fn function(hook: &Object, name: &str, command: impl Fn(JsValue, JsValue, JsValue) -> Result<Command, JsValue> + 'static, shared: Shared) {
    let run = Closure::<dyn Fn(JsValue, JsValue, JsValue) -> Promise>::new(move |a, b, c| match command(a, b, c) {
        Ok(command) => {
            let call = shared.call(command);
            future_to_promise(async move { call.answer().await.map_err(failed).and_then(plain) })
        }
        Err(error) => Promise::reject(&error),
    });
    let _ = Reflect::set(hook, &name.into(), run.as_ref().unchecked_ref());
    run.forget();
}

fn failed(fault: Fault) -> JsValue {
    js_sys::Error::new(&format!("{:?}: {}", fault.kind, fault.message)).into()
}

fn plain(answer: Answer) -> Result<JsValue, JsValue> {
    let value = match answer {
        Answer::Logits(logits) => serde_wasm_bindgen::to_value(&logits),
        Answer::Decided(decision) => serde_wasm_bindgen::to_value(&decision),
        Answer::Generated(generation) => serde_wasm_bindgen::to_value(&generation),
        Answer::Loaded(model) => serde_wasm_bindgen::to_value(&model),
        other => serde_wasm_bindgen::to_value(&other),
    };
    value.map_err(JsValue::from)
}
