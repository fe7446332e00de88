//! Head norm, RoPE and the writes to the key and value caches, in one dispatch a layer.

use super::{Mat, Variant};
use crate::gpu::template::Defs;
use crate::gpu::{Access, Recorder, View};
use bytemuck::{Pod, Zeroable};

/// Which dimensions of a head turn together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairs {
    /// i and i + rotated/2 (NEOX: qwen2, qwen3, qwen35).
    Halves,
    /// 2i and 2i + 1 (NORM: llama).
    Adjacent,
}

/// A row of a batch: where its token stands and where its keys and values go.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable, PartialEq, Eq)]
pub struct Row {
    /// Absolute position in its sequence.
    pub position: u32,
    /// Row of the key and value caches.
    pub slot: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    rotated: u32,
    ld: u32,
    q_stride: u32,
    k_at: u32,
    v_at: u32,
    row_at: u32,
    eps: f32,
}

/// Shape of the joined q | k | v rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Heads {
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Values in a head.
    pub head_dim: u32,
    /// Leading dimensions of a head that RoPE turns.
    pub rotated: u32,
    /// Distance of two query heads in a row, in f32 (twice `head_dim` where a gate stands beside each query head).
    pub q_stride: u32,
}

impl Heads {
    /// First column of k.
    pub fn k_at(&self) -> u32 {
        self.heads * self.q_stride
    }

    /// First column of v.
    pub fn v_at(&self) -> u32 {
        self.k_at() + self.kv_heads * self.head_dim
    }

    /// Columns of a joined row.
    pub fn columns(&self) -> u32 {
        self.v_at() + self.kv_heads * self.head_dim
    }
}

/// Key and value caches of a layer.
#[derive(Debug, Clone, Copy)]
pub struct Cache<'a> {
    /// `[slots, kv_heads * head_dim]` f32.
    pub keys: View<'a>,
    /// `[slots, kv_heads * head_dim]` f32.
    pub values: View<'a>,
}

/// The kernel.
pub fn variant(pairs: Pairs, qk_norm: bool) -> Variant {
    let name = match pairs {
        Pairs::Halves => "halves",
        Pairs::Adjacent => "adjacent",
    };
    let mut access = vec![Access::Write, Access::Read, Access::Read, Access::Write, Access::Write];
    if qk_norm {
        access.extend([Access::Read; 2]);
    }
    Variant {
        label: format!("rope_{name}{}", if qk_norm { "_norm" } else { "" }),
        file: "rope.wgsl",
        defs: Defs::new().with("PAIRS", name).with("QK_NORM", u8::from(qk_norm)),
        access,
    }
}

/// Where a batch's rows and the cosine table stand.
#[derive(Debug, Clone, Copy)]
pub struct Positions<'a> {
    /// [`Row`]s.
    pub rows: View<'a>,
    /// First of them for this batch.
    pub row_at: u32,
    /// `[positions, rotated / 2]` pairs (cosine, sine).
    pub turns: View<'a>,
}

/// Normalises (with `norms` = weights for q and k) and turns q in place, and writes k and v to their slots.
#[allow(clippy::too_many_arguments)]
pub fn rope(
    rec: &mut Recorder,
    qkv: Mat<'_>,
    heads: &Heads,
    pairs: Pairs,
    norms: Option<(View<'_>, View<'_>)>,
    eps: f32,
    positions: Positions<'_>,
    cache: Cache<'_>,
    rows: u32,
) {
    let kernel = variant(pairs, norms.is_some()).kernel(rec.gpu());
    let params = Params {
        heads: heads.heads,
        kv_heads: heads.kv_heads,
        head_dim: heads.head_dim,
        rotated: heads.rotated,
        ld: qkv.ld,
        q_stride: heads.q_stride,
        k_at: heads.k_at(),
        v_at: heads.v_at(),
        row_at: positions.row_at,
        eps,
    };
    let mut views = vec![qkv.view, positions.rows, positions.turns, cache.keys, cache.values];
    if let Some((q, k)) = norms {
        views.extend([q, k]);
    }
    let cost = u64::from(rows) * u64::from(heads.columns()) * 10;
    rec.dispatch(&kernel, &views, &params, [rows, heads.heads + 2 * heads.kv_heads, 1], cost);
}
