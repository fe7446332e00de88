//! Matrix-vector products with weights of one tensor type, alone and with what goes along.

use super::lab::{Lab, allowed};
use super::products::{blocks, broken, upload};
use super::rows::{rms, silu};
use crate::gguf::TensorType;
use crate::gpu::GpuError;
use crate::kernels::Mat;
use crate::kernels::matvec::{Along, Kind, Place, product, rows_of, variant};
use crate::quant::dequantize;

const COLS: usize = 512;
/// Gate and up in whole row groups.
const ROWS: usize = 64;

pub async fn check(lab: &mut Lab, ty: TensorType) -> Result<(), GpuError> {
    let bytes = blocks(lab, ty, ROWS, COLS);
    let mut w = vec![0.0f32; ROWS * COLS];
    dequantize(ty, &bytes, &mut w).map_err(broken)?;
    let matrix = upload(lab, ty, ROWS, COLS, &bytes).await?;
    let x = lab.numbers(2 * COLS, 1.0);
    let (norm, bias, before) = (lab.numbers(COLS, 1.0), lab.numbers(ROWS, 1.0), lab.numbers(2 * ROWS, 1.0));
    let (bx, bnorm, bbias) = (lab.buffer(&x).await?, lab.buffer(&norm).await?, lab.buffer(&bias).await?);
    let eps = 1e-5f32;
    let scale = rms(&x[COLS..], eps);
    // w x in f64, and the absolute values that were added up.
    let sum = |n: usize, kind: Kind| {
        let terms = (0..COLS).map(|k| {
            let along = if kind.norm { f64::from(norm[k]) * scale } else { 1.0 };
            f64::from(x[COLS + k]) * along * f64::from(w[n * COLS + k])
        });
        terms.fold((0.0, 0.0), |(sum, parts), v| (sum + v, parts + v.abs()))
    };
    // Bias and residual share their code across types.
    for kind in Kind::ALL.into_iter().filter(|kind| ty == TensorType::Q8_0 || !(kind.bias || kind.add)) {
        for &rows in rows_of(kind) {
            let by = lab.buffer(&before).await?;
            let along = Along { norm: kind.norm.then(|| (bnorm.all(), eps)), bias: kind.bias.then(|| bbias.all()), add: kind.add };
            let place = Place { x: Mat::new(&bx, COLS as u32), row: 1, y: by.all(), y_at: ROWS as u32 };
            product(&mut lab.rec, &matrix, &matrix.parts[0], rows, kind, place, along);
            let y: Vec<f32> = lab.words(&by, 2 * ROWS).await?;
            let outputs = if kind.pair { ROWS / 2 } else { ROWS };
            let wanted: Vec<_> = (0..outputs)
                .map(|n| {
                    let (value, parts) = sum(n, kind);
                    if kind.pair {
                        let (up, more) = sum(outputs + n, kind);
                        return (silu(value) * up, allowed(parts * (1.0 + up.abs()) + more * (1.0 + value.abs())));
                    }
                    let rest = if kind.bias { f64::from(bias[n]) } else { 0.0 } + if kind.add { f64::from(before[ROWS + n]) } else { 0.0 };
                    (value + rest, allowed(parts + rest.abs()))
                })
                .collect();
            lab.compare(&variant(ty, rows, kind).label, y[ROWS..].iter().copied(), &wanted);
        }
    }
    Ok(())
}
