//! Step four: a labelled file, the models that read it, and how good they are.

use std::sync::Arc;

use leptos::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::File;

use super::receipt;
use super::run::{self, Going};
use super::set::{Place, RowSet, Rung, Table, rungs};
use crate::eval::{Summary, chart, coverage, reliability, summary};
use crate::web::page::exchange::save_file;
use crate::web::page::notice::FaultNotice;
use crate::web::page::pick::{DropPlace, FileButton};
use crate::web::page::{Shared, format};

/// Refused rows that are listed one by one.
const MOST_BAD: usize = 20;

#[component]
pub fn EvaluateStep(shared: Shared) -> impl IntoView {
    let evaluation = shared.evaluation;
    run::restore(shared);
    view! {
        <section class="step" id="evaluate" aria-labelledby="evaluate-title">
            <h2 id="evaluate-title"><span class="number" aria-hidden="true">"4"</span>"Evaluate on this device"</h2>
            <div class="panel">
                <p class="soft lead">"Many cases whose right answer is known, read by one model or several. How often each is right, how well it knows when it is, and how much the order of the options sways it."</p>
                <div class="columns even">
                    <Rows shared=shared/>
                    <Models shared=shared/>
                </div>
                <Bar shared=shared/>
                <Show when=move || evaluation.asking.get()>
                    <div class="remark row" role="alert" id="at-stake">
                        <span>{move || format!(
                            "These are other rows, or another way of reading them: the results below ({} read) would be deleted.",
                            format::plural(evaluation.at_stake() as u32, "row")
                        )}</span>
                        <button type="button" class="button small" id="delete-and-evaluate" on:click=move |_| run::start(shared)>"Delete them and evaluate"</button>
                        <button type="button" class="button quiet small" on:click=move |_| evaluation.asking.set(false)>"Keep them"</button>
                    </div>
                </Show>
                {move || evaluation.remark.get().map(|words| view! { <p class="remark" role="status">{words}</p> })}
                {move || evaluation.fault.get().map(|fault| view! {
                    <FaultNotice fault=fault>
                        <button type="button" class="button quiet" on:click=move |_| evaluation.fault.set(None)>"Close this message"</button>
                    </FaultNotice>
                })}
                <Found shared=shared/>
            </div>
        </section>
    }
}

