//! Buffers, numbers and verdicts for the checks.

use std::ops::ControlFlow;

use super::Check;
use crate::gpu::{Buffer, Gpu, GpuError, Recorder};

/// A device with a recorder, a generator of numbers and the verdicts so far.
pub struct Lab {
    pub gpu: Gpu,
    pub rec: Recorder,
    seed: u32,
    checks: Vec<Check>,
}

impl Lab {
    pub async fn new(gpu: &Gpu) -> Result<Lab, GpuError> {
        Ok(Lab { gpu: gpu.clone(), rec: Recorder::new(gpu).await?, seed: 217, checks: Vec::new() })
    }

    /// 32 bits of a fixed sequence (xorshift).
    pub fn bits(&mut self) -> u32 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 17;
        self.seed ^= self.seed << 5;
        self.seed
    }

    /// `n` numbers in [-scale, scale).
    pub fn numbers(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| (self.bits() >> 8) as f32 / (1 << 23) as f32 * scale - scale).collect()
    }

    /// A buffer with these words in it.
    pub async fn buffer<T: bytemuck::Pod>(&self, words: &[T]) -> Result<Buffer, GpuError> {
        let bytes: &[u8] = bytemuck::cast_slice(words);
        let buffer = self.gpu.buffer("self-test", bytes.len() as u64).await?;
        self.gpu.write(&buffer, 0, bytes);
        Ok(buffer)
    }

    /// A buffer of `n` zeros.
    pub async fn zeros(&self, n: usize) -> Result<Buffer, GpuError> {
        self.gpu.buffer("self-test", n as u64 * 4).await
    }

    /// The first `n` words, after everything recorded so far.
    pub async fn words<T: bytemuck::Pod>(&mut self, buffer: &Buffer, n: usize) -> Result<Vec<T>, GpuError> {
        let bytes = self.rec.finish_and_read(buffer.range(0, n as u64 * 4)).await?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    /// Compares what a kernel gave with (value, allowed difference) pairs. Several calls for one kernel make one verdict.
    pub fn compare(&mut self, kernel: &str, got: impl IntoIterator<Item = f32>, wanted: &[(f64, f64)]) {
        let mut worst = 0.0f64;
        let mut count = 0;
        for (got, (value, allowed)) in got.into_iter().zip(wanted) {
            let error = (f64::from(got) - value).abs() / allowed;
            worst = worst.max(if error.is_nan() { f64::INFINITY } else { error });
            count += 1;
        }
        if count < wanted.len() || wanted.is_empty() {
            worst = f64::INFINITY;
        }
        match self.checks.iter_mut().find(|check| check.kernel == kernel) {
            Some(check) => check.error = check.error.max(worst),
            None => self.checks.push(Check { kernel: kernel.to_owned(), error: worst, passed: false }),
        }
        for check in &mut self.checks {
            check.passed = check.error <= 1.0;
        }
    }

    /// Moves the verdicts since the last call to `all`.
    pub fn hand_over(&mut self, all: &mut Vec<Check>, seen: &mut dyn FnMut(&Check) -> ControlFlow<()>) -> ControlFlow<()> {
        let mut flow = ControlFlow::Continue(());
        for check in self.checks.drain(..) {
            if seen(&check).is_break() {
                flow = ControlFlow::Break(());
            }
            all.push(check);
        }
        flow
    }
}

/// What a value may be off by: `parts` are the absolute values that were added up in it.
pub fn allowed(parts: f64) -> f64 {
    1e-5 * parts + 1e-6
}
