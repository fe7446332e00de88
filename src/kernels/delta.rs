//! Gated DeltaNet: convolution, delta rule, gated norm. All heads have 128 values.

use super::{Mat, Variant};
use crate::gpu::template::Defs;
use crate::gpu::{Access, Recorder, View};
use bytemuck::{Pod, Zeroable};

/// `state_in` of a segment that starts a sequence.
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
    /// State slot after the last row (may be the same slot).
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
struct NormParams {
    ldo: u32,
    ldz: u32,
    z_at: u32,
    eps: f32,
}

fn variant(file: &'static str, access: &[Access]) -> Variant {
    Variant { label: file.trim_end_matches(".wgsl").into(), file, defs: Defs::new(), access: access.to_vec() }
}

/// The four kernels of a layer.
pub fn variants() -> [Variant; 4] {
    use Access::{Read, Write};
    [
        variant("delta_conv.wgsl", &[Read, Read, Read, Read, Write]),
        variant("delta_conv_state.wgsl", &[Read, Read, Write]),
        variant("delta_scan.wgsl", &[Read, Read, Read, Read, Read, Write, Write]),
        variant("delta_norm.wgsl", &[Read, Read, Write]),
    ]
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

/// From projection rows `x` (q | k | v | gate | alpha | beta) to gated head outputs `o`; `y` takes the convolved channels.
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
) {
    let [conv, conv_state, scan, norm] = variants().map(|v| v.kernel(rec.gpu()));
    let (channels, rows) = (shape.channels(), u64::from(segments.rows));
    let params = ConvParams { ld: x.ld, channels, key_heads: shape.key_heads, eps: shape.eps };
    let views = [x.view, vectors.conv, states.conv, segments.view, y.view];
    rec.dispatch(&conv, &views, &params, [segments.longest, channels / 128, segments.count], rows * u64::from(channels) * 16);
    let views = [x.view, segments.view, states.conv];
    rec.dispatch(&conv_state, &views, &[x.ld, channels], [channels / 128, segments.count, 1], u64::from(channels) * 4);
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
    rec.dispatch(&scan, &views, &params, [shape.value_heads, segments.count, 1], cost);
    let params = NormParams { ldo: o.ld, ldz: x.ld, z_at: channels, eps: shape.eps };
    let views = [x.view, vectors.norm, o.view];
    rec.dispatch(&norm, &views, &params, [segments.rows, shape.value_heads, 1], rows * u64::from(shape.value_heads) * 128 * 16);
}
