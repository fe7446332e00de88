//! Products at the shapes of the ladder against f64, on a sample of their outputs.

use super::Tokens;
use super::kernels::Options;
use super::synthetic::Synthetic;
use crate::engine::EngineError;
use crate::gguf::{ByteSource, Gguf, TensorInfo, TensorType};
use crate::gpu::{Gpu, Recorder};
use crate::kernels::Mat;
use crate::kernels::linear::{Linear, Rows, Sizes, Tier};
use crate::kernels::matmul::{Epilogue, ROW_PADDING};
use crate::kernels::matvec::{Along, Place, matvec};
use crate::kernels::weight::{Matrix, Part};
use crate::model::ModelError;
use crate::quant::{Planes, dequantize, repack_groups};
use serde::Serialize;
use std::sync::Arc;

/// Error of a product.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProductError {
    /// Precision tier.
    pub tier: &'static str,
    /// Type of the weights.
    pub ty: String,
    /// Rows, outputs and inputs.
    pub shape: [u32; 3],
    /// Root of the mean square error, over that of the values.
    pub rms: f64,
    /// Largest error, over the root of the mean square of the values.
    pub max: f64,
}

/// Rows of the products that are looked at; their number is that of a short prompt, and of a generation step.
const ROWS: u32 = 150;
/// Outputs of a row that are looked at.
const OUTPUTS: usize = 48;

/// Every type and shape of a model's layers, in each tier.
///
/// # Errors
/// Out of memory, GPU faults.
pub async fn errors(gpu: &Gpu, model: &str, tiers: &[Tier], options: &Options) -> Result<Vec<ProductError>, EngineError> {
    let Some(source) = Synthetic::new(model, Some(options.layers), Some(64)) else { return Ok(Vec::new()) };
    let gguf = Gguf::read(&source).await.map_err(ModelError::from)?;
    let mut seen: Vec<(TensorType, Vec<u64>)> = Vec::new();
    let mut all = Vec::new();
    let count = if gpu.info().software { 24 } else { ROWS };
    for t in gguf.tensors.iter().filter(|t| t.name.starts_with("blk.") && t.dims.len() == 2 && t.dims[0] >= 32) {
        let key = (t.ty, t.dims.clone());
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        let (matrix, values) = upload(gpu, &source, t).await?;
        for &tier in tiers {
            // None: a generation step.
            for rows in [Some(Rows { count }), None] {
                all.push(error(gpu, tier, t.ty, &matrix, &values, rows).await?);
            }
        }
    }
    Ok(all)
}

/// A tensor as a matrix of one part, and its values.
async fn upload(gpu: &Gpu, source: &Synthetic, t: &TensorInfo) -> Result<(Matrix, Vec<f32>), EngineError> {
    let quant = |source| ModelError::Quant { name: t.name.clone(), source };
    let mut bytes = vec![0; t.bytes as usize];
    source.read_at(t.offset, &mut bytes).await.map_err(ModelError::from)?;
    let (cols, rows) = (t.dims[0], t.rows());
    let mut values = vec![0.0; (cols * rows) as usize];
    dequantize(t.ty, &bytes, &mut values).map_err(quant)?;
    let mut planes = Planes::default();
    repack_groups(t.ty, cols, &bytes, &mut planes).map_err(quant)?;
    let full: Vec<&Vec<u8>> =
        [&planes.quants, &planes.high, &planes.scales, &planes.scales2].into_iter().filter(|p| !p.is_empty()).collect();
    let mut at = 0;
    let places: Vec<(u64, u64)> = full
        .iter()
        .map(|plane| {
            let place = (at, plane.len() as u64);
            at += place.1.next_multiple_of(256);
            place
        })
        .collect();
    let buffer = Arc::new(gpu.buffer("bench weights", at).await?);
    for (plane, (at, _)) in full.iter().zip(&places) {
        gpu.write(&buffer, *at, plane);
    }
    let part = Part { ty: t.ty, first: 0, rows: rows as u32, buffer, planes: places };
    Ok((Matrix { cols: cols as u32, rows: rows as u32, parts: vec![part] }, values))
}

async fn error(
    gpu: &Gpu,
    tier: Tier,
    ty: TensorType,
    w: &Matrix,
    values: &[f32],
    chunk: Option<Rows>,
) -> Result<ProductError, EngineError> {
    let rows = chunk.unwrap_or(Rows { count: 1 });
    let (k, n) = (w.cols as usize, w.rows as usize);
    let padded = rows.count.next_multiple_of(ROW_PADDING);
    // Sums of three uniform numbers: as good as normal, which activations after a norm are.
    let uniform = Tokens::new(5).take(3 * k * rows.count as usize, 1 << 16);
    let mut x: Vec<f32> = uniform.chunks_exact(3).map(|u| u.iter().map(|u| *u as f32 / 32768.0 - 1.0).sum()).collect();
    x.resize(k * padded as usize, 0.0);
    let input = gpu.buffer("bench input", x.len() as u64 * 4).await?;
    gpu.write(&input, 0, bytemuck::cast_slice(&x));
    let output = gpu.buffer("bench output", u64::from(padded) * n as u64 * 4).await?;
    let mut rec = Recorder::new(gpu).await?;
    let x_rows = Mat::new(&input, w.cols);
    if chunk.is_none() {
        matvec(&mut rec, w, Place { x: x_rows, row: 0, y: output.all(), y_at: 0 }, Along::default());
    } else {
        let linear = Linear::new(gpu, tier, Sizes { rows: padded, widest: w.cols, tallest: w.rows }).await?;
        let made = linear.input(&mut rec, x_rows, rows, w);
        linear.product(&mut rec, w, made, Mat::new(&output, w.rows), Epilogue::default());
    }
    rec.submit();
    let mut sampled: Vec<u32> = vec![0, rows.count / 2, rows.count - 1];
    sampled.dedup();
    let views: Vec<_> = sampled.iter().map(|m| output.range(u64::from(*m) * n as u64 * 4, n as u64 * 4)).collect();
    let (mut square, mut wanted_square, mut max, mut count) = (0.0, 0.0, 0.0f64, 0.0);
    for (m, bytes) in sampled.iter().zip(gpu.read_all(&views).await?) {
        let found: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
        for i in 0..OUTPUTS {
            let o = (i * 7919 + 13 * *m as usize) % n;
            let pairs = x[*m as usize * k..][..k].iter().zip(&values[o * k..][..k]);
            let wanted: f64 = pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let error = (f64::from(found[o]) - wanted).abs();
            // NaN must not hide behind the maximum.
            max = if error.is_nan() { f64::INFINITY } else { max.max(error) };
            square += error * error;
            wanted_square += wanted * wanted;
            count += 1.0;
        }
    }
    let scale = (wanted_square / count).sqrt();
    let rms = if square.is_nan() { f64::INFINITY } else { (square / count).sqrt() / scale };
    Ok(ProductError { tier: tier.name(), ty: ty.name().into(), shape: [rows.count, w.rows, w.cols], rms, max: max / scale })
}
