//! Gated DeltaNet: two sequences, one from nothing and one that goes on from a state, against the recurrence in f64.

use super::lab::{Lab, allowed};
use super::rows::{eight, halves, silu};
use crate::gpu::GpuError;
use crate::kernels::Mat;
use crate::kernels::delta::{NO_STATE, Segment, Segments, Shape, States, Vectors, delta, finish_variant, variants};
use crate::kernels::quantise::{Form, Quants, Target};

/// Values in a head.
const D: usize = 128;

/// One sequence in f64: the last three convolution inputs, and a state for each value head.
struct Reference {
    tail: Vec<Vec<f64>>,
    states: Vec<Vec<f64>>,
}

struct Weights {
    conv: Vec<f32>,
    a: Vec<f32>,
    dt: Vec<f32>,
    norm: Vec<f32>,
}

impl Reference {
    /// Takes one projection row, gives the gated head outputs.
    fn step(&mut self, row: &[f32], shape: &Shape, w: &Weights) -> Vec<f64> {
        let channels = shape.channels() as usize;
        let (key_heads, value_heads, eps) = (shape.key_heads as usize, shape.value_heads as usize, f64::from(shape.eps));
        let input: Vec<f64> = row[..channels].iter().map(|v| f64::from(*v)).collect();
        let mut y: Vec<f64> = (0..channels)
            .map(|c| {
                let old: f64 = (0..3).map(|j| f64::from(w.conv[c * 4 + j]) * self.tail[j][c]).sum();
                silu(old + f64::from(w.conv[c * 4 + 3]) * input[c])
            })
            .collect();
        self.tail.remove(0);
        self.tail.push(input);
        for head in 0..2 * key_heads {
            let part = &mut y[head * D..(head + 1) * D];
            let length = (part.iter().map(|v| v * v).sum::<f64>() + eps).sqrt();
            let scale = if head < key_heads { 1.0 / (D as f64).sqrt() } else { 1.0 };
            part.iter_mut().for_each(|v| *v *= scale / length);
        }
        let mut out = Vec::with_capacity(value_heads * D);
        for head in 0..value_heads {
            let key_head = head % key_heads;
            let q = &y[key_head * D..][..D];
            let k = &y[(key_heads + key_head) * D..][..D];
            let v = &y[(2 * key_heads + head) * D..][..D];
            let z = f64::from(row[shape.alpha_at() as usize + head]) + f64::from(w.dt[head]);
            let softplus = if z > 20.0 { z } else { z.exp().ln_1p() };
            let decay = (f64::from(w.a[head]) * softplus).exp();
            let beta = 1.0 / (1.0 + (-f64::from(row[shape.beta_at() as usize + head])).exp());
            let state = &mut self.states[head];
            state.iter_mut().for_each(|s| *s *= decay);
            let mut o = vec![0.0; D];
            for col in 0..D {
                let read: f64 = (0..D).map(|i| k[i] * state[i * D + col]).sum();
                let change = beta * (v[col] - read);
                for i in 0..D {
                    state[i * D + col] += k[i] * change;
                    o[col] += q[i] * state[i * D + col];
                }
            }
            let scale = 1.0 / (o.iter().map(|v| v * v).sum::<f64>() / D as f64 + eps).sqrt();
            let gate = &row[channels + head * D..][..D];
            out.extend((0..D).map(|i| o[i] * scale * f64::from(w.norm[i]) * silu(f64::from(gate[i]))));
        }
        out
    }
}

