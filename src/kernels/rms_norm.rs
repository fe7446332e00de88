//! RMSNorm of whole rows, handed over as f32 or in 8-bit blocks.

use super::quantise::{Form, Target};
use super::split::Pieces;
use super::{Mat, Variant};
use crate::gpu::{Access, Recorder, View, Work};
use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    n: u32,
    ldx: u32,
    ldy: u32,
    eps: f32,
    mp: u32,
    count: u32,
    ldp: u32,
    stride: u32,
}

/// The kernel that writes a form; with `left`, that adds a product's pieces to x first.
pub fn variant(form: Form, left: bool) -> Variant {
    let reads = 2 + usize::from(left);
    let mut access = form.access(reads);
    if left {
        access[0] = Access::Write;
    }
    Variant {
        label: format!("rms_norm{}{}", form.suffix(), if left { "_left" } else { "" }),
        file: "rms_norm.wgsl",
        defs: form.defs(reads as u32).with("LEFT", u8::from(left)),
        access,
    }
}

/// `y[m, :] = x[m, :] / sqrt(mean(x[m, :]^2) + eps) * weight` over `cols` columns (a multiple of 4), m < `rows`.
pub fn rms_norm(rec: &mut Recorder, x: Mat<'_>, weight: View<'_>, y: Mat<'_>, cols: u32, rows: u32, eps: f32) {
    rms_norm_to(rec, x, None, weight, Target::floats(y), cols, rows, eps);
}

/// The same in other forms, after the pieces that are left of a product were added to x (`cols` and the pieces' strides are multiples of 4).
#[allow(clippy::too_many_arguments)]
pub fn rms_norm_to(
    rec: &mut Recorder,
    x: Mat<'_>,
    left: Option<Pieces<'_>>,
    weight: View<'_>,
    target: Target<'_>,
    cols: u32,
    rows: u32,
    eps: f32,
) {
    let key = (target.form() as u64) << 1 | u64::from(left.is_some());
    let kernel = rec.gpu().remembered(("rms_norm.wgsl", key), |gpu| variant(target.form(), left.is_some()).kernel(gpu));
    let (ldy, mp) = target.strides();
    let (count, ldp, stride) = left.map_or((0, 0, 0), |pieces| (pieces.count, pieces.ld / 4, pieces.stride / 4));
    let params = Params { n: cols / 4, ldx: x.ld / 4, ldy, eps, mp, count, ldp, stride };
    let values = u64::from(rows) * u64::from(cols);
    let work = Work { operations: values * u64::from(4 + count), bytes: values * u64::from(8 + 4 * count), ..Work::default() };
    let mut reads = vec![x.view, weight];
    reads.extend(left.map(|pieces| pieces.view));
    rec.dispatch(&kernel, &target.views(&reads), &params, [rows, 1, 1], work);
}

#[cfg(test)]
mod tests {
    use super::super::quantise::{Quants, tests::check};
    use super::super::testing::{Random, download, error, recorder, upload};
    use super::*;
    use pollster::block_on;

    #[test]
    fn against_f64() {
        let mut rec = recorder();
        let gpu = rec.gpu().clone();
        let mut random = Random::new(5);
        for (rows, cols) in [(1usize, 64usize), (3, 576), (7, 2560)] {
            // Tiny rows too, where epsilon decides.
            let x: Vec<f32> =
                random.values(rows * cols).iter().enumerate().map(|(i, v)| if i / cols % 2 == 1 { v * 1e-3 } else { *v }).collect();
            let w = random.values(cols);
            let (xb, wb, y) = (upload(&gpu, &x), upload(&gpu, &w), upload(&gpu, &vec![0f32; rows * cols]));
            rms_norm(&mut rec, Mat::new(&xb, cols as u32), wb.all(), Mat::new(&y, cols as u32), cols as u32, rows as u32, 1e-6);
            let found: Vec<f32> = download(&mut rec, &y, rows * cols);
            let mut wanted = Vec::new();
            for row in x.chunks(cols) {
                let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / cols as f64;
                wanted.extend(row.iter().zip(&w).map(|(v, w)| f64::from(*v) / (mean + f64::from(1e-6f32)).sqrt() * f64::from(*w)));
            }
            let e = error(&found, &wanted, 1e-3);
            assert!(e < 2e-6, "{rows} x {cols}: {e}");

            for both in [false, true] {
                let q = block_on(Quants::new(&gpu, rows as u32 + 1, cols as u32)).unwrap();
                let y = upload(&gpu, &vec![0f32; rows * cols]);
                let target = Target::q8(&q, Mat::new(&y, cols as u32), both);
                rms_norm_to(&mut rec, Mat::new(&xb, cols as u32), None, wb.all(), target, cols as u32, rows as u32, 1e-6);
                check(&mut rec, &q, &wanted, cols);
                let floats: Vec<f32> = download(&mut rec, &y, rows * cols);
                assert_eq!(floats, if both { found.clone() } else { vec![0.0; rows * cols] }, "{rows} x {cols}");
            }
        }
    }
}
