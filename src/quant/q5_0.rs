//! Q5_0: 22 bytes for 32 values: f16 d, u32 of upper bits (bit i = bit 4 of value i), 16 bytes as in Q4_0.
//! Value = d (q - 16).

use super::bits::{f16, part};
use super::planes::{GROUP, GroupPlanes};

#[inline(always)]
pub fn dequantize(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = f16(part(block, 0));
    let high = u32::from_le_bytes(part(block, 2));
    for (i, &byte) in block[6..].iter().enumerate() {
        let (first, second) = (high >> i << 4 & 16, high >> (i + 16) << 4 & 16);
        out[i] = d * ((u32::from(byte & 15) | first) as i32 - 16) as f32;
        out[i + 16] = d * ((u32::from(byte >> 4) | second) as i32 - 16) as f32;
    }
}

/// Moves one block (`k`: its number in the row, `r`: the row in its group).
#[inline(always)]
pub(super) fn repack(k: usize, r: usize, block: &[u8; 22], planes: &mut GroupPlanes) {
    let b = k * GROUP + r;
    planes.scales[b] = part(block, 0);
    planes.high[b] = part(block, 2);
    planes.quants[b] = part(block, 6);
}
