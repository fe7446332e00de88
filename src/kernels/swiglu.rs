//! SwiGLU: silu(gate) * up, from the joined gate and up projections, handed over as f32 or in 8-bit blocks.

use super::quantise::{Form, Target};
use super::{Mat, Variant};
use crate::gpu::{Recorder, Work};
use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    n: u32,
    ldg: u32,
    ldy: u32,
    mp: u32,
}

/// The kernel that writes a form.
pub fn variant(form: Form) -> Variant {
    Variant { label: format!("swiglu{}", form.suffix()), file: "swiglu.wgsl", defs: form.defs(1), access: form.access(1) }
}

/// `y[m, i] = silu(g[m, i]) * g[m, n + i]` for i < `n` (a multiple of 4), m < `rows`.
pub fn swiglu(rec: &mut Recorder, g: Mat<'_>, y: Mat<'_>, n: u32, rows: u32) {
    swiglu_to(rec, g, Target::floats(y), n, rows);
}

/// The same in other forms.
pub fn swiglu_to(rec: &mut Recorder, g: Mat<'_>, target: Target<'_>, n: u32, rows: u32) {
    let kernel = variant(target.form()).kernel(rec.gpu());
    let (ldy, mp) = target.strides();
    let params = Params { n: n / 4, ldg: g.ld / 4, ldy, mp };
    let values = u64::from(rows) * u64::from(n);
    let work = Work { operations: values * 8, bytes: values * 12, ..Work::default() };
    rec.dispatch(&kernel, &target.views(&[g.view]), &params, [rows, (n / 4).div_ceil(128), 1], work);
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
        let (rows, n) = (5usize, 672usize);
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

        for both in [false, true] {
            let q = block_on(Quants::new(&gpu, rows as u32, n as u32)).unwrap();
            let y = upload(&gpu, &vec![0f32; rows * n]);
            swiglu_to(&mut rec, Mat::new(&gb, 2 * n as u32), Target::q8(&q, Mat::new(&y, n as u32), both), n as u32, rows as u32);
            check(&mut rec, &q, &wanted, n);
            let floats: Vec<f32> = download(&mut rec, &y, rows * n);
            assert_eq!(floats, if both { found.clone() } else { vec![0.0; rows * n] });
        }
    }
}
