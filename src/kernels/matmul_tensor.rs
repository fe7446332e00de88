//! Matrix products in f16 cooperative matrices with f32 accumulators: the tensor tier.
//!
//! Activations come as f16 (`half.wgsl`: a sixteenth, saturating), weights become f16 in workgroup memory. A row's outputs are the same
//! bits in every tile, for every number of rows and in both ways of taking a cut K.

use super::matmul::Epilogue;
use super::weight::{Matrix, Part, access, defs};
use super::{Mat, Variant};
use crate::gguf::TensorType;
use crate::gpu::template::Defs;
use crate::gpu::{Access, GpuInfo, Recorder, View, Work};
use bytemuck::{Pod, Zeroable};

/// Outputs that a workgroup of four warps computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Rows of x.
    pub rows: u32,
    /// Rows of w.
    pub cols: u32,
    /// Values of k a step: 32, or 64 where K allows.
    pub step: u32,
    /// Warps side by side along the rows; the others lie along the columns.
    pub warps: u32,
}

/// Every tile there is a kernel for.
pub const TILES: [Tile; 8] = [
    Tile { rows: 32, cols: 128, step: 64, warps: 1 },
    Tile { rows: 32, cols: 128, step: 32, warps: 1 },
    Tile { rows: 80, cols: 64, step: 64, warps: 1 },
    Tile { rows: 64, cols: 128, step: 32, warps: 2 },
    Tile { rows: 64, cols: 128, step: 64, warps: 2 },
    Tile { rows: 160, cols: 64, step: 64, warps: 2 },
    Tile { rows: 128, cols: 128, step: 32, warps: 2 },
    Tile { rows: 160, cols: 128, step: 32, warps: 2 },
];

/// Rows that x must have beyond the last one that counts, so that no tile leaves it.
pub const ROW_PADDING: u32 = 160;

impl Tile {
    /// Outputs of a warp: rows, columns.
    fn warp(self) -> (u32, u32) {
        (self.rows / self.warps, self.cols / (4 / self.warps))
    }

    /// Bytes of workgroup memory; wgpu does not compare them with the limit, and a driver may hang.
    pub fn shared_bytes(self) -> u32 {
        16 * ((self.rows + self.cols) * (self.step / 8 + 1) + 64 * (self.warp().1 / 4 + 2))
    }
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    n: u32,
    blocks: u32,
    ldx: u32,
    ldy: u32,
    y_at: u32,
    bias_at: u32,
    groups: u32,
    rows: u32,
    part_blocks: u32,
    parts: u32,
    part_stride: u32,
    bias: u32,
    add: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ReduceParams {
    n: u32,
    ldp: u32,
    ldy: u32,
    y_at: u32,
    bias_at: u32,
    parts: u32,
    part_stride: u32,
    bias: u32,
    add: u32,
}

/// Definitions for `tensor_weight.wgsl`.
fn tensor_defs(ty: TensorType) -> Defs {
    let units = match ty {
        TensorType::F32 => 8,
        TensorType::F16 | TensorType::BF16 => 4,
        TensorType::Q8_0 => 2,
        _ => 1,
    };
    defs(ty).with("UNITS", units).with("FOURS", 8 / units)
}

/// The product kernel; `vec` where rows of y and everything in them is a multiple of four.
pub fn variant(ty: TensorType, tile: Tile, vec: bool) -> Variant {
    let (tm, tn) = tile.warp();
    let units = match ty {
        TensorType::F32 => 8,
        TensorType::F16 | TensorType::BF16 => 4,
        TensorType::Q8_0 => 2,
        _ => 1,
    };
    Variant {
        label: format!("matmul_tensor_{}_{}x{}x{}{}", ty.name(), tile.rows, tile.cols, tile.step, if vec { "" } else { "_scalar" }),
        file: "matmul_tensor.wgsl",
        defs: tensor_defs(ty)
            .with("BM", tile.rows)
            .with("BN", tile.cols)
            .with("BK", tile.step)
            .with("WM", tile.warps)
            .with("TM", tm)
            .with("TN", tn)
            .with("LD", tile.step / 8 + 1)
            .with("LY", tn / 4 + 2)
            .with("XU", tile.step / 8)
            .with("NX", tile.rows * (tile.step / 8) / 128)
            .with("NW", tile.cols / 32 * (tile.step / 32) * units / 4)
            .with("VEC", u8::from(vec))
            .with("Y", if vec { "vec4<f32>" } else { "f32" }),
        access: access(ty, &[Access::Read, Access::Write, Access::Read]),
    }
}

/// The kernel that adds the parts of a cut K.
pub fn reduce_variant() -> Variant {
    Variant {
        label: "tensor_reduce".into(),
        file: "tensor_reduce.wgsl",
        defs: Defs::new(),
        access: vec![Access::Read, Access::Write, Access::Read],
    }
}

/// The kernel that shows weights as the product sees them; only tests run it.
pub fn values_variant(ty: TensorType) -> Variant {
    Variant {
        label: format!("tensor_values_{}", ty.name()),
        file: "tensor_values.wgsl",
        defs: tensor_defs(ty),
        access: access(ty, &[Access::Write]),
    }
}

/// Every variant of the tensor tier's products.
pub fn variants() -> Vec<Variant> {
    let mut all = vec![reduce_variant()];
    for ty in super::weight::TYPES {
        for tile in TILES {
            all.extend([true, false].map(|vec| variant(ty, tile, vec)));
        }
    }
    all
}

/// How K is cut: blocks of 32 in a part, and parts. From the shape of the whole matrix alone, since it decides the bits: matrices with
/// few rows would otherwise leave most of a large GPU idle.
pub fn cut(k: u32, n: u32) -> (u32, u32) {
    let wanted = (128 / n.div_ceil(64)).min(4).min(k / 512).max(1);
    let wanted = if n >= 4096 { 1 } else { wanted };
    // Parts of whole steps of 64.
    let part = (k / 32).div_ceil(wanted).next_multiple_of(2);
    (part, (k / 32).div_ceil(part))
}

/// Most rows for which the parts of K are taken side by side.
const SIDE_BY_SIDE: u32 = 512;

/// Bytes of scratch that products of up to `max_rows` rows need: `cut` leaves at most 128 columns of 64 outputs.
pub fn scratch_bytes(max_rows: u64) -> u64 {
    max_rows.min(u64::from(SIDE_BY_SIDE)) * 8192 * 4
}

/// How a product is taken; changes no bit of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Outputs a workgroup.
    pub tile: Tile,
    /// A workgroup for each part of K, and one more pass, instead of one after the other.
    pub side_by_side: bool,
}

