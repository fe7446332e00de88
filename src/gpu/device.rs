//! Finding an adapter, opening a device on it, memory and readback.

use super::buffer::Usage;
use super::faults::Stage;
use super::{Abilities, Buffer, GpuError, Kernel, View, memory, probe};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// How to open a GPU.
#[derive(Debug, Clone, Default)]
pub struct GpuOptions {
    /// Part of an adapter's name (any case), or its number in [`adapters`]; the best adapter when `None`.
    pub adapter: Option<String>,
    /// Ask for the WebGPU default limits and no features, whatever the adapter offers (for tests of the lowest common ground).
    pub default_limits: bool,
    /// Allow f16 in shaders where the adapter has it, even without cooperative matrices (for tests of the tensor tier's decoding).
    pub half: bool,
    /// Take a software adapter for hardware, so that tests run the kernels that are chosen there.
    pub as_hardware: bool,
    /// Use at most so many bytes of GPU memory, however much there is.
    pub memory: Option<u64>,
    /// Allow no storage binding larger than this many bytes, so that tests see what a small adapter would.
    pub max_binding: Option<u64>,
    /// Allow no buffer larger than this many bytes, so that tests see what a small adapter would.
    pub max_buffer: Option<u64>,
}

/// What an adapter says about itself.
#[derive(Debug, Clone, serde::Serialize)]
pub struct AdapterSummary {
    /// Marketing name, or what the browser tells.
    pub name: String,
    /// vulkan, metal, dx12, browser-webgpu ...
    pub backend: String,
    /// discrete, integrated, cpu ...
    pub kind: String,
    /// Driver name and version.
    pub driver: String,
    /// Largest storage binding, bytes.
    pub max_binding: u64,
    /// Largest buffer, bytes.
    pub max_buffer: u64,
    /// Workgroup memory, bytes.
    pub workgroup_memory: u32,
    /// Invocations a workgroup.
    pub invocations: u32,
    /// Features that some kernel tier can use.
    pub features: Vec<String>,
    /// Sub-group sizes, smallest and largest (0 when unknown).
    pub subgroups: (u32, u32),
}

/// An open device: what it is and what it allows.
#[derive(Debug, Clone)]
pub struct GpuInfo {
    /// The adapter's own words.
    pub adapter: AdapterSummary,
    /// Largest storage binding granted, bytes.
    pub max_binding: u64,
    /// Largest buffer granted, bytes.
    pub max_buffer: u64,
    /// True for software adapters (lavapipe, SwiftShader, WARP).
    pub software: bool,
    /// GPU timestamps can be taken.
    pub timestamps: bool,
    /// What it computes with, beyond floats.
    pub abilities: Abilities,
    /// Memory that buffers may take in all, bytes: the adapter's own, or the limit asked for. `None` where nobody tells (browsers).
    pub memory: Option<u64>,
}

struct Inner {
    device: wgpu::Device,
    queue: wgpu::Queue,
    info: GpuInfo,
    kernels: Mutex<HashMap<String, Arc<Kernel>>>,
    remembered: Mutex<HashMap<(&'static str, u64), Arc<Kernel>>>,
    fault: Arc<Mutex<Option<GpuError>>>,
    usage: Arc<Usage>,
    #[cfg(test)]
    faults: super::faults::order::Faults,
}

/// A place in the stream of submitted work.
#[derive(Debug)]
pub struct Mark {
    #[cfg(not(target_arch = "wasm32"))]
    submitted: wgpu::SubmissionIndex,
    #[cfg(target_arch = "wasm32")]
    done: futures_channel::oneshot::Receiver<()>,
}

/// An open device. Cheap to clone; all clones are the same device.
#[derive(Clone)]
pub struct Gpu(Arc<Inner>);

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gpu({})", self.0.info.adapter.name)
    }
}

#[cfg(target_arch = "wasm32")]
fn instance() -> wgpu::Instance {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::BROWSER_WEBGPU;
    wgpu::Instance::new(descriptor)
}

