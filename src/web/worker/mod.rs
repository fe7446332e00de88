//! The worker: everything heavy, driven by the page's [`Request`]s.
//!
//! Requests that need the engine run one after the other, in the order they came; downloads and storage run beside them,
//! and a cancel is heard at once.

mod ask;
mod download;
mod job;
mod session;
mod source;
mod store;

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use wasm_bindgen::{JsCast, prelude::Closure};
use wasm_bindgen_futures::spawn_local;
use web_sys::MessageEvent;

use super::protocol::{Answer, Command, Event, Fault, FaultKind, Request};
use job::{Job, Jobs, post, scope};
use session::Session;

/// Starts listening and announces [`Event::Ready`]. Called once, by the worker's program.
pub fn run() {
    // A panic ends the program; the page hears why before that.
    std::panic::set_hook(Box::new(|panic| {
        console_error_panic_hook::hook(panic);
        post(0, Event::Failed(Fault::new(FaultKind::Crash, panic.to_string())));
    }));
    let jobs = Jobs::default();
    let (engine_queue, requests) = unbounded();
    spawn_local(serve_engine(jobs.clone(), requests));
    let on_message = Closure::<dyn FnMut(MessageEvent)>::new(move |message: MessageEvent| {
        match serde_wasm_bindgen::from_value::<Request>(message.data()) {
            Ok(request) => accept(&jobs, &engine_queue, request),
            Err(error) => post(0, Event::Failed(Fault::new(FaultKind::Crash, format!("a request was not understood: {error}")))),
        }
    });
    scope().set_onmessage(Some(on_message.as_ref().unchecked_ref()));
    on_message.forget();
    post(0, Event::Ready);
}

type EngineQueue = UnboundedSender<(Job, Command)>;

fn accept(jobs: &Jobs, engine_queue: &EngineQueue, request: Request) {
    if let Command::Cancel { job } = request.command {
        jobs.cancel(job);
        return;
    }
    let job = jobs.start(request.job);
    match request.command {
        command @ (Command::List | Command::Delete { .. } | Command::Import { .. } | Command::Download { .. }) => {
            let jobs = jobs.clone();
            spawn_local(async move {
                let result = keep(&job, command).await;
                jobs.finish(&job, result);
            });
        }
        command => {
            if let Err(refused) = engine_queue.unbounded_send((job, command)) {
                let (job, _) = refused.into_inner();
                jobs.finish(&job, Err(Fault::new(FaultKind::Crash, "the engine's queue is closed")));
            }
        }
    }
}

/// Storage commands.
async fn keep(job: &Job, command: Command) -> Result<Answer, Fault> {
    match command {
        Command::Import { file } => Ok(Answer::Stored { name: store::import(&file, job).await? }),
        Command::Download { url, sha256 } => {
            let name = download::download(&url, job).await?;
            store::verify(&name, sha256.as_deref(), job).await?;
            Ok(Answer::Stored { name })
        }
        Command::Delete { name } => {
            store::delete(&name).await?;
            Ok(Answer::Kept(store::list().await))
        }
        _ => Ok(Answer::Kept(store::list().await)),
    }
}

/// Engine commands, one at a time.
async fn serve_engine(jobs: Jobs, mut requests: UnboundedReceiver<(Job, Command)>) {
    let mut session = Session::default();
    while let Ok((job, command)) = requests.recv().await {
        let result = match job.check() {
            Ok(()) => session.run(&job, command).await,
            Err(fault) => Err(fault),
        };
        jobs.finish(&job, result);
    }
}
