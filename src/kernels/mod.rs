//! One file a kernel: parameters, dispatch, and its test against a reference. The WGSL stands in `shaders/` under the same name.

pub mod attention;
pub mod attention_step;
pub mod attention_tensor;
pub mod copy_pages;
pub mod delta;
pub mod embed;
pub mod gather;
pub mod half;
pub mod head;
pub mod linear;
pub mod matmul;
pub mod matmul_q8;
pub mod matmul_tensor;
pub mod matvec;
pub mod quantise;
pub mod rms_norm;
pub mod rope;
pub mod selftest;
pub mod split;
pub mod swiglu;
#[cfg(test)]
pub(crate) mod testing;
pub mod weight;

use crate::gpu::template::{Defs, render};
use crate::gpu::{Access, Buffer, Gpu, Kernel, View};
use std::sync::Arc;

/// The text of a shader file.
fn shader(name: &str) -> Option<&'static str> {
    Some(match name {
        "add_parts.wgsl" => include_str!("../../shaders/add_parts.wgsl"),
        "attention.wgsl" => include_str!("../../shaders/attention.wgsl"),
        "attention_join.wgsl" => include_str!("../../shaders/attention_join.wgsl"),
        "attention_step.wgsl" => include_str!("../../shaders/attention_step.wgsl"),
        "bits.wgsl" => include_str!("../../shaders/bits.wgsl"),
        "attention_tensor.wgsl" => include_str!("../../shaders/attention_tensor.wgsl"),
        "copy_pages.wgsl" => include_str!("../../shaders/copy_pages.wgsl"),
        "delta_conv.wgsl" => include_str!("../../shaders/delta_conv.wgsl"),
        "delta_finish.wgsl" => include_str!("../../shaders/delta_finish.wgsl"),
        "delta_input.wgsl" => include_str!("../../shaders/delta_input.wgsl"),
        "delta_scan.wgsl" => include_str!("../../shaders/delta_scan.wgsl"),
        "embed.wgsl" => include_str!("../../shaders/embed.wgsl"),
        "gather.wgsl" => include_str!("../../shaders/gather.wgsl"),
        "half.wgsl" => include_str!("../../shaders/half.wgsl"),
        "head_slots.wgsl" => include_str!("../../shaders/head_slots.wgsl"),
        "matmul.wgsl" => include_str!("../../shaders/matmul.wgsl"),
        "matmul_io.wgsl" => include_str!("../../shaders/matmul_io.wgsl"),
        "matmul_plain.wgsl" => include_str!("../../shaders/matmul_plain.wgsl"),
        "matmul_q8.wgsl" => include_str!("../../shaders/matmul_q8.wgsl"),
        "matmul_tensor.wgsl" => include_str!("../../shaders/matmul_tensor.wgsl"),
        "matmul_tensor_load.wgsl" => include_str!("../../shaders/matmul_tensor_load.wgsl"),
        "matvec.wgsl" => include_str!("../../shaders/matvec.wgsl"),
        "matvec_plain.wgsl" => include_str!("../../shaders/matvec_plain.wgsl"),
        "peak_dot4.wgsl" => include_str!("../../shaders/peak_dot4.wgsl"),
        "peak_fma.wgsl" => include_str!("../../shaders/peak_fma.wgsl"),
        "peak_matrix.wgsl" => include_str!("../../shaders/peak_matrix.wgsl"),
        "peak_read.wgsl" => include_str!("../../shaders/peak_read.wgsl"),
        "q8.wgsl" => include_str!("../../shaders/q8.wgsl"),
        "quantise.wgsl" => include_str!("../../shaders/quantise.wgsl"),
        "rms_norm.wgsl" => include_str!("../../shaders/rms_norm.wgsl"),
        "rope.wgsl" => include_str!("../../shaders/rope.wgsl"),
        "swiglu.wgsl" => include_str!("../../shaders/swiglu.wgsl"),
        "tensor_reduce.wgsl" => include_str!("../../shaders/tensor_reduce.wgsl"),
        "tensor_values.wgsl" => include_str!("../../shaders/tensor_values.wgsl"),
        "tensor_weight.wgsl" => include_str!("../../shaders/tensor_weight.wgsl"),
        "to_half.wgsl" => include_str!("../../shaders/to_half.wgsl"),
        "vocab_join.wgsl" => include_str!("../../shaders/vocab_join.wgsl"),
        "vocab_reduce.wgsl" => include_str!("../../shaders/vocab_reduce.wgsl"),
        "vocab_stats.wgsl" => include_str!("../../shaders/vocab_stats.wgsl"),
        "weight.wgsl" => include_str!("../../shaders/weight.wgsl"),
        "weight_bytes.wgsl" => include_str!("../../shaders/weight_bytes.wgsl"),
        "weight_dot.wgsl" => include_str!("../../shaders/weight_dot.wgsl"),
        _ => return None,
    })
}

