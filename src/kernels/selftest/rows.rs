//! Kernels that work on rows: RMSNorm, SwiGLU, gather, RoPE and the statistics over the vocabulary.

use super::lab::{Lab, allowed};
use crate::gpu::{Buffer, GpuError};
use crate::kernels::quantise::{Form, Quants, Target};
use crate::kernels::rope::{Cache, Heads, Pairs, Positions, Row};
use crate::kernels::split::Pieces;
use crate::kernels::{Mat, copy_pages, gather, half, head, quantise, rms_norm, rope, swiglu};

pub async fn check(lab: &mut Lab) -> Result<(), GpuError> {
    norm(lab).await?;
    gated(lab).await?;
    gathered(lab).await?;
    copied(lab).await?;
    statistics(lab).await?;
    for pairs in [Pairs::Halves, Pairs::Adjacent] {
        for with_norm in [false, true] {
            turned(lab, pairs, with_norm).await?;
        }
    }
    Ok(())
}

/// In every form, of x as it is and with two pieces of a product that are still to be added to it.
async fn norm(lab: &mut Lab) -> Result<(), GpuError> {
    let (rows, cols, eps) = (3, 576, 1e-5f32);
    let (x, w, pieces) = (lab.numbers(rows * cols, 3.0), lab.numbers(cols, 1.0), lab.numbers(2 * rows * cols, 1.0));
    let sum: Vec<f32> = (0..rows * cols).map(|i| x[i] + pieces[i] + pieces[rows * cols + i]).collect();
    let (bw, bp, by) = (lab.buffer(&w).await?, lab.buffer(&pieces).await?, lab.zeros(rows * cols).await?);
    let bh = lab.zeros(rows * cols / 2).await?;
    let ld = cols as u32;
    let q = Quants::new(&lab.gpu, rows as u32, ld).await?;
    for with_pieces in [false, true] {
        let left = with_pieces.then(|| Pieces { view: bp.all(), count: 2, ld, stride: rows as u32 * ld });
        let all = if with_pieces { &sum } else { &x };
        let wanted: Vec<_> = all
            .chunks(cols)
            .flat_map(|row| {
                let scale = rms(row, eps);
                row.iter().zip(&w).map(move |(x, w)| f64::from(*x) * scale * f64::from(*w))
            })
            .map(|v| (v, allowed(v.abs())))
            .collect();
        let floats = Mat::new(&by, ld);
        for target in [Target::floats(floats), Target::half(bh.all(), ld), Target::q8(&q, floats, false), Target::q8(&q, floats, true)] {
            // Pieces are added to x itself.
            let bx = lab.buffer(&x).await?;
            rms_norm::rms_norm_to(&mut lab.rec, Mat::new(&bx, ld), left, bw.all(), target, ld, rows as u32, eps);
            let label = rms_norm::variant(target.form(), with_pieces).label;
            match target.form() {
                Form::Floats => {
                    let got: Vec<f32> = lab.words(&by, rows * cols).await?;
                    lab.compare(&label, got, &wanted);
                    let added: Vec<f32> = lab.words(&bx, rows * cols).await?;
                    lab.compare(&label, added, &all.iter().map(|v| (f64::from(*v), allowed(f64::from(v.abs())))).collect::<Vec<_>>());
                }
                Form::Half => halves(lab, &label, &bh, &wanted).await?,
                Form::Q8 | Form::Both => eight(lab, &label, &q, &wanted, cols).await?,
            }
        }
    }
    Ok(())
}

/// 8-bit rows against what they stand for, each within half a step of its block.
pub async fn eight(lab: &mut Lab, label: &str, q: &Quants, wanted: &[(f64, f64)], cols: usize) -> Result<(), GpuError> {
    let values = q.integers(&lab.words::<u32>(&q.values, q.values.size as usize / 4).await?, cols);
    let scales: Vec<f32> = lab.words(&q.scales, q.rows as usize * cols / 16).await?;
    let at = |i: usize| i % cols / 32 * q.rows as usize + i / cols;
    let got: Vec<f32> = (0..wanted.len()).map(|i| f32::from(values[i]) * scales[2 * at(i)]).collect();
    let steps: Vec<_> = (0..wanted.len()).map(|i| (wanted[i].0, wanted[i].1 + 0.501 * f64::from(scales[2 * at(i)]) + 1e-9)).collect();
    lab.compare(label, got, &steps);
    // The sums, for weights with minima.
    let blocks = || (0..wanted.len()).step_by(32);
    let sums: Vec<_> =
        blocks().map(|i| (values[i..i + 32].iter().map(|v| f64::from(*v)).sum::<f64>() * f64::from(scales[2 * at(i)]), 1e-5)).collect();
    lab.compare(label, blocks().map(|i| scales[2 * at(i) + 1]).collect::<Vec<_>>(), &sums);
    Ok(())
}

