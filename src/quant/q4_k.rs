//! Q4_K: 144 bytes for 256 values: f16 d, f16 dmin, 12 bytes of 6-bit scales and minima, 128 bytes (of bytes 32 p to
//! 32 p + 31, low nibbles = sub-block 2 p, high = 2 p + 1). Value of sub-block j = d scale_j q - dmin minimum_j.

use super::bits::{f16, part, split_nibbles};
use super::k_scales;
use super::planes::{GROUP, GroupPlanes};

#[inline(always)]
pub fn dequantize(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (f16(part(block, 0)), f16(part(block, 2)));
    let (scales, minima) = k_scales::unpack(part(block, 4));
    for (j, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, minimum) = (d * f32::from(scales[j]), dmin * f32::from(minima[j]));
        let bytes = &block[16 + j / 2 * 32..][..32];
        for (value, byte) in values.iter_mut().zip(bytes) {
            *value = scale * f32::from(byte >> (j % 2 * 4) & 15) - minimum;
        }
    }
}

/// Moves one super-block (`k`: its number in the row, `r`: the row in its group).
#[inline(always)]
pub(super) fn repack(k: usize, r: usize, block: &[u8; 144], planes: &mut GroupPlanes) {
    repack_scales(k, r, part(block, 0), planes);
    repack_nibbles(k, r, &part(block, 16), planes);
}

/// d, dmin and the 6-bit scales, which Q5_K has too.
#[inline(always)]
pub(super) fn repack_scales(k: usize, r: usize, head: [u8; 16], planes: &mut GroupPlanes) {
    let s = k * GROUP + r;
    planes.scales[2 * s] = part(&head, 0);
    planes.scales[2 * s + 1] = part(&head, 2);
    let (scales, minima) = k_scales::unpack(part(&head, 4));
    for j in 0..8 {
        planes.scales2[(k * 8 + j) * GROUP + r] = [scales[j], minima[j]];
    }
}

/// The nibbles, which Q5_K has too.
#[inline(always)]
pub(super) fn repack_nibbles(k: usize, r: usize, bytes: &[u8; 128], planes: &mut GroupPlanes) {
    for (p, bytes) in bytes.as_chunks::<32>().0.iter().enumerate() {
        let (low, high) = split_nibbles(bytes);
        planes.quants[(k * 8 + 2 * p) * GROUP + r] = low;
        planes.quants[(k * 8 + 2 * p + 1) * GROUP + r] = high;
    }
}
