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

#[cfg(test)]
mod tests {
    use super::super::testing::{Random, download, error, recorder, upload};
    use super::*;

    /// Both pairings, partial rotation, head norms, a gate beside each query head: q in place, k and v in their slots.
    #[test]
    fn against_f64() {
        let mut rec = recorder();
        let gpu = rec.gpu().clone();
        let mut random = Random::new(7);
        for (pairs, norm, rotated, gated) in [
            (Pairs::Halves, true, 96, false),
            (Pairs::Adjacent, false, 96, false),
            (Pairs::Halves, true, 32, true),
            (Pairs::Adjacent, true, 32, false),
        ] {
            let d = 96u32;
            let h = Heads { heads: 4, kv_heads: 2, head_dim: d, rotated, q_stride: if gated { 2 * d } else { d } };
            let (ld, rows, eps) = (h.columns() as usize, 3usize, 1e-6f32);
            let at = [Row { position: 5, slot: 9 }, Row { position: 40, slot: 0 }, Row { position: 41, slot: 17 }];
            let qkv = random.values(rows * ld);
            let (qw, kw) = (random.values(d as usize), random.values(d as usize));
            let half = rotated as usize / 2;
            let angle = |p: u32, i: usize| f64::from(p) * 10000f64.powf(-2.0 * i as f64 / f64::from(rotated));
            let turns: Vec<[f32; 2]> =
                (0..64).flat_map(|p| (0..half).map(move |i| [angle(p, i).cos() as f32, angle(p, i).sin() as f32])).collect();
            let b = upload(&gpu, &qkv);
            let row_buffer = upload(&gpu, &[at[2], at[0], at[1], at[2]]);
            let turn_buffer = upload(&gpu, &turns);
            let (keys, values) = (upload(&gpu, &[0f32; 32 * 192]), upload(&gpu, &[0f32; 32 * 192]));
            let (qn, kn) = (upload(&gpu, &qw), upload(&gpu, &kw));
            let norms = norm.then(|| (qn.all(), kn.all()));
            let positions = Positions { rows: row_buffer.all(), row_at: 1, turns: turn_buffer.all() };
            rope(
                &mut rec,
                Mat::new(&b, ld as u32),
                &h,
                pairs,
                norms,
                eps,
                positions,
                Cache { keys: keys.all(), values: values.all() },
                rows as u32,
            );
            let found: Vec<f32> = download(&mut rec, &b, rows * ld);
            let (keys, values): (Vec<f32>, Vec<f32>) = (download(&mut rec, &keys, 32 * 192), download(&mut rec, &values, 32 * 192));
            let turned = |head: &[f32], w: &[f32], p: u32| -> Vec<f64> {
                let mean = head.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / f64::from(d);
                let s = if norm { 1.0 / (mean + f64::from(eps)).sqrt() } else { 1.0 };
                let v: Vec<f64> = head.iter().zip(w).map(|(v, w)| f64::from(*v) * s * if norm { f64::from(*w) } else { 1.0 }).collect();
                let mut out = v.clone();
                for i in 0..half {
                    let (a, b) = if pairs == Pairs::Halves { (i, i + half) } else { (2 * i, 2 * i + 1) };
                    let (c, s) = (angle(p, i).cos(), angle(p, i).sin());
                    (out[a], out[b]) = (v[a] * c - v[b] * s, v[a] * s + v[b] * c);
                }
                out
            };
            for (r, row) in at.iter().enumerate() {
                let line = &qkv[r * ld..][..ld];
                for head in 0..4 {
                    let from = head * h.q_stride as usize;
                    let wanted = turned(&line[from..][..96], &qw, row.position);
                    assert!(error(&found[r * ld + from..][..96], &wanted, 0.1) < 4e-6, "{pairs:?} q");
                    if gated {
                        assert_eq!(found[r * ld + from + 96..][..96], line[from + 96..][..96], "the gate is left alone");
                    }
                }
                for kv in 0..2 {
                    let slot = row.slot as usize * 192 + kv * 96;
                    let wanted = turned(&line[h.k_at() as usize + kv * 96..][..96], &kw, row.position);
                    assert!(error(&keys[slot..][..96], &wanted, 0.1) < 4e-6, "{pairs:?} k");
                    assert_eq!(values[slot..][..96], line[h.v_at() as usize + kv * 96..][..96], "v is copied");
                }
            }
        }
    }
}