/// The plan for `rows` rows of a matrix of `n` rows in `blocks` blocks of 32, cut into `parts`; `None` if no tile fits the device.
pub fn plan(gpu: &GpuInfo, rows: u32, n: u32, blocks: u32, parts: u32) -> Option<Plan> {
    let fits = |tile: &Tile| tile.shared_bytes() <= gpu.adapter.workgroup_memory && blocks.is_multiple_of(tile.step / 32);
    let side_by_side = parts > 1 && rows <= SIDE_BY_SIDE;
    let z = if side_by_side { parts } else { 1 };
    let cost = |tile: &Tile| {
        let waves = (rows.div_ceil(tile.rows) * n.div_ceil(tile.cols) * z).div_ceil(264);
        u64::from(waves) * u64::from(tile.rows * tile.cols + 2048)
    };
    TILES.into_iter().filter(fits).min_by_key(cost).map(|tile| Plan { tile, side_by_side })
}

/// `y[m, :] (+)= x[m, :] w^T (+ bias)` for m < `rows`. `x` is f16 as `half.wgsl` writes it, `[rows + ROW_PADDING, w.cols]`; only the
/// rows asked for are written. `scratch` has [`scratch_bytes`].
pub fn matmul_tensor(rec: &mut Recorder, w: &Matrix, x: View<'_>, y: Mat<'_>, rows: u32, epilogue: Epilogue<'_>, scratch: View<'_>) {
    let (_, parts) = cut(w.cols, w.rows);
    for part in &w.parts {
        let plan = plan(rec.gpu().info(), rows, part.rows, w.blocks(), parts).unwrap_or_else(|| unreachable!("the tier is not offered"));
        product(rec, w, part, plan, x, y, rows, epilogue, scratch);
    }
}

