//! Causal attention over a paged cache, for one head size, with and without the output gate: chunks and generation steps.

use super::lab::{Lab, allowed};
use crate::gpu::GpuError;
use crate::kernels::Mat;
use crate::kernels::attention::{PAGE, ROWS, Tile, Tiles, attention, variant};
use crate::kernels::attention_step::{self, PIECE, Step, TOGETHER, join_variant, scratch_bytes};
use crate::kernels::rope::{Cache, Heads};

pub async fn check(lab: &mut Lab, head_dim: u32) -> Result<(), GpuError> {
    for rows in ROWS {
        for gate in [false, true] {
            run(lab, head_dim, rows, gate).await?;
        }
    }
    Ok(())
}

async fn run(lab: &mut Lab, head_dim: u32, tile_rows: u32, gate: bool) -> Result<(), GpuError> {
    let d = head_dim as usize;
    let heads = Heads { heads: 4, kv_heads: 2, head_dim, rotated: head_dim, q_stride: head_dim * if gate { 2 } else { 1 } };
    let stride = heads.q_stride as usize;
    let columns = heads.columns() as usize;
    // Positions 30 to 34 of a sequence whose second page lies before its first: a tile across a page, and a short one.
    let (first, rows, pages) = (30usize, 5usize, [0u32, 2, 1]);
    let q = lab.numbers(rows * columns, 1.0);
    let width = 2 * d;
    let (keys, values) = (lab.numbers(3 * PAGE as usize * width, 1.0), lab.numbers(3 * PAGE as usize * width, 1.0));
    let tiles = [
        Tile { q_row: 0, o_row: 0, positions: 0, position: 0, page_at: 0 },
        Tile { q_row: 0, o_row: 0, positions: 4, position: first as u32, page_at: 1 },
        Tile { q_row: 4, o_row: 4, positions: 1, position: first as u32 + 4, page_at: 1 },
    ];
    let (bq, bk, bv) = (lab.buffer(&q).await?, lab.buffer(&keys).await?, lab.buffer(&values).await?);
    let (btiles, bpages, bo) = (lab.buffer(&tiles).await?, lab.buffer(&pages).await?, lab.zeros(rows * 4 * d).await?);
    let tiles = Tiles { tiles: btiles.all(), tile_at: 1, count: 2, rows: tile_rows, pages: bpages.all(), work: 200 };
    let cache = Cache { keys: bk.all(), values: bv.all() };
    attention(&mut lab.rec, Mat::new(&bq, columns as u32), &heads, gate, cache, tiles, Mat::new(&bo, 4 * head_dim));
    let got: Vec<f32> = lab.words(&bo, rows * 4 * d).await?;
    let label = variant(head_dim, tile_rows, gate).label;
    let slot = |position: usize| pages[1 + position / PAGE as usize] as usize * PAGE as usize + position % PAGE as usize;
    for row in 0..rows {
        for head in 0..4 {
            let query = &q[row * columns + head * stride..][..d];
            let at = |position: usize| slot(position) * width + head / 2 * d;
            let scores: Vec<f64> = (0..=first + row)
                .map(|p| query.iter().zip(&keys[at(p)..]).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() / (d as f64).sqrt())
                .collect();
            let most = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let wanted: Vec<_> = (0..d)
                .map(|i| {
                    let terms = weights.iter().enumerate().map(|(p, w)| w / sum * f64::from(values[at(p) + i]));
                    let (value, parts) = terms.fold((0.0, 0.0), |(v, parts), t| (v + t, parts + t.abs()));
                    let open = match gate {
                        true => 1.0 / (1.0 + (-f64::from(q[row * columns + head * stride + d + i])).exp()),
                        false => 1.0,
                    };
                    // The scores' own rounding moves every weight a little.
                    (value * open, 2.0 * allowed(parts))
                })
                .collect();
            lab.compare(&label, got[row * 4 * d + head * d..][..d].iter().copied(), &wanted);
        }
    }
    Ok(())
}

/// A generation step, for each number of query heads that a workgroup may take: two pieces, the second one short.
pub async fn check_step(lab: &mut Lab, head_dim: u32) -> Result<(), GpuError> {
    for together in TOGETHER {
        for gate in [false, true] {
            step(lab, head_dim, together, gate).await?;
        }
    }
    Ok(())
}

async fn step(lab: &mut Lab, head_dim: u32, together: u32, gate: bool) -> Result<(), GpuError> {
    let d = head_dim as usize;
    let q_stride = head_dim * if gate { 2 } else { 1 };
    let heads = Heads { heads: together, kv_heads: 1, head_dim, rotated: head_dim, q_stride };
    let (position, pages) = (PIECE + 5, [2u32, 0, 1]);
    let q = lab.numbers(heads.columns() as usize, 1.0);
    let (keys, values) = (lab.numbers(3 * PAGE as usize * d, 1.0), lab.numbers(3 * PAGE as usize * d, 1.0));
    let (bq, bk, bv) = (lab.buffer(&q).await?, lab.buffer(&keys).await?, lab.buffer(&values).await?);
    let (bpages, scratch) = (lab.buffer(&pages).await?, lab.zeros(scratch_bytes(&heads, position + 1) as usize / 4).await?);
    let width = (together * head_dim) as usize;
    let bo = lab.zeros(width).await?;
    let input = Step { pages: bpages.all(), position, scratch: scratch.all() };
    attention_step::attention_with(
        &mut lab.rec,
        bq.all(),
        &heads,
        gate,
        Cache { keys: bk.all(), values: bv.all() },
        input,
        bo.all(),
        together,
    );
    let got: Vec<f32> = lab.words(&bo, width).await?;
    let at = |i: u32| (pages[(i / PAGE) as usize] * PAGE + i % PAGE) as usize * d;
    for head in 0..together as usize {
        let query = &q[head * q_stride as usize..];
        let dot = |p: u32| query[..d].iter().zip(&keys[at(p)..]).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let scores: Vec<f64> = (0..=position).map(|p| dot(p) / (d as f64).sqrt()).collect();
        let most = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let wanted: Vec<_> = (0..d)
            .map(|i| {
                let terms = (0..=position).zip(&weights).map(|(p, w)| w / sum * f64::from(values[at(p) + i]));
                let (value, parts) = terms.fold((0.0, 0.0), |(v, parts), t| (v + t, parts + t.abs()));
                let open = if gate { 1.0 / (1.0 + (-f64::from(query[d + i])).exp()) } else { 1.0 };
                (value * open, 2.0 * allowed(parts))
            })
            .collect();
        for label in [attention_step::variant(head_dim, together).label, join_variant(head_dim, gate).label] {
            lab.compare(&label, got[head * d..][..d].iter().copied(), &wanted);
        }
    }
    Ok(())
}
