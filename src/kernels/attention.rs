//! Causal grouped-query attention over a paged cache, in tiles that lie at absolute positions.

use super::rope::{Cache, Heads};
use super::{Mat, Variant};
use crate::gpu::template::Defs;
use crate::gpu::{Access, Recorder, View};
use bytemuck::{Pod, Zeroable};

/// Tokens of a page of the key and value caches, and keys of an attention tile.
pub const PAGE: u32 = 32;

/// Rows (positions x query heads of a group) a workgroup may take, each a kernel variant; outputs do not depend on the choice.
pub const ROWS: [u32; 2] = [32, 64];

/// Head sizes there are kernels for.
pub const HEAD_DIMS: [u32; 6] = [32, 64, 96, 128, 192, 256];

/// Some consecutive positions of one sequence whose attention is computed together.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable, PartialEq, Eq)]
pub struct Tile {
    /// First row of q.
    pub q_row: u32,
    /// First row of o.
    pub o_row: u32,
    /// Positions (at most a workgroup's rows / (heads / kv_heads)).
    pub positions: u32,
    /// Absolute position of the first one.
    pub position: u32,
    /// Where the sequence's pages start in the page table.
    pub page_at: u32,
}

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

/// Rows a workgroup should take: the few while the many would leave a large GPU with too few workgroups (an H200 gains from the many at
/// 512 tokens and loses at 150).
pub fn rows_for(positions: u32, heads: &Heads) -> u32 {
    if positions * heads.heads / ROWS[1] >= 96 { ROWS[1] } else { ROWS[0] }
}

/// The kernel for a head size and `rows` of [`ROWS`], with or without the output gate that qwen35 keeps beside each query head.
pub fn variant(head_dim: u32, rows: u32, gate: bool) -> Variant {
    use Access::{Read, Write};
    // Large heads take twice the threads, so that a thread's outputs stay in registers.
    let tx = if head_dim > 128 { 16 } else { 8 };
    let threads = 16 * tx;
    // A stage of values has at most 4 KiB.
    let vk = match head_dim {
        0..=32 => 32,
        33..=64 => 16,
        65..=128 => 8,
        _ => 4,
    };
    let stage = (4 * (rows + 1) + 4 * 33).max(vk * head_dim / 4).max(rows * tx / 4);
    Variant {
        label: format!("attention_{head_dim}_{rows}{}", if gate { "_gate" } else { "" }),
        file: "attention.wgsl",
        defs: Defs::new()
            .with("D", head_dim)
            .with("GATE", u8::from(gate))
            .with("RPT", rows / 16)
            .with("TX", tx)
            .with("VK", vk)
            .with("QL", (4 * rows).div_ceil(threads))
            .with("VL", (vk * head_dim / 4).div_ceil(threads))
            .with("STAGE", stage),
        access: vec![Read, Read, Read, Read, Read, Write],
    }
}

/// Where the tiles and the page table stand.
#[derive(Debug, Clone, Copy)]
pub struct Tiles<'a> {
    /// [`Tile`]s.
    pub tiles: View<'a>,
    /// First one for this dispatch.
    pub tile_at: u32,
    /// How many.
    pub count: u32,
    /// Rows a workgroup takes, of [`ROWS`]; positions x query heads of a group of a tile are at most so many.
    pub rows: u32,
    /// Page table: cache page of each tile of keys, sequence after sequence.
    pub pages: View<'a>,
    /// Sum over tiles of positions x keys, for the cost estimate.
    pub work: u64,
}

