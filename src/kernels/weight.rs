//! Quantised matrices on the GPU and how a kernel is told to read one: the shared piece `shaders/weight.wgsl`.

use crate::gguf::TensorType;
use crate::gpu::template::Defs;
use crate::gpu::{Access, Buffer, View};
use std::sync::Arc;

/// Every tensor type a matrix may have.
pub const TYPES: [TensorType; 11] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q8_0,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
];

/// Which planes a type has beside its quants: (high bits, scales, second scales).
pub fn planes_of(ty: TensorType) -> (bool, bool, bool) {
    match ty {
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => (false, false, false),
        TensorType::Q8_0 | TensorType::Q4_0 | TensorType::Q4_1 => (false, true, false),
        TensorType::Q5_0 | TensorType::Q5_1 => (true, true, false),
        TensorType::Q4_K => (false, true, true),
        TensorType::Q5_K | TensorType::Q6_K => (true, true, true),
    }
}

/// Number of plane bindings of a type (1 to 4).
pub fn plane_count(ty: TensorType) -> usize {
    let (high, scales, scales2) = planes_of(ty);
    1 + usize::from(high) + usize::from(scales) + usize::from(scales2)
}

/// Template definitions for `weight.wgsl` when its planes are bound from binding 0. With `WIDE` set to 1 the quants are read as vec4, and
/// there is no `weight4`.
pub fn defs(ty: TensorType) -> Defs {
    let (high, scales, scales2) = planes_of(ty);
    let (bits, form, centre) = match ty {
        TensorType::F32 => (32, "plain", 0),
        TensorType::F16 | TensorType::BF16 => (16, "plain", 0),
        TensorType::Q8_0 => (8, "centred", 0),
        TensorType::Q4_0 => (4, "centred", 8),
        TensorType::Q5_0 => (5, "centred", 16),
        TensorType::Q4_1 => (4, "offset", 0),
        TensorType::Q5_1 => (5, "offset", 0),
        TensorType::Q4_K => (4, "super", 0),
        TensorType::Q5_K => (5, "super", 0),
        TensorType::Q6_K => (6, "signed", 32),
    };
    // 16-byte units of 32 values.
    let units = if bits < 8 { 1 } else { bits / 4 };
    let b_high = 1;
    let b_scales = b_high + i32::from(high);
    let b_scales2 = b_scales + i32::from(scales);
    Defs::new()
        .with("TYPE", ty.name())
        .with("WIDE", 0)
        .with("BITS", bits)
        .with("UNITS", units)
        .with("PACKED", u8::from(bits < 8))
        .with("FORM", form)
        .with("CENTRE", centre)
        .with("HIGH", u8::from(high))
        .with("SCALES", u8::from(scales))
        .with("SCALES2", u8::from(scales2))
        .with("B_HIGH", b_high)
        .with("B_SCALES", b_scales)
        .with("B_SCALES2", b_scales2)
        .with("PLANES", plane_count(ty))
}

/// Bindings of a kernel that reads a matrix of type `ty` and then has `rest`.
pub fn access(ty: TensorType, rest: &[Access]) -> Vec<Access> {
    let mut access = vec![Access::Read; plane_count(ty)];
    access.extend_from_slice(rest);
    access
}

/// Consecutive rows of a matrix in one tensor type, all planes in one buffer.
#[derive(Debug, Clone)]
pub struct Part {
    /// How its values are stored.
    pub ty: TensorType,
    /// First row within the matrix (= first output column of the product).
    pub first: u32,
    /// Rows, without padding.
    pub rows: u32,
    /// The buffer of all planes.
    pub buffer: Arc<Buffer>,
    /// Byte offset and size of each plane in binding order.
    pub planes: Vec<(u64, u64)>,
}

impl Part {
    /// The planes' views, then `rest`.
    pub fn views<'a>(&'a self, rest: &[View<'a>]) -> Vec<View<'a>> {
        let mut views: Vec<View<'a>> = self.planes.iter().map(|&(at, size)| self.buffer.range(at, size)).collect();
        views.extend_from_slice(rest);
        views
    }

    /// Bytes of all planes.
    pub fn bytes(&self) -> u64 {
        self.planes.iter().map(|(_, size)| size).sum()
    }

    /// Row groups of 32, the last one padded.
    pub fn groups(&self) -> u32 {
        self.rows.div_ceil(32)
    }
}

/// A matrix `[rows, cols]` as one or more parts: split because of binding limits, or joined from tensors of several types.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// Values in a row, a multiple of 32.
    pub cols: u32,
    /// Rows of all parts together.
    pub rows: u32,
    /// The parts, in row order.
    pub parts: Vec<Part>,
}

impl Matrix {
    /// Blocks of 32 in a row.
    pub fn blocks(&self) -> u32 {
        self.cols / 32
    }

    /// Rows of a part and of its neighbours of the same type: as many, however a binding limit splits them.
    pub fn rows_of_type(&self, part: &Part) -> u32 {
        let runs = self.parts.chunk_by(|a, b| a.ty == b.ty);
        runs.filter(|run| run.iter().any(|p| p.first == part.first)).flatten().map(|p| p.rows).sum()
    }
}
