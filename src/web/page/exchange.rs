//! Decisions in and out of the page: a link that carries one in its fragment, rows as JSON lines.

use leptos::prelude::*;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{Blob, BlobPropertyBag, File, HtmlAnchorElement, Url};

use super::Shared;
use super::draft::{Draft, MAX_QUESTIONS, SavedDraft, SavedOption, SavedQuestion, StateKind};
use super::pick::FileButton;
use crate::decision::{Json, Row, read_rows};

/// What stands before the draft in the address's fragment, which browsers never send to a server.
const FRAGMENT: &str = "#decision=";

/// Takes the draft out of the address that carries one: left there, it would stand in for what is typed later at every reload.
pub fn take_from_address() -> Option<SavedDraft> {
    let window = web_sys::window()?;
    let hash = window.location().hash().ok()?;
    if !hash.starts_with(FRAGMENT) {
        return None;
    }
    let location = window.location();
    let bare = format!("{}{}", location.pathname().ok()?, location.search().ok()?);
    let _ = window.history().ok()?.replace_state_with_url(&JsValue::NULL, "", Some(&bare));
    let text = js_sys::decode_uri_component(hash.strip_prefix(FRAGMENT)?).ok()?.as_string()?;
    let draft: SavedDraft = serde_json::from_str(&text).ok()?;
    (!draft.questions.is_empty()).then_some(draft)
}

/// The page's address with the draft in its fragment.
fn link(draft: &Draft) -> Option<String> {
    let location = web_sys::window()?.location();
    let text = serde_json::to_string(&draft.get()).ok()?;
    let page = format!("{}{}", location.origin().ok()?, location.pathname().ok()?);
    Some(format!("{page}{FRAGMENT}{}", String::from(js_sys::encode_uri_component(&text))))
}

/// The draft's questions as input rows, one JSON object a line.
fn lines(draft: &Draft) -> Result<String, String> {
    let mut text = String::new();
    for (i, question) in draft.questions.get().iter().enumerate() {
        let row = draft
            .row(question, &format!("question-{}", i + 1))
            .map_err(|problems| format!("Question {}: {}.", i + 1, problems.join("; ")))?;
        text += &row;
        text.push('\n');
    }
    Ok(text)
}

/// A draft from rows that share the first row's state; and what was left out.
fn from_rows(bytes: &[u8]) -> Result<(SavedDraft, Option<String>), String> {
    let file = read_rows(bytes);
    if let Some(bad) = file.bad().next() {
        return Err(format!("{bad}."));
    }
    let rows: Vec<&Row> = file.rows().collect();
    let Some(first) = rows.first() else { return Err("The file has no rows.".into()) };
    let taken: Vec<&&Row> = rows.iter().filter(|row| row.state() == first.state()).take(MAX_QUESTIONS).collect();
    let (kind, state) = match first.state() {
        Json::String(text) => (StateKind::Text, text.clone()),
        other => (StateKind::Json, other.to_string()),
    };
    let question = |row: &&&Row| SavedQuestion {
        question: row.question().into(),
        options: row
            .options()
            .iter()
            .map(|option| SavedOption { id: option.id.clone(), description: option.description.clone() })
            .collect(),
    };
    let left = rows.len() - taken.len();
    let remark = (left > 0)
        .then(|| format!("{} of {} rows were taken: up to {MAX_QUESTIONS} that share the first row's state.", taken.len(), rows.len()));
    Ok((SavedDraft { kind, state, questions: taken.iter().map(question).collect() }, remark))
}

/// Offers text as a file to save.
pub fn save_file(name: &str, kind: &str, text: &str) {
    let save = || -> Result<(), JsValue> {
        let options = BlobPropertyBag::new();
        options.set_type(kind);
        let blob = Blob::new_with_str_sequence_and_options(&js_sys::Array::of1(&text.into()), &options)?;
        let url = Url::create_object_url_with_blob(&blob)?;
        let document = web_sys::window().and_then(|window| window.document()).ok_or(JsValue::NULL)?;
        let anchor: HtmlAnchorElement = document.create_element("a")?.unchecked_into();
        anchor.set_href(&url);
        anchor.set_download(name);
        anchor.click();
        Url::revoke_object_url(&url)
    };
    if let Err(error) = save() {
        web_sys::console::error_1(&error);
    }
}

/// Copies a text; says so for a moment.
#[component]
pub fn CopyButton(text: Signal<String>, title: &'static str) -> impl IntoView {
    let said = RwSignal::new(None::<&'static str>);
    let copy = move |_| {
        let text = text.get_untracked();
        spawn_local(async move {
            let clipboard = web_sys::window().map(|window| window.navigator().clipboard());
            let copied = match clipboard {
                // Absent at insecure addresses.
                Some(clipboard) if clipboard.is_object() => JsFuture::from(clipboard.write_text(&text)).await.is_ok(),
                _ => false,
            };
            said.set(Some(if copied { "Copied" } else { "Not allowed here" }));
            set_timeout(
                move || {
                    let _ = said.try_set(None);
                },
                std::time::Duration::from_secs(2),
            );
        });
    };
    view! {
        <button type="button" class="button quiet small" on:click=copy>
            <span aria-live="polite">{move || said.get().unwrap_or(title)}</span>
        </button>
    }
}

/// Link, export and import of the decision.
#[component]
pub fn Exchange(shared: Shared) -> impl IntoView {
    let draft = shared.draft;
    let problem = RwSignal::new(None::<String>);
    let export = move |_| match untrack(|| lines(&draft)) {
        Ok(text) => {
            problem.set(None);
            save_file("decision.jsonl", "application/jsonl", &text);
        }
        Err(words) => problem.set(Some(words)),
    };
    let take = move |files: Vec<File>| {
        let Some(file) = files.into_iter().next() else { return };
        spawn_local(async move {
            let text = JsFuture::from(file.text()).await.ok().and_then(|text| text.as_string()).unwrap_or_default();
            match from_rows(text.as_bytes()) {
                Ok((saved, remark)) => {
                    draft.replace(&saved);
                    problem.set(remark);
                }
                Err(words) => problem.set(Some(words)),
            }
        });
    };
    view! {
        <div class="exchange">
            <CopyButton text=Signal::derive(move || link(&draft).unwrap_or_default()) title="Copy a link"/>
            <button type="button" class="button quiet small" id="export" on:click=export>"Export rows"</button>
            <FileButton id="import" title="Import rows" accept=".jsonl,.ndjson,.json" class="button quiet small" take=take/>
            {move || problem.get().map(|words| view! { <p class="soft" role="status">{words}</p> })}
        </div>
    }
}
