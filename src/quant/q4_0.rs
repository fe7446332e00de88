//! Q4_0: 18 bytes for 32 values: f16 d, 16 bytes (low nibbles = values 0 to 15, high = 16 to 31). Value = d (q - 8).

use super::bits::{f16, part};
use super::planes::{GROUP, GroupPlanes};

#[inline(always)]
pub fn dequantize(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16(part(block, 0));
    for (i, &byte) in block[2..].iter().enumerate() {
        out[i] = d * (i32::from(byte & 15) - 8) as f32;
        out[i + 16] = d * (i32::from(byte >> 4) - 8) as f32;
    }
}

/// Moves one block (`k`: its number in the row, `r`: the row in its group). The nibbles are in plane order already.
#[inline(always)]
pub(super) fn repack(k: usize, r: usize, block: &[u8; 18], planes: &mut GroupPlanes) {
    let b = k * GROUP + r;
    planes.scales[b] = part(block, 0);
    planes.quants[b] = part(block, 2);
}
