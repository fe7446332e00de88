//! Order sensitivity: the same decision with its options rotated, so that each stands once at each letter.

use leptos::prelude::*;
use wasm_bindgen_futures::spawn_local;

use super::run::{Lane, Outcome, now, top};
use super::{Shared, format};
use crate::decision::Json;
use crate::web::protocol::{Answer, Command, Fault, FaultKind};

/// What the rotations say together.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// Softmax of the mean log-probability, in option order.
    pub combined: Vec<f64>,
    /// Rotations whose first choice is the combined one, and all of them.
    pub agree: (usize, usize),
    /// Largest minus smallest probability of the combined first choice.
    pub spread: f64,
}

/// The row with its options moved `by` places to the front.
fn rotated(row: &str, by: usize) -> Option<String> {
    let Json::Object(mut members) = Json::parse(row).ok()? else { return None };
    let (_, options) = members.iter_mut().find(|(key, _)| key == "options")?;
    let Json::Array(options) = options else { return None };
    options.rotate_left(by);
    Some(Json::Object(members).to_string())
}

/// `readings[k][i]` is the probability of option `i` in rotation `k`, options in the row's own order.
fn combine(readings: &[Vec<f64>]) -> Order {
    let options = readings.first().map_or(0, Vec::len);
    // A probability that rounds to 0 must not rule an option out on its own.
    let mean = |i: usize| readings.iter().map(|reading| reading[i].max(1e-12).ln()).sum::<f64>() / readings.len() as f64;
    let logs: Vec<f64> = (0..options).map(mean).collect();
    let sum: f64 = logs.iter().map(|log| log.exp()).sum();
    let combined: Vec<f64> = logs.iter().map(|log| log.exp() / sum).collect();
    let first = top(&combined);
    let agree = readings.iter().filter(|reading| top(reading) == first).count();
    let of_first = readings.iter().map(|reading| reading[first]);
    let spread = of_first.clone().fold(0.0, f64::max) - of_first.fold(1.0, f64::min);
    Order { combined, agree: (agree, readings.len()), spread }
}

/// Reads all rotations of an outcome's row, one after the other.
pub fn check(shared: Shared, outcome: Outcome) {
    let runs = shared.runs;
    if runs.job.get_untracked().is_some() || shared.model.with_untracked(Option::is_none) {
        return;
    }
    let row = outcome.row.get_value();
    let options = outcome.names.with_value(Vec::len);
    runs.stopping.set(false);
    runs.job.set(Some(0));
    outcome.order.set(Lane::Running(now()));
    spawn_local(async move {
        let result = read_all(shared, &row, options).await;
        outcome.order.set(match result {
            Ok(order) => {
                runs.said.set(words(&order));
                Lane::Done(order)
            }
            Err(fault) => Lane::Failed(fault),
        });
        runs.job.set(None);
        runs.stopping.set(false);
    });
}

async fn read_all(shared: Shared, row: &str, options: usize) -> Result<Order, Fault> {
    let mut readings = Vec::with_capacity(options);
    for by in 0..options {
        if shared.runs.stopping.get_untracked() {
            return Err(Fault::new(FaultKind::Cancelled, "Stopped."));
        }
        let row = rotated(row, by).ok_or_else(|| Fault::new(FaultKind::Input, "The row cannot be rotated."))?;
        let call = shared.call(Command::Decide { row });
        shared.runs.job.set(Some(call.job));
        let Answer::Decided(decision) = call.answer().await? else {
            return Err(Fault::new(FaultKind::Crash, "The engine gave an answer of another kind."));
        };
        let mut reading = decision.probabilities;
        reading.rotate_right(by);
        readings.push(reading);
    }
    Ok(combine(&readings))
}

fn words(order: &Order) -> String {
    let (agree, all) = order.agree;
    let share = order.combined.get(top(&order.combined)).copied().unwrap_or_default();
    format!(
        "{agree} of {all} orders agree. Over all of them it has {}, and moves by {:.1} points with the order.",
        format::share(share),
        order.spread * 100.0
    )
}

/// The button and what it found.
#[component]
pub fn OrderLine(shared: Shared, outcome: Signal<Option<Outcome>>) -> impl IntoView {
    let lane = move || outcome.get().map_or(Lane::Off, |outcome| outcome.order.get());
    let found = move || match lane() {
        Lane::Off | Lane::Waiting => "Does the answer depend on the order of the options?".to_string(),
        Lane::Running(_) => "Reading every rotation…".to_string(),
        Lane::Done(order) => words(&order),
        Lane::Failed(fault) => fault.message,
    };
    let disabled = move || {
        let read = outcome.get().is_some_and(|outcome| outcome.direct.with(|lane| lane.done().is_some()));
        !read || shared.runs.job.with(Option::is_some) || shared.model.with(Option::is_none)
    };
    let run = move |_| {
        if let Some(outcome) = outcome.get_untracked() {
            check(shared, outcome);
        }
    };
    view! {
        <div class="order">
            <button type="button" class="button small check-order" disabled=disabled on:click=run>"Check the order"</button>
            <span class="soft">{found}</span>
        </div>
    }
}
