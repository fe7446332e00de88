//! Activations of the tensor tier: f16 of a sixteenth, as `half.wgsl` says.

use super::{Mat, Variant};
use crate::gpu::template::Defs;
use crate::gpu::{Access, Recorder, View};
use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    n: u32,
    ldx: u32,
}

/// The kernel.
pub fn variant() -> Variant {
    Variant { label: "to_half".into(), file: "to_half.wgsl", defs: Defs::new(), access: vec![Access::Read, Access::Write] }
}

/// `y[m, :]` = `x[m, :]` as activations of the tensor tier, for `cols` columns (a multiple of 4) and m < `rows`.
pub fn to_half(rec: &mut Recorder, x: Mat<'_>, y: View<'_>, cols: u32, rows: u32) {
    let kernel = rec.gpu().remembered(("to_half.wgsl", 0), |gpu| variant().kernel(gpu));
    let params = Params { n: cols / 4, ldx: x.ld / 4 };
    rec.dispatch(&kernel, &[x.view, y], &params, [rows, (cols / 4).div_ceil(128), 1], u64::from(rows) * u64::from(cols));
}

/// The f16 bits that stand for values, in the order in which they are stored (for tests and checks).
pub fn reference(values: &[f32]) -> Vec<u16> {
    let half = |v: f32| half::f16::from_f32((v / 16.0).clamp(-65504.0, 65504.0)).to_bits();
    values.chunks_exact(4).flat_map(|v| [half(v[0]), half(v[2]), half(v[1]), half(v[3])]).collect()
}

/// The values that such bits stand for, in their own order.
pub fn values(bits: &[u16]) -> Vec<f32> {
    let value = |bits: u16| half::f16::from_bits(bits).to_f32() * 16.0;
    bits.chunks_exact(4).flat_map(|b| [value(b[0]), value(b[2]), value(b[1]), value(b[3])]).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Random, download, recorder, upload};
    use super::*;

    /// Every value rounded to the nearest f16 of its sixteenth, large ones saturated.
    #[test]
    fn values_are_rounded_and_saturate() {
        let mut rec = recorder();
        let gpu = rec.gpu().clone();
        let (rows, cols) = (3usize, 644usize);
        let mut x: Vec<f32> =
            Random::new(15).values(rows * cols).iter().enumerate().map(|(i, v)| v * 10f32.powi(i as i32 % 9 - 3)).collect();
        (x[0], x[1], x[2], x[3]) = (2e6, -3e9, 1_048_064.0, -0.0);
        let (xb, y) = (upload(&gpu, &x), upload(&gpu, &vec![0u32; rows * cols / 2]));
        to_half(&mut rec, Mat::new(&xb, cols as u32), y.all(), cols as u32, rows as u32);
        let found: Vec<u16> = download(&mut rec, &y, rows * cols);
        for (i, (found, wanted)) in found.into_iter().zip(reference(&x)).enumerate() {
            let (found, wanted) = (half::f16::from_bits(found), half::f16::from_bits(wanted));
            // WGSL leaves the rounding of f32 to f16 to the driver, and lets subnormals become zero.
            let off = (found.to_f32() - wanted.to_f32()).abs();
            assert!(off <= wanted.to_f32().abs() / 1024.0 + 6.2e-5, "{i}: {found} for {wanted}");
        }
        assert_eq!(half::f16::from_bits(download::<u16>(&mut rec, &y, 4)[0]), half::f16::MAX);
    }
}
