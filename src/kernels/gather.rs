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

#[cfg(test)]
mod tests {
    use super::super::testing::{Random, download, recorder, upload};
    use super::*;

    #[test]
    fn copies_the_chosen_rows() {
        let mut rec = recorder();
        let gpu = rec.gpu().clone();
        let values = Random::new(4).values(9 * 300);
        let (x, rows, y) = (upload(&gpu, &values), upload(&gpu, &[5u32, 8, 0, 3]), upload(&gpu, &[0f32; 3 * 304]));
        gather(&mut rec, Mat::new(&x, 300), rows.all(), 1, Mat::new(&y, 304), 300, 3);
        let found: Vec<f32> = download(&mut rec, &y, 3 * 304);
        for (i, row) in [8, 0, 3].into_iter().enumerate() {
            assert_eq!(found[i * 304..][..300], values[row * 300..][..300]);
        }
    }
}
