//! Browser faces: the page, the worker that holds the engine, and the typed messages between them.
//!
//! Everything heavy (model bytes, GPU, tokenizer) lives in the worker; the page only draws. Messages are the types of
//! [`protocol`], carried by `postMessage` as plain JavaScript values.

pub mod page;
pub mod protocol;
pub mod worker;

use wasm_bindgen::{JsCast, JsValue};

use crate::gguf::SplitName;

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

/// Most parts of a split model.
const MOST_PARTS: u32 = 999;

/// The file names of all parts of a split model that this is a part of; the name alone where it is none.
pub(crate) fn part_names(name: &str) -> Vec<String> {
    // No publisher cuts a model into more; a name that claims so is just a name.
    match SplitName::parse(name).filter(|split| split.count <= MOST_PARTS) {
        Some(split) => (1..=split.count).map(|part| split.name_of(part)).collect(),
        None => vec![name.into()],
    }
}

/// The same for addresses, whose last part is the name.
pub(crate) fn part_addresses(url: &str) -> Vec<String> {
    let (path, query) = url.find(['?', '#']).map_or((url, ""), |at| url.split_at(at));
    let (folder, name) = path.rfind('/').map_or(("", path), |at| path.split_at(at + 1));
    part_names(name).into_iter().map(|name| format!("{folder}{name}{query}")).collect()
}

/// The `name` of a JavaScript exception (`QuotaExceededError`, `AbortError`, ...); empty where it has none.
pub(crate) fn js_error_name(value: &JsValue) -> String {
    js_sys::Reflect::get(value, &"name".into()).ok().and_then(|name| name.as_string()).unwrap_or_default()
}
