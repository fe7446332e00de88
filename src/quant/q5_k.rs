//! Q5_K: 176 bytes for 256 values: as Q4_K with 32 bytes of upper bits before the 128 (bit j of byte l = bit 4 of value l
//! of sub-block j).

use super::bits::{bit_planes, f16, part};
use super::planes::{GROUP, GroupPlanes};
use super::{k_scales, q4_k};

#[inline(always)]
pub fn dequantize(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (f16(part(block, 0)), f16(part(block, 2)));
    let (scales, minima) = k_scales::unpack(part(block, 4));
    let high = &block[16..48];
    for (j, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, minimum) = (d * f32::from(scales[j]), dmin * f32::from(minima[j]));
        let bytes = &block[48 + j / 2 * 32..][..32];
        for ((value, byte), high) in values.iter_mut().zip(bytes).zip(high) {
            *value = scale * f32::from((byte >> (j % 2 * 4) & 15) | (high >> j & 1) << 4) - minimum;
        }
    }
}

/// Moves one super-block (`k`: its number in the row, `r`: the row in its group).
#[inline(always)]
pub(super) fn repack(k: usize, r: usize, block: &[u8; 176], planes: &mut GroupPlanes) {
    q4_k::repack_scales(k, r, part(block, 0), planes);
    q4_k::repack_nibbles(k, r, &part(block, 48), planes);
    for (j, bits) in bit_planes(&block[16..48]).into_iter().enumerate() {
        planes.high[(k * 8 + j) * GROUP + r] = bits;
    }
}
