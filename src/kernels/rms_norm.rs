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
