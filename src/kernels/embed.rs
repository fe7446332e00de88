//! Token embedding: one dequantised row of the embedding matrix a token.

use super::weight::{Matrix, access, defs};
use super::{Mat, Variant};
use crate::gguf::TensorType;
use crate::gpu::{Access, Recorder, View};
use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    first: u32,
    count: u32,
    blocks: u32,
    ldx: u32,
    token_at: u32,
}

/// The kernel for an embedding matrix of `ty`.
pub fn variant(ty: TensorType) -> Variant {
    Variant {
        label: format!("embed_{}", ty.name()),
        file: "embed.wgsl",
        defs: defs(ty),
        access: access(ty, &[Access::Read, Access::Write]),
    }
}

/// `x[i, :] = w[tokens[token_at + i], :]` for i < `rows`.
pub fn embed(rec: &mut Recorder, w: &Matrix, tokens: View<'_>, token_at: u32, x: Mat<'_>, rows: u32) {
    for part in &w.parts {
        let kernel = variant(part.ty).kernel(rec.gpu());
        let params = Params { first: part.first, count: part.rows, blocks: w.blocks(), ldx: x.ld / 4, token_at };
        rec.dispatch(&kernel, &part.views(&[tokens, x.view]), &params, [rows, 1, 1], u64::from(rows) * u64::from(w.cols) * 8);
    }
}