/// One for the whole process: a driver that is loaded and unloaded again and again may refuse after a while (NVIDIA's offered no adapter after
/// some 25 times).
#[cfg(not(target_arch = "wasm32"))]
fn instance() -> wgpu::Instance {
    static INSTANCE: std::sync::OnceLock<wgpu::Instance> = std::sync::OnceLock::new();
    INSTANCE.get_or_init(|| wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env())).clone()
}

fn summary(adapter: &wgpu::Adapter) -> AdapterSummary {
    let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
    let named = [
        ("shader-f16", wgpu::Features::SHADER_F16),
        ("subgroups", wgpu::Features::SUBGROUP),
        ("timestamps", wgpu::Features::TIMESTAMP_QUERY),
        ("cooperative-matrix", wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX),
    ];
    let driver = [info.driver.as_str(), info.driver_info.as_str()].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join(" ");
    AdapterSummary {
        name: if info.name.is_empty() { "WebGPU adapter".to_string() } else { info.name },
        backend: format!("{:?}", info.backend).to_lowercase(),
        kind: match info.device_type {
            wgpu::DeviceType::DiscreteGpu => "discrete",
            wgpu::DeviceType::IntegratedGpu => "integrated",
            wgpu::DeviceType::VirtualGpu => "virtual",
            wgpu::DeviceType::Cpu => "cpu",
            wgpu::DeviceType::Other => "unknown",
        }
        .to_string(),
        driver,
        max_binding: limits.max_storage_buffer_binding_size,
        max_buffer: limits.max_buffer_size,
        workgroup_memory: limits.max_compute_workgroup_storage_size,
        invocations: limits.max_compute_invocations_per_workgroup,
        features: named.iter().filter(|(_, f)| features.contains(*f)).map(|(n, _)| (*n).to_string()).collect(),
        subgroups: (info.subgroup_min_size, info.subgroup_max_size),
    }
}

/// All adapters, best first. In a browser there is one, the browser's choice.
pub async fn adapters() -> Vec<AdapterSummary> {
    candidates(&instance()).await.iter().map(summary).collect()
}

#[cfg(not(target_arch = "wasm32"))]
async fn candidates(instance: &wgpu::Instance) -> Vec<wgpu::Adapter> {
    let mut all = instance.enumerate_adapters(wgpu::Backends::all()).await;
    // An OpenGL twin of a Vulkan device would only be a slower way to the same card.
    all.retain(|a| a.get_info().backend != wgpu::Backend::Gl && a.get_downlevel_capabilities().is_webgpu_compliant());
    all.sort_by_key(|a| match a.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    });
    all
}

#[cfg(target_arch = "wasm32")]
async fn candidates(instance: &wgpu::Instance) -> Vec<wgpu::Adapter> {
    let options = wgpu::RequestAdapterOptions { power_preference: wgpu::PowerPreference::HighPerformance, ..Default::default() };
    // The first answer after the browser's start can be null while its GPU process restarts: ask again.
    for _ in 0..3 {
        if let Ok(adapter) = instance.request_adapter(&options).await {
            return vec![adapter];
        }
    }
    Vec::new()
}

