//! The planes: a weight as the kernels read it.
//!
//! A tensor's rows are cut into groups of [`GROUP`] = 32, the last one padded with zero rows. All of a group is
//! contiguous in each plane, so that a tensor is repacked while it streams, group by group, and tensors of the same type and
//! row length (q, k, v; gate, up) are joined by appending groups. Inside a group, blocks of 32 columns come one after the
//! other, and in a block the 32 rows lie side by side, so that neighbouring threads load neighbouring 16-byte units.
//!
//! With KB = cols / 32 blocks and KS = cols / 256 super-blocks in a row, row = 32 g + r, b = (g KB + kb) 32 + r and
//! s = (g KS + ks) 32 + r; all is little endian:
//!
//! | plane | content |
//! |---|---|
//! | quants, 16-byte units | 4-, 5- and 6-bit types: unit b, low nibble of byte i = low bits of value i, high nibble = of value 16 + i. Q8_0: unit ((g KB + kb) 2 + h) 32 + r = int8 values 16 h to 16 h + 15. F16, BF16: unit ((g KB + kb) 4 + h) 32 + r = 8 raw values. F32: unit ((g KB + kb) 8 + h) 32 + r = 4 values |
//! | high | Q5_*: u32 at b, bit i = bit 4 of value i. Q6_K: u32 at 2 b + h, bits 2 i and 2 i + 1 = bits 4 and 5 of value 16 h + i |
//! | scales | Q8_0, Q4_0, Q5_0: u16 at b = d. Q4_1, Q5_1: u32 at b = d, m << 16. Q4_K, Q5_K: u32 at s = d, dmin << 16. Q6_K: u16 at s = d. All raw f16 bits |
//! | scales2 | Q4_K, Q5_K: u16 at b = 6-bit scale, 6-bit minimum << 8. Q6_K: u16 at b = int8 scale of values 0 to 15, of 16 to 31 << 8 |
//!
//! No bit of a weight is lost or rounded, and all planes together take at most 1.05 times the tensor's bytes.

use super::{QuantError, bf16, f16, f32, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0};
use crate::gguf::TensorType;

/// Rows of a row group.
pub const GROUP: usize = 32;

/// Values of a row that one plane block holds.
pub(super) const BLOCK: usize = 32;

/// Bytes of each plane of a tensor; every one is a multiple of 16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaneLayout {
    /// Bytes of the plane of quants.
    pub quants: u64,
    /// Bytes of the plane of upper bits; 0 for types without.
    pub high: u64,
    /// Bytes of the plane of f16 scales; 0 for float types.
    pub scales: u64,
    /// Bytes of the plane of integer scales; 0 for types without.
    pub scales2: u64,
}

impl PlaneLayout {
    /// Bytes of all planes.
    pub fn total(&self) -> u64 {
        self.quants + self.high + self.scales + self.scales2
    }

    /// Where `scales2` starts, as a u32 index, in a buffer that holds `scales` and then `scales2`.
    pub fn scales2_at(&self) -> u64 {
        self.scales / 4
    }
}

/// Bytes that 32 values of one row take in the planes of quants and of upper bits, bytes of the f16 scales of one block of
/// the type, and bytes of the integer scales of 32 values.
const fn unit_bytes(ty: TensorType) -> [u64; 4] {
    match ty {
        TensorType::F32 => [128, 0, 0, 0],
        TensorType::F16 | TensorType::BF16 => [64, 0, 0, 0],
        TensorType::Q8_0 => [32, 0, 2, 0],
        TensorType::Q4_0 => [16, 0, 2, 0],
        TensorType::Q4_1 => [16, 0, 4, 0],
        TensorType::Q5_0 => [16, 4, 2, 0],
        TensorType::Q5_1 => [16, 4, 4, 0],
        TensorType::Q4_K => [16, 0, 4, 2],
        TensorType::Q5_K => [16, 4, 4, 2],
        TensorType::Q6_K => [16, 8, 2, 2],
    }
}

/// The sizes of the planes of `rows` rows of `cols` values. Layouts of whole groups add up: joined tensors have the sum of
/// their layouts.
///
/// # Errors
/// `cols` is zero or no multiple of the type's block length (of 32 for float types), or the sizes overflow.
pub fn plane_layout(ty: TensorType, rows: u64, cols: u64) -> Result<PlaneLayout, QuantError> {
    let multiple = ty.block_len().max(BLOCK) as u64;
    if cols == 0 || !cols.is_multiple_of(multiple) {
        return Err(QuantError::Cols { ty, cols, multiple });
    }
    let [quants, high, scales, scales2] = unit_bytes(ty);
    let blocks = cols / BLOCK as u64;
    let layout = || {
        let padded = rows.checked_next_multiple_of(GROUP as u64)?;
        let values = blocks.checked_mul(padded)?;
        values.checked_mul(128)?; // the widest plane: no product or sum below overflows
        Some(PlaneLayout {
            quants: values * quants,
            high: values * high,
            scales: cols / multiple * padded * scales,
            scales2: values * scales2,
        })
    };
    layout().ok_or(QuantError::TooLarge { ty, rows, cols })
}

