//! Q5_1: 24 bytes for 32 values: f16 d, f16 m, u32 of upper bits, 16 bytes as in Q5_0. Value = d q + m.

use super::bits::{f16, part};
use super::planes::{GROUP, GroupPlanes};

#[inline(always)]
pub fn dequantize(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (f16(part(block, 0)), f16(part(block, 2)));
    let high = u32::from_le_bytes(part(block, 4));
    for (i, &byte) in block[8..].iter().enumerate() {
        let (first, second) = (high >> i << 4 & 16, high >> (i + 16) << 4 & 16);
        out[i] = d * (u32::from(byte & 15) | first) as f32 + m;
        out[i + 16] = d * (u32::from(byte >> 4) | second) as f32 + m;
    }
}

/// Moves one block (`k`: its number in the row, `r`: the row in its group).
#[inline(always)]
pub(super) fn repack(k: usize, r: usize, block: &[u8; 24], planes: &mut GroupPlanes) {
    let b = k * GROUP + r;
    planes.scales[2 * b] = part(block, 0);
    planes.scales[2 * b + 1] = part(block, 2);
    planes.high[b] = part(block, 4);
    planes.quants[b] = part(block, 8);
}