impl Gpu {
    /// Opens an adapter with all the limits it offers.
    ///
    /// # Errors
    /// No adapter, no adapter of that name, or a driver that refuses.
    pub async fn open(options: &GpuOptions) -> Result<Gpu, GpuError> {
        let instance = instance();
        let found = candidates(&instance).await;
        let adapter = match &options.adapter {
            None => found.first().ok_or(GpuError::NoAdapter)?,
            Some(wanted) => {
                let lower = wanted.to_lowercase();
                let by_number = wanted.parse::<usize>().ok().and_then(|i| found.get(i));
                by_number.or_else(|| found.iter().find(|a| a.get_info().name.to_lowercase().contains(&lower))).ok_or_else(|| {
                    GpuError::NoSuchAdapter { wanted: wanted.clone(), present: found.iter().map(|a| summary(a).name).collect() }
                })?
            }
        };
        let summary = summary(adapter);
        let software = !options.as_hardware && (summary.kind == "cpu" || probe::software(&summary.name).await);
        let mut abilities = probe::of(&instance, adapter, software, options.default_limits);
        let mut features = wgpu::Features::empty();
        if !options.default_limits {
            features |= adapter.features() & (wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES);
            if abilities.matrices || options.half {
                features |= adapter.features() & wgpu::Features::SHADER_F16;
            }
            if abilities.matrices {
                features |= wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
            }
        }
        abilities.half = features.contains(wgpu::Features::SHADER_F16);
        let limits = if options.default_limits { wgpu::Limits::default() } else { adapter.limits() };
        let (device, queue) = adapter
            .request_device(&wgpu::DeviceDescriptor {
                label: Some("semif"),
                required_features: features,
                required_limits: limits.clone(),
                experimental_features: match abilities.matrices {
                    // SAFETY: only the kernels of the tensor tier use what is experimental, and only after their self-test on this device.
                    true => unsafe { wgpu::ExperimentalFeatures::enabled() },
                    false => wgpu::ExperimentalFeatures::disabled(),
                },
                ..Default::default()
            })
            .await
            .map_err(|e| GpuError::Open { adapter: summary.name.clone(), reason: e.to_string() })?;
        let fault: Arc<Mutex<Option<GpuError>>> = Arc::default();
        let slot = fault.clone();
        device.on_uncaptured_error(Arc::new(move |e| {
            let fault = match e {
                wgpu::Error::OutOfMemory { .. } => {
                    GpuError::OutOfMemory { what: "a GPU operation".into(), needed: 0, detail: e.to_string() }
                }
                other => GpuError::Validation(other.to_string()),
            };
            slot.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(fault);
        }));
        let slot = fault.clone();
        device.set_device_lost_callback(move |reason, message| {
            if reason != wgpu::DeviceLostReason::Destroyed {
                let message = if message.is_empty() { format!("{reason:?}") } else { message };
                *slot.lock().unwrap_or_else(|e| e.into_inner()) = Some(GpuError::Lost(message));
            }
        });
        let info = GpuInfo {
            abilities,
            max_binding: limits.max_storage_buffer_binding_size.min(options.max_binding.unwrap_or(u64::MAX)),
            max_buffer: limits.max_buffer_size.min(options.max_buffer.unwrap_or(u64::MAX)),
            software,
            timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
            memory: [memory::of(adapter), options.memory].into_iter().flatten().min(),
            adapter: summary,
        };
        Ok(Gpu(Arc::new(Inner {
            device,
            queue,
            info,
            kernels: Mutex::default(),
            remembered: Mutex::default(),
            fault,
            usage: Arc::default(),
            #[cfg(test)]
            faults: Default::default(),
        })))
    }

    /// What this device is and allows.
    pub fn info(&self) -> &GpuInfo {
        &self.0.info
    }

    pub(super) fn device(&self) -> &wgpu::Device {
        &self.0.device
    }

    pub(super) fn queue(&self) -> &wgpu::Queue {
        &self.0.queue
    }

    pub(super) fn kernels(&self) -> &Mutex<HashMap<String, Arc<Kernel>>> {
        &self.0.kernels
    }

    #[cfg(test)]
    pub(super) fn faults(&self) -> &super::faults::order::Faults {
        &self.0.faults
    }

    /// Notes a fault that is heard of at the next [`Gpu::check`].
    pub(super) fn note(&self, error: GpuError) {
        let mut fault = self.0.fault.lock().unwrap_or_else(|e| e.into_inner());
        if !matches!(*fault, Some(GpuError::Lost(_))) {
            *fault = Some(error);
        }
    }

    /// Is there a fault that nobody has heard of yet?
    pub(super) fn faulty(&self) -> bool {
        self.0.fault.lock().unwrap_or_else(|e| e.into_inner()).is_some()
    }

    pub(super) fn remembered_kernels(&self) -> &Mutex<HashMap<(&'static str, u64), Arc<Kernel>>> {
        &self.0.remembered
    }

    pub(super) fn take_fault(&self) -> Option<GpuError> {
        let mut fault = self.0.fault.lock().unwrap_or_else(|e| e.into_inner());
        // A lost device stays lost.
        if let Some(GpuError::Lost(_)) = *fault { fault.clone() } else { fault.take() }
    }

