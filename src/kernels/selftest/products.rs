//! Products with weights of one tensor type: tiled, answer slots, embedding rows.

use std::sync::Arc;

use super::lab::{Lab, allowed};
use crate::gguf::TensorType;
use crate::gpu::GpuError;
use crate::kernels::matmul::{Epilogue, ROW_PADDING, Store, TILES, matmul_variant, with_tile};
use crate::kernels::split;
use crate::kernels::weight::{Matrix, Part};
use crate::kernels::{Mat, embed, head};
use crate::quant::{Planes, QuantError, dequantize, repack_groups};

/// Not a multiple of a row group, so that padding is met.
pub const ROWS: usize = 75;

/// f16 bits of scales: ordinary ones of both signs, and a subnormal, which some drivers flush.
const SCALES: [u16; 4] = [0x211f, 0xa0c4, 0x0155, 0x1e66];

/// Rows of blocks with random quants and sane scales.
pub fn blocks(lab: &mut Lab, ty: TensorType, rows: usize, cols: usize) -> Vec<u8> {
    let (unit, len) = (ty.block_bytes(), ty.block_len());
    let scales_at: &[usize] = match ty {
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => &[],
        TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => &[0],
        TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K => &[0, 2],
        TensorType::Q6_K => &[208],
    };
    let mut bytes = Vec::with_capacity(rows * cols / len * unit);
    for i in 0..rows * cols / len {
        match ty {
            TensorType::F32 => bytes.extend(lab.numbers(1, 0.5)[0].to_le_bytes()),
            TensorType::F16 => bytes.extend((SCALES[i % 4] ^ (lab.bits() as u16 & 0x83ff)).to_le_bytes()),
            TensorType::BF16 => bytes.extend(((lab.numbers(1, 0.5)[0].to_bits() >> 16) as u16).to_le_bytes()),
            _ => {
                let start = bytes.len();
                bytes.extend((0..unit).map(|_| (lab.bits() >> 11) as u8));
                for (j, at) in scales_at.iter().enumerate() {
                    bytes[start + at..start + at + 2].copy_from_slice(&SCALES[(i + j) % 4].to_le_bytes());
                }
            }
        }
    }
    bytes
}

/// The planes in one buffer, as the model lays them out.
pub async fn upload(lab: &Lab, ty: TensorType, rows: usize, cols: usize, bytes: &[u8]) -> Result<Matrix, GpuError> {
    let mut planes = Planes::default();
    repack_groups(ty, cols as u64, bytes, &mut planes).map_err(broken)?;
    let (mut all, mut views) = (Vec::new(), Vec::new());
    for plane in [&planes.quants, &planes.high, &planes.scales, &planes.scales2] {
        if !plane.is_empty() {
            views.push((all.len() as u64, plane.len() as u64));
            all.extend_from_slice(plane);
            all.resize(all.len().next_multiple_of(256), 0);
        }
    }
    let buffer = Arc::new(lab.buffer(&all).await?);
    let part = Part { ty, first: 0, rows: rows as u32, buffer, planes: views };
    Ok(Matrix { cols: cols as u32, rows: rows as u32, parts: vec![part] })
}

pub fn broken(error: QuantError) -> GpuError {
    GpuError::Validation(format!("the self-test's own weights are refused: {error}"))
}

/// Rows of 256 columns are multiplied in one piece, rows of 512 in two.
pub async fn check(lab: &mut Lab, ty: TensorType, cols: usize) -> Result<(), GpuError> {
    let bytes = blocks(lab, ty, ROWS, cols);
    let mut w = vec![0.0f32; ROWS * cols];
    dequantize(ty, &bytes, &mut w).map_err(broken)?;
    let matrix = upload(lab, ty, ROWS, cols, &bytes).await?;
    // Rows beyond 32 bring the larger tile into use.
    let most = 40;
    let padded = (most as u32).next_multiple_of(ROW_PADDING) as usize;
    let mut x = lab.numbers(most * cols, 1.0);
    x.resize(padded * cols, 0.0);
    let bias = lab.numbers(ROWS, 1.0);
    let before = lab.numbers(padded * 128, 1.0);
    let (bx, bbias) = (lab.buffer(&x).await?, lab.buffer(&bias).await?);
    let pieces = split::split(cols as u32 / 32, ROWS as u32).count;
    let scratch = lab.zeros(split::scratch(ROWS as u32, padded as u64) as usize).await?;
    // (x w^T)[m, n] in f64, and what rounding allows.
    let product = |m: usize, n: usize, base: f64| {
        let pairs = x[m * cols..(m + 1) * cols].iter().zip(&w[n * cols..(n + 1) * cols]);
        let (sum, parts) = pairs.fold((base, base.abs()), |(sum, parts), (x, w)| {
            let term = f64::from(*x) * f64::from(*w);
            (sum + term, parts + term.abs())
        });
        (sum, allowed(parts))
    };
    let epilogues: &[(bool, bool)] = match ty {
        TensorType::Q8_0 => &[(false, false), (true, false), (false, true), (true, true)],
        _ => &[(false, false)],
    };

    for &(with_bias, add) in epilogues {
        let base = |m: usize, n: usize| {
            let old = if add { f64::from(before[m * 128 + n]) } else { 0.0 };
            old + if with_bias { f64::from(bias[n]) } else { 0.0 }
        };
        let epilogue = Epilogue { bias: with_bias.then(|| bbias.all()), add, later: false };
        for (tile, rows) in TILES.into_iter().zip([5, 5, most]) {
            let by = lab.buffer(&before).await?;
            let (bx, by) = (Mat::new(&bx, cols as u32), Mat::new(&by, 128));
            with_tile(&mut lab.rec, &matrix, bx, by, rows as u32, epilogue, scratch.all(), tile);
            let y: Vec<f32> = lab.words(by.view.buffer, rows * 128).await?;
            let label = matmul_variant(ty, tile, Store::new(pieces, &epilogue)).label;
            // Every row of the small product, a few of the large one.
            for m in (0..rows).step_by(if rows > 8 { 13 } else { 1 }) {
                let wanted: Vec<_> = (0..ROWS).map(|n| product(m, n, base(m, n))).collect();
                lab.compare(&label, y[m * 128..].iter().copied(), &wanted);
                if pieces > 1 {
                    lab.compare(&split::variant(with_bias, add).label, y[m * 128..].iter().copied(), &wanted);
                }
            }
        }
    }

    let ids = [74u32, 0, 33, 32];
    let (bids, blogits) = (lab.buffer(&ids).await?, lab.zeros(8).await?);
    head::slots(&mut lab.rec, &matrix, Mat::new(&bx, cols as u32), 2, bids.all(), 4, blogits.all(), 0);
    let logits: Vec<f32> = lab.words(&blogits, 8).await?;
    let wanted: Vec<_> = (0..2).flat_map(|m| ids.map(|n| product(m, n as usize, 0.0))).collect();
    lab.compare(&head::slots_variant(ty).label, logits, &wanted);

    let rows = lab.zeros(4 * cols).await?;
    embed::embed(&mut lab.rec, &matrix, bids.all(), 0, Mat::new(&rows, cols as u32), 4);
    let got: Vec<f32> = lab.words(&rows, 4 * cols).await?;
    let wanted: Vec<_> =
        ids.iter().flat_map(|id| &w[*id as usize * cols..][..cols]).map(|v| (f64::from(*v), f64::from(v.abs()) * 1e-6 + 1e-12)).collect();
    lab.compare(&embed::variant(ty).label, got, &wanted);
    Ok(())
}
