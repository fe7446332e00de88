//! What the visitor edits: a state and questions with options. Kept in the browser after every change.
//!
//! Each tab keeps its own draft beside the one that all tabs share, so that a reload brings back what this tab showed. What a link, an example
//! or a file pushed aside waits in one further place until it is brought back or forgotten.

use std::cell::Cell;

use leptos::prelude::*;
use serde::{Deserialize, Serialize};
use web_sys::Storage;

use super::lasting;
use crate::decision::{Choice, Json, Row, letter};

/// Most questions on one state.
pub const MAX_QUESTIONS: usize = 5;
/// The id of a row that is run on the page; results are not joined by it.
pub const ROW_ID: &str = "page";
const STORAGE_KEY: &str = "semif.draft";
/// What was typed before something else took its place.
const BEFORE_KEY: &str = "semif.draft.before";

/// How the state box is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum StateKind {
    #[default]
    Text,
    Json,
}

/// A draft as plain data: what is saved, what a preset holds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SavedDraft {
    pub kind: StateKind,
    pub state: String,
    pub questions: Vec<SavedQuestion>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SavedQuestion {
    pub question: String,
    pub options: Vec<SavedOption>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SavedOption {
    pub id: String,
    pub description: String,
}

impl SavedDraft {
    /// One question with two options, all without a word.
    fn empty() -> Self {
        Self { kind: StateKind::default(), state: String::new(), questions: vec![SavedQuestion::empty()] }
    }
}

impl SavedQuestion {
    fn empty() -> Self {
        let option = SavedOption { id: String::new(), description: String::new() };
        Self { question: String::new(), options: vec![option.clone(), option] }
    }
}

/// A draft on the page. Copies are the same draft.
#[derive(Clone, Copy)]
pub struct Draft {
    pub kind: RwSignal<StateKind>,
    pub state: RwSignal<String>,
    pub questions: RwSignal<Vec<QuestionDraft>>,
    /// What was typed before a link, an example or a file took its place.
    pub before: RwSignal<Option<SavedDraft>>,
    /// What was put here ready-made last; as long as it stands unchanged, nothing has been typed.
    given: StoredValue<Option<SavedDraft>>,
    /// The browser did not take what was to be kept.
    pub refused: RwSignal<bool>,
}

#[derive(Clone, Copy)]
pub struct QuestionDraft {
    /// Unique in the page's lifetime, so that lists keep their elements when others come and go.
    pub key: u32,
    pub text: RwSignal<String>,
    pub options: RwSignal<Vec<OptionDraft>>,
}

#[derive(Clone, Copy)]
pub struct OptionDraft {
    pub key: u32,
    pub id: RwSignal<String>,
    pub description: RwSignal<String>,
}

fn fresh_key() -> u32 {
    thread_local!(static NEXT: Cell<u32> = const { Cell::new(0) });
    NEXT.with(|next| {
        next.set(next.get() + 1);
        next.get()
    })
}

impl OptionDraft {
    pub fn new(id: &str, description: &str) -> Self {
        lasting(|| Self { key: fresh_key(), id: RwSignal::new(id.into()), description: RwSignal::new(description.into()) })
    }
}

impl QuestionDraft {
    pub fn new(saved: &SavedQuestion) -> Self {
        let options = saved.options.iter().map(|option| OptionDraft::new(&option.id, &option.description)).collect();
        lasting(|| Self { key: fresh_key(), text: RwSignal::new(saved.question.clone()), options: RwSignal::new(options) })
    }

    /// An empty question with two options.
    pub fn empty() -> Self {
        Self::new(&SavedQuestion::empty())
    }

    /// The ids that the options go by: what was typed, or the letter where nothing was.
    pub fn option_names(&self) -> Vec<String> {
        let name = |(i, option): (usize, &OptionDraft)| {
            let id = option.id.get();
            let id = id.trim();
            if id.is_empty() { letter(i).to_string() } else { id.to_string() }
        };
        self.options.with(|options| options.iter().enumerate().map(name).collect())
    }
}

impl Draft {
    /// What was typed last, or the first example; where the address carries a decision, that.
    pub fn open(linked: Option<SavedDraft>, presets: &[Preset]) -> Self {
        let draft = Self {
            kind: RwSignal::default(),
            state: RwSignal::default(),
            questions: RwSignal::default(),
            before: RwSignal::new(load(BEFORE_KEY)),
            given: StoredValue::new(None),
            refused: RwSignal::new(false),
        };
        let typed = load(STORAGE_KEY);
        draft.set(&typed.or_else(|| presets.first().map(|preset| preset.draft.clone())).unwrap_or_else(SavedDraft::empty));
        if let Some(linked) = linked {
            draft.replace(&linked);
        }
        draft
    }

    /// Puts something ready-made in the place of everything. What was typed can be brought back.
    pub fn replace(&self, saved: &SavedDraft) {
        let now = untrack(|| self.get());
        if now != *saved && self.is_typed(&now) {
            self.keep_before(Some(now));
        }
        self.set(saved);
        let given = untrack(|| self.get());
        // A reload of this tab must find it; what all tabs share changes only when something is typed.
        put(session(), STORAGE_KEY, &given);
        self.given.set_value(Some(given));
    }

    /// Puts what was typed before back in its place; what stands there now takes the other one.
    pub fn bring_back(&self) {
        let Some(before) = self.before.get_untracked() else { return };
        let now = untrack(|| self.get());
        self.keep_before(self.is_typed(&now).then_some(now));
        self.set(&before);
    }

    /// Keeps what is to be brought back, or forgets it.
    pub fn keep_before(&self, draft: Option<SavedDraft>) {
        for storage in [session(), local()].into_iter().flatten() {
            match &draft {
                Some(draft) => {
                    put(Some(storage), BEFORE_KEY, draft);
                }
                None => drop(storage.remove_item(BEFORE_KEY)),
            }
        }
        self.before.set(draft);
    }

    fn is_typed(&self, draft: &SavedDraft) -> bool {
        let given = self.given.with_value(|given| given.as_ref() == Some(draft));
        !given && *draft != SavedDraft::empty() && presets().iter().all(|preset| preset.draft != *draft)
    }

    /// Keeps what is typed, for this tab and for the next visit. Without storage the page works all the same, and says so.
    pub fn save(&self) {
        let draft = self.get();
        put(session(), STORAGE_KEY, &draft);
        // Ready-made things are no reason to give up what was typed last.
        if self.is_typed(&draft) {
            let refused = !put(local(), STORAGE_KEY, &draft);
            if self.refused.get_untracked() != refused {
                self.refused.set(refused);
            }
        }
    }

    /// Replaces everything.
    fn set(&self, saved: &SavedDraft) {
        self.kind.set(saved.kind);
        self.state.set(saved.state.clone());
        self.questions.set(saved.questions.iter().take(MAX_QUESTIONS).map(QuestionDraft::new).collect());
    }

    /// The draft as data; tracks every field.
    pub fn get(&self) -> SavedDraft {
        let options = |question: &QuestionDraft| {
            let saved = |option: &OptionDraft| SavedOption { id: option.id.get(), description: option.description.get() };
            question.options.with(|options| options.iter().map(saved).collect())
        };
        SavedDraft {
            kind: self.kind.get(),
            state: self.state.get(),
            questions: self.questions.with(|questions| {
                questions.iter().map(|question| SavedQuestion { question: question.text.get(), options: options(question) }).collect()
            }),
        }
    }

    /// The state as JSON: the text itself, or what it parses to.
    pub fn state_value(&self) -> Result<Json, String> {
        let text = self.state.get();
        match self.kind.get() {
            StateKind::Text => Ok(Json::String(text)),
            StateKind::Json if text.trim().is_empty() => Err("The state is empty.".into()),
            StateKind::Json => match Json::parse(&text) {
                Ok(value @ (Json::Object(_) | Json::Array(_))) => Ok(value),
                Ok(_) => Err("A JSON state is an object or a list; for a plain sentence choose Text.".into()),
                Err(error) => Err(format!("Not valid JSON: {error}.")),
            },
        }
    }

    /// One question as an input row in JSON, or everything that is wrong with it.
    pub fn row(&self, question: &QuestionDraft, id: &str) -> Result<String, Vec<String>> {
        let state = self.state_value().map_err(|problem| vec![problem])?;
        let names = question.option_names();
        let choice = |(id, option): (String, &OptionDraft)| Choice { id, description: option.description.get() };
        let choices: Vec<Choice> = question.options.with(|options| names.into_iter().zip(options).map(choice).collect());
        let text = question.text.get();
        Row::new(id, state.clone(), &text, choices.clone())?;
        let member = |key: &str, value: Json| (key.to_string(), value);
        let options = choices
            .into_iter()
            .map(|choice| {
                Json::Object(vec![member("id", Json::String(choice.id)), member("description", Json::String(choice.description))])
            })
            .collect();
        let row = Json::Object(vec![
            member("id", Json::String(id.into())),
            member("question", Json::String(text)),
            member("state", state),
            member("options", Json::Array(options)),
        ]);
        Ok(row.to_string())
    }
}

/// The storage that all tabs and visits share, where the browser gives one.
fn local() -> Option<Storage> {
    web_sys::window()?.local_storage().ok()?
}

/// The storage of this tab alone.
fn session() -> Option<Storage> {
    web_sys::window()?.session_storage().ok()?
}

/// What is kept, this tab's own first; damaged or foreign data counts as nothing.
fn load(key: &str) -> Option<SavedDraft> {
    let read = |storage: Storage| {
        let saved: SavedDraft = serde_json::from_str(&storage.get_item(key).ok()??).ok()?;
        (!saved.questions.is_empty()).then_some(saved)
    };
    session().and_then(read).or_else(|| local().and_then(read))
}

/// False where the storage did not take it: full, or not given.
fn put(storage: Option<Storage>, key: &str, draft: &SavedDraft) -> bool {
    let (Some(storage), Ok(text)) = (storage, serde_json::to_string(draft)) else { return false };
    storage.set_item(key, &text).is_ok()
}

/// A ready-made draft.
#[derive(Clone, Debug)]
pub struct Preset {
    pub title: String,
    /// What it shows, in one line.
    pub shows: String,
    pub draft: SavedDraft,
}

/// The presets of `assets/presets.json`, in its order.
pub fn presets() -> Vec<Preset> {
    #[derive(Deserialize)]
    struct Shipped {
        title: String,
        shows: String,
        state: serde_json::Value,
        questions: Vec<SavedQuestion>,
    }
    let shipped: Vec<Shipped> = serde_json::from_str(include_str!("../../../assets/presets.json")).unwrap_or_default();
    let preset = |shipped: Shipped| {
        let (kind, state) = match shipped.state {
            serde_json::Value::String(text) => (StateKind::Text, text),
            value => (StateKind::Json, serde_json::to_string_pretty(&value).unwrap_or_default()),
        };
        Preset { title: shipped.title, shows: shipped.shows, draft: SavedDraft { kind, state, questions: shipped.questions } }
    };
    shipped.into_iter().map(preset).collect()
}
