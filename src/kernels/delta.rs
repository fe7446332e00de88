//! Gated DeltaNet: convolution, delta rule, gated norm. All heads have 128 values.

use super::quantise::{Form, Target};
use super::{Mat, Variant};
use crate::gpu::template::Defs;
use crate::gpu::{Access, Recorder, View};
use bytemuck::{Pod, Zeroable};

/// `state_in` of a segment that starts a sequence; `state_out` of one whose state nobody will need.
pub const NO_STATE: u32 = u32::MAX;

/// Consecutive rows of one sequence.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable, PartialEq, Eq)]
pub struct Segment {
    /// First row of the batch.
    pub row: u32,
    /// Rows.
    pub rows: u32,
    /// State slot before the first row, or [`NO_STATE`].
    pub state_in: u32,
    /// State slot after the last row (may be the same slot), or [`NO_STATE`].
    pub state_out: u32,
}

/// Shape of a layer and of its joined projection rows.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Query and key heads.
    pub key_heads: u32,
    /// Value heads.
    pub value_heads: u32,
    /// Norm epsilon.
    pub eps: f32,
}

impl Shape {
    /// Channels of the convolution, q | k | v; the output gate follows them in a projection row.
    pub fn channels(&self) -> u32 {
        (2 * self.key_heads + self.value_heads) * 128
    }

    /// First column of alpha in a projection row.
    pub fn alpha_at(&self) -> u32 {
        self.channels() + self.value_heads * 128
    }

    /// First column of beta in a projection row.
    pub fn beta_at(&self) -> u32 {
        self.alpha_at() + self.value_heads
    }

    /// Columns of a projection row.
    pub fn columns(&self) -> u32 {
        self.beta_at() + self.value_heads
    }
}

/// The segments of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Segments<'a> {
    /// [`Segment`]s.
    pub view: View<'a>,
    /// How many.
    pub count: u32,
    /// Rows of the longest.
    pub longest: u32,
    /// Rows of all.
    pub rows: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ConvParams {
    ld: u32,
    channels: u32,
    key_heads: u32,
    eps: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ScanParams {
    ld: u32,
    alpha_at: u32,
    beta_at: u32,
    channels: u32,
    key_heads: u32,
    value_heads: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct FinishParams {
    ld: u32,
    channels: u32,
    ldo: u32,
    rows: u32,
    heads: u32,
    segments: u32,
    eps: f32,
    ldy: u32,
    mp: u32,
}

fn variant(file: &'static str, access: &[Access]) -> Variant {
    Variant { label: file.trim_end_matches(".wgsl").into(), file, defs: Defs::new(), access: access.to_vec() }
}

/// Convolution and scan.
pub fn variants() -> [Variant; 2] {
    use Access::{Read, Write};
    [
        variant("delta_conv.wgsl", &[Read, Read, Read, Read, Write]),
        variant("delta_scan.wgsl", &[Read, Read, Read, Read, Read, Write, Write]),
    ]
}

/// Norm and gate, which hand the rows over in a form; floats in place.
pub fn finish_variant(form: Form) -> Variant {
    use Access::{Read, Write};
    let in_place = matches!(form, Form::Floats | Form::Both);
    let mut access = vec![Read, Read, Read, Write, if in_place { Write } else { Read }];
    let beside = match form {
        Form::Floats => 0,
        Form::Half => 1,
        Form::Q8 | Form::Both => 2,
    };
    access.resize(5 + beside, Write);
    let defs = form.defs(5).with("B_Q8", 5).with("IN_PLACE", u8::from(in_place));
    Variant { label: format!("delta_finish{}", form.suffix()), file: "delta_finish.wgsl", defs, access }
}

/// Weights of a layer between its projections.
#[derive(Debug, Clone, Copy)]
pub struct Vectors<'a> {
    /// `[channels, 4]` taps.
    pub conv: View<'a>,
    /// `[value_heads]` -exp(A).
    pub a: View<'a>,
    /// `[value_heads]` bias of alpha.
    pub dt: View<'a>,
    /// `[128]` norm weight.
    pub norm: View<'a>,
}

/// States of a layer: `[slots, 3, channels]` and `[slots, value_heads, 128, 128]`, f32.
#[derive(Debug, Clone, Copy)]
pub struct States<'a> {
    /// Last inputs of the convolution.
    pub conv: View<'a>,
    /// Delta rule states.
    pub state: View<'a>,
}

