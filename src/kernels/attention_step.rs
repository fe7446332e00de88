//! Attention of a generation step: pieces of the keys side by side, then joined.

use super::Variant;
use super::rope::{Cache, Heads};
use crate::gpu::template::Defs;
use crate::gpu::{Access, Recorder, View};
use bytemuck::{Pod, Zeroable};

/// Keys of a piece (two pages), at absolute positions.
pub const PIECE: u32 = 64;

/// Query heads of a group that a workgroup may take.
pub const TOGETHER: [u32; 3] = [1, 2, 4];

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    heads: u32,
    kv_heads: u32,
    q_stride: u32,
    position: u32,
    chunks: u32,
    scale: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct JoinParams {
    heads: u32,
    pieces: u32,
    q_stride: u32,
}

/// Slices of the keys when values are summed, and of the pieces when they are joined: what 256 threads have room for.
fn slices(head_dim: u32) -> u32 {
    match head_dim {
        0..=64 => 16,
        65..=128 => 8,
        _ => 4,
    }
}

/// The kernel for the pieces: head size, and query heads a workgroup.
pub fn variant(head_dim: u32, together: u32) -> Variant {
    use Access::{Read, Write};
    let (vs, sums) = (slices(head_dim), together.min(2));
    let red = (together * 130).max(sums * head_dim / 4 * vs);
    Variant {
        label: format!("attention_step_{head_dim}_{together}"),
        file: "attention_step.wgsl",
        defs: Defs::new().with("D", head_dim).with("H", together).with("VS", vs).with("TOGETHER", sums).with("RED", red),
        access: vec![Read, Read, Read, Read, Write],
    }
}

/// The kernel that joins pieces, with or without the output gate that qwen35 keeps beside each query head.
pub fn join_variant(head_dim: u32, gate: bool) -> Variant {
    use Access::{Read, Write};
    Variant {
        label: format!("attention_join_{head_dim}{}", if gate { "_gate" } else { "" }),
        file: "attention_join.wgsl",
        defs: Defs::new().with("D", head_dim).with("VS", slices(head_dim)).with("GATE", u8::from(gate)),
        access: if gate { vec![Read, Read, Write] } else { vec![Read, Write] },
    }
}

/// Bytes of the pieces of one query row with so many keys.
pub fn scratch_bytes(heads: &Heads, keys: u32) -> u64 {
    u64::from(keys.div_ceil(PIECE)) * u64::from(heads.heads) * (u64::from(heads.head_dim) + 4) * 4
}

/// What a step's attention reads and writes beside the query and the cache.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// Page table of the one sequence.
    pub pages: View<'a>,
    /// Position of the query; its own key is the last it sees.
    pub position: u32,
    /// Room for [`scratch_bytes`] of `position + 1` keys.
    pub scratch: View<'a>,
}

/// `o = softmax(q k^T / sqrt(head_dim)) v` for the query row at the start of `qkv`, gated where `gate`.
pub fn attention_step(rec: &mut Recorder, qkv: View<'_>, heads: &Heads, gate: bool, cache: Cache<'_>, step: Step<'_>, o: View<'_>) {
    // Large heads take many registers.
    let together = (heads.heads / heads.kv_heads).next_power_of_two().min(if heads.head_dim > 128 { 2 } else { 4 });
    attention_with(rec, qkv, heads, gate, cache, step, o, together);
}

/// The same with so many query heads a workgroup.
#[allow(clippy::too_many_arguments)]
pub fn attention_with(
    rec: &mut Recorder,
    qkv: View<'_>,
    heads: &Heads,
    gate: bool,
    cache: Cache<'_>,
    step: Step<'_>,
    o: View<'_>,
    together: u32,
) {
    let (d, group) = (heads.head_dim, heads.heads / heads.kv_heads);
    let chunks = group.div_ceil(together);
    let pieces = step.position / PIECE + 1;
    let kernel = rec.gpu().remembered(("attention_step.wgsl", u64::from(d << 8 | together)), |gpu| variant(d, together).kernel(gpu));
    let scale = (1.0 / f64::from(d).sqrt()) as f32;
    let q_stride = heads.q_stride / 4;
    let params = Params { heads: heads.heads, kv_heads: heads.kv_heads, q_stride, position: step.position, chunks, scale };
    let cost = 4 * u64::from(step.position + 1) * u64::from(heads.heads) * u64::from(d);
    rec.dispatch(&kernel, &[qkv, cache.keys, cache.values, step.pages, step.scratch], &params, [pieces, heads.kv_heads * chunks, 1], cost);
    let kernel =
        rec.gpu().remembered(("attention_join.wgsl", u64::from(d << 8 | u32::from(gate))), |gpu| join_variant(d, gate).kernel(gpu));
    let params = JoinParams { heads: heads.heads, pieces, q_stride };
    let views = [step.scratch, qkv, o];
    let views: &[View<'_>] = if gate { &views } else { &[step.scratch, o] };
    rec.dispatch(&kernel, views, &params, [heads.heads, 1, 1], 4 * u64::from(pieces) * u64::from(heads.heads) * u64::from(d));
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Random, attended, download, error, recorder, upload};
    use super::*;
    use crate::kernels::attention::PAGE;

    /// All head sizes and group forms; queries at the borders of pages and pieces, and more pieces than slices.
    #[test]
    fn against_f64() {
        let mut rec = recorder();
        let gpu = rec.gpu().clone();
        let mut random = Random::new(12);
        for (d, heads, kv_heads, gate) in
            [(32, 2, 2, false), (64, 14, 2, false), (96, 3, 1, false), (128, 4, 2, false), (192, 2, 1, false), (256, 4, 1, true)]
        {
            let h = Heads { heads, kv_heads, head_dim: d, rotated: d, q_stride: if gate { 2 * d } else { d } };
            let (du, width) = (d as usize, (kv_heads * d) as usize);
            let pages: Vec<u32> = (0..36).map(|i| (i * 7 + 3) % 36).collect();
            let slots = pages.len() * PAGE as usize;
            let (keys, values) = (random.values(slots * width), random.values(slots * width));
            let q = random.values(h.columns() as usize);
            let (kb, vb, qb, pb) = (upload(&gpu, &keys), upload(&gpu, &values), upload(&gpu, &q), upload(&gpu, &pages));
            for position in [0u32, 31, 32, 63, 64, 100, 1130] {
                let scratch = upload(&gpu, &vec![f32::NAN; scratch_bytes(&h, position + 1) as usize / 4]);
                let o = upload(&gpu, &vec![0f32; (heads * d) as usize]);
                let step = Step { pages: pb.all(), position, scratch: scratch.all() };
                attention_step(&mut rec, qb.all(), &h, gate, Cache { keys: kb.all(), values: vb.all() }, step, o.all());
                let found: Vec<f32> = download(&mut rec, &o, (heads * d) as usize);
                for head in 0..heads as usize {
                    let query = &q[head * h.q_stride as usize..];
                    let kv = head / (heads / kv_heads) as usize;
                    let slot = |i: u32| (pages[(i / PAGE) as usize] * PAGE + i % PAGE) as usize * width + kv * du;
                    let wanted = attended(query, du, gate, position, &keys, &values, slot);
                    let e = error(&found[head * du..][..du], &wanted, 0.1);
                    assert!(e < 1e-5, "d {d}, position {position}, head {head}: {e}");
                }
            }
        }
    }
}