/// The planes of repacked rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Planes {
    /// The plane of quants.
    pub quants: Vec<u8>,
    /// The plane of upper bits.
    pub high: Vec<u8>,
    /// The plane of f16 scales.
    pub scales: Vec<u8>,
    /// The plane of integer scales.
    pub scales2: Vec<u8>,
}

impl Planes {
    /// Empties the planes and keeps their memory, for the next piece of a stream.
    pub fn clear(&mut self) {
        self.quants.clear();
        self.high.clear();
        self.scales.clear();
        self.scales2.clear();
    }

    /// The sizes as they are now.
    pub fn layout(&self) -> PlaneLayout {
        PlaneLayout {
            quants: self.quants.len() as u64,
            high: self.high.len() as u64,
            scales: self.scales.len() as u64,
            scales2: self.scales2.len() as u64,
        }
    }
}

/// One group of every plane, in the units that are written.
pub(super) struct GroupPlanes<'a> {
    pub quants: &'a mut [[u8; 16]],
    pub high: &'a mut [[u8; 4]],
    pub scales: &'a mut [[u8; 2]],
    pub scales2: &'a mut [[u8; 2]],
}

/// Appends the planes of whole rows of `cols` values to `out`, group by group. A last group with fewer than [`GROUP`] rows
/// is padded with zero bits, so a stream cuts a tensor only after multiples of [`GROUP`] rows.
///
/// # Errors
/// As [`plane_layout`], and when `src` is not whole rows. `out` is then unchanged.
pub fn repack_groups(ty: TensorType, cols: u64, src: &[u8], out: &mut Planes) -> Result<(), QuantError> {
    let group = plane_layout(ty, GROUP as u64, cols)?;
    let (Some(row), Ok(cols)) = (ty.row_bytes(cols).and_then(|bytes| usize::try_from(bytes).ok()), usize::try_from(cols)) else {
        return Err(QuantError::TooLarge { ty, rows: GROUP as u64, cols });
    };
    if !src.len().is_multiple_of(row) {
        return Err(QuantError::Bytes { ty, bytes: src.len(), what: "rows", unit: row as u64 });
    }
    let rows = src.len() / row;
    if usize::try_from(plane_layout(ty, rows as u64, cols as u64)?.total()).is_err() {
        return Err(QuantError::TooLarge { ty, rows: rows as u64, cols: cols as u64 });
    }
    let groups = rows.div_ceil(GROUP);
    let [quants, high, scales, scales2] = [group.quants, group.high, group.scales, group.scales2].map(|bytes| bytes as usize);
    out.quants.reserve(groups * quants);
    out.high.reserve(groups * high);
    out.scales.reserve(groups * scales);
    out.scales2.reserve(groups * scales2);
    for rows in src.chunks(row * GROUP) {
        let mut planes = GroupPlanes {
            quants: extend(&mut out.quants, quants),
            high: extend(&mut out.high, high),
            scales: extend(&mut out.scales, scales),
            scales2: extend(&mut out.scales2, scales2),
        };
        let planes = &mut planes;
        match ty {
            TensorType::F32 => each_block(rows, row, planes, f32::repack),
            TensorType::F16 => each_block(rows, row, planes, f16::repack),
            TensorType::BF16 => each_block(rows, row, planes, bf16::repack),
            TensorType::Q4_0 => each_block(rows, row, planes, q4_0::repack),
            TensorType::Q4_1 => each_block(rows, row, planes, q4_1::repack),
            TensorType::Q5_0 => each_block(rows, row, planes, q5_0::repack),
            TensorType::Q5_1 => each_block(rows, row, planes, q5_1::repack),
            TensorType::Q8_0 => each_block(rows, row, planes, q8_0::repack),
            TensorType::Q4_K => each_block(rows, row, planes, q4_k::repack),
            TensorType::Q5_K => each_block(rows, row, planes, q5_k::repack),
            TensorType::Q6_K => each_block(rows, row, planes, q6_k::repack),
        }
    }
    Ok(())
}

/// Appends `bytes` zeros and returns them. One group at a time: the zeros are still in the cache when they are replaced.
fn extend<const N: usize>(plane: &mut Vec<u8>, bytes: usize) -> &mut [[u8; N]] {
    let start = plane.len();
    plane.resize(start + bytes, 0);
    plane[start..].as_chunks_mut().0
}

/// Calls `repack(k, r, block)` for block k of every row r of a group. Rows outside: measured to be 1.5 to 2.5 times faster
/// than columns outside, since reads then run forward and a group's planes fit the cache.
#[inline(always)]
fn each_block<const B: usize>(
    group: &[u8],
    row: usize,
    planes: &mut GroupPlanes,
    repack: impl Fn(usize, usize, &[u8; B], &mut GroupPlanes),
) {
    for (r, bytes) in group.chunks_exact(row).enumerate() {
        for (k, block) in bytes.as_chunks().0.iter().enumerate() {
            repack(k, r, block, planes);
        }
    }
}