/// f16 rows against what they stand for. A driver may make zeros of what is subnormal in f16.
pub async fn halves(lab: &mut Lab, label: &str, b: &Buffer, wanted: &[(f64, f64)]) -> Result<(), GpuError> {
    let got = half::values(&lab.words::<u16>(b, wanted.len() / 2).await?);
    let wanted: Vec<_> = wanted.iter().map(|(v, allowed)| (*v, allowed + v.abs() / 1024.0 + 1e-3)).collect();
    lab.compare(label, got, &wanted);
    Ok(())
}

/// 1 / sqrt(mean of squares + eps)
pub fn rms(row: &[f32], eps: f32) -> f64 {
    let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / row.len() as f64;
    1.0 / (mean + f64::from(eps)).sqrt()
}

/// z / (1 + e^-z)
pub fn silu(z: f64) -> f64 {
    z / (1.0 + (-z).exp())
}

async fn gated(lab: &mut Lab) -> Result<(), GpuError> {
    let (rows, n) = (3, 544);
    let g = lab.numbers(rows * 2 * n, 8.0);
    let (bg, by) = (lab.buffer(&g).await?, lab.zeros(rows * n).await?);
    swiglu::swiglu(&mut lab.rec, Mat::new(&bg, 2 * n as u32), Mat::new(&by, n as u32), n as u32, rows as u32);
    let got: Vec<f32> = lab.words(&by, rows * n).await?;
    let wanted: Vec<_> = g
        .chunks(2 * n)
        .flat_map(|row| (0..n).map(|i| silu(f64::from(row[i])) * f64::from(row[n + i])))
        .map(|v| (v, allowed(v.abs())))
        .collect();
    lab.compare(&swiglu::variant(Form::Floats).label, got, &wanted);
    let q = Quants::new(&lab.gpu, rows as u32, n as u32).await?;
    for both in [false, true] {
        let target = Target::q8(&q, Mat::new(&by, n as u32), both);
        swiglu::swiglu_to(&mut lab.rec, Mat::new(&bg, 2 * n as u32), target, n as u32, rows as u32);
        eight(lab, &swiglu::variant(target.form()).label, &q, &wanted, n).await?;
    }
    let bh = lab.zeros(rows * n / 2).await?;
    swiglu::swiglu_to(&mut lab.rec, Mat::new(&bg, 2 * n as u32), Target::half(bh.all(), n as u32), n as u32, rows as u32);
    halves(lab, &swiglu::variant(Form::Half).label, &bh, &wanted).await?;
    let plain: Vec<_> = g.chunks(2 * n).flat_map(|row| &row[..n]).map(|v| (f64::from(*v), 0.0)).collect();
    quantise::quantise(&mut lab.rec, Mat::new(&bg, 2 * n as u32), &q, n as u32, rows as u32);
    eight(lab, &quantise::variant().label, &q, &plain, n).await?;
    half::to_half(&mut lab.rec, Mat::new(&bg, 2 * n as u32), bh.all(), n as u32, rows as u32);
    halves(lab, &half::variant().label, &bh, &plain).await?;
    Ok(())
}

async fn gathered(lab: &mut Lab) -> Result<(), GpuError> {
    let cols = 260;
    let x = lab.numbers(5 * cols, 1.0);
    let (bx, by) = (lab.buffer(&x).await?, lab.zeros(3 * cols).await?);
    let rows = lab.buffer(&[9u32, 4, 0, 2]).await?;
    gather::gather(&mut lab.rec, Mat::new(&bx, cols as u32), rows.all(), 1, Mat::new(&by, cols as u32), cols as u32, 3);
    let got: Vec<f32> = lab.words(&by, 3 * cols).await?;
    let wanted: Vec<_> = [4, 0, 2].iter().flat_map(|r| &x[r * cols..(r + 1) * cols]).map(|v| (f64::from(*v), 1e-30)).collect();
    lab.compare(&gather::variant().label, got, &wanted);
    Ok(())
}

async fn copied(lab: &mut Lab) -> Result<(), GpuError> {
    let page = 260;
    let (mut keys, mut values) = (lab.numbers(4 * page, 1.0), lab.numbers(4 * page, 1.0));
    let (bk, bv, pairs) = (lab.buffer(&keys).await?, lab.buffer(&values).await?, lab.buffer(&[0u32, 2, 3, 1]).await?);
    let cache = Cache { keys: bk.all(), values: bv.all() };
    copy_pages::copy_pages(&mut lab.rec, pairs.all(), 2, cache, page as u32);
    let mut got: Vec<f32> = lab.words(&bk, 4 * page).await?;
    got.extend(lab.words::<f32>(&bv, 4 * page).await?);
    for data in [&mut keys, &mut values] {
        data.copy_within(0..page, 2 * page);
        data.copy_within(3 * page.., page);
    }
    let wanted: Vec<_> = keys.iter().chain(&values).map(|v| (f64::from(*v), 1e-12)).collect();
    lab.compare(&copy_pages::variant().label, got, &wanted);
    Ok(())
}