pub async fn check(lab: &mut Lab) -> Result<(), GpuError> {
    let shape = Shape { key_heads: 2, value_heads: 4, eps: 1e-6 };
    let (channels, columns, heads) = (shape.channels() as usize, shape.columns() as usize, shape.value_heads as usize);
    // Longer than the eight rows that the scan takes at once; shorter than the three of the convolution.
    let lengths = [11usize, 2];
    let rows: usize = lengths.iter().sum();
    let x = lab.numbers(rows * columns, 2.0);
    let w = Weights {
        conv: lab.numbers(channels * 4, 0.7),
        a: lab.numbers(heads, 0.5).iter().map(|v| -v.abs() - 0.1).collect(),
        dt: lab.numbers(heads, 1.0),
        norm: lab.numbers(D, 1.0),
    };
    // Slot 0: written by the first sequence. Slot 1: where the second comes from. Slot 2: where it goes.
    let conv_states = lab.numbers(3 * 3 * channels, 1.0);
    let states = lab.numbers(3 * heads * D * D, 0.1);
    let segments = [
        Segment { row: 0, rows: lengths[0] as u32, state_in: NO_STATE, state_out: 0 },
        Segment { row: lengths[0] as u32, rows: lengths[1] as u32, state_in: 1, state_out: 2 },
    ];
    let bx = lab.buffer(&x).await?;
    let (bconv, ba, bdt, bnorm) =
        (lab.buffer(&w.conv).await?, lab.buffer(&w.a).await?, lab.buffer(&w.dt).await?, lab.buffer(&w.norm).await?);
    let (bconv_states, bstates, bsegments) = (lab.buffer(&conv_states).await?, lab.buffer(&states).await?, lab.buffer(&segments).await?);
    let (by, bo) = (lab.zeros(rows * channels).await?, lab.zeros(rows * heads * D).await?);
    let q = Quants::new(&lab.gpu, rows as u32, (heads * D) as u32).await?;
    let bh = lab.zeros(rows * heads * D / 2).await?;
    let place = Mat::new(&bo, (heads * D) as u32);
    let run = |lab: &mut Lab, target: Target<'_>| {
        delta(
            &mut lab.rec,
            Mat::new(&bx, columns as u32),
            &shape,
            Vectors { conv: bconv.all(), a: ba.all(), dt: bdt.all(), norm: bnorm.all() },
            States { conv: bconv_states.all(), state: bstates.all() },
            Segments { view: bsegments.all(), count: 2, longest: lengths[0] as u32, rows: rows as u32 },
            Mat::new(&by, channels as u32),
            place,
            target,
        );
    };
    run(lab, Target::floats(place));
    let o: Vec<f32> = lab.words(&bo, rows * heads * D).await?;
    let conv_after: Vec<f32> = lab.words(&bconv_states, 9 * channels).await?;
    let states_after: Vec<f32> = lab.words(&bstates, 3 * heads * D * D).await?;

    let [conv, scan] = variants().map(|v| v.label);
    let finish = finish_variant(Form::Floats).label;
    let wide = |v: &[f32]| v.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>();
    let (mut row, mut everything) = (0, Vec::new());
    for (i, segment) in segments.iter().enumerate() {
        let mut reference = match segment.state_in {
            NO_STATE => Reference { tail: vec![vec![0.0; channels]; 3], states: vec![vec![0.0; D * D]; heads] },
            slot => {
                let slot = slot as usize;
                Reference {
                    tail: (0..3).map(|j| wide(&conv_states[(slot * 3 + j) * channels..][..channels])).collect(),
                    states: (0..heads).map(|h| wide(&states[(slot * heads + h) * D * D..][..D * D])).collect(),
                }
            }
        };
        for _ in 0..lengths[i] {
            let wanted: Vec<_> =
                reference.step(&x[row * columns..][..columns], &shape, &w).into_iter().map(|v| (v, 4.0 * allowed(1.0 + v.abs()))).collect();
            // One chain: an error in any of the three shows here, and each has its own line in the report.
            for label in [&conv, &scan, &finish] {
                lab.compare(label, o[row * heads * D..][..heads * D].iter().copied(), &wanted);
            }
            everything.extend(wanted);
            row += 1;
        }
        let slot = segment.state_out as usize;
        let tail: Vec<_> = reference.tail.iter().flatten().map(|v| (*v, 1e-30)).collect();
        lab.compare(&finish, conv_after[slot * 3 * channels..].iter().copied(), &tail);
        let state: Vec<_> = reference.states.iter().flatten().map(|v| (*v, allowed(1.0 + v.abs()))).collect();
        lab.compare(&scan, states_after[slot * heads * D * D..].iter().copied(), &state);
    }
    // The same in other forms: no sequence has changed what another one starts from.
    for both in [false, true] {
        let target = Target::q8(&q, place, both);
        run(lab, target);
        eight(lab, &finish_variant(target.form()).label, &q, &everything, heads * D).await?;
    }
    run(lab, Target::half(bh.all(), (heads * D) as u32));
    halves(lab, &finish_variant(Form::Half).label, &bh, &everything).await
}
