//! The worker: everything heavy, driven by the page's [`Request`]s.
//!
//! Requests that need the engine run one after the other: clicks in the order they came, then batches, which make way for clicks between
//! two steps. Downloads and storage run beside them, and a cancel is heard at once.

mod ask;
mod download;
mod http;
mod job;
mod record;
mod session;
mod source;
mod steps;
mod store;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use wasm_bindgen::{JsCast, prelude::Closure};
use wasm_bindgen_futures::spawn_local;
use web_sys::MessageEvent;

use super::protocol::{Answer, Class, Command, Event, Fault, FaultKind, Request};
use job::{Job, Jobs, post, scope};
use session::Session;
use steps::Steps;

/// Starts listening and announces [`Event::Ready`]. Called once, by the worker's program.
pub fn run() {
    // A panic ends the program; the page hears why before that.
    std::panic::set_hook(Box::new(|panic| {
        console_error_panic_hook::hook(panic);
        post(0, Event::Failed(Fault::new(FaultKind::Crash, panic.to_string())));
    }));
    let jobs = Jobs::default();
    let (queue, news) = Queue::new();
    spawn_local(serve_engine(jobs.clone(), queue.clone(), news));
    let on_message = Closure::<dyn FnMut(MessageEvent)>::new(move |message: MessageEvent| {
        match serde_wasm_bindgen::from_value::<Request>(message.data()) {
            Ok(request) => accept(&jobs, &queue, request),
            Err(error) => post(0, Event::Failed(Fault::new(FaultKind::Crash, format!("a request was not understood: {error}")))),
        }
    });
    scope().set_onmessage(Some(on_message.as_ref().unchecked_ref()));
    on_message.forget();
    post(0, Event::Ready);
}

/// Requests that wait for the engine.
#[derive(Clone)]
struct Queue(Rc<Waiting>);

struct Waiting {
    clicks: RefCell<VecDeque<(Job, Command)>>,
    batches: RefCell<VecDeque<(Job, Command)>>,
    /// Wakes the engine's loop; how often does not matter.
    wake: UnboundedSender<()>,
}

impl Queue {
    fn new() -> (Self, UnboundedReceiver<()>) {
        let (wake, news) = unbounded();
        (Self(Rc::new(Waiting { clicks: RefCell::default(), batches: RefCell::default(), wake })), news)
    }

    fn push(&self, job: Job, class: Class, command: Command) {
        let stepped = matches!(command, Command::Decide { .. } | Command::Ask { .. } | Command::Read { .. });
        let queue = if stepped && class == Class::Batch { &self.0.batches } else { &self.0.clicks };
        queue.borrow_mut().push_back((job, command));
        // The loop ends only with the worker.
        let _ = self.0.wake.unbounded_send(());
    }

    /// Does a click wait?
    fn urgent(&self) -> bool {
        !self.0.clicks.borrow().is_empty()
    }

    fn click(&self) -> Option<(Job, Command)> {
        self.0.clicks.borrow_mut().pop_front()
    }

    fn batch(&self) -> Option<(Job, Command)> {
        self.0.batches.borrow_mut().pop_front()
    }
}

fn accept(jobs: &Jobs, queue: &Queue, request: Request) {
    if let Command::Cancel { job } = request.command {
        jobs.cancel(job);
        return;
    }
    let job = jobs.start(request.job);
    match request.command {
        command @ (Command::List | Command::Delete { .. } | Command::Import { .. } | Command::Download { .. } | Command::Record { .. }) => {
            let jobs = jobs.clone();
            spawn_local(async move {
                let result = keep(&job, command).await;
                jobs.finish(&job, result);
            });
        }
        command => queue.push(job, request.class, command),
    }
}

/// Storage commands.
async fn keep(job: &Job, command: Command) -> Result<Answer, Fault> {
    match command {
        Command::Import { file } => Ok(Answer::Stored { name: store::import(&file, job).await? }),
        Command::Download { url, sha256 } => {
            let name = download::download(&url, job).await?;
            store::verify(&name, sha256.as_deref(), job).await?;
            store::seal(&name).await?;
            Ok(Answer::Stored { name })
        }
        Command::Delete { name } => {
            store::delete(&name).await?;
            Ok(Answer::Kept(store::list().await))
        }
        Command::Record { name, action } => Ok(Answer::Record(record::run(&name, action).await?)),
        _ => Ok(Answer::Kept(store::list().await)),
    }
}

/// Engine commands: every click that waits, then the next step of the oldest batch.
async fn serve_engine(jobs: Jobs, queue: Queue, mut news: UnboundedReceiver<()>) {
    let mut session = Session::default();
    let mut running: Option<(Job, Steps)> = None;
    loop {
        if let Some((job, command)) = queue.click() {
            let result = match job.check() {
                Ok(()) => session.run(&job, command).await,
                Err(fault) => Err(fault),
            };
            jobs.finish(&job, result);
        } else if let Some((job, steps)) = &mut running {
            let result = session.step(job, steps, &|| queue.urgent()).await.transpose();
            if let Some(result) = result {
                jobs.finish(job, result);
                running = None;
            }
        } else if let Some((job, command)) = queue.batch() {
            match job.check().and_then(|()| session.begin(command)) {
                Ok(steps) => running = Some((job, steps)),
                Err(fault) => jobs.finish(&job, Err(fault)),
            }
        } else if news.recv().await.is_err() {
            return;
        }
    }
}
