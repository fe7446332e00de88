//! Q8_0: 34 bytes for 32 values: f16 d, 32 int8. Value = d q.

use super::bits::{f16, part};
use super::planes::{GROUP, GroupPlanes};

#[inline(always)]
pub fn dequantize(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16(part(block, 0));
    for (value, &byte) in out.iter_mut().zip(&block[2..]) {
        *value = d * f32::from(byte as i8);
    }
}

/// Moves one block (`k`: its number in the row, `r`: the row in its group).
#[inline(always)]
pub(super) fn repack(k: usize, r: usize, block: &[u8; 34], planes: &mut GroupPlanes) {
    planes.scales[k * GROUP + r] = part(block, 0);
    planes.quants[k * 2 * GROUP + r] = part(block, 2);
    planes.quants[(k * 2 + 1) * GROUP + r] = part(block, 18);
}