/// From projection rows `x` (q | k | v | gate | alpha | beta) to gated head outputs in `target`; `y` takes the convolved channels, `o` what the
/// scan gives. Floats of the target are those of `o`, in place.
#[allow(clippy::too_many_arguments)]
pub fn delta(
    rec: &mut Recorder,
    x: Mat<'_>,
    shape: &Shape,
    vectors: Vectors<'_>,
    states: States<'_>,
    segments: Segments<'_>,
    y: Mat<'_>,
    o: Mat<'_>,
    target: Target<'_>,
) {
    let kernel = |i: usize| rec.gpu().remembered(("delta", i as u64), |gpu| variants()[i].kernel(gpu));
    let (conv, scan) = (kernel(0), kernel(1));
    let finish = rec.gpu().remembered(("delta_finish", target.form() as u64), |gpu| finish_variant(target.form()).kernel(gpu));
    let (channels, rows) = (shape.channels(), u64::from(segments.rows));
    let params = ConvParams { ld: x.ld, channels, key_heads: shape.key_heads, eps: shape.eps };
    let views = [x.view, vectors.conv, states.conv, segments.view, y.view];
    rec.dispatch(&conv, &views, &params, [segments.longest, channels / 128, segments.count], rows * u64::from(channels) * 16);
    let params = ScanParams {
        ld: x.ld,
        alpha_at: shape.alpha_at(),
        beta_at: shape.beta_at(),
        channels,
        key_heads: shape.key_heads,
        value_heads: shape.value_heads,
    };
    let views = [x.view, y.view, vectors.a, vectors.dt, segments.view, states.state, o.view];
    let cost = rows * u64::from(shape.value_heads) * 128 * 128 * 8;
    rec.dispatch(&scan, &views, &params, [shape.value_heads, 4, segments.count], cost);
    let (heads, (ldy, mp)) = (shape.value_heads, target.strides());
    let (ldo, count) = (o.ld / 4, segments.count);
    let params = FinishParams { ld: x.ld, channels, ldo, rows: segments.rows, heads, segments: count, eps: shape.eps, ldy, mp };
    let mut views = vec![x.view, vectors.norm, segments.view, states.conv, o.view];
    views.extend(target.beside_floats());
    let (fours, blocks) = (heads.div_ceil(4), count * channels / 128);
    rec.dispatch(&finish, &views, &params, [segments.rows + blocks.div_ceil(fours), fours, 1], rows * u64::from(heads) * 128 * 16);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Random, download, error, recorder, upload};
    use super::*;

    const SHAPE: Shape = Shape { key_heads: 2, value_heads: 4, eps: 1e-6 };

    struct Inputs {
        x: Vec<f32>,
        conv: Vec<f32>,
        a: Vec<f32>,
        dt: Vec<f32>,
        norm: Vec<f32>,
    }

    fn inputs(rows: usize) -> Inputs {
        let mut random = Random::new(11);
        Inputs {
            x: random.values(rows * SHAPE.columns() as usize).iter().map(|v| v * 2.0).collect(),
            conv: random.values(SHAPE.channels() as usize * 4),
            a: (0..4).map(|i| -0.1 - i as f32 * 0.4).collect(),
            dt: random.values(4),
            norm: random.values(128),
        }
    }

    /// Steps 1 to 6 of the definition, in f64, for one sequence from the start.
    fn reference(i: &Inputs, rows: usize) -> Vec<f64> {
        let (ld, channels) = (SHAPE.columns() as usize, SHAPE.channels() as usize);
        let silu = |v: f64| v / (1.0 + (-v).exp());
        let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
        let mut states = vec![vec![0f64; 128 * 128]; 4];
        let mut out = Vec::new();
        for t in 0..rows {
            let at = |row: usize, c: usize| f64::from(i.x[row * ld + c]);
            let mut y: Vec<f64> = (0..channels)
                .map(|c| silu((0..4).filter(|j| t + j >= 3).map(|j| f64::from(i.conv[c * 4 + j]) * at(t + j - 3, c)).sum()))
                .collect();
            for head in 0..4 {
                let part = &mut y[head * 128..][..128];
                let n = (part.iter().map(|v| v * v).sum::<f64>() + f64::from(SHAPE.eps)).sqrt();
                part.iter_mut().for_each(|v| *v /= if head < 2 { n * 128f64.sqrt() } else { n });
            }
            for (n, s) in states.iter_mut().enumerate() {
                let (q, k, v) = (&y[n % 2 * 128..][..128], &y[256 + n % 2 * 128..][..128], &y[512 + n * 128..][..128]);
                let alpha = at(t, SHAPE.alpha_at() as usize + n) + f64::from(i.dt[n]);
                let decay = (f64::from(i.a[n]) * alpha.exp().ln_1p()).exp();
                let beta = sigmoid(at(t, SHAPE.beta_at() as usize + n));
                s.iter_mut().for_each(|v| *v *= decay);
                let o: Vec<f64> = (0..128)
                    .map(|c| {
                        let read: f64 = (0..128).map(|r| s[r * 128 + c] * k[r]).sum();
                        let d = beta * (v[c] - read);
                        (0..128).for_each(|r| s[r * 128 + c] += k[r] * d);
                        (0..128).map(|r| s[r * 128 + c] * q[r]).sum()
                    })
                    .collect();
                let mean = o.iter().map(|v| v * v).sum::<f64>() / 128.0;
                let gate = |c: usize| silu(at(t, channels + n * 128 + c));
                out.extend((0..128).map(|c| o[c] / (mean + f64::from(SHAPE.eps)).sqrt() * f64::from(i.norm[c]) * gate(c)));
            }
        }
        out
    }

    /// Runs rows in pieces of the given sizes, each a dispatch of its own, through state slot 1.
    fn run(rec: &mut Recorder, i: &Inputs, pieces: &[usize]) -> Vec<f32> {
        let gpu = rec.gpu().clone();
        let (ld, channels) = (SHAPE.columns(), SHAPE.channels());
        let (conv, a, dt, norm) = (upload(&gpu, &i.conv), upload(&gpu, &i.a), upload(&gpu, &i.dt), upload(&gpu, &i.norm));
        let vectors = Vectors { conv: conv.all(), a: a.all(), dt: dt.all(), norm: norm.all() };
        let conv_states = upload(&gpu, &vec![9f32; 2 * 3 * channels as usize]);
        let states = upload(&gpu, &vec![9f32; 2 * 4 * 128 * 128]);
        let (mut out, mut done) = (Vec::new(), 0);
        for &rows in pieces {
            let x = upload(&gpu, &i.x[done * ld as usize..][..rows * ld as usize]);
            let y = upload(&gpu, &vec![0f32; rows * channels as usize]);
            let o = upload(&gpu, &vec![0f32; rows * 512]);
            let segment = Segment { row: 0, rows: rows as u32, state_in: if done == 0 { NO_STATE } else { 1 }, state_out: 1 };
            let segments = upload(&gpu, &[segment]);
            let input = Segments { view: segments.all(), count: 1, longest: rows as u32, rows: rows as u32 };
            let store = States { conv: conv_states.all(), state: states.all() };
            let rows_o = Mat::new(&o, 512);
            delta(rec, Mat::new(&x, ld), &SHAPE, vectors, store, input, Mat::new(&y, channels), rows_o, Target::floats(rows_o));
            out.extend(download::<f32>(rec, &o, rows * 512));
            done += rows;
        }
        out
    }

    #[test]
    fn against_f64_and_the_same_bits_wherever_it_is_cut() {
        let mut rec = recorder();
        let i = inputs(21);
        let whole = run(&mut rec, &i, &[21]);
        let e = error(&whole, &reference(&i, 21), 0.1);
        assert!(e < 2e-5, "{e}");
        let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        for cut in 1..21 {
            assert_eq!(bits(&run(&mut rec, &i, &[cut, 21 - cut])), bits(&whole), "cut after row {cut}");
        }
        assert_eq!(bits(&run(&mut rec, &i, &[1; 21])), bits(&whole), "row by row");
    }
}
