//! Q4_1: 20 bytes for 32 values: f16 d, f16 m, 16 bytes as in Q4_0. Value = d q + m.

use super::bits::{f16, part};
use super::planes::{GROUP, GroupPlanes};

#[inline(always)]
pub fn dequantize(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (f16(part(block, 0)), f16(part(block, 2)));
    for (i, &byte) in block[4..].iter().enumerate() {
        out[i] = d * f32::from(byte & 15) + m;
        out[i + 16] = d * f32::from(byte >> 4) + m;
    }
}

/// Moves one block (`k`: its number in the row, `r`: the row in its group).
#[inline(always)]
pub(super) fn repack(k: usize, r: usize, block: &[u8; 20], planes: &mut GroupPlanes) {
    let b = k * GROUP + r;
    planes.scales[2 * b] = part(block, 0);
    planes.scales[2 * b + 1] = part(block, 2);
    planes.quants[b] = part(block, 4);
}
