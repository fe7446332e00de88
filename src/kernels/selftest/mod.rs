//! Every kernel once on this adapter, against the same sums in f64: what `semif doctor` and the page's self-test run, and
//! what the unit test runs on the software adapter.
//!
//! Inputs come from a fixed generator, so every machine computes the same cases. A driver that miscompiles a kernel is
//! named by that kernel before anybody takes its numbers for a decision.

mod attention;
mod delta;
mod eight;
mod lab;
mod pace;
mod products;
mod rows;
mod tensor;
mod vectors;

use std::ops::ControlFlow;

use super::matmul_tensor::TILES;
use super::{attention_tensor, matmul_q8, matmul_tensor};
use crate::gguf::TensorType;
use crate::gpu::{Gpu, GpuError};
use lab::Lab;
pub use pace::pace;

/// What one kernel did.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Check {
    /// The kernel variant.
    pub kernel: String,
    /// Largest error over what rounding explains: at most 1 when right. Infinite for NaN.
    pub error: f64,
    /// Nothing is wrong.
    pub passed: bool,
}

/// How many checks there are without the tensor tier's, for progress bars.
pub const COUNT: usize = 251;

/// Runs all checks; `seen` hears of each as it is done. A break ends it early, with the checks until then.
///
/// # Errors
/// A device that is lost, out of memory, or refuses a kernel; the checks before it were reported.
pub async fn run(gpu: &Gpu, seen: &mut dyn FnMut(&Check) -> ControlFlow<()>) -> Result<Vec<Check>, GpuError> {
    let mut lab = Lab::new(gpu).await?;
    let mut all = Vec::new();
    rows::check(&mut lab).await?;
    if lab.hand_over(&mut all, seen).is_break() {
        return Ok(all);
    }
    for ty in super::weight::TYPES {
        products::check(&mut lab, ty, 256).await?;
        if matmul_q8::takes(ty) && gpu.info().abilities.packed_dot {
            eight::check(&mut lab, ty, 256).await?;
        }
        // Pieces of a cut are stored by the same lines for every type.
        if ty == TensorType::Q8_0 {
            products::check(&mut lab, ty, 512).await?;
            eight::check(&mut lab, ty, 512).await?;
        }
        vectors::check(&mut lab, ty).await?;
        if lab.hand_over(&mut all, seen).is_break() {
            return Ok(all);
        }
    }
    for head_dim in super::attention::HEAD_DIMS {
        attention::check(&mut lab, head_dim).await?;
        attention::check_step(&mut lab, head_dim).await?;
        if lab.hand_over(&mut all, seen).is_break() {
            return Ok(all);
        }
    }
    delta::check(&mut lab).await?;
    if lab.hand_over(&mut all, seen).is_break() {
        return Ok(all);
    }
    if matmul_tensor::check(gpu.info()).is_ok() {
        for ty in super::weight::TYPES {
            // Tiles differ in nothing that depends on the type; each takes about a second to compile.
            let tiles = if ty == TensorType::Q8_0 { &TILES[..] } else { &TILES[2..3] };
            tensor::products(&mut lab, ty, tiles).await?;
            if lab.hand_over(&mut all, seen).is_break() {
                return Ok(all);
            }
        }
        for head_dim in attention_tensor::HEAD_DIMS {
            tensor::heads(&mut lab, head_dim).await?;
            if lab.hand_over(&mut all, seen).is_break() {
                return Ok(all);
            }
        }
    }
    Ok(all)
}

/// Does the tensor tier compute what it should on this device, with weights of these types and heads of this size? Half a second the first
/// time on a machine (compiling), a few milliseconds later.
///
/// # Errors
/// A device that is lost or out of memory.
pub async fn tensor_works(gpu: &Gpu, types: &[TensorType], head_dim: u32) -> Result<Result<(), String>, GpuError> {
    if let Err(reason) = matmul_tensor::check(gpu.info()) {
        return Ok(Err(reason));
    }
    let mut lab = Lab::new(gpu).await?;
    let mut all = Vec::new();
    for &ty in types {
        tensor::products(&mut lab, ty, &TILES[2..3]).await?;
    }
    if attention_tensor::HEAD_DIMS.contains(&head_dim) {
        tensor::heads(&mut lab, head_dim).await?;
    }
    let _ = lab.hand_over(&mut all, &mut |_| ControlFlow::Continue(()));
    Ok(match all.iter().find(|check| !check.passed) {
        Some(wrong) => Err(format!("its kernel {} computes something else on this device", wrong.kernel)),
        None => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuOptions;

    /// On whatever adapter there is, and with nothing but the WebGPU default limits.
    #[test]
    fn every_kernel_is_right() {
        let options = GpuOptions { default_limits: true, ..GpuOptions::default() };
        let gpu = pollster::block_on(Gpu::open(&options)).expect("an adapter (mesa-vulkan-drivers has a software one)");
        let checks = pollster::block_on(run(&gpu, &mut |_| ControlFlow::Continue(()))).expect("the GPU runs");
        let wrong: Vec<_> = checks.iter().filter(|c| !c.passed).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert_eq!(checks.len(), COUNT);
        // Nothing in use is left out; bias, residual and cuts share their code across types, so one type of them will do.
        let seen: std::collections::HashSet<_> = checks.iter().map(|c| c.kernel.as_str()).collect();
        let left_out: Vec<_> = super::super::all_variants()
            .into_iter()
            .map(|v| v.label)
            .filter(|label| !seen.contains(label.as_str()) && !["_add", "_bias", "_parts"].iter().any(|end| label.ends_with(end)))
            .collect();
        assert!(left_out.is_empty(), "{left_out:?}");
        for label in [
            "matmul_Q8_0_32x64_bias_add",
            "matmul_Q8_0_64x64_bias",
            "matmul_Q8_0_64x64_parts",
            "matmul_q8_Q8_0_48x128_parts",
            "add_parts_add",
            "matvec_Q8_0_8_add",
            "matvec_Q8_0_8_norm_bias",
        ] {
            assert!(seen.contains(label), "{label}");
        }
    }
}
