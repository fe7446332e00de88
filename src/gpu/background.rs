//! Work beside the loading of a model: on a thread natively, at once in a browser, whose WebAssembly has no threads here.

use super::{Gpu, Kernel, now_seconds};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads that are worth starting: one for each core, and none beside the only one in a browser.
pub fn threads() -> usize {
    if cfg!(target_arch = "wasm32") { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) }
}

/// Runs `work` on so many threads and `main` on this one, and waits for all of them.
#[cfg(not(target_arch = "wasm32"))]
pub fn beside<T: Send, R>(threads: usize, work: impl Fn() -> T + Sync, main: impl FnOnce() -> R) -> (Vec<T>, R) {
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(&work)).collect();
        let main = main();
        let join = |w: std::thread::ScopedJoinHandle<'_, T>| w.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (workers.into_iter().map(join).collect(), main)
    })
}

/// Runs `work` so many times, then `main`.
#[cfg(target_arch = "wasm32")]
pub fn beside<T, R>(threads: usize, work: impl Fn() -> T, main: impl FnOnce() -> R) -> (Vec<T>, R) {
    ((0..threads).map(|_| work()).collect(), main())
}

/// A value on its way.
pub struct Background<T> {
    #[cfg(not(target_arch = "wasm32"))]
    thread: std::thread::JoinHandle<T>,
    #[cfg(target_arch = "wasm32")]
    value: T,
}

/// Starts `work`.
#[cfg(not(target_arch = "wasm32"))]
pub fn background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Background<T> {
    Background { thread: std::thread::spawn(work) }
}

/// Does `work`.
#[cfg(target_arch = "wasm32")]
pub fn background<T: 'static>(work: impl FnOnce() -> T + 'static) -> Background<T> {
    Background { value: work() }
}

impl<T> Background<T> {
    /// Waits for the value. A panic of the work goes on here.
    pub fn wait(self) -> T {
        #[cfg(not(target_arch = "wasm32"))]
        return self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        #[cfg(target_arch = "wasm32")]
        self.value
    }
}

impl Gpu {
    /// Compiles kernels ahead of their first use: natively on up to eight threads, in a browser by handing all of them to its GPU process,
    /// which compiles while the caller goes on. Gives the seconds that it took.
    pub fn compile_ahead(&self, kernels: Vec<Arc<Kernel>>) -> Background<f64> {
        let gpu = self.clone();
        background(move || {
            let start = now_seconds();
            gpu.compile_all(&kernels);
            now_seconds() - start
        })
    }

    fn compile_all(&self, kernels: &[Arc<Kernel>]) {
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(kernel) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
                kernel.compile(self);
            }
        };
        beside(threads().min(8).min(kernels.len()), work, || ());
    }
}