async fn statistics(lab: &mut Lab) -> Result<(), GpuError> {
    // Two equal maxima, the first of which must win; numbers before and after the range must not count.
    let (at, n) = (64, 5003);
    let mut logits = lab.numbers(at + n + 8, 20.0);
    logits[0] = 99.0;
    logits[at + n] = 99.0;
    logits[at + 4100] = 30.0;
    logits[at + 777] = 30.0;
    let (bl, stats, tokens) = (lab.buffer(&logits).await?, lab.zeros(16).await?, lab.zeros(16).await?);
    let parts = lab.zeros(head::PARTS_BYTES as usize / 4).await?;
    let out = head::StatsOut { parts: parts.all(), stats: stats.all(), at: 3, tokens: tokens.all(), token_at: 5 };
    head::vocab_stats(&mut lab.rec, bl.all(), at as u32, n as u32, out);
    let got: Vec<u32> = lab.words(&stats, 6).await?;
    let next: Vec<u32> = lab.words(&tokens, 6).await?;
    let sum: f64 = logits[at..at + n].iter().map(|l| (f64::from(*l) - 30.0).exp()).sum();
    for label in head::stats_variants().map(|v| v.label) {
        lab.compare(&label, [f32::from_bits(got[3]), f32::from_bits(got[4])], &[(30.0, 1e-30), (sum, allowed(sum))]);
        lab.compare(&label, [got[5] as f32, next[5] as f32], &[(777.0, 0.5), (777.0, 0.5)]);
    }
    Ok(())
}

async fn turned(lab: &mut Lab, pairs: Pairs, with_norm: bool) -> Result<(), GpuError> {
    let heads = Heads { heads: 4, kv_heads: 2, head_dim: 64, rotated: 48, q_stride: 64 };
    let (d, half, eps) = (64usize, 24usize, 1e-6f32);
    let columns = heads.columns() as usize;
    let rows = [Row { position: 9, slot: 9 }, Row { position: 3, slot: 2 }, Row { position: 0, slot: 0 }];
    let x = lab.numbers(2 * columns, 2.0);
    let (q_norm, k_norm) = (lab.numbers(d, 1.0), lab.numbers(d, 1.0));
    let turns: Vec<[f32; 2]> = (0..10 * half).map(|i| (i as f64 * 0.37).sin_cos()).map(|(s, c)| [c as f32, s as f32]).collect();
    let bx = lab.buffer(&x).await?;
    let (brows, bturns) = (lab.buffer(&rows).await?, lab.buffer(&turns).await?);
    let (bq, bk) = (lab.buffer(&q_norm).await?, lab.buffer(&k_norm).await?);
    let (keys, values) = (lab.zeros(4 * 2 * d).await?, lab.zeros(4 * 2 * d).await?);
    rope::rope(
        &mut lab.rec,
        Mat::new(&bx, columns as u32),
        &heads,
        pairs,
        with_norm.then(|| (bq.all(), bk.all())),
        eps,
        Positions { rows: brows.all(), row_at: 1, turns: bturns.all() },
        Cache { keys: keys.all(), values: values.all() },
        2,
    );
    let label = rope::variant(pairs, with_norm).label;
    let got_x: Vec<f32> = lab.words(&bx, 2 * columns).await?;
    let got_k: Vec<f32> = lab.words(&keys, 4 * 2 * d).await?;
    let got_v: Vec<f32> = lab.words(&values, 4 * 2 * d).await?;
    for (r, row) in rows[1..].iter().enumerate() {
        let x = &x[r * columns..(r + 1) * columns];
        for h in 0..6 {
            let source = &x[h * d..(h + 1) * d];
            let weight = if h < 4 { &q_norm } else { &k_norm };
            let scale = if with_norm { rms(source, eps) } else { 1.0 };
            let v: Vec<f64> =
                source.iter().zip(weight).map(|(x, w)| f64::from(*x) * scale * if with_norm { f64::from(*w) } else { 1.0 }).collect();
            let wanted: Vec<_> = (0..d)
                .map(|i| {
                    let (pair, first, other) = match pairs {
                        _ if i >= 2 * half => return (v[i], allowed(v[i].abs())),
                        Pairs::Adjacent => (i / 2, i % 2 == 0, i ^ 1),
                        Pairs::Halves => (i % half, i < half, if i < half { i + half } else { i - half }),
                    };
                    let [c, s] = turns[row.position as usize * half + pair].map(f64::from);
                    let turned = if first { v[i] * c - v[other] * s } else { v[i] * c + v[other] * s };
                    (turned, allowed(v[i].abs() + v[other].abs()))
                })
                .collect();
            let slot = row.slot as usize * 2 * d;
            let got = if h < 4 { &got_x[r * columns + h * d..] } else { &got_k[slot + (h - 4) * d..] };
            lab.compare(&label, got[..d].iter().copied(), &wanted);
        }
        let slot = row.slot as usize * 2 * d;
        let wanted: Vec<_> = x[6 * d..8 * d].iter().map(|v| (f64::from(*v), 1e-30)).collect();
        lab.compare(&label, got_v[slot..slot + 2 * d].iter().copied(), &wanted);
    }
    Ok(())
}
