//! Step two: the state, the questions and their options.

use leptos::prelude::*;
use wasm_bindgen::JsCast;
use web_sys::KeyboardEvent;

use super::draft::{Draft, MAX_QUESTIONS, OptionDraft, Preset, QuestionDraft, ROW_ID, StateKind};
use super::run::{self, Ways};
use super::{Shared, format};
use crate::decision::{MAX_OPTIONS, MIN_OPTIONS, letter};
use crate::web::protocol::{Answer, Command, Count};

#[component]
pub fn DecideStep(shared: Shared, presets: Vec<Preset>) -> impl IntoView {
    let draft = shared.draft;
    let shortcut = move |event: KeyboardEvent| {
        if event.key() == "Enter" && (event.ctrl_key() || event.meta_key()) {
            event.prevent_default();
            run::start_and_show(shared, Ways::Both);
        }
    };
    let all = presets.clone();
    let chosen = Memo::new(move |_| {
        let now = draft.get();
        all.iter().position(|preset| preset.draft == now)
    });
    let shows: Vec<String> = presets.iter().map(|preset| preset.shows.clone()).collect();
    let shown = move || match chosen.get().and_then(|i| shows.get(i).cloned()) {
        Some(shows) => shows,
        None => "An example takes the place of what stands here; what you typed can be brought back.".into(),
    };
    let buttons = presets
        .into_iter()
        .enumerate()
        .map(|(i, preset)| {
            view! {
                <button type="button" class="chip" title=preset.shows aria-pressed=move || (chosen.get() == Some(i)).to_string()
                    on:click=move |_| draft.replace(&preset.draft)>{preset.title}</button>
            }
        })
        .collect_view();
    view! {
        <section class="step" id="decide" aria-labelledby="decide-title" on:keydown=shortcut>
            <h2 id="decide-title"><span class="number" aria-hidden="true">"2"</span>"Decision"</h2>
            <div class="panel">
                <div class="chips" role="group" aria-label="Examples"><span class="soft">"Examples"</span>{buttons}</div>
                <div class="label-row about">
                    <p class="soft" id="shows">{shown}</p>
                    <super::exchange::Exchange shared=shared/>
                </div>
                <Show when=move || draft.before.with(Option::is_some)>
                    <div class="remark row" id="before">
                        <span>"What you had typed before is kept."</span>
                        <button type="button" class="button small" id="bring-back" on:click=move |_| draft.bring_back()>"Bring back what you had typed"</button>
                        <button type="button" class="button quiet small" on:click=move |_| draft.keep_before(None)>"Forget it"</button>
                    </div>
                </Show>
                <Show when=move || draft.refused.get()>
                    <p class="remark" role="status" id="refused">"This browser does not keep what you type: its storage is full or turned off. Export the rows to keep them."</p>
                </Show>
                <div class="columns">
                    <StateBox draft=draft/>
                    <Questions shared=shared/>
                </div>
                <RunBar shared=shared/>
            </div>
        </section>
    }
}

#[component]
fn StateBox(draft: Draft) -> impl IntoView {
    let kind = move |this: StateKind, id: &'static str, title: &'static str| {
        view! {
            <input type="radio" class="visually-hidden" name="kind" id=id prop:checked=move || draft.kind.get() == this on:change=move |_| draft.kind.set(this)/>
            <label for=id>{title}</label>
        }
    };
    let problem = move || draft.state_value().err();
    view! {
        <div class="field">
            <div class="label-row">
                <label for="state">"State"</label>
                <div class="segmented" role="radiogroup" aria-label="How the state is read">
                    {kind(StateKind::Text, "kind-text", "Text")}
                    {kind(StateKind::Json, "kind-json", "JSON")}
                </div>
            </div>
            <p class="soft" id="state-hint">"Everything the model should judge from: a message, a record, a log."</p>
            <textarea id="state" rows="12" class:mono=move || draft.kind.get() == StateKind::Json spellcheck="false" aria-describedby="state-hint state-problem" aria-invalid=move || problem().is_some().to_string() bind:value=draft.state></textarea>
            <p class="problem" id="state-problem" aria-live="polite">{problem}</p>
        </div>
    }
}