/// One part of a matrix by a given plan.
#[allow(clippy::too_many_arguments)]
pub fn product(
    rec: &mut Recorder,
    w: &Matrix,
    part: &Part,
    plan: Plan,
    x: View<'_>,
    y: Mat<'_>,
    rows: u32,
    epilogue: Epilogue<'_>,
    scratch: View<'_>,
) {
    let (part_blocks, parts) = cut(w.cols, w.rows);
    let tile = plan.tile;
    let side_by_side = plan.side_by_side && parts > 1;
    let (bias, add) = (u32::from(epilogue.bias.is_some()), u32::from(epilogue.add));
    // Something has to be bound.
    let bias_view = epilogue.bias.unwrap_or(x);
    let n4 = part.rows.next_multiple_of(4);
    let vec = side_by_side || [y.ld, part.first, part.rows].iter().all(|v| v.is_multiple_of(4));
    let unit = if vec { 4 } else { 1 };
    let mut params = Params {
        n: if side_by_side { n4 } else { part.rows },
        blocks: w.blocks(),
        ldx: w.cols / 8,
        ldy: y.ld / unit,
        y_at: part.first / unit,
        bias_at: part.first,
        groups: part.groups(),
        rows,
        part_blocks,
        parts,
        part_stride: 0,
        bias,
        add,
    };
    if side_by_side {
        (params.ldy, params.y_at, params.parts, params.part_stride, params.bias, params.add) = (n4 / 4, 0, 1, rows * n4 / 4, 0, 0);
    }
    let to = if side_by_side { scratch } else { y.view };
    let kernel = variant(part.ty, tile, vec).kernel(rec.gpu());
    let z = if side_by_side { parts } else { 1 };
    let cost = Work::product(rows, part.rows, w.cols, part.bytes());
    rec.dispatch(&kernel, &part.views(&[x, to, bias_view]), &params, [rows.div_ceil(tile.rows), part.rows.div_ceil(tile.cols), z], cost);
    if side_by_side {
        let params = ReduceParams {
            n: part.rows,
            ldp: n4,
            ldy: y.ld,
            y_at: part.first,
            bias_at: part.first,
            parts,
            part_stride: rows * n4,
            bias,
            add,
        };
        let kernel = reduce_variant().kernel(rec.gpu());
        let cost = u64::from(rows) * u64::from(part.rows) * u64::from(parts);
        rec.dispatch(&kernel, &[scratch, y.view, bias_view], &params, [rows, part.rows.div_ceil(128), 1], cost);
    }
}

#[cfg(test)]
mod tests {
    use super::super::half;
    use super::super::testing::{Random, download, matrix, matrix_recorder, upload};
    use super::super::weight::TYPES;
    use super::*;
    use crate::gpu::{Gpu, GpuOptions};
    use pollster::block_on;

    const ROWS: usize = 200;

    /// f16 rows with the padding that the product wants, of garbage that no output may see.
    fn upload_x(gpu: &Gpu, x: &[f32], k: usize) -> crate::gpu::Buffer {
        let mut bits = half::reference(x);
        bits.resize(bits.len() + ROW_PADDING as usize * k, 0x7e00);
        upload(gpu, &bits)
    }

    /// Every type's values, decoded by the very functions of the product, on any adapter with f16 (lavapipe too).
    #[test]
    fn decoding_on_any_adapter_with_f16() {
        let gpu = block_on(Gpu::open(&GpuOptions { half: true, ..GpuOptions::default() })).unwrap();
        if !gpu.info().abilities.half {
            println!("SKIPPED: {} has no f16 in shaders", gpu.info().adapter.name);
            return;
        }
        let mut rec = block_on(Recorder::new(&gpu)).unwrap();
        let mut random = Random::new(21);
        let (n, k) = (70usize, 512usize);
        for ty in TYPES {
            let (w, values) = matrix(&gpu, &[(ty, n)], k, &mut random);
            let part = &w.parts[0];
            let y = upload(&gpu, &vec![0f32; 96 * k]);
            let kernel = values_variant(ty).kernel(&gpu);
            rec.dispatch(&kernel, &part.views(&[y.all()]), &(w.blocks()), [part.groups(), w.blocks(), 1], 1);
            let found: Vec<f32> = download(&mut rec, &y, n * k);
            for (i, (found, wanted)) in found.chunks_exact(4).zip(values.chunks_exact(4)).enumerate() {
                for (e, at) in [0, 2, 1, 3].into_iter().enumerate() {
                    let (found, wanted) = (f64::from(found[e]) / 16.0, f64::from(wanted[at]));
                    // The largest magnitude a block can have decides how far its scale's rounding shows.
                    let block = values[i * 4 / 32 * 32..][..32].iter().fold(0f32, |m, v| m.max(v.abs()));
                    let allowed = f64::from(block) / 512.0 + 4e-7;
                    assert!((found - wanted).abs() <= allowed, "{ty}: value {} is {found}, not {wanted}", i * 4 + at);
                }
            }
        }
    }

