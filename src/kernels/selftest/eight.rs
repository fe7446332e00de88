//! Products of 8-bit rows, against sums of the same integers and scales.

use super::lab::{Lab, allowed};
use super::products::{ROWS, blocks, broken, upload};
use crate::gguf::TensorType;
use crate::gpu::GpuError;
use crate::kernels::Mat;
use crate::kernels::matmul::{Epilogue, STORES, Store};
use crate::kernels::matmul_q8::{TILES, padded, variant, with_tile};
use crate::kernels::quantise::{Quants, quantise};
use crate::kernels::split;
use crate::quant::dequantize;

/// Rows of x, a few of which are compared.
const MOST: usize = 83;

pub async fn check(lab: &mut Lab, ty: TensorType, cols: usize) -> Result<(), GpuError> {
    let bytes = blocks(lab, ty, ROWS, cols);
    let mut w = vec![0.0f32; ROWS * cols];
    dequantize(ty, &bytes, &mut w).map_err(broken)?;
    let matrix = upload(lab, ty, ROWS, cols, &bytes).await?;
    let x = lab.numbers(MOST * cols, 1.0);
    let (bx, bias, before) = (lab.buffer(&x).await?, lab.numbers(ROWS, 1.0), lab.numbers(MOST * 128, 1.0));
    let bbias = lab.buffer(&bias).await?;
    let q = Quants::new(&lab.gpu, padded(MOST as u32), cols as u32).await?;
    quantise(&mut lab.rec, Mat::new(&bx, cols as u32), &q, cols as u32, MOST as u32);
    let integers = q.integers(&lab.words::<u32>(&q.values, q.values.size as usize / 4).await?, cols);
    let scales: Vec<f32> = lab.words(&q.scales, q.rows as usize * cols / 16).await?;
    let cut = split::split(cols as u32 / 32, ROWS as u32);
    let pieces = cut.count;
    let scratch = lab.zeros(split::scratch(ROWS as u32, MOST as u64) as usize).await?;
    let sum = |m: usize, n: usize, store: Store| {
        let (bias, before) = (f64::from(bias[n]), f64::from(before[m * 128 + n]));
        let base = match store {
            Store::Outputs { bias: b, add } => f64::from(u8::from(b)) * bias + f64::from(u8::from(add)) * before,
            Store::Parts => 0.0,
        };
        let term = |k: usize| {
            let scale = scales[2 * (k / 32 * q.rows as usize + m)];
            f64::from(integers[m * cols + k]) * f64::from(scale) * f64::from(w[n * cols + k])
        };
        let (sum, parts) = (0..cols).map(term).fold((base, base.abs()), |(sum, parts), term| (sum + term, parts + term.abs()));
        (sum, allowed(parts))
    };
    // The ends are the same lines for every type; with pieces they are another kernel's.
    let stores = match (ty, pieces) {
        (TensorType::Q8_0, 1) => &STORES[1..],
        _ => &STORES[1..2],
    };
    for &store in stores {
        let (with_bias, add) = (store.bias(), matches!(store, Store::Outputs { add: true, .. }));
        let epilogue = Epilogue { bias: with_bias.then(|| bbias.all()), add, later: false };
        for tile in TILES {
            let by = lab.buffer(&before).await?;
            let part = &matrix.parts[0];
            with_tile(&mut lab.rec, part, matrix.blocks(), &q, Mat::new(&by, 128), MOST as u32, epilogue, scratch.all(), tile, cut);
            let y: Vec<f32> = lab.words(&by, MOST * 128).await?;
            let label = variant(ty, tile, Store::new(pieces, &epilogue)).label;
            for m in [0, 37, 82] {
                let wanted: Vec<_> = (0..ROWS).map(|n| sum(m, n, store)).collect();
                lab.compare(&label, y[m * 128..].iter().copied(), &wanted);
            }
        }
    }
    Ok(())
}
