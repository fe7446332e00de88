//! Causal grouped-query attention in f16 cooperative matrices, over the same paged cache and tiles as [`super::attention`].

use super::attention::Tiles;
use super::rope::{Cache, Heads};
use super::{Mat, Variant};
use crate::gpu::template::Defs;
use crate::gpu::{Access, GpuInfo, Recorder, View};
use bytemuck::{Pod, Zeroable};

/// Rows (positions x query heads of a group) a workgroup takes: a tile has at most `ROWS / (heads / kv_heads)` positions.
pub const ROWS: u32 = 64;

/// Head sizes there are kernels for.
pub const HEAD_DIMS: [u32; 3] = [64, 128, 256];

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    heads: u32,
    kv_heads: u32,
    ld: u32,
    q_stride: u32,
    ldo: u32,
    tile_at: u32,
    scale: f32,
}

/// Keys of a tile, and the padded rows of keys and values, scores and weights in elements of four.
fn sizes(head_dim: u32) -> (u32, u32, u32, u32) {
    let keys = if head_dim <= 128 { 64 } else { 32 };
    // Odd numbers of 16 bytes against bank conflicts; the largest head leaves room for one only.
    (keys, head_dim / 4 + 2, keys / 4 + if head_dim <= 128 { 2 } else { 1 }, keys / 4 + 2)
}

/// Bytes of workgroup memory of a head size.
pub fn shared_bytes(head_dim: u32) -> u32 {
    let (_, lk, ls, lp) = sizes(head_dim);
    64 * (8 * lk + 16 * ls + 8 * lp) + 512 + 16
}

/// Is there a kernel for these heads on this device?
pub fn takes(gpu: &GpuInfo, heads: &Heads) -> bool {
    let group = heads.heads / heads.kv_heads;
    HEAD_DIMS.contains(&heads.head_dim) && group <= ROWS && shared_bytes(heads.head_dim) <= gpu.adapter.workgroup_memory
}

/// The kernel for a head size, with or without the output gate that qwen35 keeps beside each query head.
pub fn variant(head_dim: u32, gate: bool) -> Variant {
    use Access::{Read, Write};
    let (keys, lk, ls, lp) = sizes(head_dim);
    Variant {
        label: format!("attention_tensor_{head_dim}{}", if gate { "_gate" } else { "" }),
        file: "attention_tensor.wgsl",
        defs: Defs::new()
            .with("D", head_dim)
            .with("GATE", u8::from(gate))
            .with("BC", keys)
            .with("LK", lk)
            .with("LS", ls)
            .with("LP", lp)
            .with("NL", keys * head_dim / 512),
        access: vec![Read, Read, Read, Read, Read, Write],
    }
}

/// Every variant.
pub fn variants() -> Vec<Variant> {
    HEAD_DIMS.into_iter().flat_map(|d| [false, true].map(|gate| variant(d, gate))).collect()
}

/// `o = softmax(q k^T / sqrt(head_dim)) v` for each tile, with q in the joined rows of `qkv`; `o` becomes the activations
/// `[rows, heads * head_dim]` of the tensor tier (`half.wgsl`).
pub fn attention_tensor(rec: &mut Recorder, qkv: Mat<'_>, heads: &Heads, gate: bool, cache: Cache<'_>, tiles: Tiles<'_>, o: View<'_>) {
    let key = u64::from(heads.head_dim << 1 | u32::from(gate));
    let kernel = rec.gpu().remembered(("attention_tensor.wgsl", key), |gpu| variant(heads.head_dim, gate).kernel(gpu));
    let params = Params {
        heads: heads.heads,
        kv_heads: heads.kv_heads,
        ld: qkv.ld / 4,
        q_stride: heads.q_stride / 4,
        ldo: heads.heads * heads.head_dim / 4,
        tile_at: tiles.tile_at,
        scale: (std::f64::consts::LOG2_E / f64::from(heads.head_dim).sqrt()) as f32,
    };
    let views = [qkv.view, cache.keys, cache.values, tiles.tiles, tiles.pages, o];
    let cost = 4 * tiles.work * u64::from(heads.heads) * u64::from(heads.head_dim);
    rec.dispatch(&kernel, &views, &params, [tiles.count, heads.kv_heads, 1], cost);
}