#[component]
fn Rows(shared: Shared) -> impl IntoView {
    let evaluation = shared.evaluation;
    let problem = RwSignal::new(None::<&'static str>);
    let take = move |files: Vec<File>| {
        let Some(file) = files.into_iter().next() else { return };
        spawn_local(async move {
            match JsFuture::from(file.text()).await.ok().and_then(|text| text.as_string()) {
                Some(text) => {
                    problem.set(None);
                    evaluation.remark.set(None);
                    evaluation.set.set(Some(Arc::new(RowSet::new(&file.name(), text))));
                }
                None => problem.set(Some("The file could not be read; it may have changed on disk.")),
            }
        });
    };
    let example = move |_| {
        problem.set(None);
        evaluation.remark.set(None);
        evaluation.set.set(Some(Arc::new(RowSet::example())));
    };
    let running = Signal::derive(move || evaluation.going.with(Option::is_some));
    view! {
        <div class="field">
            <h3>"Rows"</h3>
            <DropPlace class="drop slim" disabled=running take=take>
                <div class="row">
                    <FileButton id="rows" title="Choose a labelled file" accept=".jsonl,.ndjson,.json" disabled=running take=take/>
                    <button type="button" class="button" id="example-set" disabled=running on:click=example>"Use the example set"</button>
                </div>
                <p class="soft">"or drop it here. JSON lines: id, state, question, options, and label, the id of the right option."</p>
            </DropPlace>
            <p class="problem" aria-live="polite">{move || problem.get()}</p>
            {move || evaluation.set.get().map(|set| view! { <SetLine set=set/> })}
        </div>
    }
}

#[component]
fn SetLine(set: Arc<RowSet>) -> impl IntoView {
    let families = set.file.families().into_iter().filter(|family| !family.is_empty()).count();
    let families = if families > 1 { format!(", {families} families") } else { String::new() };
    let words = format!("{}: {}{families}", set.name, format::plural(set.file.rows.len() as u32, "row"));
    let bad = set.file.bad.len();
    let more = bad.saturating_sub(MOST_BAD);
    let list = set.file.bad.iter().take(MOST_BAD).map(|bad| view! { <li>{bad.to_string().replace('`', "")}</li> }).collect_view();
    view! {
        <p id="set"><strong>{words}</strong></p>
        {(bad > 0).then(|| view! {
            <details class="bad-rows">
                <summary>{format!("{} left out", format::plural(bad as u32, "row"))}</summary>
                <ul class="soft">{list}{(more > 0).then(|| view! { <li>{format!("and {more} more")}</li> })}</ul>
            </details>
        })}
    }
}

#[component]
fn Models(shared: Shared) -> impl IntoView {
    let evaluation = shared.evaluation;
    let line = move |rung: Rung| {
        let key = rung.key.clone();
        let chosen = {
            let key = key.clone();
            move || evaluation.chosen(shared).iter().any(|rung| rung.key == key)
        };
        let toggle = move |event| {
            let mut keys: Vec<String> = untrack(|| evaluation.chosen(shared)).into_iter().map(|rung| rung.key).collect();
            keys.retain(|other| *other != key);
            if event_target_checked(&event) {
                keys.push(key.clone());
            }
            evaluation.picked.set(Some(keys));
        };
        let place = match rung.place {
            Place::Kept { .. } => "kept here",
            Place::Loaded => "loaded, not kept",
            Place::Fetch { .. } => "is downloaded first",
        };
        view! {
            <li>
                <label class="check">
                    <input type="checkbox" prop:checked=chosen disabled=move || evaluation.going.with(Option::is_some) on:change=toggle/>
                    <span>{rung.title.clone()}</span>
                </label>
                <span class="kept-size">{format!("{}, {place}", format::bytes(rung.bytes))}</span>
            </li>
        }
    };
    view! {
        <fieldset class="field rungs">
            <legend><h3>"Models"</h3></legend>
            <ul id="rungs">
                <For each=move || rungs(shared) key=|rung| (rung.key.clone(), format!("{:?}", rung.place)) children=line/>
            </ul>
            <label class="check">
                <input type="checkbox" id="orders" prop:checked=move || evaluation.orders.get() disabled=move || evaluation.going.with(Option::is_some)
                    on:change=move |event| evaluation.orders.set(event_target_checked(&event))/>
                <span>"Read every rotation of the options, too"</span>
            </label>
        </fieldset>
    }
}

#[component]
fn Bar(shared: Shared) -> impl IntoView {
    let (evaluation, runs) = (shared.evaluation, shared.runs);
    let why_not = move || {
        if evaluation.set.with(|set| set.as_ref().is_none_or(|set| set.file.rows.is_empty())) {
            Some("Choose rows first.")
        } else if evaluation.chosen(shared).is_empty() {
            Some("Tick a model.")
        } else if shared.device.with(|device| matches!(device, Some(Err(_)))) {
            Some("There is no GPU to read them.")
        } else if runs.job.with(Option::is_some) || shared.loading.with(Option::is_some) {
            Some("Something else is running.")
        } else {
            None
        }
    };
    let begun = move || {
        evaluation.drawn.track();
        let keys: Vec<String> = evaluation.chosen(shared).into_iter().map(|rung| rung.key).collect();
        evaluation.continues()
            && evaluation.plan.with_value(|plan| {
                plan.as_ref().is_some_and(|plan| {
                    plan.tables.iter().any(|table| table.done() > 0 && !table.complete() && keys.contains(&table.rung.key))
                })
            })
    };
    let words = move || match evaluation.going.get() {
        Some(going) => going_words(&going),
        None => why_not().unwrap_or_default().to_string(),
    };
    let share = move || {
        evaluation
            .going
            .with(|going| going.as_ref().filter(|going| going.rows > 0).map_or(0.0, |going| going.done as f64 / going.rows as f64))
    };
    view! {
        <div class="run-bar evaluate-bar">
            <Show when=move || evaluation.going.with(Option::is_some) fallback=move || view! {
                <button type="button" class="button strong big" id="start-evaluation" disabled=move || why_not().is_some() on:click=move |_| run::ask_and_start(shared)>
                    {move || if begun() { "Go on" } else { "Evaluate" }}
                </button>
            }>
                <button type="button" class="button strong big" id="stop-evaluation" on:click=move |_| crate::web::page::run::stop(shared)>
                    {move || if runs.stopping.get() { "Stop at once" } else { "Stop" }}
                </button>
            </Show>
            <div class="progress">
                <p class="soft" id="evaluation-progress" role="status">{words}</p>
                <span class="track" aria-hidden="true"><span class="fill" style:transform=move || format!("scaleX({:.4})", share())></span></span>
            </div>
        </div>
    }
}

fn going_words(going: &Going) -> String {
    if going.rows == 0 {
        return "Starting…".into();
    }
    let which = if going.rungs > 1 { format!(" ({} of {})", going.rung, going.rungs) } else { String::new() };
    if going.loading {
        return format!("Loading {}{which}…", going.title);
    }
    let left = going.left.map_or(String::new(), |left| format!(", about {} left", format::rough(left)));
    format!("{}{which}: {} of {}{left}", going.title, going.done, format::plural(going.rows as u32, "row"))
}

/// One model's line and curves.
#[derive(Clone)]
struct Shown {
    title: String,
    table: Table,
    summary: Summary,
}

/// The results: a table, two charts, and the files.
#[component]
fn Found(shared: Shared) -> impl IntoView {
    let evaluation = shared.evaluation;
    let shown = move || -> Vec<Shown> {
        evaluation.drawn.track();
        evaluation.plan.with_value(|plan| {
            let Some(plan) = plan else { return Vec::new() };
            let show = |table: &Table| Shown {
                title: table.rung.title.clone(),
                table: table.clone(),
                summary: summary(&table.answered(&plan.set)),
            };
            plan.tables.iter().filter(|table| table.done() > 0).map(show).collect()
        })
    };
    let about = move || {
        evaluation.drawn.track();
        evaluation.plan.with_value(|plan| plan.as_ref().map_or(String::new(), |plan| plan.set.name.clone()))
    };
    let charts = move || {
        let shown = shown();
        evaluation.plan.with_value(|plan| {
            let cases = |shown: &Shown| match plan {
                Some(plan) => shown.table.answered(&plan.set).iter().map(|row| row.case(false)).collect(),
                None => Vec::new(),
            };
            let cases: Vec<_> = shown.iter().map(|shown| (shown.title.as_str(), cases(shown))).collect();
            let bins: Vec<_> = cases.iter().map(|(title, cases)| (*title, reliability(cases))).collect();
            let curves: Vec<_> = cases.iter().map(|(title, cases)| (*title, coverage(cases))).collect();
            (chart::reliability(&bins), chart::coverage(&curves))
        })
    };
    let some = Memo::new(move |_| {
        evaluation.drawn.track();
        evaluation.plan.with_value(|plan| plan.as_ref().is_some_and(|plan| plan.tables.iter().any(|table| table.done() > 0)))
    });
    let charts = Memo::new(move |_| charts());
    let save = move |name: &'static str, kind: &'static str, text: fn(&super::set::Plan, Shared) -> String| {
        move |_| {
            if let Some(text) = evaluation.plan.with_value(|plan| plan.as_ref().map(|plan| text(plan, shared))) {
                save_file(name, kind, &text);
            }
        }
    };
    view! {
        <Show when=move || some.get()>
            <div class="found" id="found">
                <h3>{move || format!("Results on {}", about())}</h3>
                <table class="scores">
                    <thead><tr>
                        <th scope="col">"Model"</th>
                        <th scope="col">"Rows"</th>
                        <th scope="col">"Accuracy"</th>
                        <th scope="col">"Balanced"</th>
                        <th scope="col">"NLL"</th>
                        <th scope="col">"ECE"</th>
                        <th scope="col">"Flips"</th>
                        <th scope="col">"Decisions/s"</th>
                    </tr></thead>
                    <tbody>{move || shown().into_iter().map(|shown| view! { <ScoreLine shown=shown/> }).collect_view()}</tbody>
                </table>
                <div class="charts">
                    <figure>
                        <div inner_html=move || charts.get().0></div>
                        <figcaption class="soft">"Is 80 % sure right 8 times out of 10? Below the dotted line a model is too sure of itself."</figcaption>
                    </figure>
                    <figure>
                        <div inner_html=move || charts.get().1></div>
                        <figcaption class="soft">"Errors when a model answers only where it is surest. A curve that starts low can be trusted with a threshold."</figcaption>
                    </figure>
                </div>
                <div class="row files">
                    <span class="label">"Download"</span>
                    <button type="button" class="button small" id="save-results" on:click=save("results.jsonl", "application/jsonl", |plan, _| receipt::results(plan))>"Results (JSONL)"</button>
                    <button type="button" class="button small" id="save-csv" on:click=save("results.csv", "text/csv", |plan, _| receipt::csv(plan))>"Table (CSV)"</button>
                    <button type="button" class="button small" id="save-receipt" on:click=save("receipt.json", "application/json", |plan, shared| {
                        receipt::receipt(plan, shared.device.get_untracked().and_then(Result::ok).as_ref())
                    })>"Receipt (JSON)"</button>
                    <button type="button" class="button small" on:click=move |_| save_file("reliability.svg", "image/svg+xml", &chart::standalone(&charts.get_untracked().0))>"Reliability (SVG)"</button>
                    <button type="button" class="button small" on:click=move |_| save_file("risk-coverage.svg", "image/svg+xml", &chart::standalone(&charts.get_untracked().1))>"Risk and coverage (SVG)"</button>
                    <button type="button" class="button quiet small" id="clear-evaluation" disabled=move || evaluation.going.with(Option::is_some) on:click=move |_| run::clear(shared)>"Clear the results"</button>
                </div>
                <details class="soft definitions">
                    <summary>"What the numbers are"</summary>
                    <p>"Accuracy: right choices over all rows; a refused row is a wrong one. Balanced: for each family the mean share of each label's rows that were chosen rightly, averaged over families. NLL: mean of the negative natural logarithm of the right option's probability. ECE: mean distance between confidence and share right over ten bins of equal width. Flips: rows in which another order of the options changes the choice; with it, all numbers of the second line are of the mean over all orders. Decisions/s: prompts read over the seconds they took, loading left out."</p>
                </details>
            </div>
        </Show>
    }
}

#[component]
fn ScoreLine(shown: Shown) -> impl IntoView {
    let Shown { title, table, summary } = shown;
    let refused = summary.scores.rows - summary.scores.answered;
    let rows = if table.complete() { table.done().to_string() } else { format!("{} of {}", table.done(), table.results.len()) };
    let rows = if refused > 0 { format!("{rows}, {refused} refused") } else { rows };
    let flips = summary.flips.map_or("–".to_string(), |flips| format!("{} of {}", flips.flipped, flips.rows));
    let pace = summary.pace();
    let pace = if pace >= 10.0 { format!("{pace:.0}") } else { format!("{pace:.2}") };
    let numbers = |s: &crate::eval::Scores| {
        [format::share(s.accuracy), format::share(s.balanced_accuracy), format!("{:.3}", s.nll), format!("{:.3}", s.ece)]
    };
    let [accuracy, balanced, nll, ece] = numbers(&summary.scores);
    let combined = summary.combined.as_ref().map(numbers).map(|[accuracy, balanced, nll, ece]| {
        view! {
            <tr class="combined">
                <th scope="row">"over all orders"</th>
                <td data-label="Rows"></td>
                <td data-label="Accuracy">{accuracy}</td>
                <td data-label="Balanced">{balanced}</td>
                <td data-label="NLL">{nll}</td>
                <td data-label="ECE">{ece}</td>
                <td data-label="Flips"></td>
                <td data-label="Decisions/s"></td>
            </tr>
        }
    });
    view! {
        <tr>
            <th scope="row">{title}</th>
            <td data-label="Rows">{rows}</td>
            <td data-label="Accuracy">{accuracy}</td>
            <td data-label="Balanced">{balanced}</td>
            <td data-label="NLL">{nll}</td>
            <td data-label="ECE">{ece}</td>
            <td data-label="Flips">{flips}</td>
            <td data-label="Decisions/s">{pace}</td>
        </tr>
        {combined}
    }
}
