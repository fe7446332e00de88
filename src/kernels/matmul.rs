//! Matrix products with quantised weights: a register-tiled form for many rows and a matrix-vector form for one.

use super::weight::{Matrix, access, defs};
use super::{Mat, Variant};
use crate::gguf::TensorType;
use crate::gpu::{Access, Recorder, View};
use bytemuck::{Pod, Zeroable};

/// Rows of a tile, each a kernel variant; outputs do not depend on the choice.
pub const TILES: [u32; 2] = [32, 64];

/// Rows that buffers must be padded to, so that no tile leaves them.
pub const ROW_PADDING: u32 = 64;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    n: u32,
    blocks: u32,
    ldx: u32,
    ldy: u32,
    y_at: u32,
    n_groups: u32,
    bias_at: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct VecParams {
    n: u32,
    blocks: u32,
    x_at: u32,
    y_at: u32,
    groups_x: u32,
    bias_at: u32,
}

fn with_epilogue(ty: TensorType, bias: bool) -> Vec<Access> {
    let rest = [Access::Read, Access::Write, Access::Read];
    access(ty, if bias { &rest } else { &rest[..2] })
}

/// The tiled product for weights of `ty`.
pub fn matmul_variant(ty: TensorType, tile: u32, bias: bool, add: bool) -> Variant {
    Variant {
        label: format!("matmul_{}_{tile}x64{}{}", ty.name(), if bias { "_bias" } else { "" }, if add { "_add" } else { "" }),
        file: "matmul.wgsl",
        defs: defs(ty).with("BM", tile).with("RM", tile / 8).with("BIAS", u8::from(bias)).with("ADD", u8::from(add)),
        access: with_epilogue(ty, bias),
    }
}

/// The matrix-vector product for weights of `ty`.
pub fn matvec_variant(ty: TensorType, bias: bool, add: bool) -> Variant {
    Variant {
        label: format!("matvec_{}{}{}", ty.name(), if bias { "_bias" } else { "" }, if add { "_add" } else { "" }),
        file: "matvec.wgsl",
        defs: defs(ty).with("BIAS", u8::from(bias)).with("ADD", u8::from(add)),
        access: with_epilogue(ty, bias),
    }
}

/// What happens to a product before it is stored.
#[derive(Debug, Clone, Copy, Default)]
pub struct Epilogue<'a> {
    /// f32 vector of `w.rows` values added to each row.
    pub bias: Option<View<'a>>,
    /// Add to what stands in y (the residual) instead of replacing it.
    pub add: bool,
}

/// `y[m, :] (+)= x[m, :] w^T (+ bias)` for m < `rows`. x and y must be padded to [`ROW_PADDING`] rows; rows past `rows` of y are garbage.
pub fn matmul(rec: &mut Recorder, w: &Matrix, x: Mat<'_>, y: Mat<'_>, rows: u32, epilogue: Epilogue<'_>) {
    let tile = if rows <= 32 { 32 } else { 64 };
    for part in &w.parts {
        let kernel = matmul_variant(part.ty, tile, epilogue.bias.is_some(), epilogue.add).kernel(rec.gpu());
        let params = Params {
            n: part.rows,
            blocks: w.blocks(),
            ldx: x.ld / 4,
            ldy: y.ld,
            y_at: part.first,
            n_groups: part.groups(),
            bias_at: part.first,
        };
        let mut rest = vec![x.view, y.view];
        rest.extend(epilogue.bias);
        let cost = 2 * u64::from(rows.next_multiple_of(tile)) * u64::from(part.rows) * u64::from(w.cols);
        rec.dispatch(&kernel, &part.views(&rest), &params, [rows.div_ceil(tile), part.rows.div_ceil(64), 1], cost);
    }
}

/// `y[y_at ..] (+)= w x[row, :] (+ bias)` for one row of x: generation, and the whole vocabulary of one row.
pub fn matvec(rec: &mut Recorder, w: &Matrix, x: Mat<'_>, row: u32, y: View<'_>, y_at: u32, epilogue: Epilogue<'_>) {
    for part in &w.parts {
        let kernel = matvec_variant(part.ty, epilogue.bias.is_some(), epilogue.add).kernel(rec.gpu());
        let groups_x = part.groups().min(32768);
        let params =
            VecParams { n: part.rows, blocks: w.blocks(), x_at: row * x.ld / 4, y_at: y_at + part.first, groups_x, bias_at: part.first };
        let mut rest = vec![x.view, y];
        rest.extend(epilogue.bias);
        let cost = 2 * u64::from(part.rows) * u64::from(w.cols);
        rec.dispatch(&kernel, &part.views(&rest), &params, [groups_x, part.groups().div_ceil(groups_x), 1], cost);
    }
}