#[component]
fn Questions(shared: Shared) -> impl IntoView {
    let questions = shared.draft.questions;
    let more = move || questions.with(Vec::len) < MAX_QUESTIONS;
    view! {
        <div class="questions">
            <For each=move || questions.get() key=|question| question.key children=move |question| view! { <Question shared=shared question=question/> }/>
            <Show when=more>
                <button type="button" class="button quiet add" on:click=move |_| questions.update(|all| all.push(QuestionDraft::empty()))>"Add a question on the same state"</button>
            </Show>
        </div>
    }
}

#[component]
fn Question(shared: Shared, question: QuestionDraft) -> impl IntoView {
    let questions = shared.draft.questions;
    let number = move || questions.with(|all| all.iter().position(|q| q.key == question.key)).map_or(1, |i| i + 1);
    let several = move || questions.with(Vec::len) > 1;
    let title = move || if several() { format!("Question {}", number()) } else { "Question".to_string() };
    let id = format!("question-{}", question.key);
    let options = question.options;
    // The state has its own line for problems.
    let problems = move || match (shared.draft.state_value(), shared.draft.row(&question, ROW_ID)) {
        (Ok(_), Err(problems)) => problems.join("; ").replace('`', ""),
        _ => String::new(),
    };
    view! {
        <fieldset class="question">
            <legend class="visually-hidden">{title}</legend>
            <div class="label-row">
                <label for=id.clone()>{title}</label>
                <Show when=several>
                    <button type="button" class="button quiet small" on:click=move |_| questions.update(|all| all.retain(|q| q.key != question.key))>"Remove"</button>
                </Show>
            </div>
            <textarea id=id rows="2" bind:value=question.text></textarea>
            <div class="label-row"><span class="label">"Options"</span><span class="soft">"the model reads the descriptions, never the names"</span></div>
            <ol class="options">
                <For each=move || options.get() key=|option| option.key children=move |option| view! { <OptionRow question=question option=option/> }/>
            </ol>
            <div class="label-row">
                <Show when=move || options.with(|all| all.len() < MAX_OPTIONS)>
                    <button type="button" class="button quiet small add-option" on:click=move |_| options.update(|all| all.push(OptionDraft::new("", "")))>"Add an option"</button>
                </Show>
                <TokenCount shared=shared question=question/>
            </div>
            <p class="problem" aria-live="polite">{problems}</p>
        </fieldset>
    }
}

#[component]
fn OptionRow(question: QuestionDraft, option: OptionDraft) -> impl IntoView {
    let options = question.options;
    let place = move || options.with(|all| all.iter().position(|o| o.key == option.key)).unwrap_or_default();
    let name = move || letter(place());
    let few = move || options.with(|all| all.len() <= MIN_OPTIONS);
    let id = format!("option-{}", option.key);
    let keys = move |event: KeyboardEvent| {
        let at = untrack(place);
        let held = event.ctrl_key() || event.meta_key() || event.shift_key();
        match event.key().as_str() {
            "Enter" if !held && !event.is_composing() => {
                event.prevent_default();
                let all = options.with_untracked(Vec::len);
                if at + 1 == all && all < MAX_OPTIONS {
                    options.update(|all| all.push(OptionDraft::new("", "")));
                }
                if let Some(next) = options.with_untracked(|all| all.get(at + 1).map(|option| option.key)) {
                    focus(next);
                }
            }
            key @ ("ArrowUp" | "ArrowDown") if event.alt_key() => {
                event.prevent_default();
                let to = if key == "ArrowUp" { at.checked_sub(1) } else { Some(at + 1) };
                if let Some(to) = to.filter(|to| options.with_untracked(|all| *to < all.len())) {
                    options.update(|all| all.swap(at, to));
                    focus(option.key);
                }
            }
            _ => {}
        }
    };
    view! {
        <li on:keydown=keys>
            <span class="letter" aria-hidden="true">{name}</span>
            <input class="option-id" id=id type="text" autocomplete="off" spellcheck="false" aria-label=move || format!("Name of option {}", name()) placeholder="name" bind:value=option.id/>
            <textarea class="option-text" rows="1" aria-label=move || format!("Description of option {}", name()) placeholder="what it means" bind:value=option.description></textarea>
            <button type="button" class="icon" aria-label=move || format!("Remove option {}", name()) title="Remove" disabled=few
                on:click=move |_| options.update(|all| all.retain(|o| o.key != option.key))>"×"</button>
        </li>
    }
}

