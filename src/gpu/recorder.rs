//! Recording dispatches: parameters in one uniform arena, bind groups made once, one compute pass a submit.

use super::pipeline::PARAMS_BYTES;
use super::{Buffer, Gpu, GpuError, Kernel, View};
use std::collections::HashMap;
use std::sync::Arc;

/// Distance of parameter blocks in the arena: the largest alignment WebGPU allows an adapter to ask for.
const SLOT: u64 = 256;
/// Parameter blocks in the arena; a submit happens at the latest when they are used up.
const SLOTS: u64 = 1024;

/// Seconds since some fixed moment; the only clock the engine uses, natively and in workers.
pub fn now_seconds() -> f64 {
    #[cfg(not(target_arch = "wasm32"))]
    {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        START.get_or_init(std::time::Instant::now).elapsed().as_secs_f64()
    }
    #[cfg(target_arch = "wasm32")]
    {
        let performance = js_sys::Reflect::get(&js_sys::global(), &"performance".into());
        performance.ok().and_then(|p| wasm_bindgen::JsCast::dyn_into::<web_sys::Performance>(p).ok()).map_or(0.0, |p| p.now() / 1000.0)
    }
}

/// A bind group's identity: the kernel, then id, offset and size of each bound buffer.
type BindKey = (usize, Vec<(u64, u64, u64)>);

enum Step {
    Dispatch { kernel: Arc<Kernel>, bind: wgpu::BindGroup, slot: u32, groups: [u32; 3] },
    Copy { from: wgpu::Buffer, from_offset: u64, to: wgpu::Buffer, to_offset: u64, size: u64 },
}

/// Collects dispatches and sends them in passes. Kept for the life of a model, so that bind groups are made once.
///
/// On slow adapters a long recording is cut into several submits, each about `budget` operations, so that no submit
/// blocks the GPU for long (a browser's watchdog resets it otherwise). Cutting changes no result.
pub struct Recorder {
    gpu: Gpu,
    params: Buffer,
    bytes: Vec<u8>,
    steps: Vec<Step>,
    binds: HashMap<BindKey, wgpu::BindGroup>,
    cost: u64,
    budget: u64,
    dispatches: u64,
}

impl Recorder {
    /// A recorder with its parameter arena.
    ///
    /// # Errors
    /// Out of memory.
    pub async fn new(gpu: &Gpu) -> Result<Self, GpuError> {
        let params = gpu.buffer_with("kernel parameters", SLOT * SLOTS, wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST).await?;
        let binds = HashMap::new();
        Ok(Self { gpu: gpu.clone(), params, bytes: Vec::new(), steps: Vec::new(), binds, cost: 0, budget: u64::MAX, dispatches: 0 })
    }

    /// The device recorded for.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Operations allowed in one submit from now on.
    pub fn set_budget(&mut self, operations: u64) {
        self.budget = operations.max(1);
    }

    /// Dispatches recorded so far, over all submits.
    pub fn dispatches(&self) -> u64 {
        self.dispatches
    }

    /// Forgets cached bind groups, so that dropped buffers are really freed.
    pub fn forget_bind_groups(&mut self) {
        self.binds.clear();
    }

