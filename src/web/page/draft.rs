//! What the visitor edits: a state and questions with options. Kept in the browser after every change.

use std::cell::Cell;

use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use super::lasting;
use crate::decision::{Choice, Json, Row, letter};

/// Most questions on one state.
pub const MAX_QUESTIONS: usize = 5;
/// The id of a row that is run on the page; results are not joined by it.
pub const ROW_ID: &str = "page";
const STORAGE_KEY: &str = "semif.draft";

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

/// A draft on the page. Copies are the same draft.
#[derive(Clone, Copy)]
pub struct Draft {
    pub kind: RwSignal<StateKind>,
    pub state: RwSignal<String>,
    pub questions: RwSignal<Vec<QuestionDraft>>,
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
        let option = SavedOption { id: String::new(), description: String::new() };
        Self::new(&SavedQuestion { question: String::new(), options: vec![option.clone(), option] })
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
    pub fn new(saved: &SavedDraft) -> Self {
        let draft = Self { kind: RwSignal::default(), state: RwSignal::default(), questions: RwSignal::default() };
        draft.set(saved);
        draft
    }

    /// Replaces everything.
    pub fn set(&self, saved: &SavedDraft) {
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

/// The local storage, where the browser gives one.
fn storage() -> Option<web_sys::Storage> {
    web_sys::window()?.local_storage().ok()?
}

/// What was typed last time; damaged or foreign data counts as nothing.
pub fn load() -> Option<SavedDraft> {
    let text = storage()?.get_item(STORAGE_KEY).ok()??;
    let saved: SavedDraft = serde_json::from_str(&text).ok()?;
    (!saved.questions.is_empty()).then_some(saved)
}

/// Keeps what is typed. Without storage the page works all the same.
pub fn save(draft: &SavedDraft) {
    if let (Some(storage), Ok(text)) = (storage(), serde_json::to_string(draft)) {
        let _ = storage.set_item(STORAGE_KEY, &text);
    }
}

/// A ready-made draft.
#[derive(Clone, Debug)]
pub struct Preset {
    pub title: String,
    pub draft: SavedDraft,
}

/// The presets of `assets/presets.json`, in its order.
pub fn presets() -> Vec<Preset> {
    #[derive(Deserialize)]
    struct Shipped {
        title: String,
        state: serde_json::Value,
        questions: Vec<SavedQuestion>,
    }
    let shipped: Vec<Shipped> = serde_json::from_str(include_str!("../../../assets/presets.json")).unwrap_or_default();
    let preset = |shipped: Shipped| {
        let (kind, state) = match shipped.state {
            serde_json::Value::String(text) => (StateKind::Text, text),
            value => (StateKind::Json, serde_json::to_string_pretty(&value).unwrap_or_default()),
        };
        Preset { title: shipped.title, draft: SavedDraft { kind, state, questions: shipped.questions } }
    };
    shipped.into_iter().map(preset).collect()
}
