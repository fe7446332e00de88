//! Browser faces: the page, the worker that holds the engine, and the typed messages between them.
//!
//! Everything heavy (model bytes, GPU, tokenizer) lives in the worker; the page only draws. Messages are the types of
//! [`protocol`], carried by `postMessage` as plain JavaScript values.

pub mod page;
pub mod protocol;
pub mod worker;

use wasm_bindgen::{JsCast, JsValue};

/// What a JavaScript exception says, as `Name: message`.
pub(crate) fn js_message(value: &JsValue) -> String {
    match value.dyn_ref::<js_sys::Error>() {
        Some(error) => format!("{}: {}", String::from(error.name()), String::from(error.message())),
        None => match value.dyn_ref::<web_sys::DomException>() {
            Some(error) => format!("{}: {}", error.name(), error.message()),
            None => value.as_string().unwrap_or_else(|| format!("{value:?}")),
        },
    }
}

/// The `name` of a JavaScript exception (`QuotaExceededError`, `AbortError`, ...); empty where it has none.
pub(crate) fn js_error_name(value: &JsValue) -> String {
    js_sys::Reflect::get(value, &"name".into()).ok().and_then(|name| name.as_string()).unwrap_or_default()
}
