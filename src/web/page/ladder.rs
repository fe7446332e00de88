//! The recommended models: what each weighs, how good it was measured to be, and which one fits this device.

use js_sys::Reflect;
use leptos::prelude::*;

use super::format;
use crate::hub::ladder::{DEFAULT_HOST, Entry, Ladder};
use crate::web::protocol::{Device, Kept};

/// Memory that the browser admits to, in bytes; at most 8 GB whatever is there, and not told by all browsers.
fn device_memory() -> Option<f64> {
    let navigator = web_sys::window()?.navigator();
    Reflect::get(&navigator, &"deviceMemory".into()).ok()?.as_f64().map(|gigabytes| gigabytes * 1e9)
}

fn phone() -> bool {
    let coarse = web_sys::window().and_then(|window| window.match_media("(pointer: coarse) and (max-width: 60rem)").ok().flatten());
    coarse.is_some_and(|query| query.matches())
}

/// The largest model that this device should carry: the smallest for phones, software adapters and where nothing is known,
/// otherwise what takes at most half of the memory.
fn suggested(device: &Device, models: &[Entry]) -> usize {
    if phone() || device.software {
        return 0;
    }
    let memory = device_memory().unwrap_or(4e9);
    models.iter().rposition(|model| model.bytes as f64 * 1.2 <= memory / 2.0).unwrap_or(0)
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
pub fn LadderList(
    device: RwSignal<Option<Result<Device, crate::web::protocol::Fault>>>,
    kept: RwSignal<Kept>,
    choose: impl Fn(Rung) + Copy + Send + Sync + 'static,
) -> impl IntoView {
    let models = Ladder::built_in().models();
    let suggestion =
        move || device.with(|device| device.as_ref().and_then(|device| device.as_ref().ok().map(|device| suggested(device, models))));
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
            view! {
                <li class:suggested=marked>
                    <div class="rung">
                        <p><strong>{model.title.clone()}</strong>" "<span class="soft">{model.label.clone()}</span>
                            <Show when=marked><span class="tag-chip">"suggested here"</span></Show></p>
                        <p class="soft">{model.audience.clone()}</p>
                    </div>
                    <span class="kept-size">{format::bytes(model.bytes as f64)}</span>
                    <button type="button" class="button" disabled=move || suggestion().is_none() aria-label=format!("Download {}, {}", model.title, format::bytes(model.bytes as f64))
                        on:click=move |_| choose(rung())>{move || if here().is_some() { "Use" } else { "Download" }}</button>
                </li>
            }
        })
        .collect_view();
    view! {
        <div class="ladder">
            <h3>"Recommended models"</h3>
            <ul>{rows}</ul>
        </div>
    }
}
