//! Matrix-vector products with quantised weights: a generation step, and the whole vocabulary of one row. Their sums run in another order
//! than the tiled products', so a generated token's logits have bits of their own.

use super::weight::{Matrix, Part, access, defs};
use super::{Mat, Variant};
use crate::gguf::TensorType;
use crate::gpu::{Access, GpuInfo, Recorder, View, Work};
use bytemuck::{Pod, Zeroable};

/// Columns up to which a matrix-vector product can take the RMSNorm before it along: they stand in workgroup memory.
pub const NORM_COLS: u32 = 3072;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    n: u32,
    blocks: u32,
    x_at: u32,
    y_at: u32,
    groups_x: u32,
    bias_at: u32,
    up: u32,
    eps: f32,
}

/// What a kernel does beside multiplying.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kind {
    /// Adds a bias.
    pub bias: bool,
    /// Adds to y.
    pub add: bool,
    /// Takes the RMSNorm of x along.
    pub norm: bool,
    /// Rows are gate and up of SwiGLU.
    pub pair: bool,
}

impl Kind {
    /// All that are used.
    pub const ALL: [Kind; 7] = {
        const fn kind(bias: bool, add: bool, norm: bool, pair: bool) -> Kind {
            Kind { bias, add, norm, pair }
        }
        let (o, i) = (false, true);
        [kind(o, o, o, o), kind(i, o, o, o), kind(o, i, o, o), kind(i, i, o, o), kind(o, o, i, o), kind(i, o, i, o), kind(o, o, i, i)]
    };
}

/// Rows a workgroup of the kernel for adapters that are processors, which shares nothing between threads and takes no norm and no pairs
/// along.
const PLAIN: u32 = 64;

/// Rows that a workgroup may take, each a kernel of its own.
pub fn rows_of(kind: Kind) -> &'static [u32] {
    match kind {
        Kind { norm: true, .. } => &[8],
        Kind { bias: false, add: false, .. } => &[8, 32, PLAIN],
        _ => &[8, PLAIN],
    }
}

/// The kernel for weights of `ty`, `rows` of them a workgroup.
pub fn variant(ty: TensorType, rows: u32, kind: Kind) -> Variant {
    let deep = match ty {
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => 1,
        TensorType::Q8_0 => 2,
        _ => 4,
    };
    let deep = if kind.pair { (deep / 2).max(1) } else { deep };
    let name = |on: bool, name: &'static str| if on { name } else { "" };
    let (pair, norm) = (name(kind.pair, "_pair"), name(kind.norm, "_norm"));
    let (bias, add) = (name(kind.bias, "_bias"), name(kind.add, "_add"));
    let mut rest = vec![Access::Read, Access::Write];
    rest.extend([Access::Read].repeat(usize::from(kind.bias) + usize::from(kind.norm)));
    Variant {
        label: format!("matvec_{}_{rows}{pair}{norm}{bias}{add}", ty.name()),
        file: if rows == PLAIN { "matvec_plain.wgsl" } else { "matvec.wgsl" },
        defs: defs(ty)
            .with("R", rows)
            .with("CN", 4)
            .with("DEEP", deep)
            .with("BIAS", u8::from(kind.bias))
            .with("ADD", u8::from(kind.add))
            .with("NORM", u8::from(kind.norm))
            .with("NORM_COLS", NORM_COLS)
            .with("PAIR", u8::from(kind.pair)),
        access: access(ty, &rest),
    }
}

/// What goes along with a product.
#[derive(Debug, Clone, Copy, Default)]
pub struct Along<'a> {
    /// Weights and epsilon of an RMSNorm over x before the product.
    pub norm: Option<(View<'a>, f32)>,
    /// f32 vector of `w.rows` values added to y.
    pub bias: Option<View<'a>>,
    /// Add to what stands in y (the residual) instead of replacing it.
    pub add: bool,
}

/// Where a product's row of x and y stand.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The rows of x.
    pub x: Mat<'a>,
    /// Which of them.
    pub row: u32,
    /// The buffer of y.
    pub y: View<'a>,
    /// First f32 of y in it.
    pub y_at: u32,
}

/// Can the norm before a product with `w` go along?
pub fn takes_norm(gpu: &GpuInfo, w: &Matrix) -> bool {
    !gpu.software && w.cols <= NORM_COLS
}

/// Can gate and up in `w` be multiplied as pairs? They must be one part.
pub fn takes_pairs(gpu: &GpuInfo, w: &Matrix) -> bool {
    takes_norm(gpu, w) && w.parts.len() == 1 && w.rows.is_multiple_of(64)
}

/// `y[y_at ..] (+)= w norm(x[row, :]) (+ bias)`, a norm where [`takes_norm`] allows.
pub fn matvec(rec: &mut Recorder, w: &Matrix, at: Place<'_>, along: Along<'_>) {
    for part in &w.parts {
        let kind = Kind { bias: along.bias.is_some(), add: along.add, norm: along.norm.is_some(), pair: false };
        // Few rows are cut finer, so that all of a large GPU reads; a choice by the matrix alone.
        let rows = match kind {
            Kind { norm: false, .. } if rec.gpu().info().software => PLAIN,
            _ if part.rows >= 32768 && kind == Kind::default() => 32,
            _ => 8,
        };
        product(rec, w, part, rows, kind, at, along);
    }
}

/// `y[i] = silu(w[i, :] x') (w[n + i, :] x')` with x' = norm(x[row, :]), for gate and up that [`takes_pairs`] allows.
pub fn gate_up(rec: &mut Recorder, w: &Matrix, at: Place<'_>, norm: (View<'_>, f32)) {
    let kind = Kind { norm: true, pair: true, ..Kind::default() };
    product(rec, w, &w.parts[0], 8, kind, at, Along { norm: Some(norm), ..Along::default() });
}

