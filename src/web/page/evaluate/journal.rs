//! An evaluation's record in the browser's storage, so that it goes on after a reload: a head, and a line for each result.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::set::{Ended, Plan, RowSet, Rung, Table};
use crate::decision::ResultRow;
use crate::web::page::Shared;
use crate::web::protocol::{Answer, Command, Fault, FaultKind, Model, RecordAction};

const HEAD: &str = "evaluation.json";
const LINES: &str = "evaluation.jsonl";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Head {
    version: u32,
    name: String,
    text: String,
    orders: bool,
    started: String,
    rungs: Vec<Rung>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    /// The rung's key.
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<Model>,
    /// Index of the row; with `result` or `refused`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    row: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Box<ResultRow>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

/// One line for a result.
pub fn result_line(key: &str, row: usize, ended: &Ended) -> String {
    let (result, refused) = match ended {
        Ok(result) => (Some(result.clone()), None),
        Err(words) => (None, Some(words.clone())),
    };
    text(&Line { key: key.into(), model: None, row: Some(row), result, refused })
}

/// One line for a model that was loaded.
pub fn model_line(key: &str, model: &Model) -> String {
    text(&Line { key: key.into(), model: Some(model.clone()), row: None, result: None, refused: None })
}

fn text(line: &Line) -> String {
    serde_json::to_string(line).map_or_else(|_| String::new(), |text| text + "\n")
}

async fn record(shared: Shared, name: &str, action: RecordAction) -> Result<Option<String>, Fault> {
    match shared.call(Command::Record { name: name.into(), action }).answer().await? {
        Answer::Record(text) => Ok(text),
        _ => Err(Fault::new(FaultKind::Crash, "The engine gave an answer of another kind.")),
    }
}

/// Notes a new plan, or that models were added to one; its lines stay when `fresh` is false.
pub async fn begin(shared: Shared, plan: &Plan, fresh: bool) -> Result<(), Fault> {
    let head = Head {
        version: VERSION,
        name: plan.set.name.clone(),
        text: plan.set.text.clone(),
        orders: plan.orders,
        started: plan.started.clone(),
        rungs: plan.tables.iter().map(|table| table.rung.clone()).collect(),
    };
    if fresh {
        record(shared, LINES, RecordAction::Delete).await?;
    }
    let text = serde_json::to_string(&head).map_err(|error| Fault::new(FaultKind::Storage, error.to_string()))?;
    record(shared, HEAD, RecordAction::Replace { text }).await.map(|_| ())
}

/// Adds lines.
pub async fn append(shared: Shared, text: String) -> Result<(), Fault> {
    record(shared, LINES, RecordAction::Append { text }).await.map(|_| ())
}

/// Forgets everything.
pub async fn clear(shared: Shared) {
    for name in [HEAD, LINES] {
        let _ = record(shared, name, RecordAction::Delete).await;
    }
}

/// What an earlier visit has left. Damaged or foreign data counts as nothing, a cut last line as not written.
pub async fn restore(shared: Shared) -> Option<Plan> {
    let head: Head = serde_json::from_str(&record(shared, HEAD, RecordAction::Read).await.ok()??).ok()?;
    if head.version != VERSION {
        return None;
    }
    let lines = record(shared, LINES, RecordAction::Read).await.ok()?.unwrap_or_default();
    let set = Arc::new(RowSet::new(&head.name, head.text));
    let rows = set.file.rows.len();
    let mut tables: Vec<Table> = head.rungs.into_iter().map(|rung| Table::new(rung, rows)).collect();
    for line in lines.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok()) {
        let Some(table) = tables.iter_mut().find(|table| table.rung.key == line.key) else { continue };
        if line.model.is_some() {
            table.model = line.model;
        }
        let ended = line.result.map(Ok).or(line.refused.map(Err));
        if let (Some(place), Some(ended)) = (line.row.and_then(|row| table.results.get_mut(row)), ended) {
            *place = Some(ended);
        }
    }
    Some(Plan { set, orders: head.orders, started: head.started, tables })
}
