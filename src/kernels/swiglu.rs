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
