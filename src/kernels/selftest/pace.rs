//! How fast this adapter multiplies: one product, timed.

use std::sync::Arc;

use crate::gguf::TensorType;
use crate::gpu::{Gpu, GpuError, Recorder, now_seconds};
use crate::kernels::matmul::{Epilogue, matmul};
use crate::kernels::weight::{Matrix, Part};
use crate::kernels::{Mat, split};
use crate::quant::plane_layout;

const ROWS: u32 = 128;
const COLS: u32 = 1024;
/// The product is repeated until the adapter has worked for so long.
const SECONDS: f64 = 0.02;
const MOST: u32 = 512;

/// Multiplications and additions a second (each counted) of the tiled product with Q8_0 weights, of about the size that a decision's
/// products have. Compiles one kernel and takes some hundredths of a second.
///
/// # Errors
/// A device that is lost or has no room for 10 MB.
pub async fn pace(gpu: &Gpu) -> Result<f64, GpuError> {
    let out: u32 = if gpu.info().software { 256 } else { 4096 };
    let broken = |error: crate::quant::QuantError| GpuError::Validation(error.to_string());
    let layout = plane_layout(TensorType::Q8_0, u64::from(out), u64::from(COLS)).map_err(broken)?;
    let mut planes = Vec::new();
    let mut at = 0u64;
    for size in [layout.quants, layout.high, layout.scales, layout.scales2].into_iter().filter(|size| *size > 0) {
        planes.push((at, size));
        at += size.next_multiple_of(256);
    }
    let buffer = Arc::new(gpu.buffer("pace weights", at).await?);
    let weights = Matrix { cols: COLS, rows: out, parts: vec![Part { ty: TensorType::Q8_0, first: 0, rows: out, buffer, planes }] };
    let x = gpu.buffer("pace input", u64::from(ROWS * COLS) * 4).await?;
    let y = gpu.buffer("pace output", u64::from(ROWS * out) * 4).await?;
    let scratch = gpu.buffer("pace scratch", split::scratch(out, u64::from(ROWS)) * 4).await?;
    let mut rec = Recorder::new(gpu).await?;
    let mut run = async |times: u32| -> Result<f64, GpuError> {
        let start = now_seconds();
        for _ in 0..times {
            matmul(&mut rec, &weights, Mat::new(&x, COLS), Mat::new(&y, out), ROWS, Epilogue::default(), scratch.all());
        }
        rec.finish_and_read(y.range(0, 256)).await?;
        Ok(now_seconds() - start)
    };
    // The first run compiles.
    run(1).await?;
    let mut times = 1;
    let seconds = loop {
        let seconds = run(times).await?;
        if seconds >= SECONDS || times >= MOST {
            break seconds.max(1e-9) / f64::from(times);
        }
        times *= 8;
    };
    Ok(2.0 * f64::from(ROWS) * f64::from(COLS) * f64::from(out) / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuOptions;

    #[test]
    fn something_between_a_snail_and_a_supercomputer() {
        let gpu = pollster::block_on(Gpu::open(&GpuOptions::default())).expect("an adapter");
        let pace = pollster::block_on(pace(&gpu)).expect("it runs");
        assert!((1e7..1e16).contains(&pace), "{pace}");
    }
}
