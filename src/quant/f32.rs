//! F32: values as they are.

use super::planes::{GROUP, GroupPlanes};

#[inline(always)]
pub fn dequantize(block: &[u8; 4], out: &mut [f32; 1]) {
    out[0] = f32::from_le_bytes(*block);
}

/// Moves 32 values of a row (`k`: which 32, `r`: the row in its group).
#[inline(always)]
pub(super) fn repack(k: usize, r: usize, values: &[u8; 128], planes: &mut GroupPlanes) {
    for (h, unit) in values.as_chunks::<16>().0.iter().enumerate() {
        planes.quants[(k * 8 + h) * GROUP + r] = *unit;
    }
}
