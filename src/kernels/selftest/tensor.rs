//! The tensor tier: products in cooperative matrices against f64, attention against the exact kernel.

use super::lab::Lab;
use super::products::{ROWS, blocks, broken, upload};
use crate::gguf::TensorType;
use crate::gpu::GpuError;
use crate::kernels::attention::{PAGE, Tile as Rows, Tiles, attention};
use crate::kernels::attention_tensor::{self, attention_tensor};
use crate::kernels::matmul::Epilogue;
use crate::kernels::matmul_tensor::{CHECKED, Plan, Store, Tile, cut, padded, product, reduce_variant, scratch_bytes, variant};
use crate::kernels::rope::{Cache, Heads};
use crate::kernels::{Mat, half};
use crate::quant::dequantize;
use std::ops::Range;

/// Columns: cut into two parts, the second one shorter.
const COLS: usize = 1280;
/// Rows of x, beyond any tile.
const MOST: usize = 170;

/// An f16 that is off by half a unit, three times in a product: x, the weight's scale, the weight.
fn allowed(parts: f64) -> f64 {
    1.5 / 1024.0 * parts + 1e-9
}

/// Products with weights of `ty` in these tiles, in both ways of taking a cut K.
pub async fn products(lab: &mut Lab, ty: TensorType, tiles: &[Tile]) -> Result<(), GpuError> {
    // A second time with nothing but subnormal scales: what flushes them computes zeros.
    let mut all = vec![blocks(lab, ty, ROWS, COLS)];
    if ty == TensorType::Q8_0 {
        let mut tiny = all[0].clone();
        tiny.as_chunks_mut::<34>().0.iter_mut().for_each(|block| block[..2].copy_from_slice(&0x0155u16.to_le_bytes()));
        all.push(tiny);
    }
    for bytes in all {
        let mut w = vec![0.0f32; ROWS * COLS];
        dequantize(ty, &bytes, &mut w).map_err(broken)?;
        let matrix = upload(lab, ty, ROWS, COLS, &bytes).await?;
        let x = lab.numbers(MOST * COLS, 1.0);
        let mut bits = half::reference(&x);
        let padded = padded(MOST as u32) as usize;
        bits.resize(padded * COLS, 0);
        let (bx, scratch) = (lab.buffer(&bits).await?, lab.zeros(scratch_bytes(MOST as u32) as usize / 4).await?);
        debug_assert_eq!(cut(COLS as u32, ROWS as u32).1, 2);
        for &tile in tiles {
            for side_by_side in [false, true] {
                let by = lab.zeros(padded * 128).await?;
                let plan = Plan { tile, side_by_side };
                let y = Mat::new(&by, 128);
                product(&mut lab.rec, &matrix, &matrix.parts[0], plan, bx.all(), y, MOST as u32, Epilogue::default(), scratch.all());
                let y: Vec<f32> = lab.words(&by, MOST * 128).await?;
                for m in [0, 31, 79, 100, 159, 169] {
                    let wanted: Vec<_> = (0..ROWS)
                        .map(|n| {
                            let pairs = x[m * COLS..][..COLS].iter().zip(&w[n * COLS..][..COLS]);
                            let (sum, parts) = pairs.fold((0.0, 0.0), |(sum, parts), (x, w)| {
                                let term = f64::from(*x) * f64::from(*w);
                                (sum + term, parts + term.abs())
                            });
                            (sum, allowed(parts))
                        })
                        .collect();
                    // Of 75 columns some are left over by whole tiles, or all.
                    let (got, whole) = (&y[m * 128..][..ROWS], ROWS / tile.cols as usize * tile.cols as usize);
                    let mut compare = |label: String, range: Range<usize>| {
                        if !range.is_empty() {
                            lab.compare(&label, got[range.clone()].iter().copied(), &wanted[range]);
                        }
                    };
                    if side_by_side {
                        compare(variant(ty, tile, Store::Tiles).label, 0..ROWS);
                        compare(reduce_variant().label, 0..ROWS);
                    } else {
                        compare(variant(ty, tile, Store::Sums).label, 0..whole);
                        compare(variant(ty, CHECKED[0], Store::Checked).label, whole..ROWS);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Attention of a head size against the exact kernel, whose own check comes first.
pub async fn heads(lab: &mut Lab, head_dim: u32) -> Result<(), GpuError> {
    for gate in [false, true] {
        let heads = Heads { heads: 4, kv_heads: 2, head_dim, rotated: head_dim, q_stride: head_dim * if gate { 2 } else { 1 } };
        let (ld, width) = (heads.columns(), 4 * head_dim);
        // A sequence of 100 positions in pages out of order, and its last 40 rows.
        let (pages, rows, first) = ([2u32, 0, 3, 1], 40u32, 60u32);
        let q = lab.numbers((rows * ld) as usize, 3.0);
        let kv = (4 * PAGE * 2 * head_dim) as usize;
        let (keys, values) = (lab.numbers(kv, 2.0), lab.numbers(kv, 1.0));
        let tiles = |most: u32| -> Vec<Rows> {
            (0..rows)
                .step_by(most as usize)
                .map(|r| Rows { q_row: r, o_row: r, positions: most.min(rows - r), position: first + r, page_at: 0 })
                .collect()
        };
        let (small, large) = (tiles(8), tiles(attention_tensor::ROWS / 2));
        let (bq, bk, bv, bp) = (lab.buffer(&q).await?, lab.buffer(&keys).await?, lab.buffer(&values).await?, lab.buffer(&pages).await?);
        let (bs, bl) = (lab.buffer(&small).await?, lab.buffer(&large).await?);
        let (exact, tensor) = (lab.zeros((rows * width) as usize).await?, lab.zeros((rows * width / 2) as usize).await?);
        let cache = Cache { keys: bk.all(), values: bv.all() };
        let input = Tiles { tiles: bs.all(), tile_at: 0, count: small.len() as u32, rows: 32, pages: bp.all(), work: 1 };
        attention(&mut lab.rec, Mat::new(&bq, ld), &heads, gate, cache, input, Mat::new(&exact, width));
        let input =
            Tiles { tiles: bl.all(), tile_at: 0, count: large.len() as u32, rows: attention_tensor::ROWS, pages: bp.all(), work: 1 };
        attention_tensor(&mut lab.rec, Mat::new(&bq, ld), &heads, gate, cache, input, tensor.all());
        let wanted: Vec<f32> = lab.words(&exact, (rows * width) as usize).await?;
        let wanted: Vec<_> = wanted.into_iter().map(|v| (f64::from(v), 0.01 + f64::from(v.abs()) / 50.0)).collect();
        let got = half::values(&lab.words::<u16>(&tensor, (rows * width / 2) as usize).await?);
        lab.compare(&attention_tensor::variant(head_dim, gate).label, got, &wanted);
    }
    Ok(())
}
