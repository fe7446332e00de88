//! BF16: the upper half of an f32.

use super::planes::GroupPlanes;

#[inline(always)]
pub fn dequantize(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = f32::from_bits(u32::from(u16::from_le_bytes(*block)) << 16);
}

/// Moves 32 values of a row, as for F16.
#[inline(always)]
pub(super) fn repack(k: usize, r: usize, values: &[u8; 64], planes: &mut GroupPlanes) {
    super::f16::repack(k, r, values, planes);
}
