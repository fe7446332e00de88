//! Compute pipelines, made once for each kernel variant, at its first use or ahead of it.

use super::{Gpu, GpuError};
use std::sync::{Arc, OnceLock};

/// How a kernel uses a storage binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// `var<storage, read>`
    Read,
    /// `var<storage, read_write>`
    Write,
}

/// A compiled kernel. Bindings 0.. are storage buffers in the order of `access`; the one after them is the uniform
/// parameter block (dynamic offset).
#[derive(Debug)]
pub struct Kernel {
    /// Readable variant name; the cache key, the wgpu label and the profiler row.
    pub label: String,
    /// Storage bindings.
    pub access: Vec<Access>,
    wgsl: String,
    compiled: OnceLock<Compiled>,
}

#[derive(Debug)]
struct Compiled {
    pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
}

impl Kernel {
    /// Compiles the kernel, unless that is done; several threads may each compile another one.
    pub fn compile(&self, gpu: &Gpu) {
        self.compiled(gpu);
    }

    /// Has it been compiled?
    #[cfg(test)]
    pub fn is_compiled(&self) -> bool {
        self.compiled.get().is_some()
    }

    fn compiled(&self, gpu: &Gpu) -> &Compiled {
        self.compiled.get_or_init(|| gpu.compile(&self.label, &self.access, &self.wgsl))
    }

    pub(super) fn pipeline(&self, gpu: &Gpu) -> &wgpu::ComputePipeline {
        &self.compiled(gpu).pipeline
    }

    pub(super) fn layout(&self, gpu: &Gpu) -> &wgpu::BindGroupLayout {
        &self.compiled(gpu).layout
    }
}

/// Size of the uniform parameter block every kernel sees, bytes.
pub(super) const PARAMS_BYTES: u64 = 64;

impl Gpu {
    /// The kernel `label` of the shader `wgsl`. It is compiled at its first dispatch, or by [`Kernel::compile`] before that.
    pub fn kernel(&self, label: &str, access: &[Access], wgsl: impl FnOnce() -> String) -> Arc<Kernel> {
        let mut kernels = self.kernels().lock().unwrap_or_else(|e| e.into_inner());
        if let Some(k) = kernels.get(label) {
            return k.clone();
        }
        let kernel = Arc::new(Kernel { label: label.to_string(), access: access.to_vec(), wgsl: wgsl(), compiled: OnceLock::new() });
        kernels.insert(label.to_string(), kernel.clone());
        kernel
    }

    /// Labels of the kernels that have been compiled, in order.
    #[cfg(test)]
    pub fn compiled_kernels(&self) -> Vec<String> {
        let kernels = self.kernels().lock().unwrap_or_else(|e| e.into_inner());
        let mut labels: Vec<String> = kernels.values().filter(|k| k.is_compiled()).map(|k| k.label.clone()).collect();
        labels.sort();
        labels
    }

    /// The kernel that `make` gave for this key: a file, and a number for what else tells its variants apart. Saves a dispatch from
    /// writing out names and definitions.
    pub fn remembered(&self, key: (&'static str, u64), make: impl FnOnce(&Gpu) -> Arc<Kernel>) -> Arc<Kernel> {
        let lock = || self.remembered_kernels().lock().unwrap_or_else(|e| e.into_inner());
        if let Some(kernel) = lock().get(&key) {
            return kernel.clone();
        }
        let kernel = make(self);
        lock().insert(key, kernel.clone());
        kernel
    }

    fn compile(&self, label: &str, access: &[Access], wgsl: &str) -> Compiled {
        let device = self.device();
        let entry = |binding: usize, ty| wgpu::BindGroupLayoutEntry {
            binding: binding as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty,
            count: None,
        };
        let mut entries: Vec<_> = access
            .iter()
            .enumerate()
            .map(|(i, a)| {
                let ty = wgpu::BufferBindingType::Storage { read_only: *a == Access::Read };
                entry(i, wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None })
            })
            .collect();
        entries.push(entry(
            access.len(),
            wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Uniform,
                has_dynamic_offset: true,
                min_binding_size: std::num::NonZeroU64::new(PARAMS_BYTES),
            },
        ));
        let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some(label), entries: &entries });
        let descriptor = wgpu::ShaderModuleDescriptor { label: Some(label), source: wgpu::ShaderSource::Wgsl(wgsl.into()) };
        // SAFETY: our kernels index only inside their bindings (buffers are padded to whole tiles, indices are clamped) and
        // all loops are bounded; the checks would cost up to a tenth of the time. Browsers keep their own checks.
        let module = unsafe { device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) };
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(label),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(label),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions { zero_initialize_workgroup_memory: false, ..Default::default() },
            cache: None,
        });
        Compiled { pipeline, layout }
    }

    /// Waits for nothing, but reports what went wrong since the last call (compilation, validation, memory, loss).
    ///
    /// # Errors
    /// The first fault since the last call.
    pub fn check(&self) -> Result<(), GpuError> {
        match self.take_fault() {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }
}
