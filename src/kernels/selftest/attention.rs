//! Causal attention over a paged cache, for one head size, with and without the output gate.

use super::lab::{Lab, allowed};
use crate::gpu::GpuError;
use crate::kernels::Mat;
use crate::kernels::attention::{PAGE, Tile, Tiles, attention, variant};
use crate::kernels::rope::{Cache, Heads};

pub async fn check(lab: &mut Lab, head_dim: u32) -> Result<(), GpuError> {
    for gate in [false, true] {
        run(lab, head_dim, gate).await?;
    }
    Ok(())
}

async fn run(lab: &mut Lab, head_dim: u32, gate: bool) -> Result<(), GpuError> {
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
    let tiles = Tiles { tiles: btiles.all(), tile_at: 1, count: 2, pages: bpages.all(), work: 200 };
    let cache = Cache { keys: bk.all(), values: bv.all() };
    attention(&mut lab.rec, Mat::new(&bq, columns as u32), &heads, gate, cache, tiles, Mat::new(&bo, 4 * head_dim));
    let got: Vec<f32> = lab.words(&bo, rows * 4 * d).await?;
    let label = variant(head_dim, gate).label;
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
