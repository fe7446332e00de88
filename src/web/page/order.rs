//! Order sensitivity: the same decision with its options rotated, so that each stands once at each letter.

use leptos::prelude::*;
use wasm_bindgen_futures::spawn_local;

use super::run::{Lane, Outcome, now, top};
use super::{Shared, format};
use crate::web::protocol::{Answer, Command, Fault, FaultKind};

/// What the rotations say together.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// Softmax of the mean log-probability, in option order.
    pub combined: Vec<f64>,
    /// Rotations whose first choice is the combined one, and all of them.
    pub agree: (usize, usize),
    /// The furthest that an option's probability moves between two orders.
    pub spread: f64,
}

/// Reads all rotations of an outcome's row, which share its state.
pub fn check(shared: Shared, outcome: Outcome) {
    let runs = shared.runs;
    if runs.job.get_untracked().is_some() || shared.model.with_untracked(Option::is_none) {
        return;
    }
    let row = outcome.row.get_value();
    runs.begin();
    outcome.order.set(Lane::Running(now()));
    spawn_local(async move {
        let result = read_all(shared, row).await;
        outcome.order.set(match result {
            Ok(order) => {
                runs.said.set(outcome.names.with_value(|names| words(&order, names)));
                Lane::Done(order)
            }
            Err(fault) => Lane::Failed(fault),
        });
        runs.end();
    });
}

async fn read_all(shared: Shared, row: String) -> Result<Order, Fault> {
    let call = shared.call(Command::Decide { rows: vec![row], orderings: Some("rotations".into()), mass: false, keep: false });
    shared.runs.job.set(Some(call.job));
    let combined = match call.answer().await? {
        Answer::Decided(mut decisions) => decisions.pop().and_then(|decision| decision.combined),
        _ => None,
    };
    let combined = combined.ok_or_else(|| Fault::new(FaultKind::Crash, "The engine gave an answer of another kind."))?;
    let agree = (combined.agreement * combined.read as f64).round() as usize;
    Ok(Order { combined: combined.probabilities, agree: (agree, combined.read), spread: combined.spread })
}

fn words(order: &Order, names: &[String]) -> String {
    let (agree, all) = order.agree;
    let first = top(&order.combined);
    let share = order.combined.get(first).copied().unwrap_or_default();
    let name = names.get(first).map_or("the first choice", String::as_str);
    format!(
        "{agree} of {all} orders agree on {name}. Over all of them {name} has {}; no option moves by more than {:.1} points with the order.",
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
        Lane::Done(order) => {
            let names = outcome.get().map(|outcome| outcome.names.get_value()).unwrap_or_default();
            words(&order, &names)
        }
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