#[cfg(test)]
mod tests {
    use super::super::attention::{PAGE, Tile};
    use super::super::half;
    use super::super::testing::{Random, attended, download, matrix_recorder, upload};
    use super::*;

    /// Head sizes, groups (7 to a head too), scattered pages, scores that grow along the sequence (so that references are raised), tiles of
    /// any number of positions: right against f64, and each row's bits the same alone and in company.
    #[test]
    fn against_f64_and_alone() {
        let Some(mut rec) = matrix_recorder() else { return };
        let gpu = rec.gpu().clone();
        let mut random = Random::new(9);
        for (d, heads, kv_heads, gate) in [(64, 14, 2, false), (128, 4, 2, false), (128, 3, 3, true), (256, 4, 1, true), (256, 2, 2, false)]
        {
            let h = Heads { heads, kv_heads, head_dim: d, rotated: d, q_stride: if gate { 2 * d } else { d } };
            let (du, kvw, per, width) = (d as usize, (kv_heads * d) as usize, heads / kv_heads, (heads * d) as usize);
            let ld = h.k_at() as usize;
            // One sequence of 150 positions, pages out of order; another of 40.
            let pages = [4u32, 1, 6, 0, 2, 5, 3];
            let lengths = [150u32, 40];
            let page_at = [0u32, 5];
            let mut keys = random.values(7 * PAGE as usize * kvw);
            let values = random.values(keys.len());
            let slot = |s: usize, i: u32| pages[(page_at[s] + i / PAGE) as usize] * PAGE + i % PAGE;
            for i in 0..150 {
                let at = slot(0, i) as usize * kvw;
                keys[at..][..kvw].iter_mut().for_each(|k| *k *= 1.0 + i as f32 / 12.0);
            }
            let rows: Vec<(usize, u32)> = (0..2).flat_map(|s| (0..lengths[s]).map(move |i| (s, i))).collect();
            let q: Vec<f32> = random.values(rows.len() * ld).iter().map(|v| v * 3.0).collect();
            let (kb, vb, qb, pb) = (upload(&gpu, &keys), upload(&gpu, &values), upload(&gpu, &q), upload(&gpu, &pages));
            let mut run = |tiles: &[Tile]| -> Vec<u16> {
                let (tb, o) = (upload(&gpu, tiles), upload(&gpu, &vec![0u16; rows.len() * width]));
                let input = Tiles { tiles: tb.all(), tile_at: 0, count: tiles.len() as u32, rows: ROWS, pages: pb.all(), work: 1 };
                let cache = Cache { keys: kb.all(), values: vb.all() };
                attention_tensor(&mut rec, Mat::new(&qb, ld as u32), &h, gate, cache, input, o.all());
                download(&mut rec, &o, rows.len() * width)
            };
            let cut = |most: u32| {
                let mut tiles = Vec::new();
                for s in 0..2 {
                    let mut i = 0;
                    while i < lengths[s] {
                        let positions = most.min(lengths[s] - i);
                        let row = i + if s == 1 { lengths[0] } else { 0 };
                        tiles.push(Tile { q_row: row, o_row: row, positions, position: i, page_at: page_at[s] });
                        i += positions;
                    }
                }
                tiles
            };
            let found = run(&cut(ROWS / per));
            for most in [1, 3, 5] {
                assert!(run(&cut(most.min(ROWS / per))) == found, "d {d}, {heads} heads: other bits in tiles of {most}");
            }
            let found: Vec<f64> = half::values(&found).into_iter().map(f64::from).collect();
            let (mut error, mut scale) = (0.0, 0.0);
            for (r, &(s, position)) in rows.iter().enumerate() {
                for head in 0..heads as usize {
                    let at = r * ld + head * h.q_stride as usize;
                    let kv = head / per as usize * du;
                    let place = |i: u32| slot(s, i) as usize * kvw + kv;
                    let wanted = attended(&q[at..], du, gate, position, &keys, &values, place);
                    for (c, wanted) in wanted.into_iter().enumerate() {
                        let off = found[r * width + head * du + c] - wanted;
                        error += if off.is_nan() { f64::INFINITY } else { off * off };
                        scale += wanted * wanted;
                    }
                }
            }
            let relative = (error / scale).sqrt();
            println!("d {d}, {heads} heads of {kv_heads}: relative error {relative:.1e}");
            assert!(relative < 2e-2, "d {d}: {relative}");
        }
    }
}
