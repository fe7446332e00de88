//! The page's end of the worker: calls, their events, and what happens when the worker breaks.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use wasm_bindgen::{JsCast, JsValue, prelude::Closure};
use web_sys::{ErrorEvent, MessageEvent, Worker, WorkerOptions, WorkerType};

use crate::web::js_message;
use crate::web::protocol::{Answer, Class, Command, Event, Fault, FaultKind, Message, Request};

/// The worker's program, beside the page.
const PROGRAM: &str = "./worker_loader.js";

/// A handle on the worker; clones are the same worker.
#[derive(Clone)]
pub struct Client(Rc<Inner>);

struct Inner {
    worker: RefCell<Option<Running>>,
    next_job: Cell<u32>,
    waiting: RefCell<HashMap<u32, UnboundedSender<Event>>>,
    /// Requests made before the worker listens.
    early: RefCell<Vec<JsValue>>,
    ready: Cell<bool>,
    news: Box<dyn Fn(Event)>,
}

struct Running {
    worker: Worker,
    _message: Closure<dyn FnMut(MessageEvent)>,
    _error: Closure<dyn FnMut(ErrorEvent)>,
}

impl Client {
    /// Starts the worker. `news` hears what belongs to no call: a lost device, a crash.
    pub fn start(news: impl Fn(Event) + 'static) -> Self {
        let client = Self(Rc::new(Inner {
            worker: RefCell::default(),
            next_job: Cell::new(1),
            waiting: RefCell::default(),
            early: RefCell::default(),
            ready: Cell::new(false),
            news: Box::new(news),
        }));
        client.spawn();
        client
    }

    fn spawn(&self) {
        let options = WorkerOptions::new();
        options.set_type(WorkerType::Module);
        options.set_name("semif engine");
        let worker = match Worker::new_with_options(PROGRAM, &options) {
            Ok(worker) => worker,
            Err(error) => return self.crashed(&format!("the worker could not be started: {}", js_message(&error))),
        };
        let client = Rc::downgrade(&self.0);
        let message = Closure::new(move |event: MessageEvent| {
            if let Some(inner) = client.upgrade() {
                Client(inner).heard(event.data());
            }
        });
        let client = Rc::downgrade(&self.0);
        let error = Closure::new(move |event: ErrorEvent| {
            if let Some(inner) = client.upgrade() {
                let text = event.message();
                Client(inner).crashed(if text.is_empty() { "its program could not be loaded" } else { &text });
            }
        });
        worker.set_onmessage(Some(message.as_ref().unchecked_ref()));
        worker.set_onerror(Some(error.as_ref().unchecked_ref()));
        self.0.worker.replace(Some(Running { worker, _message: message, _error: error }));
    }

    fn heard(&self, data: JsValue) {
        let message = match serde_wasm_bindgen::from_value::<Message>(data) {
            Ok(message) => message,
            Err(error) => return self.crashed(&format!("a message of the worker was not understood: {error}")),
        };
        match message.event {
            Event::Ready => {
                self.0.ready.set(true);
                for request in self.0.early.take() {
                    self.post(&request);
                }
            }
            Event::Failed(fault) if message.job == 0 => self.crashed(&fault.message),
            event if message.job == 0 => (self.0.news)(event),
            event => {
                let last = matches!(event, Event::Done(_) | Event::Failed(_));
                let sender = self.0.waiting.borrow().get(&message.job).cloned();
                if let Some(sender) = sender {
                    // Nobody listens any more when the call was dropped; then its events are of no use.
                    let _ = sender.unbounded_send(event);
                }
                if last {
                    self.0.waiting.borrow_mut().remove(&message.job);
                }
            }
        }
    }

    fn crashed(&self, message: &str) {
        self.stop();
        let fault = Fault::new(FaultKind::Crash, format!("The engine stopped: {message}"));
        for (_, sender) in self.0.waiting.take() {
            let _ = sender.unbounded_send(Event::Failed(fault.clone()));
        }
        (self.0.news)(Event::Failed(fault));
    }

    fn stop(&self) {
        self.0.ready.set(false);
        self.0.early.borrow_mut().clear();
        if let Some(running) = self.0.worker.take() {
            running.worker.set_onmessage(None);
            running.worker.set_onerror(None);
            running.worker.terminate();
        }
    }

    fn post(&self, request: &JsValue) {
        let worker = self.0.worker.borrow();
        let posted =
            worker.as_ref().map_or_else(|| Err(JsValue::from_str("the worker is gone")), |running| running.worker.post_message(request));
        drop(worker);
        if let Err(error) = posted {
            self.crashed(&js_message(&error));
        }
    }

    /// Sends a command; a stopped worker is started again first.
    pub fn call(&self, command: Command) -> Call {
        self.call_as(Class::Click, command)
    }

    /// The same in a class of its own.
    pub fn call_as(&self, class: Class, command: Command) -> Call {
        if self.0.worker.borrow().is_none() {
            self.spawn();
        }
        let job = self.0.next_job.get();
        self.0.next_job.set(job + 1);
        let (sender, events) = unbounded();
        self.0.waiting.borrow_mut().insert(job, sender);
        match serde_wasm_bindgen::to_value(&Request { job, class, command }) {
            Ok(request) if self.0.ready.get() => self.post(&request),
            Ok(request) => self.0.early.borrow_mut().push(request),
            Err(error) => self.crashed(&error.to_string()),
        }
        Call { job, events }
    }

    /// Asks a job to stop. It still answers, with what it became.
    pub fn cancel(&self, job: u32) {
        if let Ok(request) = serde_wasm_bindgen::to_value(&Request { job: 0, class: Class::Click, command: Command::Cancel { job } }) {
            self.post(&request);
        }
    }

    /// Ends the worker in the middle of whatever it does; the next call starts a new one, without a model.
    pub fn kill(&self) {
        self.stop();
        let fault = Fault::new(FaultKind::Cancelled, "Stopped.");
        for (_, sender) in self.0.waiting.take() {
            let _ = sender.unbounded_send(Event::Failed(fault.clone()));
        }
    }
}

/// A command on its way.
pub struct Call {
    /// For [`Client::cancel`].
    pub job: u32,
    events: UnboundedReceiver<Event>,
}

impl Call {
    /// Waits for the answer and hands every event before it to `on_event`.
    pub async fn finish(mut self, mut on_event: impl FnMut(Event)) -> Result<Answer, Fault> {
        loop {
            match self.events.recv().await {
                Ok(Event::Done(answer)) => return Ok(answer),
                Ok(Event::Failed(fault)) => return Err(fault),
                Ok(event) => on_event(event),
                Err(_) => return Err(Fault::new(FaultKind::Crash, "The engine stopped before it answered.")),
            }
        }
    }

    /// Waits for the answer alone.
    pub async fn answer(self) -> Result<Answer, Fault> {
        self.finish(|_| {}).await
    }
}