    #[test]
    fn cuts_depend_on_the_shape_alone() {
        for (k, n, wanted) in [
            (1024, 4096, (32, 1)),
            (2048, 1024, (16, 4)),
            (3072, 1024, (24, 4)),
            (9216, 2560, (96, 3)),
            (896, 896, (28, 1)),
            (4864, 896, (38, 4)),
            (1536, 576, (16, 3)),
            (2560, 18432, (80, 1)),
            (96, 64, (4, 1)),
        ] {
            assert_eq!(cut(k, n), wanted, "{k} x {n}");
        }
        for k in (32..20000).step_by(32) {
            for n in [1, 64, 200, 1024, 2560, 4096, 9000] {
                let (part, parts) = cut(k, n);
                assert!(part * parts >= k / 32 && part * (parts - 1) < k / 32 && part % 2 == 0);
                assert!(u64::from(parts * n.next_multiple_of(4)) <= 8192 || parts == 1);
            }
        }
    }

    /// Every type, in every tile and both ways of taking a cut K: right against f64, and the same bits.
    #[test]
    fn every_type_and_tile() {
        let Some(mut rec) = matrix_recorder() else { return };
        let gpu = rec.gpu().clone();
        let mut random = Random::new(22);
        // K is cut into three parts, the last one shorter; N ends within a tile; two parts of different types.
        let (n, k) = (168usize, 1600usize);
        assert_eq!(cut(k as u32, n as u32), (18, 3));
        for ty in TYPES {
            let k = if ty.block_len() == 256 { 1536 } else { k };
            let (w, values) = matrix(&gpu, &[(ty, 100), (TensorType::Q8_0, 68)], k, &mut random);
            let x: Vec<f32> = random.values(ROWS * k);
            let bits = upload_x(&gpu, &x, k);
            let bias = random.values(n);
            let before = random.values(ROWS * n);
            let bias_buffer = upload(&gpu, &bias);
            let scratch = block_on(gpu.buffer("scratch", scratch_bytes(ROWS as u64))).unwrap();
            for (with_bias, add) in [(false, false), (true, true)] {
                let epilogue = Epilogue { bias: with_bias.then(|| bias_buffer.all()), add };
                let mut first: Option<Vec<u32>> = None;
                for tile in TILES {
                    if !w.blocks().is_multiple_of(tile.step / 32) {
                        continue;
                    }
                    for (side_by_side, rows) in [(false, ROWS), (true, ROWS), (false, 1), (true, 33), (false, 150)] {
                        let y = upload(&gpu, &before);
                        let plan = Plan { tile, side_by_side };
                        for part in &w.parts {
                            let y = Mat::new(&y, n as u32);
                            product(&mut rec, &w, part, plan, bits.all(), y, rows as u32, epilogue, scratch.all());
                        }
                        let found: Vec<u32> = download(&mut rec, &y, ROWS * n);
                        let rest = found[rows * n..].iter().zip(&before[rows * n..]);
                        assert!(rest.into_iter().all(|(a, b)| *a == b.to_bits()), "{ty} {plan:?}: wrote beyond {rows} rows");
                        match &first {
                            None => first = Some(found),
                            Some(all) => assert!(found[..rows * n] == all[..rows * n], "{ty} {plan:?}, {rows} rows: other bits"),
                        }
                    }
                }
                let found: Vec<f32> = first.unwrap().into_iter().map(f32::from_bits).collect();
                let (mut error, mut scale) = (0.0, 0.0);
                for m in 0..ROWS {
                    for c in 0..n {
                        let pairs = x[m * k..][..k].iter().zip(&values[c * k..][..k]);
                        let mut wanted: f64 = pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                        scale += wanted * wanted;
                        wanted += if with_bias { f64::from(bias[c]) } else { 0.0 } + if add { f64::from(before[m * n + c]) } else { 0.0 };
                        error += (f64::from(found[m * n + c]) - wanted).powi(2);
                    }
                }
                let relative = (error / scale).sqrt();
                println!("{ty}: relative error {relative:.1e}");
                assert!(relative < 6e-4, "{ty}: {relative}");
            }
        }
    }
}
