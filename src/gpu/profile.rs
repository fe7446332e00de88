//! GPU time by kernel: timestamps around every dispatch of a recorder that is asked to profile.
//!
//! Where the adapter writes timestamps inside a pass (natively), passes stay as they are and one timestamp follows each dispatch. Elsewhere
//! each dispatch becomes a pass of its own, which costs a little more than the same work unprofiled; browsers also round their clock to
//! 0.1 ms unless told otherwise. No result changes either way.

use super::{Buffer, Gpu, GpuError, Kernel};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a dispatch does, for submit budgets and for profiles.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Arithmetic operations; a multiply-add counts as two.
    pub operations: u64,
    /// Bytes that must be read and written at least once; 0 where nobody counted.
    pub bytes: u64,
    /// Rows, outputs and inputs of a product; zeros for everything else.
    pub shape: [u32; 3],
}

impl Work {
    /// A product of `rows` x `inputs` with `outputs` x `inputs` weights, which take `weight_bytes`; rows go in and out as f32.
    pub fn product(rows: u32, outputs: u32, inputs: u32, weight_bytes: u64) -> Self {
        let [m, n, k] = [rows, outputs, inputs].map(u64::from);
        Self { operations: 2 * m * n * k, bytes: weight_bytes + m * (n + k) * 4, shape: [rows, outputs, inputs] }
    }

    /// What a submit's budget counts: operations, or bytes at what a common GPU computes meanwhile.
    pub(super) fn cost(&self) -> u64 {
        self.operations.max(self.bytes.saturating_mul(16))
    }
}

impl From<u64> for Work {
    fn from(operations: u64) -> Self {
        Self { operations, ..Self::default() }
    }
}

/// GPU time of one kernel variant.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct KernelTime {
    /// The variant's label.
    pub kernel: String,
    /// How often it ran.
    pub dispatches: u64,
    /// Seconds on the GPU, the gap before each dispatch included.
    pub seconds: f64,
    /// Operations of all its dispatches.
    pub operations: u64,
    /// Bytes of all its dispatches, at least; 0 where nobody counted.
    pub bytes: u64,
    /// Rows, outputs and inputs of a product, where shapes are told apart.
    #[serde(skip)]
    pub shape: [u32; 3],
}

/// Timestamps of one submit, on their way.
struct Pending {
    resolved: Buffer,
    spans: Vec<Span>,
}

/// A dispatch: the indices of the timestamps before and after it.
struct Span {
    kernel: Arc<Kernel>,
    work: Work,
    from: u32,
    to: u32,
}

/// A recorder's profile.
#[derive(Default)]
pub(super) struct Profile {
    pending: Vec<Pending>,
    times: BTreeMap<(String, [u32; 3]), KernelTime>,
}

/// The timestamps of the submit that is being encoded.
pub(super) struct Stamps {
    set: wgpu::QuerySet,
    inside: bool,
    next: u32,
    spans: Vec<Span>,
}

impl Stamps {
    /// Room for `dispatches` dispatches.
    pub fn new(gpu: &Gpu, dispatches: usize) -> Stamps {
        let descriptor = wgpu::QuerySetDescriptor { label: Some("profile"), ty: wgpu::QueryType::Timestamp, count: 2 * dispatches as u32 };
        let inside = gpu.device().features().contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES);
        Stamps { set: gpu.device().create_query_set(&descriptor), inside, next: 0, spans: Vec::new() }
    }

    /// Whether a dispatch must be alone in its pass.
    pub fn alone(&self) -> bool {
        !self.inside
    }

    /// Opens a pass. Its first timestamp is already spoken for.
    pub fn pass<'e>(&mut self, encoder: &'e mut wgpu::CommandEncoder) -> wgpu::ComputePass<'e> {
        let from = self.next;
        self.next += 1;
        let writes = wgpu::ComputePassTimestampWrites {
            query_set: &self.set,
            beginning_of_pass_write_index: Some(from),
            end_of_pass_write_index: Some(from + 1),
        };
        let timestamp_writes = (!self.inside).then_some(writes);
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
        if self.inside {
            pass.write_timestamp(&self.set, from);
        }
        pass
    }

    /// Notes the dispatch that was just recorded into `pass`.
    pub fn dispatched(&mut self, pass: &mut wgpu::ComputePass<'_>, kernel: &Arc<Kernel>, work: Work) {
        let to = self.next;
        self.next += 1;
        if self.inside {
            pass.write_timestamp(&self.set, to);
        }
        self.spans.push(Span { kernel: kernel.clone(), work, from: to - 1, to });
    }
}

impl Profile {
    /// Ends the submit's timestamps: they go to a buffer that is read later.
    pub fn resolve(&mut self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder, stamps: Stamps) {
        let size = u64::from(stamps.next) * 8;
        if size == 0 {
            return;
        }
        let resolved = gpu.plain_buffer("timestamps", size, wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC);
        encoder.resolve_query_set(&stamps.set, 0..stamps.next, &resolved.raw, 0);
        self.pending.push(Pending { resolved, spans: stamps.spans });
    }

    /// Reads what is on its way and returns everything since the last call, longest first; products of different shapes apart if asked for.
    pub async fn take(&mut self, gpu: &Gpu, shapes: bool) -> Result<Vec<KernelTime>, GpuError> {
        let tick = f64::from(gpu.queue().get_timestamp_period()) * 1e-9;
        for pending in std::mem::take(&mut self.pending) {
            let bytes = gpu.read(&pending.resolved, 0, pending.resolved.size).await?;
            let ticks: Vec<u64> = bytemuck::pod_collect_to_vec(&bytes);
            for span in pending.spans {
                let time = self.times.entry((span.kernel.label.clone(), if shapes { span.work.shape } else { [0; 3] })).or_default();
                time.dispatches += 1;
                // A clock that runs backwards (some drivers reset it when the GPU sleeps) counts as no time.
                time.seconds += ticks[span.to as usize].saturating_sub(ticks[span.from as usize]) as f64 * tick;
                time.operations += span.work.operations;
                time.bytes += span.work.bytes;
            }
        }
        let named = |((kernel, shape), time): ((String, [u32; 3]), KernelTime)| KernelTime { kernel, shape, ..time };
        let mut all: Vec<KernelTime> = std::mem::take(&mut self.times).into_iter().map(named).collect();
        all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Ok(all)
    }
}
