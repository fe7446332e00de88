//! What the page asked servers for, in the open: its own files, the models that were chosen, and after that nothing.

use js_sys::Reflect;
use leptos::prelude::*;

use super::{Shared, format};

/// The requests of the worker; the page itself makes none but for its own files.
#[derive(Clone, Default, PartialEq)]
pub struct Requests {
    /// Addresses and how often each was asked, in the order of their first request.
    seen: Vec<(String, u32)>,
    /// Since a model was put on the GPU last.
    since: u32,
}

impl Requests {
    pub fn add(&mut self, address: &str) {
        self.since += 1;
        match self.seen.iter_mut().find(|(seen, _)| seen == address) {
            Some((_, count)) => *count += 1,
            None => self.seen.push((address.into(), 1)),
        }
    }

    /// A model is on the GPU: what comes now comes after loading.
    pub fn mark(&mut self) {
        self.since = 0;
    }
}

/// Addresses of everything that the browser fetched for the page: its own files.
fn own_files() -> Vec<String> {
    let Some(entries) = web_sys::window().and_then(|window| window.performance()).map(|clock| clock.get_entries_by_type("resource")) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .iter()
        .filter_map(|entry| Reflect::get(&entry, &"name".into()).ok()?.as_string())
        .filter(|name| !name.starts_with("blob:"))
        .collect();
    names.sort();
    names.dedup();
    names
}

#[component]
pub fn Trust(shared: Shared) -> impl IntoView {
    let requests = shared.requests;
    let opened = RwSignal::new(0u32);
    let line = |address: String, count: u32| {
        let times = if count > 1 { format!("{} requests", format::thousands(count)) } else { String::new() };
        view! { <li><span class="address-text">{address}</span><span class="kept-size">{times}</span></li> }
    };
    let models = move || requests.get().seen.into_iter().map(|(address, count)| line(address, count)).collect_view();
    let own = move || {
        opened.track();
        requests.track();
        own_files().into_iter().map(|address| line(address, 1)).collect_view()
    };
    let none = move || requests.with(|requests| requests.seen.is_empty());
    let since = move || match (shared.model.with(Option::is_some), requests.with(|requests| requests.since)) {
        (false, _) => "No model is loaded yet.".to_string(),
        (true, 0) => "Since the model was loaded: no request at all.".to_string(),
        (true, n) => format!("Since the model was loaded: {}, listed here.", format::plural(n, "request")),
    };
    view! {
        <section class="step trust" aria-labelledby="trust-title">
            <h2 id="trust-title">"What leaves this device"</h2>
            <div class="panel">
                <p>"Nothing that you type, load or get as an answer. " <span id="since-loading" role="status">{since}</span></p>
                <details on:toggle=move |_| opened.update(|n| *n += 1)>
                    <summary>"Every request that this page has made"</summary>
                    <h3>"For models"</h3>
                    <Show when=none><p class="soft">"None."</p></Show>
                    <ul class="addresses" id="requests">{models}</ul>
                    <h3>"For the page itself, from its own folder"</h3>
                    <ul class="addresses">{own}</ul>
                </details>
                <p class="soft">"Models lie in the storage that this browser keeps for this page, what you type and your last evaluation beside them. All of it stays until you delete it, here or with this site's data in the browser's settings."</p>
            </div>
        </section>
    }
}
