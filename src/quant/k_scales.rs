//! The 6-bit scales that Q4_K and Q5_K share.

use super::bits::part;

/// The eight scales and the eight minima of a super-block, from the 12 bytes s0..s11 they are packed in.
///
/// Sub-blocks 0 to 3 have theirs in the low six bits of s0..s3 and s4..s7. Sub-blocks 4 to 7 have the low four bits in
/// s8..s11 (scale in the low nibble, minimum in the high one) and the upper two in the top bits of s0..s3 and s4..s7.
#[inline(always)]
pub fn unpack(packed: [u8; 12]) -> ([u8; 8], [u8; 8]) {
    let [a, b, c] = [0, 4, 8].map(|at| u32::from_le_bytes(part(&packed, at)));
    let (six, four, two) = (0x3f3f_3f3f, 0x0f0f_0f0f, 0x0303_0303);
    let scales = [a & six, (c & four) | ((a >> 6) & two) << 4];
    let minima = [b & six, ((c >> 4) & four) | ((b >> 6) & two) << 4];
    (bytes(scales), bytes(minima))
}

#[inline(always)]
fn bytes(words: [u32; 2]) -> [u8; 8] {
    (u64::from(words[0]) | u64::from(words[1]) << 32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_format_says() {
        let s: [u8; 12] = std::array::from_fn(|i| ((i as u32).wrapping_mul(2_654_435_761) >> 11) as u8);
        let (scales, minima) = unpack(s);
        for j in 0..8 {
            let (scale, minimum) = if j < 4 {
                (s[j] & 63, s[j + 4] & 63)
            } else {
                ((s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4)
            };
            assert_eq!((scales[j], minima[j]), (scale, minimum), "sub-block {j}");
        }
    }
}
