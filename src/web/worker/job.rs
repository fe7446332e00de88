//! A job of the page inside the worker: its cancel flag, its messages, and the pauses that let a cancel arrive.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::rc::Rc;

use wasm_bindgen::JsCast;
use wasm_bindgen_futures::JsFuture;
use web_sys::{AbortController, AbortSignal, DedicatedWorkerGlobalScope};

use crate::web::protocol::{Event, Fault, FaultKind, Message, Phase, Progress};

/// Progress messages are at least this far apart.
const PROGRESS_MS: f64 = 80.0;
/// The event loop gets a turn at least this often while bytes are copied.
const BREATH_MS: f64 = 30.0;

/// The worker's global object.
pub fn scope() -> DedicatedWorkerGlobalScope {
    js_sys::global().unchecked_into()
}

/// Milliseconds since the worker started.
pub fn now() -> f64 {
    scope().performance().map_or_else(js_sys::Date::now, |clock| clock.now())
}

/// Waits on a timer; other messages are handled meanwhile.
pub async fn sleep(ms: i32) {
    let promise = js_sys::Promise::new(&mut |resolve, _| {
        // Only a worker that is being closed refuses a timer, and then nobody waits any more.
        let _ = scope().set_timeout_with_callback_and_timeout_and_arguments_0(&resolve, ms);
    });
    let _ = JsFuture::from(promise).await;
}

/// Posts one message to the page.
pub fn post(job: u32, event: Event) {
    match serde_wasm_bindgen::to_value(&Message { job, event }) {
        Ok(value) => {
            if let Err(error) = scope().post_message(&value) {
                web_sys::console::error_2(&"message not posted".into(), &error);
            }
        }
        Err(error) => web_sys::console::error_2(&"message not encoded".into(), &error.into()),
    }
}

/// The running jobs, so that a cancel finds its job.
#[derive(Default, Clone)]
pub struct Jobs(Rc<RefCell<HashMap<u32, Job>>>);

impl Jobs {
    /// Registers a job.
    pub fn start(&self, id: u32) -> Job {
        let job = Job {
            id,
            cancelled: Rc::new(Cell::new(false)),
            ended: Rc::new(Cell::new(false)),
            abort: AbortController::new().ok(),
            posted: Rc::new(Cell::new((None, 0.0))),
            breathed: Rc::new(Cell::new(now())),
        };
        self.0.borrow_mut().insert(id, job.clone());
        job
    }

    /// Asks a job to stop; does nothing when it has ended already.
    pub fn cancel(&self, id: u32) {
        if let Some(job) = self.0.borrow().get(&id) {
            job.cancelled.set(true);
            if let Some(abort) = &job.abort {
                abort.abort();
            }
        }
    }

    /// Posts the job's last message and forgets it.
    pub fn finish(&self, job: &Job, result: Result<crate::web::protocol::Answer, Fault>) {
        self.0.borrow_mut().remove(&job.id);
        job.ended.set(true);
        post(
            job.id,
            match result {
                Ok(answer) => Event::Done(answer),
                Err(fault) => Event::Failed(fault),
            },
        );
    }
}

/// One running job.
#[derive(Clone)]
pub struct Job {
    id: u32,
    cancelled: Rc<Cell<bool>>,
    ended: Rc<Cell<bool>>,
    abort: Option<AbortController>,
    posted: Rc<Cell<(Option<Phase>, f64)>>,
    breathed: Rc<Cell<f64>>,
}

impl Job {
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    /// Has it answered, or will it only say that it was stopped?
    pub fn is_over(&self) -> bool {
        self.is_cancelled() || self.ended.get()
    }

    /// `Break` once the page has asked to stop.
    pub fn flow(&self) -> ControlFlow<()> {
        if self.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// An error once the page has asked to stop.
    pub fn check(&self) -> Result<(), Fault> {
        if self.is_cancelled() { Err(cancelled()) } else { Ok(()) }
    }

    /// Aborts network requests when the job is cancelled.
    pub fn signal(&self) -> Option<AbortSignal> {
        self.abort.as_ref().map(AbortController::signal)
    }

    /// Posts progress, not more often than a person can see; the first and last of a phase always go out.
    pub fn progress(&self, phase: Phase, done: f64, total: f64) {
        let (last, at) = self.posted.get();
        let time = now();
        if last != Some(phase) || time - at >= PROGRESS_MS || done == total {
            self.posted.set((Some(phase), time));
            post(self.id, Event::Progress(Progress { phase, done, total }));
        }
    }

    pub fn post(&self, event: Event) {
        post(self.id, event);
    }

    /// Lets waiting messages in when the last pause is long ago. Synchronous storage calls would otherwise keep a cancel out.
    pub async fn breathe(&self) {
        if now() - self.breathed.get() >= BREATH_MS {
            sleep(0).await;
            self.breathed.set(now());
        }
    }
}

/// What a stopped job answers.
pub fn cancelled() -> Fault {
    Fault::new(FaultKind::Cancelled, "Stopped.")
}
