//! SwiGLU: silu(gate) * up, from the joined gate and up projections.

use super::{Mat, Variant};
use crate::gpu::template::Defs;
use crate::gpu::{Access, Recorder};
use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    n: u32,
    ldg: u32,
    ldy: u32,
}

/// The kernel.
pub fn variant() -> Variant {
    Variant { label: "swiglu".into(), file: "swiglu.wgsl", defs: Defs::new(), access: vec![Access::Read, Access::Write] }
}

/// `y[m, i] = silu(g[m, i]) * g[m, n + i]` for i < `n` (a multiple of 4), m < `rows`.
pub fn swiglu(rec: &mut Recorder, g: Mat<'_>, y: Mat<'_>, n: u32, rows: u32) {
    let kernel = variant().kernel(rec.gpu());
    let params = Params { n: n / 4, ldg: g.ld / 4, ldy: y.ld / 4 };
    rec.dispatch(&kernel, &[g.view, y.view], &params, [rows, (n / 4).div_ceil(128), 1], u64::from(rows) * u64::from(n) * 8);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Random, download, error, recorder, upload};
    use super::*;

    #[test]
    fn against_f64() {
        let mut rec = recorder();
        let gpu = rec.gpu().clone();
        let (rows, n) = (5usize, 676usize);
        let mut g: Vec<f32> = Random::new(6).values(rows * 2 * n).iter().map(|v| v * 20.0).collect();
        // Beyond where exp overflows in f32.
        (g[0], g[1]) = (-200.0, 200.0);
        let (gb, y) = (upload(&gpu, &g), upload(&gpu, &vec![0f32; rows * n]));
        swiglu(&mut rec, Mat::new(&gb, 2 * n as u32), Mat::new(&y, n as u32), n as u32, rows as u32);
        let found: Vec<f32> = download(&mut rec, &y, rows * n);
        let one = |a: f32, b: f32| f64::from(a) / (1.0 + (-f64::from(a)).exp()) * f64::from(b);
        let wanted: Vec<f64> = g.chunks(2 * n).flat_map(|r| (0..n).map(|i| one(r[i], r[n + i])).collect::<Vec<_>>()).collect();
        let e = error(&found, &wanted, 1e-2);
        assert!(e < 4e-6, "{e}");
    }
}
