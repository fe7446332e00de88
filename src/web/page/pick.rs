//! Choosing files: a button, and a place to drop them on.

use leptos::html::Input;
use leptos::prelude::*;
use web_sys::{DragEvent, File, FileList};

fn all(files: Option<FileList>) -> Vec<File> {
    files.map_or_else(Vec::new, |files| (0..files.length()).filter_map(|i| files.get(i)).collect())
}

/// A button that opens the browser's file dialog.
#[component]
pub fn FileButton(
    /// Of the input, for labels and tests.
    id: &'static str,
    /// On the button.
    title: &'static str,
    /// Endings that the dialog offers.
    accept: &'static str,
    /// Further classes of the button.
    #[prop(default = "button")]
    class: &'static str,
    #[prop(default = false)] multiple: bool,
    #[prop(into, default = Signal::stored(false))] disabled: Signal<bool>,
    take: impl Fn(Vec<File>) + 'static,
) -> impl IntoView {
    let picker = NodeRef::<Input>::new();
    let picked = move |_| {
        let Some(input) = picker.get_untracked() else { return };
        let files = all(input.files());
        // So that picking the same file again is a change, too.
        input.set_value("");
        if !files.is_empty() {
            take(files);
        }
    };
    view! {
        <label class=class class:disabled=disabled>
            {title}
            <input id=id class="visually-hidden" type="file" accept=accept multiple=multiple node_ref=picker on:change=picked disabled=disabled/>
        </label>
    }
}

/// A place that files are dropped on, around a [`FileButton`] and whatever explains it. Nothing is taken while it is disabled.
#[component]
pub fn DropPlace(
    #[prop(default = "drop")] class: &'static str,
    #[prop(into, default = Signal::stored(false))] disabled: Signal<bool>,
    take: impl Fn(Vec<File>) + 'static,
    children: Children,
) -> impl IntoView {
    let over = RwSignal::new(false);
    let dropped = move |event: DragEvent| {
        // Otherwise the browser would leave the page and show the file.
        event.prevent_default();
        over.set(false);
        let files = all(event.data_transfer().and_then(|data| data.files()));
        if !files.is_empty() && !disabled.get_untracked() {
            take(files);
        }
    };
    view! {
        <div class=class class:over=move || over.get() && !disabled.get()
            on:dragover=move |event: DragEvent| { event.prevent_default(); over.set(true) }
            on:dragleave=move |_| over.set(false)
            on:drop=dropped>
            {children()}
        </div>
    }
}
