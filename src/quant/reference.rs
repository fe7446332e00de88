//! Reads weights back from planes, value by value as the layout's description says: the reference that repacking and
//! kernels are tested against. It is written for likeness to the description, not for speed.

use super::bits::{f16, part};
use super::planes::{BLOCK, GROUP, plane_layout};
use super::{Planes, QuantError};
use crate::gguf::TensorType;

/// Dequantises `rows` rows of `cols` values from their planes, bit for bit as [`super::dequantize`] does from the file's
/// blocks. Row `i` of the result starts at `i * cols`; padding rows are left out.
///
/// # Errors
/// As [`plane_layout`], and when the planes or `out` have another size than these rows need.
pub fn dequantize_planes(ty: TensorType, rows: u64, cols: u64, planes: &Planes, out: &mut [f32]) -> Result<(), QuantError> {
    let (wanted, found) = (plane_layout(ty, rows, cols)?, planes.layout());
    if wanted != found {
        return Err(QuantError::Length { ty, what: "plane bytes", found: found.total(), wanted: wanted.total() });
    }
    if out.len() as u64 != rows * cols {
        return Err(QuantError::Length { ty, what: "output values", found: out.len() as u64, wanted: rows * cols });
    }
    for (row, values) in out.chunks_exact_mut(cols as usize).enumerate() {
        for (col, value) in values.iter_mut().enumerate() {
            *value = read(ty, cols as usize, planes, row, col);
        }
    }
    Ok(())
}

/// One value, which the planes are known to hold.
fn read(ty: TensorType, cols: usize, planes: &Planes, row: usize, col: usize) -> f32 {
    let (g, r) = (row / GROUP, row % GROUP);
    let (block, i) = (g * (cols / BLOCK) + col / BLOCK, col % BLOCK);
    let b = block * GROUP + r;
    let s = (g * (cols / 256) + col / 256) * GROUP + r;
    let nibble = || {
        let byte = planes.quants[16 * b + i % 16];
        u32::from(if i < 16 { byte & 15 } else { byte >> 4 })
    };
    let word = |plane: &[u8], index: usize| u32::from_le_bytes(part(plane, 4 * index));
    let fifth = || word(&planes.high, b) >> i << 4 & 16;
    // f16 number `index` of the scales, and integer scales of the block.
    let scale = |index: usize| f16(part(&planes.scales, 2 * index));
    let [first, second] = if planes.scales2.is_empty() { [0, 0] } else { part(&planes.scales2, 2 * b) };
    let k_quant = |q: u32| scale(2 * s) * f32::from(first) * q as f32 - scale(2 * s + 1) * f32::from(second);
    match ty {
        TensorType::F32 => f32::from_le_bytes(part(&planes.quants, 16 * ((block * 8 + i / 4) * GROUP + r) + i % 4 * 4)),
        TensorType::F16 => f16(part(&planes.quants, 16 * ((block * 4 + i / 8) * GROUP + r) + i % 8 * 2)),
        TensorType::BF16 => {
            let bits = u16::from_le_bytes(part(&planes.quants, 16 * ((block * 4 + i / 8) * GROUP + r) + i % 8 * 2));
            f32::from_bits(u32::from(bits) << 16)
        }
        TensorType::Q8_0 => scale(b) * f32::from(planes.quants[16 * ((block * 2 + i / 16) * GROUP + r) + i % 16] as i8),
        TensorType::Q4_0 => scale(b) * (nibble() as i32 - 8) as f32,
        TensorType::Q5_0 => scale(b) * ((nibble() | fifth()) as i32 - 16) as f32,
        TensorType::Q4_1 => scale(2 * b) * nibble() as f32 + scale(2 * b + 1),
        TensorType::Q5_1 => scale(2 * b) * (nibble() | fifth()) as f32 + scale(2 * b + 1),
        TensorType::Q4_K => k_quant(nibble()),
        TensorType::Q5_K => k_quant(nibble() | fifth()),
        TensorType::Q6_K => {
            let pair = word(&planes.high, 2 * b + i / 16) >> (i % 16 * 2) & 3;
            let integer = if i < 16 { first } else { second } as i8;
            scale(s) * f32::from(integer) * ((nibble() | pair << 4) as i32 - 32) as f32
        }
    }
}
