//! Recording dispatches: parameters in one uniform arena, bind groups made once, one compute pass a submit.

use super::faults::Stage;
use super::pace::Pace;
use super::pipeline::PARAMS_BYTES;
use super::profile::{KernelTime, Profile, Stamps, Work};
use super::{Buffer, Gpu, GpuError, Kernel, View};
use std::collections::HashMap;
use std::sync::Arc;

/// Distance of parameter blocks in the arena: the largest alignment WebGPU allows an adapter to ask for.
const SLOT: u64 = 256;
/// Parameter blocks in the arena; a submit happens at the latest when they are used up.
const SLOTS: u64 = 1024;
/// Dispatches of the first submit while the GPU has nothing to do; each further one holds twice as many. So the GPU computes while the rest
/// is recorded.
const FIRST: usize = 32;

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
    Dispatch(Dispatch),
    Copy { from: wgpu::Buffer, from_offset: u64, to: wgpu::Buffer, to_offset: u64, size: u64 },
}

struct Dispatch {
    kernel: Arc<Kernel>,
    bind: wgpu::BindGroup,
    slot: u32,
    groups: [u32; 3],
    work: Work,
}

/// Collects dispatches and sends them in passes. Kept for the life of a model, so that bind groups are made once.
///
/// A long recording is cut into several submits, so that none blocks the GPU for long (a browser's watchdog resets it otherwise): 40 ms
/// in a browser by the speed that was measured of late, see `pace.rs`. The first ones for an idle GPU are short, so that it does not wait for
/// the recording. Cutting changes no result.
pub struct Recorder {
    gpu: Gpu,
    params: Buffer,
    bytes: Vec<u8>,
    steps: Vec<Step>,
    binds: HashMap<BindKey, wgpu::BindGroup>,
    cost: u64,
    budget: u64,
    /// Dispatches that the next submit may hold.
    ahead: usize,
    pace: Pace,
    dispatches: u64,
    profile: Option<Profile>,
    /// Kernels met by a rehearsal.
    rehearsal: Option<Vec<Arc<Kernel>>>,
}

impl Recorder {
    /// A recorder with its parameter arena.
    ///
    /// # Errors
    /// Out of memory.
    pub async fn new(gpu: &Gpu) -> Result<Self, GpuError> {
        let params = gpu.buffer_with("kernel parameters", SLOT * SLOTS, wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST).await?;
        Ok(Self {
            gpu: gpu.clone(),
            params,
            bytes: Vec::new(),
            steps: Vec::new(),
            binds: HashMap::new(),
            cost: 0,
            budget: 0,
            ahead: FIRST,
            pace: Pace::default(),
            dispatches: 0,
            profile: None,
            rehearsal: None,
        })
    }

    /// The device recorded for.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Seconds that the longest submit since the last call took on the GPU, as far as can be told from when submits were reported done;
    /// 0 where all were too short to tell.
    pub fn longest_submit(&mut self) -> f64 {
        let longest = self.pace.longest();
        self.pace.forget_longest();
        longest
    }

    /// Dispatches recorded so far, over all submits.
    pub fn dispatches(&self) -> u64 {
        self.dispatches
    }

    /// Takes GPU timestamps of every dispatch from now on, or no longer.
    ///
    /// # Errors
    /// [`GpuError::NoTimestamps`].
    pub fn set_profile(&mut self, on: bool) -> Result<(), GpuError> {
        if on && !self.gpu.info().timestamps {
            return Err(GpuError::NoTimestamps(self.gpu.info().adapter.name.clone()));
        }
        self.profile = on.then(Profile::default);
        Ok(())
    }

    /// GPU time by kernel since the last call, longest first; nothing without [`Recorder::set_profile`]. With `shapes`, products of
    /// different shapes are told apart.
    ///
    /// # Errors
    /// As [`Gpu::read`].
    pub async fn take_profile(&mut self, shapes: bool) -> Result<Vec<KernelTime>, GpuError> {
        self.submit();
        match &mut self.profile {
            Some(profile) => profile.take(&self.gpu, shapes).await,
            None => Ok(Vec::new()),
        }
    }

    /// From here to [`Recorder::end_rehearsal`] nothing runs: dispatches only note their kernels, and readbacks give zeros. It tells which
    /// kernels a piece of work needs, so that they can be compiled while something else takes its time.
    pub fn begin_rehearsal(&mut self) {
        self.submit();
        self.rehearsal = Some(Vec::new());
    }

    /// The kernels that the rehearsal met, in order.
    pub fn end_rehearsal(&mut self) -> Vec<Arc<Kernel>> {
        self.rehearsal.take().unwrap_or_default()
    }

    /// Forgets cached bind groups, so that dropped buffers are really freed.
    pub fn forget_bind_groups(&mut self) {
        self.binds.clear();
    }