    /// A storage buffer of at least `size` bytes (rounded up to 256), zero-filled.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] when it is larger than the device allows or the driver refuses.
    pub async fn buffer(&self, label: &str, size: u64) -> Result<Buffer, GpuError> {
        self.buffer_with(label, size, wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC).await
    }

    pub(super) async fn buffer_with(&self, label: &str, size: u64, usage: wgpu::BufferUsages) -> Result<Buffer, GpuError> {
        let size = size.max(256).next_multiple_of(256);
        let memory = |detail: String| GpuError::OutOfMemory { what: label.to_string(), needed: size, detail };
        if let Some(error) = self.strike(Stage::Buffer) {
            return Err(error);
        }
        if size > self.0.info.max_buffer {
            return Err(memory(format!("the adapter allows {} bytes a buffer", self.0.info.max_buffer)));
        }
        if let Some(all) = self.0.info.memory
            && self.memory_in_use() + size > all
        {
            return Err(memory(format!("{} of {all} bytes are in use", self.memory_in_use())));
        }
        let scope = self.0.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let raw = self.0.device.create_buffer(&wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false });
        if let Some(e) = scope.pop().await {
            return Err(memory(e.to_string()));
        }
        Ok(Buffer::new(raw, size, self.0.usage.clone()))
    }

    /// A stand-in for a buffer of `size` bytes that takes no memory: for rehearsals, which bind nothing.
    pub fn outline(&self, label: &str, size: u64) -> Buffer {
        let descriptor =
            wgpu::BufferDescriptor { label: Some(label), size: 256, usage: wgpu::BufferUsages::STORAGE, mapped_at_creation: false };
        Buffer::outline(self.0.device.create_buffer(&descriptor), size.max(256).next_multiple_of(256))
    }

    /// A small buffer without the checks above: what goes wrong shows at the next [`Gpu::check`].
    pub(super) fn plain_buffer(&self, label: &str, size: u64, usage: wgpu::BufferUsages) -> Buffer {
        let raw = self.0.device.create_buffer(&wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false });
        Buffer::new(raw, size, self.0.usage.clone())
    }

    /// Bytes of all buffers now alive.
    pub fn memory_in_use(&self) -> u64 {
        self.0.usage.now.load(Ordering::Relaxed)
    }

    /// The most bytes that were in use together, ever or since [`Gpu::reset_peak_memory`].
    pub fn peak_memory(&self) -> u64 {
        self.0.usage.most.load(Ordering::Relaxed)
    }

    /// Measures the peak from here on.
    pub fn reset_peak_memory(&self) {
        self.0.usage.most.store(self.memory_in_use(), Ordering::Relaxed);
    }

    /// Copies `data` (length a multiple of 4) into a buffer at byte `offset` before the next submitted work.
    pub fn write(&self, buffer: &Buffer, offset: u64, data: &[u8]) {
        if let Some(error) = self.strike(Stage::Write) {
            return self.note(error);
        }
        self.0.queue.write_buffer(&buffer.raw, offset, data);
    }

    /// Lets queued writes go to the device. [`Gpu::reached`] tells when they are there and their staging memory is given back.
    pub fn flush_writes(&self) -> Mark {
        let submitted = self.0.queue.submit([]);
        #[cfg(not(target_arch = "wasm32"))]
        return Mark { submitted };
        #[cfg(target_arch = "wasm32")]
        {
            drop(submitted);
            let (tx, done) = futures_channel::oneshot::channel();
            self.0.queue.on_submitted_work_done(move || {
                let _ = tx.send(());
            });
            Mark { done }
        }
    }

    /// Waits until everything submitted before the mark is done; what came after it may still run.
    ///
    /// # Errors
    /// Whatever went wrong meanwhile.
    pub async fn reached(&self, mark: Mark) -> Result<(), GpuError> {
        // Not by a callback: asking for one submits what other threads have written meanwhile, and it then waits for that. Nobody would poll
        // for it here, and loading by several threads stood still now and then.
        #[cfg(not(target_arch = "wasm32"))]
        if let Err(e) = self.0.device.poll(wgpu::PollType::Wait { submission_index: Some(mark.submitted), timeout: None }) {
            return Err(self.take_fault().unwrap_or_else(|| GpuError::Lost(e.to_string())));
        }
        #[cfg(target_arch = "wasm32")]
        let _ = mark.done.await;
        self.check()
    }

    /// Waits until the device has taken everything that was handed to it, kernels to compile included. What went wrong stays for the next
    /// [`Gpu::check`].
    pub async fn idle(&self) {
        let (tx, rx) = futures_channel::oneshot::channel();
        self.0.queue.on_submitted_work_done(move || {
            let _ = tx.send(());
        });
        self.poll_wait();
        let _ = rx.await;
    }

    /// Waits until all submitted work is done.
    ///
    /// # Errors
    /// Whatever went wrong meanwhile.
    pub async fn wait(&self) -> Result<(), GpuError> {
        self.idle().await;
        self.check()
    }

    pub(super) fn poll_wait(&self) {
        #[cfg(not(target_arch = "wasm32"))]
        if let Err(e) = self.0.device.poll(wgpu::PollType::wait_indefinitely()) {
            let lost = GpuError::Lost(e.to_string());
            self.0.fault.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(lost);
        }
    }

    /// Reads `size` bytes (a multiple of 4) at `offset`, after everything submitted so far.
    ///
    /// # Errors
    /// A lost device, or whatever went wrong in the work before.
    pub async fn read(&self, buffer: &Buffer, offset: u64, size: u64) -> Result<Vec<u8>, GpuError> {
        Ok(self.read_all(&[View { buffer, offset, size }]).await?.pop().unwrap_or_default())
    }

    /// Reads several ranges (sizes multiples of 4) in one readback, after everything submitted so far.
    ///
    /// # Errors
    /// As [`Gpu::read`].
    pub async fn read_all(&self, views: &[View<'_>]) -> Result<Vec<Vec<u8>>, GpuError> {
        if let Some(error) = self.strike(Stage::Read) {
            return Err(error);
        }
        let size: u64 = views.iter().map(|v| v.size).sum();
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let staging = self.buffer_with("readback", size, usage).await?;
        let mut encoder = self.0.device.create_command_encoder(&Default::default());
        let mut at = 0;
        for v in views {
            encoder.copy_buffer_to_buffer(&v.buffer.raw, v.offset, &staging.raw, at, v.size);
            at += v.size;
        }
        self.0.queue.submit([encoder.finish()]);
        let (tx, rx) = futures_channel::oneshot::channel();
        staging.raw.slice(..size).map_async(wgpu::MapMode::Read, move |r| {
            let _ = tx.send(r);
        });
        self.poll_wait();
        let mapped = rx.await;
        self.check()?;
        match mapped {
            Ok(Ok(())) => {}
            Ok(Err(e)) => return Err(GpuError::Lost(e.to_string())),
            Err(_) => return Err(GpuError::Lost("the readback was dropped".into())),
        }
        let data = staging.raw.slice(..size).get_mapped_range().map_err(|e| GpuError::Validation(e.to_string()))?;
        let mut rest: &[u8] = &data;
        let mut take = |v: &View<'_>| {
            let (one, more) = rest.split_at(v.size as usize);
            rest = more;
            one.to_vec()
        };
        Ok(views.iter().map(&mut take).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollster::block_on;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Marks are reached while other threads write without end.
    #[test]
    fn a_mark_is_reached_in_company() {
        let gpu = block_on(Gpu::open(&GpuOptions::default())).unwrap();
        let buffer = block_on(gpu.buffer("written", 1 << 20)).unwrap();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        gpu.write(&buffer, 0, &[7; 4096]);
                    }
                });
            }
            let (tx, rx) = std::sync::mpsc::channel();
            scope.spawn({
                let gpu = &gpu;
                move || {
                    for _ in 0..200 {
                        block_on(gpu.reached(gpu.flush_writes())).unwrap();
                    }
                    let _ = tx.send(());
                }
            });
            let reached = rx.recv_timeout(std::time::Duration::from_secs(120));
            ended.store(true, Ordering::Relaxed);
            // What hangs would hang the scope's end too.
            if reached.is_err() {
                eprintln!("a mark was not reached in two minutes");
                std::process::abort();
            }
        });
    }
}
