//! Logits: the few answer slots of many rows, or statistics over the whole vocabulary of one row.

use super::weight::{Matrix, access, defs};
use super::{Mat, Variant};
use crate::gguf::TensorType;
use crate::gpu::template::Defs;
use crate::gpu::{Access, Recorder, View};
use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct SlotParams {
    first: u32,
    count: u32,
    blocks: u32,
    ldh: u32,
    ids: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct StatParams {
    n: u32,
    at: u32,
    out_at: u32,
    token_at: u32,
}

/// The slot kernel for an output matrix of `ty`.
pub fn slots_variant(ty: TensorType) -> Variant {
    Variant {
        label: format!("head_slots_{}", ty.name()),
        file: "head_slots.wgsl",
        defs: defs(ty),
        access: access(ty, &[Access::Read, Access::Read, Access::Write]),
    }
}

/// The statistics kernel.
pub fn stats_variant() -> Variant {
    Variant {
        label: "vocab_stats".into(),
        file: "vocab_stats.wgsl",
        defs: Defs::new(),
        access: vec![Access::Read, Access::Write, Access::Write],
    }
}

/// `logits[m, i] = w[ids[i], :] . h[m, :]` for m < `rows`, i < `count`.
pub fn slots(rec: &mut Recorder, w: &Matrix, h: Mat<'_>, rows: u32, ids: View<'_>, count: u32, logits: View<'_>) {
    for part in &w.parts {
        let kernel = slots_variant(part.ty).kernel(rec.gpu());
        let params = SlotParams { first: part.first, count: part.rows, blocks: w.blocks(), ldh: h.ld / 4, ids: count };
        let cost = 2 * u64::from(rows) * u64::from(count) * u64::from(w.cols);
        rec.dispatch(&kernel, &part.views(&[h.view, ids, logits]), &params, [count, rows, 1], cost);
    }
}

/// Over the `n` logits from `logits[at]`: stores (maximum f32, sum of exp(logit - maximum) f32, first index of the maximum u32) at
/// `stats[out_at ..]`, and the index also at `tokens[token_at]`.
#[allow(clippy::too_many_arguments)]
pub fn vocab_stats(rec: &mut Recorder, logits: View<'_>, at: u32, n: u32, stats: View<'_>, out_at: u32, tokens: View<'_>, token_at: u32) {
    let kernel = stats_variant().kernel(rec.gpu());
    rec.dispatch(&kernel, &[logits, stats, tokens], &StatParams { n, at, out_at, token_at }, [1, 1, 1], u64::from(n) * 8);
}