    /// Records one dispatch. `params` is the kernel's parameter struct (at most 64 bytes), `work` its operations, with
    /// the bytes it moves where the kernel knows them.
    pub fn dispatch<P: bytemuck::Pod>(
        &mut self,
        kernel: &Arc<Kernel>,
        views: &[View<'_>],
        params: &P,
        groups: [u32; 3],
        work: impl Into<Work>,
    ) {
        let work = work.into();
        debug_assert_eq!(views.len(), kernel.access.len(), "{}", kernel.label);
        debug_assert!(size_of::<P>() as u64 <= PARAMS_BYTES, "{}", kernel.label);
        if groups.contains(&0) {
            return;
        }
        if let Some(met) = &mut self.rehearsal {
            if !met.iter().any(|k| Arc::ptr_eq(k, kernel)) {
                met.push(kernel.clone());
            }
            return;
        }
        let slot = self.bytes.len() as u64;
        if slot >= SLOT * self.ahead as u64 || (self.cost > 0 && self.cost.saturating_add(work.cost()) > self.budget) {
            self.submit();
            return self.dispatch(kernel, views, params, groups, work);
        }
        if self.cost == 0 {
            self.budget = self.pace.budget();
            // Natively nobody hears of what is done before somebody asks.
            #[cfg(not(target_arch = "wasm32"))]
            let _ = self.gpu.device().poll(wgpu::PollType::Poll);
            if self.pace.idle() {
                self.ahead = FIRST;
            }
        }
        self.cost += work.cost();
        self.dispatches += 1;
        self.bytes.extend_from_slice(bytemuck::bytes_of(params));
        self.bytes.resize((slot + SLOT) as usize, 0);
        let bind = self.bind(kernel, views);
        self.steps.push(Step::Dispatch(Dispatch { kernel: kernel.clone(), bind, slot: slot as u32, groups, work }));
    }

    /// Records a copy between buffers (offsets and size multiples of 4).
    pub fn copy(&mut self, from: View<'_>, to: &Buffer, to_offset: u64) {
        if self.rehearsal.is_some() {
            return;
        }
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
        let descriptor = wgpu::BindGroupDescriptor { label: Some(&kernel.label), layout: kernel.layout(&self.gpu), entries: &entries };
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
        if let Some(error) = self.gpu.strike(Stage::Submit) {
            self.gpu.note(error);
            return self.discard();
        }
        if !self.bytes.is_empty() {
            self.gpu.write(&self.params, 0, &self.bytes);
        }
        // An upload that failed leaves old indices behind, and native kernels do not check theirs: nothing runs until the fault is heard.
        if self.gpu.faulty() {
            return self.discard();
        }
        let mut encoder = self.gpu.device().create_command_encoder(&Default::default());
        let mut stamps = self.profile.as_ref().map(|_| Stamps::new(&self.gpu, self.steps.len()));
        let mut steps = self.steps.drain(..).peekable();
        while let Some(step) = steps.next() {
            let first = match step {
                Step::Copy { from, from_offset, to, to_offset, size } => {
                    encoder.copy_buffer_to_buffer(&from, from_offset, &to, to_offset, size);
                    continue;
                }
                Step::Dispatch(first) => first,
            };
            let mut pass = match &mut stamps {
                Some(stamps) => stamps.pass(&mut encoder),
                None => encoder.begin_compute_pass(&Default::default()),
            };
            let mut next = Some(first);
            while let Some(Dispatch { kernel, bind, slot, groups: [x, y, z], work }) = next.take() {
                pass.set_pipeline(kernel.pipeline(&self.gpu));
                pass.set_bind_group(0, &bind, &[slot]);
                pass.dispatch_workgroups(x, y, z);
                if let Some(stamps) = &mut stamps {
                    stamps.dispatched(&mut pass, &kernel, work);
                    if stamps.alone() {
                        break;
                    }
                }
                next = match steps.next_if(|step| matches!(step, Step::Dispatch(_))) {
                    Some(Step::Dispatch(dispatch)) => Some(dispatch),
                    _ => None,
                };
            }
        }
        drop(steps);
        if let (Some(profile), Some(stamps)) = (&mut self.profile, stamps) {
            profile.resolve(&self.gpu, &mut encoder, stamps);
        }
        self.gpu.queue().submit([encoder.finish()]);
        if self.cost > 0 {
            self.pace.watch(&self.gpu, self.cost);
        }
        self.bytes.clear();
        self.cost = 0;
        self.ahead = (2 * self.ahead).min(SLOTS as usize);
    }

    /// Submits and reads back a range.
    ///
    /// # Errors
    /// As [`Gpu::read`].
    pub async fn finish_and_read(&mut self, view: View<'_>) -> Result<Vec<u8>, GpuError> {
        self.submit();
        if self.rehearsal.is_some() {
            return Ok(vec![0; view.size as usize]);
        }
        self.gpu.read(view.buffer, view.offset, view.size).await
    }
}
