//! Block types: reference dequantisation on the CPU, and repacking into GPU planes.
//!
//! Each type has a file of its own that reads like its specification: [`dequantize`] there is the reference, in the exact
//! f32 arithmetic of ggml, and `repack` moves a block's bits, unchanged, to where the kernels want them. The layout of
//! the planes is described in [`planes`].

mod bf16;
mod bits;
mod f16;
mod f32;
mod k_scales;
pub mod planes;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod reference;

#[cfg(test)]
mod tests;

pub use planes::{GROUP, PlaneLayout, Planes, plane_layout, repack_groups};
pub use reference::dequantize_planes;

use crate::gguf::TensorType;

/// A tensor, or a piece of one, whose sizes do not fit its type or each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantError {
    /// Rows that the planes cannot hold.
    #[error("rows of {cols} {ty} values cannot be repacked: the number must be a multiple of {multiple}, and not zero")]
    Cols {
        /// Type of the tensor.
        ty: TensorType,
        /// Values in a row.
        cols: u64,
        /// What they must be a multiple of.
        multiple: u64,
    },
    /// Bytes that are not whole rows or blocks.
    #[error("{bytes} bytes of {ty} are not whole {what} of {unit} bytes")]
    Bytes {
        /// Type of the tensor.
        ty: TensorType,
        /// Bytes given.
        bytes: usize,
        /// `rows` or `blocks`.
        what: &'static str,
        /// Bytes of one of them.
        unit: u64,
    },
    /// A buffer of the wrong size.
    #[error("{found} {what} given for {ty} data, {wanted} needed")]
    Length {
        /// Type of the tensor.
        ty: TensorType,
        /// What the buffer holds.
        what: &'static str,
        /// What was given.
        found: u64,
        /// What was needed.
        wanted: u64,
    },
    /// Sizes beyond what can be addressed.
    #[error("{rows} rows of {cols} {ty} values are too large to address")]
    TooLarge {
        /// Type of the tensor.
        ty: TensorType,
        /// Rows.
        rows: u64,
        /// Values in a row.
        cols: u64,
    },
}

/// Dequantises whole blocks, bit for bit as ggml does in f32.
///
/// # Errors
/// `bytes` are not whole blocks, or `out` has not exactly one place for each of their values.
pub fn dequantize(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    let unit = ty.block_bytes();
    if !bytes.len().is_multiple_of(unit) {
        return Err(QuantError::Bytes { ty, bytes: bytes.len(), what: "blocks", unit: unit as u64 });
    }
    let wanted = bytes.len() / unit * ty.block_len();
    if out.len() != wanted {
        return Err(QuantError::Length { ty, what: "output values", found: out.len() as u64, wanted: wanted as u64 });
    }
    match ty {
        TensorType::F32 => each(bytes, out, f32::dequantize),
        TensorType::F16 => each(bytes, out, f16::dequantize),
        TensorType::BF16 => each(bytes, out, bf16::dequantize),
        TensorType::Q4_0 => each(bytes, out, q4_0::dequantize),
        TensorType::Q4_1 => each(bytes, out, q4_1::dequantize),
        TensorType::Q5_0 => each(bytes, out, q5_0::dequantize),
        TensorType::Q5_1 => each(bytes, out, q5_1::dequantize),
        TensorType::Q8_0 => each(bytes, out, q8_0::dequantize),
        TensorType::Q4_K => each(bytes, out, q4_k::dequantize),
        TensorType::Q5_K => each(bytes, out, q5_k::dequantize),
        TensorType::Q6_K => each(bytes, out, q6_k::dequantize),
    }
    Ok(())
}

/// Runs a block's function over all blocks of `B` bytes and `V` values.
fn each<const B: usize, const V: usize>(bytes: &[u8], out: &mut [f32], dequantize: impl Fn(&[u8; B], &mut [f32; V])) {
    for (block, values) in bytes.as_chunks::<B>().0.iter().zip(out.as_chunks_mut::<V>().0) {
        dequantize(block, values);
    }
}
