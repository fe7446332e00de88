//! Running an evaluation: model after model, row after row, each result written down before the next.

use std::collections::VecDeque;
use std::sync::Arc;

use leptos::prelude::*;
use wasm_bindgen_futures::spawn_local;

use super::journal;
use super::set::{Ended, Place, Plan, RowSet, Rung, Table, loaded_key, rungs};
use crate::decision::{Json, ResultRow, Row};
use crate::web::page::models::{self, Chosen};
use crate::web::page::run::now;
use crate::web::page::{Shared, lasting, locks, recover};
use crate::web::protocol::{Class, Command, Event, Fault, FaultKind};

/// The table is drawn again at most this often, milliseconds.
const DRAW_MS: f64 = 400.0;
/// Results wait at most this long before they are written down, milliseconds.
const WRITE_MS: f64 = 1500.0;
/// A batch should take about so long, and hold at most so many rows.
const BATCH_SECONDS: f64 = 2.0;
const MOST: usize = 64;
/// Times that a lost device or a broken worker is answered by loading the model again, in one go.
const RECOVERIES: u32 = 3;

/// What the visitor chose and what has come out. Copies are the same state.
#[derive(Clone, Copy)]
pub struct Evaluation {
    /// The file that the next evaluation takes.
    pub set: RwSignal<Option<Arc<RowSet>>>,
    /// Keys of the rungs that were ticked; none while nobody touched the list.
    pub picked: RwSignal<Option<Vec<String>>>,
    pub orders: RwSignal<bool>,
    /// Changes whenever `plan` should be drawn again.
    pub drawn: RwSignal<u32>,
    pub plan: StoredValue<Option<Plan>>,
    pub going: RwSignal<Option<Going>>,
    /// Results would be lost by what was asked for, and the visitor has not said yet that they may be.
    pub asking: RwSignal<bool>,
    /// How it ended, when not well.
    pub fault: RwSignal<Option<Fault>>,
    /// Something worth saying that is no fault.
    pub remark: RwSignal<Option<String>>,
}

/// Where a running evaluation is.
#[derive(Clone, Default, PartialEq)]
pub struct Going {
    pub title: String,
    /// Which model of how many, from 1.
    pub rung: usize,
    pub rungs: usize,
    pub done: usize,
    pub rows: usize,
    /// Seconds for the rest of this model, once a row was timed.
    pub left: Option<f64>,
    pub loading: bool,
}

impl Evaluation {
    pub fn new() -> Self {
        lasting(|| Self {
            set: RwSignal::new(None),
            picked: RwSignal::new(None),
            orders: RwSignal::new(false),
            drawn: RwSignal::new(0),
            plan: StoredValue::new(None),
            going: RwSignal::new(None),
            asking: RwSignal::new(false),
            fault: RwSignal::new(None),
            remark: RwSignal::new(None),
        })
    }

    /// The rungs that are ticked; the loaded model where nobody has touched the list. Tracks.
    pub fn chosen(&self, shared: Shared) -> Vec<Rung> {
        let all = rungs(shared);
        let keys = self.picked.get().unwrap_or_else(|| loaded_key(shared).into_iter().collect());
        all.into_iter().filter(|rung| keys.contains(&rung.key)).collect()
    }

    /// Is there a plan for the same rows, read the same way, so that its results stay? Tracks.
    pub fn continues(&self) -> bool {
        self.drawn.track();
        let orders = self.orders.get();
        self.set.with(|set| {
            let same = |plan: &Plan| plan.orders == orders && set.as_ref().is_some_and(|set| set.sha256 == plan.set.sha256);
            self.plan.with_value(|plan| plan.as_ref().is_some_and(same))
        })
    }

    /// Rows that are read and that an evaluation of what is chosen now would not keep.
    pub fn at_stake(&self) -> usize {
        if untrack(|| self.continues()) {
            return 0;
        }
        self.plan.with_value(|plan| plan.as_ref().map_or(0, |plan| plan.tables.iter().map(Table::done).sum()))
    }

    fn draw(&self) {
        self.drawn.update(|n| *n = n.wrapping_add(1));
    }
}

