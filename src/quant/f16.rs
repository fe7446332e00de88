//! F16: IEEE half precision.

use super::bits;
use super::planes::{GROUP, GroupPlanes};

#[inline(always)]
pub fn dequantize(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = bits::f16(*block);
}

/// Moves 32 values of a row (`k`: which 32, `r`: the row in its group).
#[inline(always)]
pub(super) fn repack(k: usize, r: usize, values: &[u8; 64], planes: &mut GroupPlanes) {
    for (h, unit) in values.as_chunks::<16>().0.iter().enumerate() {
        planes.quants[(k * 4 + h) * GROUP + r] = *unit;
    }
}