/// `o = softmax(q k^T / sqrt(head_dim)) v` for each tile, with q in the joined rows of `qkv`.
pub fn attention(rec: &mut Recorder, qkv: Mat<'_>, heads: &Heads, gate: bool, cache: Cache<'_>, tiles: Tiles<'_>, o: Mat<'_>) {
    let key = u64::from(heads.head_dim << 8 | tiles.rows << 1 | u32::from(gate));
    let kernel = rec.gpu().remembered(("attention.wgsl", key), |gpu| variant(heads.head_dim, tiles.rows, gate).kernel(gpu));
    let params = Params {
        heads: heads.heads,
        kv_heads: heads.kv_heads,
        ld: qkv.ld / 4,
        q_stride: heads.q_stride / 4,
        ldo: o.ld / 4,
        tile_at: tiles.tile_at,
        scale: (std::f64::consts::LOG2_E / f64::from(heads.head_dim).sqrt()) as f32,
    };
    let views = [qkv.view, cache.keys, cache.values, tiles.tiles, tiles.pages, o.view];
    let cost = 4 * tiles.work * u64::from(heads.heads) * u64::from(heads.head_dim);
    rec.dispatch(&kernel, &views, &params, [tiles.count, heads.kv_heads, 1], cost);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Random, attended, download, error, recorder, upload};
    use super::*;

    /// All head sizes, grouped queries (7 to a head too), two sequences with scattered pages, first positions and borders of tiles.
    #[test]
    fn against_f64() {
        let mut rec = recorder();
        let gpu = rec.gpu().clone();
        let mut random = Random::new(8);
        for (d, heads, kv_heads, gate) in
            [(32, 2, 2, false), (64, 14, 2, false), (96, 4, 4, false), (128, 4, 2, false), (192, 2, 1, false), (256, 4, 1, true)]
        {
            let h = Heads { heads, kv_heads, head_dim: d, rotated: d, q_stride: if gate { 2 * d } else { d } };
            let (du, kvw) = (d as usize, (kv_heads * d) as usize);
            let ld = h.k_at() as usize;
            // Sequence 0: positions 0..70, pages 3, 1, 4. Sequence 1: positions 0..33, pages 0, 2.
            let pages = [3u32, 1, 4, 0, 2];
            let slots = 5 * PAGE as usize;
            let (keys, values) = (random.values(slots * kvw), random.values(slots * kvw));
            let rows: [(u32, u32); 6] = [(0, 0), (0, 31), (0, 32), (0, 69), (1, 1), (1, 32)];
            let q = random.values(rows.len() * ld);
            let (kb, vb, qb, pb) = (upload(&gpu, &keys), upload(&gpu, &values), upload(&gpu, &q), upload(&gpu, &pages));
            let width = (heads * d) as usize;
            let mut run = |tile_rows: u32, per: u32| -> Vec<f32> {
                let mut tiles: Vec<Tile> = Vec::new();
                for (i, &(s, position)) in (0u32..).zip(&rows) {
                    // Rows 1 and 2 follow each other: one tile.
                    if i == 2 && per > 1 {
                        continue;
                    }
                    let positions = if i == 1 { per } else { 1 };
                    tiles.push(Tile { q_row: i, o_row: i, positions, position, page_at: s * 3 });
                }
                let tb = upload(&gpu, &tiles);
                let o = upload(&gpu, &vec![0f32; rows.len() * width]);
                let input = Tiles { tiles: tb.all(), tile_at: 0, count: tiles.len() as u32, rows: tile_rows, pages: pb.all(), work: 1 };
                let cache = Cache { keys: kb.all(), values: vb.all() };
                attention(&mut rec, Mat::new(&qb, ld as u32), &h, gate, cache, input, Mat::new(&o, width as u32));
                download(&mut rec, &o, rows.len() * width)
            };
            let found = run(32, 2);
            let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            for (tile_rows, per) in [(32, 1), (64, 2), (64, 1)] {
                assert!(bits(&run(tile_rows, per)) == bits(&found), "d {d}, {tile_rows} rows, {per} positions: other bits");
            }
            for (r, &(s, position)) in rows.iter().enumerate() {
                for head in 0..heads as usize {
                    let at = r * ld + head * h.q_stride as usize;
                    let kv = head / (heads / kv_heads) as usize;
                    let slot = |i: u32| (pages[(s * 3 + i / PAGE) as usize] * PAGE + i % PAGE) as usize * kvw + kv * du;
                    let wanted = attended(&q[at..], du, gate, position, &keys, &values, slot);
                    let e = error(&found[r * width + head * du..][..du], &wanted, 0.1);
                    assert!(e < 1e-5, "d {d}, sequence {s}, position {position}, head {head}: {e}");
                }
            }
        }
    }
}
