//! The recommended models: what each weighs, how good it was measured to be, and which one fits this device.

use js_sys::Reflect;
use leptos::prelude::*;

use super::Shared;
use super::format;
use crate::hub::ladder::{DEFAULT_HOST, Entry, Ladder};
use crate::web::protocol::Device;

/// Memory that the browser admits to, in bytes; at most 8 GB whatever is there, and not told by all browsers.
fn device_memory() -> Option<f64> {
    let navigator = web_sys::window()?.navigator();
    Reflect::get(&navigator, &"deviceMemory".into()).ok()?.as_f64().map(|gigabytes| gigabytes * 1e9)
}

fn phone() -> bool {
    let coarse = web_sys::window().and_then(|window| window.match_media("(pointer: coarse) and (max-width: 60rem)").ok().flatten());
    coarse.is_some_and(|query| query.matches())
}

/// A decision that takes longer than this is no suggestion, seconds.
const PATIENCE: f64 = 5.0;
/// Tokens of the decision that the expected time is for.
const TOKENS: f64 = 150.0;
/// What a decision costs however fast the adapter multiplies, seconds: recording, waiting, reading back.
const BESIDE: f64 = 0.02;

/// The largest model that this device should carry, and why: the smallest for phones and software adapters; otherwise what takes at most
/// half of the memory, whose pieces fit the adapter's limits without many cuts, and which answers in reasonable time.
fn suggested(device: &Device, models: &[Entry], pace: Option<f64>) -> (usize, String) {
    if device.software {
        return (0, "A software renderer is slow with any of them.".into());
    }
    if phone() {
        return (0, "On a phone the smallest is the one that fits.".into());
    }
    // Adapters that allow only small buffers are those of phones and old machines.
    let small = device.max_buffer < 1e9;
    let told = device_memory();
    let memory = told.unwrap_or(4e9);
    let fits = |model: &Entry| model.bytes as f64 * 1.2 <= memory / 2.0 && (!small || model.bytes < 2_000_000_000);
    let quick = |model: &Entry| pace.is_none_or(|pace| expected(model, pace) <= PATIENCE);
    let best = models.iter().rposition(|model| fits(model) && quick(model)).unwrap_or(0);
    let memory = match told {
        Some(memory) if memory >= 8e9 => "8 GB of memory or more".to_string(),
        Some(memory) => format!("{} of memory", format::bytes(memory)),
        None => "memory that the browser does not tell".to_string(),
    };
    (best, format!("Suggested for {memory}, bindings of {} and the measured pace.", format::limit(device.max_binding)))
}

/// Seconds of a decision, estimated from the adapter's pace: two operations for each weight and token.
fn expected(model: &Entry, pace: f64) -> f64 {
    // Bits that a weight takes in the file.
    let bits = if model.file.contains("Q8_0") { 8.5 } else { 4.9 };
    2.0 * TOKENS * (model.bytes as f64 * 8.0 / bits) / pace + BESIDE
}

/// What a rung's button asks for.
pub enum Rung {
    /// It is in the browser's storage under this name.
    Kept(String),
    Fetch {
        url: String,
        sha256: String,
    },
}

/// The ladder, each rung with a button.
#[component]
pub fn LadderList(shared: Shared, choose: impl Fn(Rung) + Copy + Send + Sync + 'static) -> impl IntoView {
    let (device, kept) = (shared.device, shared.kept);
    let models = Ladder::built_in().models();
    let why = Memo::new(move |_| {
        device.with(|device| {
            device.as_ref().and_then(|device| device.as_ref().ok().map(|device| suggested(device, models, shared.pace.get())))
        })
    });
    let suggestion = move || why.with(|why| why.as_ref().map(|why| why.0));
    let software = move || device.with(|device| matches!(device, Some(Ok(device)) if device.software));
    let rows = models
        .iter()
        .enumerate()
        .map(|(i, model)| {
            let (url, sha256) = (model.url(DEFAULT_HOST), model.sha256.clone());
            // Known by its bytes, under whatever name it was stored.
            let here = {
                let sha256 = sha256.clone();
                move || kept.with(|kept| kept.files.iter().find(|file| file.complete() && file.sha256 == sha256).map(|file| file.name.clone()))
            };
            let rung = {
                let here = here.clone();
                move || match untrack(&here) {
                    Some(name) => Rung::Kept(name),
                    None => Rung::Fetch { url: url.clone(), sha256: sha256.clone() },
                }
            };
            let marked = move || suggestion() == Some(i) && !software();
            let quality = model.quality;
            let kept_here = {
                let here = here.clone();
                Memo::new(move |_| here().is_some())
            };
            let action = move || if kept_here.get() { "Use" } else { "Download" };
            let named = format!("{}, {}", model.title, format::bytes(model.bytes as f64));
            let facts = move || {
                let time = shared.pace.get().map_or(String::new(), |pace| format!(", about {} a decision here", format::about(expected(model, pace))));
                format!("Right on {:.0}, {:.0} and {:.0} of 100{time}", quality.authored144 * 100.0, quality.perturbed108 * 100.0, quality.typesafe102 * 100.0)
            };
            view! {
                <li class:suggested=marked>
                    <div class="rung">
                        <p><strong>{model.title.clone()}</strong>" "<span class="soft">{model.label.clone()}</span>
                            <Show when=marked><span class="tag-chip">"suggested here"</span></Show></p>
                        <p class="soft">{model.audience.clone()}</p>
                        <p class="soft facts-line">{facts}</p>
                    </div>
                    <span class="kept-size">{format::bytes(model.bytes as f64)}</span>
                    <button type="button" class="button" disabled=move || suggestion().is_none() aria-label=move || format!("{} {named}", action())
                        on:click=move |_| choose(rung())>{action}</button>
                </li>
            }
        })
        .collect_view();
    view! {
        <div class="ladder">
            <h3>"Recommended models"</h3>
            <ul>{rows}</ul>
            <p class="soft">{move || why.with(|why| why.as_ref().map(|why| why.1.clone()).unwrap_or_default())}" Quality as published for the unquantised model on 144 authored, 108 perturbed and 102 TypeSafe cases."{move || shared.pace.get().map(|_| " The time is an estimate for 150 tokens from one product measured on this GPU.")}</p>
        </div>
    }
}
