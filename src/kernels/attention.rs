//! Causal grouped-query attention over a paged cache, in tiles that lie at absolute positions.

use super::rope::{Cache, Heads};
use super::{Mat, Variant};
use crate::gpu::template::Defs;
use crate::gpu::{Access, Recorder, View};
use bytemuck::{Pod, Zeroable};

/// Tokens of a page of the key and value caches, and keys of an attention tile.
pub const PAGE: u32 = 32;

/// Rows (positions x query heads of a group) a workgroup takes.
pub const ROWS: u32 = 32;

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
    /// Positions (at most `ROWS / (heads / kv_heads)`).
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

/// The kernel for a head size, with or without the output gate that qwen35 keeps beside each query head.
pub fn variant(head_dim: u32, gate: bool) -> Variant {
    use Access::{Read, Write};
    Variant {
        label: format!("attention_{head_dim}{}", if gate { "_gate" } else { "" }),
        file: "attention.wgsl",
        defs: Defs::new().with("D", head_dim).with("GATE", u8::from(gate)),
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
    /// Page table: cache page of each tile of keys, sequence after sequence.
    pub pages: View<'a>,
    /// Sum over tiles of positions x keys, for the cost estimate.
    pub work: u64,
}

/// `o = softmax(q k^T / sqrt(head_dim)) v` for each tile, with q in the joined rows of `qkv`.
pub fn attention(rec: &mut Recorder, qkv: Mat<'_>, heads: &Heads, gate: bool, cache: Cache<'_>, tiles: Tiles<'_>, o: Mat<'_>) {
    let kernel = variant(heads.head_dim, gate).kernel(rec.gpu());
    let params = Params {
        heads: heads.heads,
        kv_heads: heads.kv_heads,
        ld: qkv.ld / 4,
        q_stride: heads.q_stride / 4,
        ldo: o.ld / 4,
        tile_at: tiles.tile_at,
        scale: (1.0 / f64::from(heads.head_dim).sqrt()) as f32,
    };
    let views = [qkv.view, cache.keys, cache.values, tiles.tiles, tiles.pages, o.view];
    let cost = 4 * tiles.work * u64::from(heads.heads) * u64::from(heads.head_dim);
    rec.dispatch(&kernel, &views, &params, [tiles.count, heads.kv_heads, 1], cost);
}