/// Takes up what an earlier visit has left.
pub fn restore(shared: Shared) {
    let evaluation = shared.evaluation;
    spawn_local(async move {
        let Some(plan) = journal::restore(shared).await else { return };
        // Whatever was chosen meanwhile stays.
        if evaluation.plan.with_value(Option::is_some) || evaluation.set.with_untracked(Option::is_some) {
            return;
        }
        evaluation.orders.set(plan.orders);
        evaluation.picked.set(Some(plan.tables.iter().map(|table| table.rung.key.clone()).collect()));
        evaluation.set.set(Some(plan.set.clone()));
        if !plan.complete() {
            let (done, all) = plan.tables.iter().fold((0, 0), |(done, all), table| (done + table.done(), all + table.results.len()));
            evaluation.remark.set(Some(format!("An evaluation was begun here earlier: {done} of {all} rows are read. It can go on.")));
        }
        evaluation.plan.set_value(Some(plan));
        evaluation.draw();
    });
}

/// Forgets the plan and its results.
pub fn clear(shared: Shared) {
    let evaluation = shared.evaluation;
    evaluation.plan.set_value(None);
    evaluation.asking.set(false);
    evaluation.remark.set(None);
    evaluation.fault.set(None);
    evaluation.draw();
    spawn_local(journal::clear(shared));
}

/// [`start`]s, once it is certain that nothing is lost that should stay.
pub fn ask_and_start(shared: Shared) {
    if shared.evaluation.at_stake() > 0 {
        shared.evaluation.asking.set(true);
    } else {
        start(shared);
    }
}

/// Starts, or goes on. Does nothing while anything else runs.
pub fn start(shared: Shared) {
    let (runs, evaluation) = (shared.runs, shared.evaluation);
    if runs.job.get_untracked().is_some() || shared.loading.with_untracked(Option::is_some) {
        return;
    }
    let Some(set) = evaluation.set.get_untracked() else { return };
    let chosen = untrack(|| evaluation.chosen(shared));
    if set.file.rows.is_empty() || chosen.is_empty() {
        return;
    }
    evaluation.asking.set(false);
    let fresh = !untrack(|| evaluation.continues());
    if fresh {
        let plan = Plan {
            set: set.clone(),
            orders: evaluation.orders.get_untracked(),
            started: String::from(js_sys::Date::new_0().to_iso_string()),
            tables: Vec::new(),
        };
        evaluation.plan.set_value(Some(plan));
    }
    evaluation.plan.update_value(|plan| {
        let Some(plan) = plan else { return };
        for rung in &chosen {
            match plan.tables.iter_mut().find(|table| table.rung.key == rung.key) {
                // It may have been downloaded since.
                Some(table) => table.rung = rung.clone(),
                None => plan.tables.push(Table::new(rung.clone(), set.file.rows.len())),
            }
        }
    });
    evaluation.fault.set(None);
    evaluation.remark.set(None);
    evaluation.draw();
    runs.begin();
    evaluation.going.set(Some(Going::default()));
    spawn_local(async move {
        let result = match locks::take("semif-evaluation").await {
            Some(_held) => all(shared, &set, &chosen, fresh).await,
            None => Err(Fault::new(FaultKind::Storage, "Another tab of this page is evaluating.")),
        };
        runs.end();
        evaluation.going.set(None);
        evaluation.draw();
        match result {
            Ok(()) => runs.said.set("The evaluation is complete.".into()),
            Err(fault) if fault.kind == FaultKind::Cancelled => {
                evaluation.remark.set(Some("Stopped. What was read is kept, and it can go on from there.".into()));
            }
            Err(fault) => evaluation.fault.set(Some(fault)),
        }
    });
}

async fn all(shared: Shared, set: &Arc<RowSet>, chosen: &[Rung], fresh: bool) -> Result<(), Fault> {
    let evaluation = shared.evaluation;
    let plan =
        evaluation.plan.get_value().unwrap_or_else(|| Plan { set: set.clone(), orders: false, started: String::new(), tables: Vec::new() });
    let kept = journal::begin(shared, &plan, fresh).await;
    if let Err(fault) = &kept {
        evaluation.remark.set(Some(format!("{} The results will not survive a reload; download them before you leave.", fault.message)));
    }
    let mut pen = Pen { shared, kept: kept.is_ok(), lines: String::new(), late: false, written: now(), drawn: 0.0 };
    for (i, rung) in chosen.iter().enumerate() {
        let result = one(shared, set, plan.orders, rung, (i + 1, chosen.len()), &mut pen).await;
        // However it ended, what is read is written down.
        pen.flush().await;
        result?;
    }
    Ok(())
}

