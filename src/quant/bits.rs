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
    let mut x = bytes;
    let swap = |x: u64, shift: u32, mask: u64| {
        let t = (x ^ (x >> shift)) & mask;
        x ^ t ^ (t << shift)
    };
    x = swap(x, 7, 0x00aa_00aa_00aa_00aa);
    x = swap(x, 14, 0x0000_cccc_0000_cccc);
    swap(x, 28, 0x0000_0000_f0f0_f0f0)
}

/// For each bit j of 32 bytes, a word whose bit i is bit j of byte i.
#[inline(always)]
pub fn bit_planes(bytes: &[u8]) -> [[u8; 4]; 8] {
    let columns = [0, 8, 16, 24].map(|at| transpose8(word(bytes, at)).to_le_bytes());
    std::array::from_fn(|j| columns.map(|column| column[j]))
}

/// The two bits from `shift` of 16 bytes, packed: bits 2i and 2i+1 of the word come from byte i.
#[inline(always)]
pub fn pack_pairs(bytes: &[u8], shift: u32) -> [u8; 4] {
    let pack = |x: u64| {
        let x = (x >> shift) & 0x0303_0303_0303_0303;
        let x = (x | (x >> 6)) & 0x000f_000f_000f_000f;
        let x = (x | (x >> 12)) & 0x0000_00ff_0000_00ff;
        (x | (x >> 24)) as u16
    };
    let (low, high) = (pack(word(bytes, 0)).to_le_bytes(), pack(word(bytes, 8)).to_le_bytes());
    [low[0], low[1], high[0], high[1]]
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
        for shift in [0, 2, 4, 6] {
            let pairs = u32::from_le_bytes(pack_pairs(&bytes[..16], shift));
            for (i, byte) in bytes[..16].iter().enumerate() {
                assert_eq!(pairs >> (2 * i) & 3, u32::from(byte >> shift & 3), "shift {shift}, byte {i}");
            }
        }
    }
}
