//! Bit moves that several block types share.

/// An f16 of a block, widened exactly, subnormals included (real files are full of subnormal scales).
#[inline]
pub fn f16(bytes: [u8; 2]) -> f32 {
    half::f16::from_le_bytes(bytes).to_f32()
}

/// The `N` bytes of a block from `at`; positions are constants of the block's layout.
#[inline(always)]
pub fn part<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&block[at..at + N]);
    out
}

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(part(bytes, at))
}

const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;

#[inline(always)]
fn join(a: u64, b: u64) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&a.to_le_bytes());
    out[8..].copy_from_slice(&b.to_le_bytes());
    out
}

/// 32 bytes whose low nibbles are the values of one block of 32 and whose high nibbles are those of another, in order:
/// both blocks in plane form (byte i: low nibble = value i, high nibble = value 16 + i).
#[inline(always)]
pub fn split_nibbles(bytes: &[u8]) -> ([u8; 16], [u8; 16]) {
    let (a, b, c, d) = (word(bytes, 0), word(bytes, 8), word(bytes, 16), word(bytes, 24));
    let low = join((a & LOW) | ((c & LOW) << 4), (b & LOW) | ((d & LOW) << 4));
    let high = join(((a >> 4) & LOW) | (c & !LOW), ((b >> 4) & LOW) | (d & !LOW));
    (low, high)
}

/// Bit planes of 8 bytes: byte j of the result holds bit j of each, the first byte in bit 0 (an 8 x 8 transposition).
#[inline(always)]
pub fn transpose8(bytes: u64) -> u64 {
    let x = swap(bytes, 7, 0x00aa_00aa_00aa_00aa);
    let x = swap(x, 14, 0x0000_cccc_0000_cccc);
    swap(x, 28, 0x0000_0000_f0f0_f0f0)
}

/// Exchanges the bits under `mask` with those `shift` above them.
#[inline(always)]
fn swap(x: u64, shift: u32, mask: u64) -> u64 {
    let t = (x ^ (x >> shift)) & mask;
    x ^ t ^ (t << shift)
}

/// For each bit j of 32 bytes, a word whose bit i is bit j of byte i.
#[inline(always)]
pub fn bit_planes(bytes: &[u8]) -> [[u8; 4]; 8] {
    let columns = [0, 8, 16, 24].map(|at| transpose8(word(bytes, at)).to_le_bytes());
    std::array::from_fn(|j| columns.map(|column| column[j]))
}

/// For each pair q of neighbouring bits (2 q and 2 q + 1) of 16 bytes, a word whose bits 2 i and 2 i + 1 are that pair of
/// byte i.
#[inline(always)]
pub fn pair_planes(bytes: &[u8]) -> [[u8; 4]; 4] {
    // In each 4 bytes, a 4 x 4 transposition of pairs: byte q then holds pair q of all four.
    let transpose = |x: u64| {
        let x = swap(x, 6, 0x00cc_00cc_00cc_00cc);
        swap(x, 12, 0x0000_f0f0_0000_f0f0).to_le_bytes()
    };
    let (a, b) = (transpose(word(bytes, 0)), transpose(word(bytes, 8)));
    let pair = |q: usize| [a[q], a[q + 4], b[q], b[q + 4]];
    [pair(0), pair(1), pair(2), pair(3)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise() -> [u8; 32] {
        std::array::from_fn(|i| ((i as u32).wrapping_mul(2_654_435_761) >> 13) as u8)
    }

    #[test]
    fn every_f16_widens_exactly() {
        for bits in 0..=u16::MAX {
            let (sign, exponent, mantissa) = (bits >> 15, i32::from(bits >> 10 & 31), f64::from(bits & 1023));
            let magnitude = match exponent {
                0 => mantissa * 2f64.powi(-24),
                31 if mantissa == 0.0 => f64::INFINITY,
                31 => f64::NAN,
                _ => (1024.0 + mantissa) * 2f64.powi(exponent - 25),
            };
            let expected = if sign == 1 { -magnitude } else { magnitude } as f32;
            let found = f16(bits.to_le_bytes());
            assert!(found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()), "{bits:#x}");
        }
    }

    #[test]
    fn nibbles() {
        let bytes = noise();
        let (low, high) = split_nibbles(&bytes);
        for i in 0..16 {
            assert_eq!(low[i], (bytes[i] & 15) | (bytes[16 + i] & 15) << 4);
            assert_eq!(high[i], (bytes[i] >> 4) | (bytes[16 + i] >> 4) << 4);
        }
    }

    #[test]
    fn bits_and_pairs() {
        let bytes = noise();
        for (j, plane) in bit_planes(&bytes).into_iter().enumerate() {
            let plane = u32::from_le_bytes(plane);
            for (i, byte) in bytes.iter().enumerate() {
                assert_eq!(plane >> i & 1, u32::from(byte >> j & 1), "bit {j} of byte {i}");
            }
        }
        for (q, pairs) in pair_planes(&bytes[..16]).into_iter().enumerate() {
            let pairs = u32::from_le_bytes(pairs);
            for (i, byte) in bytes[..16].iter().enumerate() {
                assert_eq!(pairs >> (2 * i) & 3, u32::from(byte >> (2 * q) & 3), "pair {q} of byte {i}");
            }
        }
    }
}