/// Changes a rung's table.
fn table(shared: Shared, key: &str, change: impl FnOnce(&mut Table)) {
    shared.evaluation.plan.update_value(|plan| {
        if let Some(table) = plan.as_mut().and_then(|plan| plan.tables.iter_mut().find(|table| table.rung.key == key)) {
            change(table);
        }
    });
}

async fn one(shared: Shared, set: &Arc<RowSet>, orders: bool, rung: &Rung, place: (usize, usize), pen: &mut Pen) -> Result<(), Fault> {
    let evaluation = shared.evaluation;
    let open: Vec<usize> = evaluation.plan.with_value(|plan| {
        let table = plan.as_ref().and_then(|plan| plan.tables.iter().find(|table| table.rung.key == rung.key));
        table.map_or_else(Vec::new, |table| (0..table.results.len()).filter(|row| table.results[*row].is_none()).collect())
    });
    if open.is_empty() {
        return Ok(());
    }
    let rows = set.file.rows.len();
    let mut going =
        Going { title: rung.title.clone(), rung: place.0, rungs: place.1, done: rows - open.len(), rows, left: None, loading: true };
    evaluation.going.set(Some(going.clone()));
    bring(shared, rung).await?;
    let Some(model) = shared.model.get_untracked() else { return Err(Fault::new(FaultKind::NoModel, "The model is not loaded.")) };
    pen.write(&journal::model_line(&rung.key, &model));
    table(shared, &rung.key, |table| table.model = Some(model));
    going.loading = false;
    let (mut recoveries, mut seconds, mut timed) = (0, 0.0, 0);
    let mut open: VecDeque<usize> = open.into();
    // Short batches: what they hold is lost with a tab that is closed meanwhile.
    let mut most = 1;
    while !open.is_empty() {
        evaluation.going.set(Some(going.clone()));
        if shared.runs.stopping.get_untracked() {
            return Err(Fault::new(FaultKind::Cancelled, "Stopped."));
        }
        let batch: Vec<usize> = open.iter().take(most).copied().collect();
        let start = now();
        let on_row = |row: usize, ended: Ended| {
            pen.write(&journal::result_line(&rung.key, row, &ended));
            table(shared, &rung.key, |table| table.results[row] = Some(ended));
            open.retain(|other| *other != row);
            going.done += 1;
            timed += 1;
            let pace = (seconds + (now() - start) / 1e3) / f64::from(timed);
            going.left = Some(pace * open.len() as f64);
            evaluation.going.set(Some(going.clone()));
        };
        let result = decide(shared, set, &batch, orders, on_row).await;
        seconds += (now() - start) / 1e3;
        match result {
            Ok(()) => most = ((BATCH_SECONDS * f64::from(timed) / seconds.max(1e-3)) as usize).clamp(1, MOST),
            // One row that cannot be read is refused; among several it must be found.
            Err(fault) if fault.kind == FaultKind::Input && batch.len() > 1 => most = 1,
            Err(fault) if fault.kind == FaultKind::Input => {
                let ended = Err(fault.message);
                pen.write(&journal::result_line(&rung.key, batch[0], &ended));
                table(shared, &rung.key, |table| table.results[batch[0]] = Some(ended));
                open.retain(|other| *other != batch[0]);
                going.done += 1;
            }
            // The GPU or the worker is gone, the rows are not: load again and go on.
            Err(fault) if (recover::possible(&fault) || fault.kind == FaultKind::NoModel) && recoveries < RECOVERIES => {
                recoveries += 1;
                going.loading = true;
                evaluation.going.set(Some(going.clone()));
                pen.flush().await;
                bring(shared, rung).await?;
                shared.fault.set(None);
                evaluation.remark.set(Some(format!("{} The model was loaded again, and the evaluation went on.", fault.message)));
                going.loading = false;
            }
            Err(fault) => return Err(fault),
        }
        pen.rest().await;
    }
    Ok(())
}

