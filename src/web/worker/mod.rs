//! The worker: everything heavy, driven by the page's [`Request`]s.
//!
//! Requests that need the engine run one after the other: clicks in the order they came, then batches, which make way for clicks between
//! two steps. Downloads and storage run beside them, and a cancel is heard at once. While the engine is idle it compiles the kernels of a
//! model that is being downloaded.

mod ahead;
mod ask;
mod bench;
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

use super::protocol::{Answer, Class, Command, Event, Fault, FaultKind, ModelSource, Request};
use crate::gguf::Gguf;
use ahead::Ahead;
use job::{Job, Jobs, post, scope};
use session::Session;
use source::WebSource;
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
    /// Headers of models that are being downloaded: their kernels are compiled while the engine has nothing else to do.
    headers: RefCell<VecDeque<(Job, Gguf)>>,
    /// Wakes the engine's loop; how often does not matter.
    wake: UnboundedSender<()>,
}

impl Queue {
    fn new() -> (Self, UnboundedReceiver<()>) {
        let (wake, news) = unbounded();
        let waiting = Waiting { clicks: RefCell::default(), batches: RefCell::default(), headers: RefCell::default(), wake };
        (Self(Rc::new(waiting)), news)
    }

    fn push(&self, job: Job, class: Class, command: Command) {
        let stepped = matches!(command, Command::Decide { .. } | Command::Ask { .. } | Command::Read { .. });
        let queue = if stepped && class == Class::Batch { &self.0.batches } else { &self.0.clicks };
        queue.borrow_mut().push_back((job, command));
        self.wake();
    }

    fn arrived(&self, job: Job, header: Gguf) {
        self.0.headers.borrow_mut().push_back((job, header));
        self.wake();
    }

    fn wake(&self) {
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

    fn header(&self) -> Option<(Job, Gguf)> {
        self.0.headers.borrow_mut().pop_front()
    }

    /// Does a batch wait that has not begun?
    fn batch_waits(&self) -> bool {
        !self.0.batches.borrow().is_empty()
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
            let queue = queue.clone();
            spawn_local(async move {
                let result = keep(&job, command, &queue).await;
                jobs.finish(&job, result);
            });
        }
        command => queue.push(job, request.class, command),
    }
}

/// Storage commands.
async fn keep(job: &Job, command: Command, queue: &Queue) -> Result<Answer, Fault> {
    match command {
        Command::Import { file } => {
            let (queue, waits, source) = (queue.clone(), job.clone(), ModelSource::File { file: file.clone() });
            spawn_local(async move {
                if let Ok(source) = WebSource::open(&source, &waits).await
                    && let Ok(header) = Gguf::read(&source).await
                {
                    queue.arrived(waits, header);
                }
            });
            Ok(Answer::Stored { name: store::import(&file, job).await? })
        }
        Command::Download { url, sha256 } => {
            let (queue, waits) = (queue.clone(), job.clone());
            let name = download::download(&url, sha256, job, move |header| queue.arrived(waits, header)).await?;
            store::verify_promised(&name, job).await?;
            store::seal(&name).await?;
            Ok(Answer::Stored { name })
        }
        Command::Delete { name } => {
            store::delete_model(&name).await?;
            Ok(Answer::Kept(store::list().await))
        }
        Command::Record { name, action } => Ok(Answer::Record(record::run(&name, action).await?)),
        _ => Ok(Answer::Kept(store::list().await)),
    }
}

/// So many clicks are answered one after the other while a batch waits; then it has a step, which no click cuts short.
const CLICKS_IN_A_ROW: u32 = 8;

/// Engine commands: every click that waits, then the next step of the oldest batch, then kernels of a model that is on its way. Clicks that
/// never end leave a batch one step in [`CLICKS_IN_A_ROW`].
async fn serve_engine(jobs: Jobs, queue: Queue, mut news: UnboundedReceiver<()>) {
    let mut session = Session::default();
    let mut running: Option<(Job, Steps)> = None;
    let mut ahead: Option<(Job, Ahead)> = None;
    let mut in_a_row = 0;
    loop {
        let waited_for = running.is_some() || queue.batch_waits();
        let patient = in_a_row >= CLICKS_IN_A_ROW && waited_for;
        if !patient && let Some((job, command)) = queue.click() {
            in_a_row = if waited_for { in_a_row + 1 } else { 0 };
            let result = match job.check() {
                Ok(()) => session.run(&job, command).await,
                Err(fault) => Err(fault),
            };
            jobs.finish(&job, result);
        } else if let Some((job, steps)) = &mut running {
            let result = session.step(job, steps, &|| !patient && queue.urgent()).await.transpose();
            // A step that a click has cut short does not count.
            if patient || !queue.urgent() {
                in_a_row = 0;
            }
            if let Some(result) = result {
                jobs.finish(job, result);
                running = None;
            }
        } else if let Some((job, command)) = queue.batch() {
            match job.check().and_then(|()| session.begin(command)) {
                Ok(steps) => running = Some((job, steps)),
                Err(fault) => jobs.finish(&job, Err(fault)),
            }
        } else if let Some((job, kernels)) = &mut ahead {
            if job.is_over() || session.compile_next(job, kernels).await.is_none() {
                ahead = None;
            }
        } else if let Some((job, header)) = queue.header() {
            // Its download may be over, and its model loaded, since it was queued.
            if !job.is_over() {
                ahead = session.look_ahead(&job, &header).await.map(|kernels| (job, kernels));
            }
        } else if news.recv().await.is_err() {
            return;
        }
    }
}