/// Everything that makes a kernel variant: which file, under which name, with which definitions and bindings.
#[derive(Debug, Clone)]
pub struct Variant {
    /// Readable name of the variant.
    pub label: String,
    /// Shader file.
    pub file: &'static str,
    /// Template definitions.
    pub defs: Defs,
    /// Storage bindings in order.
    pub access: Vec<Access>,
}

impl Variant {
    /// The WGSL of this variant.
    ///
    /// # Panics
    /// When a shader file is faulty; a unit test renders every variant, so this cannot reach a user.
    pub fn wgsl(&self) -> String {
        render(self.file, &self.defs, &shader).unwrap_or_else(|e| panic!("{e}"))
    }

    /// The compiled kernel.
    pub fn kernel(&self, gpu: &Gpu) -> Arc<Kernel> {
        gpu.kernel(&self.label, &self.access, || self.wgsl())
    }
}

/// A row-major f32 matrix on the GPU: `rows` are implied by the use, `ld` is the distance of two rows in f32.
#[derive(Debug, Clone, Copy)]
pub struct Mat<'a> {
    /// Where it stands.
    pub view: View<'a>,
    /// Row stride in f32 (a multiple of 4 where it is read as vec4).
    pub ld: u32,
}

impl<'a> Mat<'a> {
    /// A whole buffer as a matrix.
    pub fn new(buffer: &'a Buffer, ld: u32) -> Self {
        Self { view: buffer.all(), ld }
    }
}

/// Every kernel variant that can be asked for; what the naga test validates and the self-test compiles.
pub fn all_variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for ty in weight::TYPES {
        for store in matmul::STORES {
            all.extend(matmul::TILES.iter().map(|&tile| matmul::matmul_variant(ty, tile, store)));
            if matmul_q8::takes(ty) {
                all.extend(matmul_q8::TILES.iter().map(|&tile| matmul_q8::variant(ty, tile, store)));
            }
        }
        for kind in matvec::Kind::ALL {
            all.extend(matvec::rows_of(kind).iter().map(|&rows| matvec::variant(ty, rows, kind)));
        }
        all.push(embed::variant(ty));
        all.push(head::slots_variant(ty));
    }
    all.extend(delta::variants());
    all.extend(quantise::FORMS.map(delta::finish_variant));
    all.extend(head::stats_variants());
    for form in quantise::FORMS {
        all.extend([false, true].map(|left| rms_norm::variant(form, left)));
        all.push(swiglu::variant(form));
    }
    all.extend([(false, false), (true, false), (false, true), (true, true)].map(|(bias, add)| split::variant(bias, add)));
    all.push(quantise::variant());
    all.push(gather::variant());
    all.push(copy_pages::variant());
    all.push(half::variant());
    for pairs in [rope::Pairs::Halves, rope::Pairs::Adjacent] {
        all.extend([false, true].map(|norm| rope::variant(pairs, norm)));
    }
    for head_dim in attention::HEAD_DIMS {
        for rows in attention::ROWS {
            all.extend([false, true].map(|gate| attention::variant(head_dim, rows, gate)));
        }
        all.extend(attention_step::TOGETHER.map(|together| attention_step::variant(head_dim, together)));
        all.extend([false, true].map(|gate| attention_step::join_variant(head_dim, gate)));
    }
    all
}