/// Puts a rung's model on the GPU, unless it is there.
async fn bring(shared: Shared, rung: &Rung) -> Result<(), Fault> {
    if untrack(|| loaded_key(shared)).as_ref() == Some(&rung.key) {
        return Ok(());
    }
    let chosen = match (&rung.place, shared.source.get_value()) {
        (Place::Kept { name }, _) => Chosen::Kept(name.clone()),
        (Place::Fetch { url, sha256 }, _) => Chosen::Url(url.clone(), Some(sha256.clone())),
        (Place::Loaded, Some(source)) => Chosen::Source(source),
        (Place::Loaded, None) => {
            return Err(Fault::new(FaultKind::NoModel, format!("{} was not kept by the browser: choose its file again.", rung.title)));
        }
    };
    models::bring_now(shared, chosen).await
}

/// Reads rows in one request, as a batch that makes way for clicks; rows with an equal state share it.
async fn decide(shared: Shared, set: &RowSet, batch: &[usize], orders: bool, mut on_row: impl FnMut(usize, Ended)) -> Result<(), Fault> {
    let rows = batch.iter().map(|row| input(&set.file.rows[*row].row)).collect();
    let command = Command::Decide { rows, orderings: orders.then(|| "rotations".into()), mass: false, keep: false };
    let call = shared.client.with_value(|client| client.call_as(Class::Batch, command));
    shared.runs.job.set(Some(call.job));
    let mut problem = None;
    let on_event = |event| {
        if let Event::Decided { index, decision } = event
            && let Some(row) = batch.get(index as usize)
        {
            match serde_json::from_str::<ResultRow>(&decision.row) {
                Ok(result) => on_row(*row, Ok(Box::new(result))),
                Err(error) => problem = Some(error.to_string()),
            }
        }
    };
    call.finish(on_event).await?;
    match problem {
        Some(error) => Err(Fault::new(FaultKind::Storage, format!("A result row was not understood: {error}."))),
        None => Ok(()),
    }
}

/// A row as the engine takes it: without its label, which no model must see.
fn input(row: &Row) -> String {
    let text = |text: &str| Json::String(text.into());
    let options = row
        .options()
        .iter()
        .map(|option| Json::Object(vec![("id".into(), text(&option.id)), ("description".into(), text(&option.description))]));
    Json::Object(vec![
        ("id".into(), text(row.id())),
        ("question".into(), text(row.question())),
        ("state".into(), row.state().clone()),
        ("options".into(), Json::Array(options.collect())),
    ])
    .to_string()
}

/// Writes results down and draws them, each in its own measured pace.
struct Pen {
    shared: Shared,
    /// The browser keeps records.
    kept: bool,
    lines: String,
    /// Lines wait that could not be written, and the page has said so.
    late: bool,
    written: f64,
    drawn: f64,
}

impl Pen {
    fn write(&mut self, line: &str) {
        if self.kept {
            self.lines.push_str(line);
        }
    }

    async fn rest(&mut self) {
        if now() - self.drawn >= DRAW_MS {
            self.shared.evaluation.draw();
            self.drawn = now();
        }
        if now() - self.written >= WRITE_MS {
            self.flush().await;
        }
    }

    async fn flush(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        self.written = now();
        if lines.is_empty() {
            return;
        }
        let remark = self.shared.evaluation.remark;
        match journal::append(self.shared, lines.clone()).await {
            Ok(()) if std::mem::take(&mut self.late) => remark.set(None),
            Ok(()) => {}
            Err(fault) => {
                // Another tab holds the record: the lines wait for the next try.
                if fault.kind == FaultKind::Storage {
                    self.lines = lines;
                } else {
                    self.kept = false;
                }
                if !std::mem::replace(&mut self.late, true) {
                    remark.set(Some(format!(
                        "{} The newest results will not survive a reload; download them before you leave.",
                        fault.message
                    )));
                }
            }
        }
    }
}
