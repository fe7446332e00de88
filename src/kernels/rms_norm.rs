//! RMSNorm of whole rows.

use super::{Mat, Variant};
use crate::gpu::template::Defs;
use crate::gpu::{Access, Recorder, View};
use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    n: u32,
    ldx: u32,
    ldy: u32,
    eps: f32,
}

/// The kernel.
pub fn variant() -> Variant {
    Variant { label: "rms_norm".into(), file: "rms_norm.wgsl", defs: Defs::new(), access: vec![Access::Read, Access::Read, Access::Write] }
}

/// `y[m, :] = x[m, :] / sqrt(mean(x[m, :]^2) + eps) * weight` over `cols` columns (a multiple of 4), m < `rows`.
pub fn rms_norm(rec: &mut Recorder, x: Mat<'_>, weight: View<'_>, y: Mat<'_>, cols: u32, rows: u32, eps: f32) {
    let kernel = variant().kernel(rec.gpu());
    let params = Params { n: cols / 4, ldx: x.ld / 4, ldy: y.ld / 4, eps };
    rec.dispatch(&kernel, &[x.view, weight, y.view], &params, [rows, 1, 1], u64::from(rows) * u64::from(cols) * 4);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Random, download, error, recorder, upload};
    use super::*;

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
        }
    }
}