/// Puts the cursor into an option's name, once the page has been drawn.
fn focus(option: u32) {
    request_animation_frame(move || {
        let found =
            web_sys::window().and_then(|window| window.document()).and_then(|page| page.get_element_by_id(&format!("option-{option}")));
        if let Some(input) = found.and_then(|element| element.dyn_into::<web_sys::HtmlElement>().ok()) {
            let _ = input.focus();
        }
    });
}

/// How much of the budget a prompt takes, counted by the loaded model's own tokenizer a moment after the last change.
#[component]
fn TokenCount(shared: Shared, question: QuestionDraft) -> impl IntoView {
    let count = RwSignal::new(None::<Count>);
    let version = StoredValue::new(0u32);
    Effect::new(move |_| {
        let row = shared.draft.row(&question, ROW_ID);
        let loaded = shared.model.with(Option::is_some);
        version.update_value(|v| *v += 1);
        let mine = version.get_value();
        let (true, Ok(row)) = (loaded, row) else { return count.set(None) };
        set_timeout(
            move || {
                if version.try_get_value() != Some(mine) {
                    return;
                }
                leptos::task::spawn_local(async move {
                    let answer = shared.call(Command::Count { row }).answer().await;
                    if version.try_get_value() == Some(mine) {
                        count.set(match answer {
                            Ok(Answer::Counted(count)) => Some(count),
                            _ => None,
                        });
                    }
                });
            },
            std::time::Duration::from_millis(350),
        );
    });
    let words = move || match count.get() {
        Some(count) if count.tokens > count.max_tokens => {
            format!(
                "{} tokens, {} more than fit: shorten the state or the options",
                format::thousands(count.tokens),
                format::thousands(count.tokens - count.max_tokens)
            )
        }
        Some(count) => format!("{} of {} tokens", format::thousands(count.tokens), format::thousands(count.max_tokens)),
        None if shared.model.with(Option::is_some) => "…".to_string(),
        None => "length is counted once a model is loaded".to_string(),
    };
    let over = move || count.get().is_some_and(|count| count.tokens > count.max_tokens);
    view! { <span class="soft count" class:over=over>{words}</span> }
}

#[component]
fn RunBar(shared: Shared) -> impl IntoView {
    let runs = shared.runs;
    let running = move || runs.job.with(Option::is_some);
    let why_not = move || {
        if shared.model.with(Option::is_none) {
            return Some("Choose a model first.");
        }
        let bad = shared.draft.questions.get().iter().any(|question| shared.draft.row(question, ROW_ID).is_err());
        bad.then_some("Complete the decision first.")
    };
    let blocked = move || why_not().is_some();
    let live = shared.runs.live;
    // A moment after the last key, and never while a run is going on: its end is a change, too.
    let version = StoredValue::new(0u32);
    Effect::new(move |_| {
        let (on, changed) = (live.get(), shared.draft.get());
        version.update_value(|v| *v += 1);
        let mine = version.get_value();
        if !on || running() || blocked() || shared.runs.last.with_value(|last| last.as_ref() == Some(&changed)) {
            return;
        }
        set_timeout(
            move || {
                if version.try_get_value() == Some(mine) {
                    run::start(shared, Ways::Read);
                }
            },
            std::time::Duration::from_millis(400),
        );
    });
    view! {
        <div class="run-bar">
            <Show when=running fallback=move || view! {
                <button type="button" class="button strong big" id="run" disabled=blocked on:click=move |_| run::start_and_show(shared, Ways::Both)>"Read and write"</button>
                <button type="button" class="button big" id="read" disabled=blocked on:click=move |_| run::start_and_show(shared, Ways::Read)>"Read only"</button>
            }>
                <button type="button" class="button strong big" id="stop" on:click=move |_| run::stop(shared)>
                    {move || runs.stop_words()}
                </button>
                <span class="soft">{move || if runs.stopping.get() { "Ending the current step…" } else { "" }}</span>
            </Show>
            <label class="check"><input type="checkbox" id="live" prop:checked=move || live.get() on:change=move |event| live.set(event_target_checked(&event))/>"Read while typing"</label>
            <p class="soft" class:keys=move || !blocked()>{move || why_not().unwrap_or("Ctrl or ⌘ with Enter runs both ways, Escape stops. In the options Enter goes on to the next one, Alt with ↑ or ↓ moves one.")}</p>
        </div>
    }
}