/// One part of a product, `rows` of them a workgroup.
pub fn product(rec: &mut Recorder, w: &Matrix, part: &Part, rows: u32, kind: Kind, at: Place<'_>, along: Along<'_>) {
    let flags = u64::from(kind.bias) | u64::from(kind.add) << 1 | u64::from(kind.norm) << 2 | u64::from(kind.pair) << 3;
    let key = (part.ty as u64) << 32 | u64::from(rows) << 8 | flags;
    let kernel = rec.gpu().remembered(("matvec.wgsl", key), |gpu| variant(part.ty, rows, kind).kernel(gpu));
    let n = if kind.pair { part.rows / 2 } else { part.rows };
    let groups = n.div_ceil(rows);
    let groups_x = groups.min(32768);
    let params = Params {
        n,
        blocks: w.blocks(),
        x_at: at.row * at.x.ld / 4,
        y_at: at.y_at + part.first,
        groups_x,
        bias_at: part.first,
        up: n,
        eps: along.norm.map_or(0.0, |n| n.1),
    };
    let mut rest = vec![at.x.view, at.y];
    rest.extend(along.bias);
    rest.extend(along.norm.map(|n| n.0));
    let cost = Work::product(1, part.rows, w.cols, part.bytes());
    rec.dispatch(&kernel, &part.views(&rest), &params, [groups_x, groups.div_ceil(groups_x), 1], cost);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Random, download, matrix, recorder, upload};
    use super::*;

    /// What a row of weights gives: the sum, and the sum of magnitudes, which is what rounding grows with.
    fn dot(x: &[f64], w: &[f32]) -> (f64, f64) {
        x.iter().zip(w).map(|(a, b)| a * f64::from(*b)).fold((0.0, 0.0), |(s, m), v| (s + v, m + v.abs()))
    }

    fn normed(x: &[f32], norm: &[f32], eps: f32) -> Vec<f64> {
        let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64;
        x.iter().zip(norm).map(|(x, n)| f64::from(*x) * f64::from(*n) / (mean + f64::from(eps)).sqrt()).collect()
    }

    fn check(what: &str, found: &[f32], wanted: impl Iterator<Item = (f64, f64)>) {
        for (i, (found, (value, magnitude))) in found.iter().zip(wanted).enumerate() {
            let e = (f64::from(*found) - value).abs() / (1.0 + magnitude);
            assert!(e < 3e-6, "{what}, output {i}: {found} instead of {value}");
        }
    }

    /// Every kind, with an odd number of rows, blocks that do not fill the slices, and a second part of another type. The self-test has
    /// every type.
    #[test]
    fn every_kind_against_f64() {
        let mut rec = recorder();
        let gpu = rec.gpu().clone();
        let mut random = Random::new(3);
        for ty in [TensorType::Q4_K, TensorType::Q6_K] {
            for k in [256usize, 1280] {
                let (w, values) = matrix(&gpu, &[(ty, 40), (TensorType::Q8_0, 9)], k, &mut random);
                let (x, norm, bias, before) = (random.values(3 * k), random.values(k), random.values(49), random.values(64));
                let (bx, bn, bb) = (upload(&gpu, &x), upload(&gpu, &norm), upload(&gpu, &bias));
                let (raw, eps) = (&x[k..2 * k], 1e-5f32);
                let plain: Vec<f64> = raw.iter().map(|v| f64::from(*v)).collect();
                for kind in Kind::ALL.into_iter().filter(|kind| !kind.pair) {
                    let y = upload(&gpu, &before);
                    let along = Along { norm: kind.norm.then(|| (bn.all(), eps)), bias: kind.bias.then(|| bb.all()), add: kind.add };
                    let at = Place { x: Mat::new(&bx, k as u32), row: 1, y: y.all(), y_at: 7 };
                    for &rows in rows_of(kind) {
                        gpu.write(&y, 0, bytemuck::cast_slice(&before));
                        w.parts.iter().for_each(|part| product(&mut rec, &w, part, rows, kind, at, along));
                        let found: Vec<f32> = download(&mut rec, &y, 64);
                        let input = if kind.norm { &normed(raw, &norm, eps) } else { &plain };
                        let wanted = (0..49).map(|n| {
                            let (value, magnitude) = dot(input, &values[n * k..][..k]);
                            let more =
                                if kind.bias { f64::from(bias[n]) } else { 0.0 } + if kind.add { f64::from(before[7 + n]) } else { 0.0 };
                            (value + more, magnitude)
                        });
                        check(&format!("{ty} {rows} {kind:?}"), &found[7..56], wanted);
                        assert_eq!((&found[..7], &found[56..]), (&before[..7], &before[56..]), "{ty} {kind:?}: nothing else is written");
                    }
                }
                let (w, values) = matrix(&gpu, &[(ty, 128)], k, &mut random);
                let y = upload(&gpu, &[9f32; 70]);
                gate_up(&mut rec, &w, Place { x: Mat::new(&bx, k as u32), row: 1, y: y.all(), y_at: 0 }, (bn.all(), eps));
                let found: Vec<f32> = download(&mut rec, &y, 70);
                let input = normed(raw, &norm, eps);
                let wanted = (0..64).map(|n| {
                    let (gate, m) = dot(&input, &values[n * k..][..k]);
                    let (up, m2) = dot(&input, &values[(64 + n) * k..][..k]);
                    (gate / (1.0 + (-gate).exp()) * up, m * (1.0 + up.abs()) + m2 * (1.0 + gate.abs()))
                });
                check(&format!("{ty} pairs"), &found[..64], wanted);
                assert_eq!(found[64..], [9.0; 6]);
            }
        }
    }
}