    /// Records one dispatch. `params` is the kernel's parameter struct (at most 64 bytes), `cost` its operations.
    pub fn dispatch<P: bytemuck::Pod>(&mut self, kernel: &Arc<Kernel>, views: &[View<'_>], params: &P, groups: [u32; 3], cost: u64) {
        debug_assert_eq!(views.len(), kernel.access.len(), "{}", kernel.label);
        debug_assert!(size_of::<P>() as u64 <= PARAMS_BYTES, "{}", kernel.label);
        if groups.contains(&0) {
            return;
        }
        let slot = self.bytes.len() as u64;
        if slot >= SLOT * SLOTS || (self.cost > 0 && self.cost.saturating_add(cost) > self.budget) {
            self.submit();
            return self.dispatch(kernel, views, params, groups, cost);
        }
        self.cost += cost;
        self.dispatches += 1;
        self.bytes.extend_from_slice(bytemuck::bytes_of(params));
        self.bytes.resize((slot + SLOT) as usize, 0);
        let bind = self.bind(kernel, views);
        self.steps.push(Step::Dispatch { kernel: kernel.clone(), bind, slot: slot as u32, groups });
    }

    /// Records a copy between buffers (offsets and size multiples of 4).
    pub fn copy(&mut self, from: View<'_>, to: &Buffer, to_offset: u64) {
        self.steps.push(Step::Copy {
            from: from.buffer.raw.clone(),
            from_offset: from.offset,
            to: to.raw.clone(),
            to_offset,
            size: from.size,
        });
    }

    fn bind(&mut self, kernel: &Arc<Kernel>, views: &[View<'_>]) -> wgpu::BindGroup {
        let key = (Arc::as_ptr(kernel) as usize, views.iter().map(|v| (v.buffer.id, v.offset, v.size)).collect());
        if let Some(bind) = self.binds.get(&key) {
            return bind.clone();
        }
        fn range(buffer: &Buffer, offset: u64, size: u64) -> wgpu::BindingResource<'_> {
            wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer: &buffer.raw, offset, size: std::num::NonZeroU64::new(size) })
        }
        let mut entries: Vec<_> = views
            .iter()
            .enumerate()
            .map(|(i, v)| wgpu::BindGroupEntry { binding: i as u32, resource: range(v.buffer, v.offset, v.size) })
            .collect();
        entries.push(wgpu::BindGroupEntry { binding: views.len() as u32, resource: range(&self.params, 0, PARAMS_BYTES) });
        let descriptor = wgpu::BindGroupDescriptor { label: Some(&kernel.label), layout: &kernel.layout, entries: &entries };
        let bind = self.gpu.device().create_bind_group(&descriptor);
        self.binds.insert(key, bind.clone());
        bind
    }

    /// Forgets what is recorded and not yet submitted.
    pub fn discard(&mut self) {
        self.steps.clear();
        self.bytes.clear();
        self.cost = 0;
    }

    /// Sends what is recorded to the GPU; does not wait.
    pub fn submit(&mut self) {
        if self.steps.is_empty() {
            return;
        }
        let mut encoder = self.gpu.device().create_command_encoder(&Default::default());
        if !self.bytes.is_empty() {
            self.gpu.write(&self.params, 0, &self.bytes);
        }
        let mut steps = self.steps.drain(..).peekable();
        while let Some(step) = steps.next() {
            match step {
                Step::Copy { from, from_offset, to, to_offset, size } => {
                    encoder.copy_buffer_to_buffer(&from, from_offset, &to, to_offset, size);
                }
                Step::Dispatch { kernel, bind, slot, groups } => {
                    let mut pass = encoder.begin_compute_pass(&Default::default());
                    let mut next = Some((kernel, bind, slot, groups));
                    while let Some((kernel, bind, slot, [x, y, z])) = next.take() {
                        pass.set_pipeline(&kernel.pipeline);
                        pass.set_bind_group(0, &bind, &[slot]);
                        pass.dispatch_workgroups(x, y, z);
                        if let Some(Step::Dispatch { .. }) = steps.peek()
                            && let Some(Step::Dispatch { kernel, bind, slot, groups }) = steps.next()
                        {
                            next = Some((kernel, bind, slot, groups));
                        }
                    }
                }
            }
        }
        drop(steps);
        self.gpu.queue().submit([encoder.finish()]);
        self.bytes.clear();
        self.cost = 0;
    }

    /// Submits and reads back a range.
    ///
    /// # Errors
    /// As [`Gpu::read`].
    pub async fn finish_and_read(&mut self, view: View<'_>) -> Result<Vec<u8>, GpuError> {
        self.submit();
        self.gpu.read(view.buffer, view.offset, view.size).await
    }
}
