//! Copies chosen rows to the front of another matrix.

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
    row_at: u32,
}

/// The kernel.
pub fn variant() -> Variant {
    Variant { label: "gather".into(), file: "gather.wgsl", defs: Defs::new(), access: vec![Access::Read, Access::Read, Access::Write] }
}

/// `y[i, 0..cols] = x[rows[row_at + i], 0..cols]` for i < `count`.
pub fn gather(rec: &mut Recorder, x: Mat<'_>, rows: View<'_>, row_at: u32, y: Mat<'_>, cols: u32, count: u32) {
    let kernel = variant().kernel(rec.gpu());
    let params = Params { n: cols / 4, ldx: x.ld / 4, ldy: y.ld / 4, row_at };
    rec.dispatch(&kernel, &[x.view, rows, y.view], &params, [count, 1, 1], u64::from(count) * u64::from(cols));
}
