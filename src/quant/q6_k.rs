//! Q6_K: 210 bytes for 256 values: 128 bytes of low nibbles, 64 of upper bit pairs, 16 int8 scales (one for 16 values),
//! f16 d. Each half of 128 values has 64 bytes of nibbles and 32 of pairs; for l below 32 its value l is (nibble l low, pair
//! bits 0-1 of byte l), l + 32 is (nibble l + 32 low, bits 2-3), l + 64 (nibble l high, bits 4-5), l + 96 (nibble l + 32
//! high, bits 6-7). Value = d scale (q - 32).

use super::bits::{f16, pair_planes, part, split_nibbles};
use super::planes::{GROUP, GroupPlanes};

#[inline(always)]
pub fn dequantize(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = f16(part(block, 208));
    for (j, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (half, quarter) = (j / 4, j % 4);
        let nibbles = &block[half * 64 + quarter % 2 * 32..][..32];
        let pairs = &block[128 + half * 32..][..32];
        let scales = [0, 1].map(|h| d * f32::from(block[192 + j * 2 + h] as i8));
        for (l, value) in values.iter_mut().enumerate() {
            let low = nibbles[l] >> (quarter / 2 * 4) & 15;
            let high = pairs[l] >> (quarter * 2) & 3;
            *value = scales[l / 16] * f32::from((low | high << 4) as i8 - 32);
        }
    }
}

/// Moves one super-block (`k`: its number in the row, `r`: the row in its group).
#[inline(always)]
pub(super) fn repack(k: usize, r: usize, block: &[u8; 210], planes: &mut GroupPlanes) {
    planes.scales[k * GROUP + r] = part(block, 208);
    for half in 0..2 {
        let unit = |quarter: usize| (k * 8 + half * 4 + quarter) * GROUP + r;
        for p in 0..2 {
            let (low, high) = split_nibbles(&block[half * 64 + p * 32..][..32]);
            planes.quants[unit(p)] = low;
            planes.quants[unit(p + 2)] = high;
        }
        let pairs = &block[128 + half * 32..][..32];
        let (first, second) = (pair_planes(&pairs[..16]), pair_planes(&pairs[16..]));
        for quarter in 0..4 {
            let b = unit(quarter);
            planes.high[2 * b] = first[quarter];
            planes.high[2 * b + 1] = second[quarter];
            planes.scales2[b] = part(block, 192 + half * 8 + quarter * 2);
        }
    }
}