/// Every variant of the tensor tier: they need f16 and cooperative matrices.
pub fn tensor_variants() -> Vec<Variant> {
    let mut all = matmul_tensor::variants();
    all.extend(attention_tensor::variants());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    use naga::valid::Capabilities;

    /// What the tensor tier may ask of an adapter: bytes of workgroup memory and invocations a workgroup.
    const TENSOR: (u32, u32) = (49152, 320);
    /// WebGPU's default limits.
    const PLAIN: (u32, u32) = (16384, 256);

    /// Valid WGSL with these capabilities, and so many bytes of workgroup memory and invocations at most.
    fn validate(variant: &Variant, capabilities: Capabilities, (workgroup_memory, invocations): (u32, u32)) {
        let text = variant.wgsl();
        let module = naga::front::wgsl::parse_str(&text).unwrap_or_else(|e| panic!("{}: {}", variant.label, e.emit_to_string(&text)));
        // pack2x16float and its inverse are part of WebGPU.
        let capabilities = capabilities | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
        let mut validator = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), capabilities);
        validator.validate(&module).unwrap_or_else(|e| panic!("{}: {e:?}", variant.label));
        let storage = module.global_variables.iter().filter(|(_, g)| matches!(g.space, naga::AddressSpace::Storage { .. })).count();
        assert_eq!(storage, variant.access.len(), "{}", variant.label);
        assert!(storage <= 8, "{}: {storage} storage bindings", variant.label);
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).unwrap();
        let shared: u32 = module
            .global_variables
            .iter()
            .filter(|(_, g)| g.space == naga::AddressSpace::WorkGroup)
            .map(|(_, g)| layouter[g.ty].size)
            .sum();
        assert!(shared <= workgroup_memory, "{}: {shared} bytes of workgroup memory", variant.label);
        let size = module.entry_points[0].workgroup_size;
        assert!(size.iter().product::<u32>() <= invocations, "{}", variant.label);
        for (_, g) in module.global_variables.iter().filter(|(_, g)| g.space == naga::AddressSpace::Uniform) {
            assert!(layouter[g.ty].size <= 64, "{}: parameters larger than their slot", variant.label);
        }
    }

    /// Every variant is valid WGSL, fits the WebGPU default limits and needs no feature.
    #[test]
    fn naga_validates_every_variant() {
        for variant in all_variants() {
            validate(&variant, Capabilities::empty(), PLAIN);
        }
    }

    /// Those of the tensor tier need f16 and matrices, and no subgroup operation (a driver crashes on both in one module).
    #[test]
    fn naga_validates_every_tensor_variant() {
        let capabilities = Capabilities::SHADER_FLOAT16 | Capabilities::COOPERATIVE_MATRIX;
        for variant in tensor_variants() {
            validate(&variant, capabilities, TENSOR);
        }
        for ty in weight::TYPES {
            validate(&matmul_tensor::values_variant(ty), Capabilities::SHADER_FLOAT16, (0, 256));
        }
        let products = matmul_tensor::TILES
            .map(|t| (matmul_tensor::variant(crate::gguf::TensorType::Q8_0, t, matmul_tensor::Store::Tiles), t.shared_bytes(false)));
        let attentions = attention_tensor::HEAD_DIMS.map(|d| (attention_tensor::variant(d, false), attention_tensor::shared_bytes(d)));
        for (variant, bytes) in products.into_iter().chain(attentions) {
            let text = variant.wgsl();
            let module = naga::front::wgsl::parse_str(&text).unwrap();
            let mut layouter = naga::proc::Layouter::default();
            layouter.update(module.to_ctx()).unwrap();
            let sizes = module.global_variables.iter().filter(|(_, g)| g.space == naga::AddressSpace::WorkGroup);
            let sizes: Vec<u32> = sizes.map(|(_, g)| layouter[g.ty].size).collect();
            assert_eq!(sizes.iter().sum::<u32>(), bytes);
            assert!(sizes.iter().all(|s| s.is_multiple_of(16)), "a driver places arrays of 8-byte elements by their sizes: {sizes:?}");
        }
    }

    #[test]
    fn labels_are_unique() {
        let mut labels: Vec<_> = all_variants().into_iter().chain(tensor_variants()).map(|v| v.label).collect();
        labels.sort();
        let n = labels.len();
        labels.dedup();
        assert_eq!(n, labels.len());
    }
}
