//! What is evaluated: the rows, and the models that read them.

use std::sync::Arc;

use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use super::super::Shared;
use crate::decision::{ResultRow, sha256_hex};
use crate::eval::{Answered, LabelledFile, read_labelled};
use crate::hub::ladder::{DEFAULT_HOST, Ladder};
use crate::web::protocol::{KeptFile, Model, ModelSource};

/// A labelled file.
pub struct RowSet {
    pub name: String,
    pub text: String,
    pub sha256: String,
    pub file: LabelledFile,
}

impl RowSet {
    pub fn new(name: &str, text: String) -> Self {
        Self { name: name.into(), sha256: sha256_hex(text.as_bytes()), file: read_labelled(text.as_bytes()), text }
    }

    /// The rows that come with the page.
    pub fn example() -> Self {
        Self::new("example set", include_str!("../../../../assets/evaluation-rows.jsonl").into())
    }
}

/// A model that can be evaluated.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Rung {
    /// The file's SHA-256 where it is known: the same model before and after its download.
    pub key: String,
    pub title: String,
    pub bytes: f64,
    pub place: Place,
}

/// Where its file is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Place {
    Kept {
        name: String,
    },
    Fetch {
        url: String,
        sha256: String,
    },
    /// On the GPU, from a place that is not kept.
    Loaded,
}

fn key(file: &KeptFile) -> String {
    if file.sha256.is_empty() { file.name.clone() } else { file.sha256.clone() }
}

/// Every model that can be evaluated, those at hand first; tracks what is kept and loaded.
pub fn rungs(shared: Shared) -> Vec<Rung> {
    let ladder = Ladder::built_in().models();
    let mut rungs: Vec<Rung> = Vec::new();
    shared.kept.with(|kept| {
        for file in kept.files.iter().filter(|file| file.complete()) {
            let title = ladder.iter().find(|model| model.sha256 == file.sha256).map_or(&file.name, |model| &model.title);
            let rung = Rung { key: key(file), title: title.clone(), bytes: file.bytes, place: Place::Kept { name: file.name.clone() } };
            if rungs.iter().all(|other| other.key != rung.key) {
                rungs.push(rung);
            }
        }
    });
    if let Some(model) = shared.model.get()
        && matches!(shared.source.get_value(), Some(ModelSource::File { .. } | ModelSource::Url { .. }))
    {
        rungs.push(Rung { key: format!("loaded {}", model.name), title: model.name, bytes: model.bytes, place: Place::Loaded });
    }
    for model in ladder.iter().filter(|model| rungs.iter().all(|rung| rung.key != model.sha256)).collect::<Vec<_>>() {
        let place = Place::Fetch { url: model.url(DEFAULT_HOST), sha256: model.sha256.clone() };
        rungs.push(Rung { key: model.sha256.clone(), title: model.title.clone(), bytes: model.bytes as f64, place });
    }
    rungs
}

/// The key of the model on the GPU.
pub fn loaded_key(shared: Shared) -> Option<String> {
    let model = shared.model.get()?;
    match shared.source.get_value()? {
        ModelSource::Kept { name } => shared.kept.with(|kept| kept.files.iter().find(|file| file.name == name).map(key)),
        ModelSource::File { .. } | ModelSource::Url { .. } => Some(format!("loaded {}", model.name)),
    }
}

/// How one row ended: its result, or why it was refused.
pub type Ended = Result<Box<ResultRow>, String>;

/// One model's results.
#[derive(Clone)]
pub struct Table {
    pub rung: Rung,
    /// As it was when it was loaded for this; none before.
    pub model: Option<Model>,
    /// One for each row of the set.
    pub results: Vec<Option<Ended>>,
}

impl Table {
    pub fn new(rung: Rung, rows: usize) -> Self {
        Self { rung, model: None, results: vec![None; rows] }
    }

    pub fn done(&self) -> usize {
        self.results.iter().filter(|result| result.is_some()).count()
    }

    pub fn complete(&self) -> bool {
        self.results.iter().all(Option::is_some)
    }

    /// The rows that are done.
    pub fn answered<'a>(&'a self, set: &'a RowSet) -> Vec<Answered<'a>> {
        let rows = set.file.rows.iter().zip(&self.results);
        rows.filter_map(|(row, result)| Some(Answered { row, result: result.as_ref()?.as_deref().ok() })).collect()
    }
}

/// An evaluation that was begun.
#[derive(Clone)]
pub struct Plan {
    pub set: Arc<RowSet>,
    /// Every rotation of the options is read.
    pub orders: bool,
    /// When it was begun, as the browser writes times (ISO 8601).
    pub started: String,
    pub tables: Vec<Table>,
}

impl Plan {
    pub fn complete(&self) -> bool {
        !self.tables.is_empty() && self.tables.iter().all(Table::complete)
    }
}
