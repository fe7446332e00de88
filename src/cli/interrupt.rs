//! Ctrl-C: at once where nothing is kept, after the current row where results are.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set by the first Ctrl-C of a command that asked for a graceful stop.
pub static STOP: AtomicBool = AtomicBool::new(false);
static GRACEFUL: AtomicBool = AtomicBool::new(false);

/// Installs the handler for Ctrl-C, and for being told to end by the system.
pub fn install() {
    // Without a handler Ctrl-C ends the program as ever, so a refusal here is no reason to stop.
    let _ = ctrlc::set_handler(|| {
        if !GRACEFUL.load(Ordering::Relaxed) || STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        super::fail::say!("\nstopping as soon as the current step is done; Ctrl-C again stops at once");
    });
}

/// From here on the first Ctrl-C only sets [`STOP`].
pub fn graceful() {
    GRACEFUL.store(true, Ordering::Relaxed);
}

/// Runs something that keeps its work when it is stopped: meanwhile the first Ctrl-C only sets [`STOP`].
pub fn graceful_while<T>(work: impl FnOnce() -> T) -> T {
    let before = GRACEFUL.swap(true, Ordering::Relaxed);
    let result = work();
    GRACEFUL.store(before, Ordering::Relaxed);
    result
}

/// True once a graceful stop was asked for.
pub fn asked() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// The same for work that asks whether it shall go on.
pub fn go_on() -> ControlFlow<()> {
    if asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
