//! Locks between the tabs of this page (Web Locks), so that two of them never write one record.

use futures_channel::oneshot;
use js_sys::{Function, Object, Promise, Reflect};
use wasm_bindgen::{JsCast, JsValue, prelude::Closure};

/// A held lock; dropped, it is free again. It also goes with the tab.
pub struct Held(Option<Function>);

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(release) = &self.0 {
            let _ = release.call0(&JsValue::UNDEFINED);
        }
    }
}

/// Takes a lock if it is free; none while another tab holds it. A browser without locks gives one that excludes nobody.
pub async fn take(name: &str) -> Option<Held> {
    let (sender, answer) = oneshot::channel();
    match request(name, sender) {
        Some(()) => answer.await.unwrap_or(Some(Held(None))),
        None => Some(Held(None)),
    }
}

fn request(name: &str, sender: oneshot::Sender<Option<Held>>) -> Option<()> {
    let navigator = web_sys::window()?.navigator();
    let locks = Reflect::get(&navigator, &"locks".into()).ok().filter(JsValue::is_object)?;
    let request: Function = Reflect::get(&locks, &"request".into()).ok()?.dyn_into().ok()?;
    let options = Object::new();
    Reflect::set(&options, &"ifAvailable".into(), &true.into()).ok()?;
    // The lock is held until the promise that this gives back is resolved.
    let granted = Closure::once_into_js(move |lock: JsValue| -> JsValue {
        if lock.is_null() {
            let _ = sender.send(None);
            return JsValue::UNDEFINED;
        }
        let mut release = None;
        let held = Promise::new(&mut |resolve, _| release = Some(resolve));
        let _ = sender.send(Some(Held(release)));
        held.into()
    });
    request.call3(&locks, &name.into(), &options, &granted).ok().map(|_| ())
}
