//! Kernels of a model whose bytes are still arriving: its header tells which, and the GPU has nothing else to do.

use std::collections::VecDeque;
use std::sync::Arc;

use super::job::Job;
use super::session::Session;
use crate::engine::{Engine, LoadOptions};
use crate::gguf::Gguf;
use crate::gpu::Kernel;
use crate::web::protocol::Phase;

/// What is still to be compiled.
pub struct Ahead {
    kernels: VecDeque<Arc<Kernel>>,
    total: usize,
}

impl Session {
    /// Finds out what a model will need, from its header. None where that cannot be told: whatever is wrong is said when it is loaded.
    pub async fn look_ahead(&mut self, job: &Job, header: &Gguf) -> Option<Ahead> {
        let gpu = self.gpu().await.ok()?;
        let kernels = Engine::kernels_of(&gpu, header, &LoadOptions::default()).await.ok()?;
        job.progress(Phase::Compile, 0.0, kernels.len() as f64);
        Some(Ahead { total: kernels.len(), kernels: kernels.into() })
    }

    /// Compiles the next kernel and waits until the GPU process has done so: handed over all at once, they would keep it from drawing the
    /// page and from answering clicks. None when all are done.
    pub async fn compile_next(&mut self, job: &Job, ahead: &mut Ahead) -> Option<()> {
        let gpu = self.gpu().await.ok()?;
        ahead.kernels.pop_front()?.compile(&gpu);
        gpu.idle().await;
        let done = ahead.total - ahead.kernels.len();
        job.progress(Phase::Compile, done as f64, ahead.total as f64);
        Some(())
    }
}
