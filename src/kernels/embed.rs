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

#[cfg(test)]
mod tests {
    use super::super::testing::{Random, download, matrix, recorder, upload};
    use super::super::weight::TYPES;
    use super::*;

    /// Every type, bit for bit where no sum is involved (a product of scales may round once more), tokens of two parts.
    #[test]
    fn every_type_against_the_dequantised_row() {
        let mut rec = recorder();
        let gpu = rec.gpu().clone();
        let mut random = Random::new(3);
        for ty in TYPES {
            let (w, values) = matrix(&gpu, &[(ty, 64), (ty, 37)], 256, &mut random);
            let tokens = [99u32, 0, 63, 64, 100, 31];
            let (t, x) = (upload(&gpu, &tokens), upload(&gpu, &vec![7f32; tokens.len() * 256]));
            embed(&mut rec, &w, t.all(), 1, Mat::new(&x, 256), 5);
            let found: Vec<f32> = download(&mut rec, &x, 5 * 256);
            for (i, token) in tokens[1..].iter().enumerate() {
                let wanted = &values[*token as usize * 256..][..256];
                for (a, b) in found[i * 256..][..256].iter().zip(wanted) {
                    assert!((a - b).abs() <= b.abs() * 3e-7 + 2e-8, "{ty}, token {token}: {a} is not {b}");
                }
            }
        }
    }
}
