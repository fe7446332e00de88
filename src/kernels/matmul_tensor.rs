//! Matrix products in f16 cooperative matrices with f32 accumulators: the tensor tier.
//!
//! Activations come as f16 (`half.wgsl`: a sixteenth, saturating), weights become f16 in workgroup memory. A row's outputs are the same
//! bits in every tile, for every number of rows and in both ways of taking a cut K.

use super::matmul::Epilogue;
use super::split::Pieces;
use super::weight::{Matrix, Part, access, defs};
use super::{Mat, Variant};
use crate::gguf::TensorType;
use crate::gpu::template::Defs;
use crate::gpu::{Access, GpuInfo, Recorder, View, Work};
use bytemuck::{Pod, Zeroable};

/// Outputs that a workgroup computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Rows of x.
    pub rows: u32,
    /// Rows of w.
    pub cols: u32,
    /// Values of k a step: 32, or 64 where K allows.
    pub step: u32,
    /// Warps along the rows and along the columns.
    pub warps: (u32, u32),
    /// What a value of k takes on a multiprocessor that has one such tile, and for each tile more, in tenths of a nanosecond (measured on
    /// an H200 with Q8_0; the largest with Q4_K, what more of it take is a guess on the safe side).
    pub time: (u32, u32),
}

/// Every tile there is a kernel for.
pub const TILES: [Tile; 7] = [
    Tile { rows: 32, cols: 128, step: 32, warps: (1, 4), time: (166, 84) },
    Tile { rows: 32, cols: 64, step: 64, warps: (1, 4), time: (90, 70) },
    Tile { rows: 80, cols: 64, step: 64, warps: (1, 4), time: (117, 96) },
    Tile { rows: 160, cols: 64, step: 64, warps: (2, 2), time: (166, 144) },
    Tile { rows: 128, cols: 128, step: 32, warps: (2, 2), time: (235, 175) },
    Tile { rows: 160, cols: 128, step: 32, warps: (2, 2), time: (235, 200) },
    Tile { rows: 160, cols: 160, step: 64, warps: (5, 2), time: (300, 330) },
];

/// Rows that x and y must have, so that no tile leaves them for so many rows or fewer: whole tiles are read and written, and what stands in
/// y beyond the last row that counts is garbage.
pub fn padded(rows: u32) -> u32 {
    TILES.iter().map(|tile| rows.next_multiple_of(tile.rows)).max().unwrap_or(rows)
}

/// A row stride of y that has room for whole tiles behind any product of `cols` columns.
pub fn stride(cols: u32) -> u32 {
    TILES.iter().map(|tile| cols.next_multiple_of(tile.cols)).max().unwrap_or(cols)
}

/// The tile for columns that fill no whole one: with steps of 64 and of 32.
pub const CHECKED: [Tile; 2] = [TILES[1], TILES[0]];

impl Tile {
    /// Outputs of a warp: rows, columns.
    fn warp(self) -> (u32, u32) {
        (self.rows / self.warps.0, self.cols / self.warps.1)
    }

    fn threads(self) -> u32 {
        32 * self.warps.0 * self.warps.1
    }

    /// Bytes of workgroup memory, also where every output is checked; wgpu does not compare them with the limit, and a driver may hang.
    pub fn shared_bytes(self, checked: bool) -> u32 {
        let outputs = if checked { 64 * (self.warp().1 / 4 + 2) } else { 0 };
        16 * ((self.rows + self.cols) * (self.step / 8 + 1) + outputs)
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
    col_at: u32,
    groups: u32,
    rows: u32,
    part_blocks: u32,
    parts: u32,
    part_stride: u32,
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

/// 16-byte units of quants in a block of 32 values.
fn units(ty: TensorType) -> u32 {
    match ty {
        TensorType::F32 => 8,
        TensorType::F16 | TensorType::BF16 => 4,
        TensorType::Q8_0 => 2,
        _ => 1,
    }
}

/// Definitions for `tensor_weight.wgsl`.
fn tensor_defs(ty: TensorType) -> Defs {
    defs(ty).with("UNITS", units(ty)).with("FOURS", 8 / units(ty))
}

/// What a product kernel does with its sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// Stores whole tiles.
    Tiles,
    /// Adds whole tiles to what stands there, or to each other when a workgroup takes several parts of K.
    Sums,
    /// Either, looking at the place of every output.
    Checked,
}

/// The product kernel.
pub fn variant(ty: TensorType, tile: Tile, store: Store) -> Variant {
    let (tm, tn) = tile.warp();
    let (end, y) = match store {
        Store::Tiles => ("", "vec4<f32>"),
        Store::Sums => ("_sums", "vec4<f32>"),
        Store::Checked => ("_checked", "f32"),
    };
    Variant {
        label: format!("matmul_tensor_{}_{}x{}x{}{end}", ty.name(), tile.rows, tile.cols, tile.step),
        file: "matmul_tensor.wgsl",
        defs: tensor_defs(ty)
            .with("BM", tile.rows)
            .with("BN", tile.cols)
            .with("BK", tile.step)
            .with("WM", tile.warps.0)
            .with("WARPS", tile.threads() / 32)
            .with("THREADS", tile.threads())
            .with("TM", tm)
            .with("TN", tn)
            .with("LD", tile.step / 8 + 1)
            .with("LY", tn / 4 + 2)
            .with("XU", tile.step / 8)
            .with("NX", tile.rows * (tile.step / 8) / tile.threads())
            .with("NW", tile.cols / 32 * (tile.step / 32) * units(ty) * 32 / tile.threads())
            .with("LOOP", u8::from(store != Store::Tiles))
            .with("CHECKED", u8::from(store == Store::Checked))
            .with("Y", y),
        access: access(ty, &[Access::Read, Access::Write]),
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
        all.extend(TILES.into_iter().flat_map(|tile| [Store::Tiles, Store::Sums].map(|store| variant(ty, tile, store))));
        all.extend(CHECKED.map(|tile| variant(ty, tile, Store::Checked)));
    }
    all
}

/// Can this device run the tier, as far as it tells?
///
/// # Errors
/// Why not, as half a sentence.
pub fn check(gpu: &GpuInfo) -> Result<(), String> {
    if !gpu.abilities.matrices {
        return Err("this adapter has no cooperative matrices of 16 x 16 x 16 (f16 into f32) in subgroups of 32".into());
    }
    // Shapes whose K is an odd number of blocks have the smallest choice.
    match plan(gpu, 1, 32, 1, 1) {
        Some(_) => Ok(()),
        None => Err(format!("{} bytes of workgroup memory are too few", gpu.adapter.workgroup_memory)),
    }
}

/// Matrices of so few rows have a single column of tiles.
const FEW: u32 = 64;

/// How K is cut: blocks of 32 in a part, and parts. From the shape of the weights alone (`n` rows of one type), since it decides the bits:
/// matrices with few rows, or few of a type, would otherwise leave most of a large GPU idle.
pub fn cut(k: u32, n: u32) -> (u32, u32) {
    let wanted = match n <= FEW {
        true => (k / 128).clamp(1, 16),
        false => (128 / n.div_ceil(64)).min(4).min(k / 512).max(1),
    };
    let wanted = if n >= 4096 { 1 } else { wanted };
    // Parts of whole steps of 64.
    let part = (k / 32).div_ceil(wanted).next_multiple_of(2);
    (part, (k / 32).div_ceil(part))
}

/// Most rows for which the parts of K are taken side by side where there are many outputs.
const SIDE_BY_SIDE: u32 = 512;

/// Bytes of scratch that products of up to `max_rows` rows need: `cut` leaves at most 128 columns of 64 outputs, and tiles stick out.
pub fn scratch_bytes(max_rows: u32) -> u64 {
    u64::from(padded(max_rows.min(SIDE_BY_SIDE))) * (8192 + 4 * 160) * 4
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
    let fits = |tile: &Tile| {
        tile.shared_bytes(CHECKED.contains(tile)) <= gpu.adapter.workgroup_memory
            && tile.threads() <= gpu.adapter.invocations
            && blocks.is_multiple_of(tile.step / 32)
    };
    let few = n <= FEW && u64::from(parts) * u64::from(rows + 160) * 160 * 4 <= scratch_bytes(rows);
    let side_by_side = parts > 1 && (rows <= SIDE_BY_SIDE || few);
    let z = if side_by_side { parts } else { 1 };
    // Tiles on the busiest multiprocessor. How many there are, no interface tells; with another number it is a table like any other.
    let time = |tile: &Tile| {
        let busiest = (rows.div_ceil(tile.rows) * n.div_ceil(tile.cols) * z).div_ceil(132);
        u64::from(tile.time.0) + u64::from(busiest - 1) * u64::from(tile.time.1)
    };
    TILES.into_iter().filter(fits).min_by_key(time).map(|tile| Plan { tile, side_by_side })
}

/// `y[m, :] (+)= x[m, :] w^T (+ bias)` for m < `rows`. `x` is f16 as `half.wgsl` writes it, `[rows, w.cols]`; both have
/// [`padded`] rows. Where rows of y are so long that whole tiles fit behind the last column, what stands there becomes garbage ([`stride`]).
/// `scratch` has [`scratch_bytes`].
pub fn matmul_tensor<'a>(
    rec: &mut Recorder,
    w: &Matrix,
    x: View<'_>,
    y: Mat<'_>,
    rows: u32,
    epilogue: Epilogue<'_>,
    scratch: View<'a>,
) -> Option<Pieces<'a>> {
    let mut left = None;
    for part in &w.parts {
        let (_, parts) = cut(w.cols, w.rows_of_type(part));
        let plan = plan(rec.gpu().info(), rows, part.rows, w.blocks(), parts).unwrap_or_else(|| unreachable!("the tier is not offered"));
        left = product(rec, w, part, plan, x, y, rows, epilogue, scratch);
    }
    left
}

/// One part of a matrix by a given plan.
#[allow(clippy::too_many_arguments)]
pub fn product<'a>(
    rec: &mut Recorder,
    w: &Matrix,
    part: &Part,
    plan: Plan,
    x: View<'_>,
    y: Mat<'_>,
    rows: u32,
    epilogue: Epilogue<'_>,
    scratch: View<'a>,
) -> Option<Pieces<'a>> {
    let (part_blocks, parts) = cut(w.cols, w.rows_of_type(part));
    let tile = plan.tile;
    let params = Params {
        n: part.rows,
        blocks: w.blocks(),
        ldx: w.cols / 8,
        ldy: y.ld,
        y_at: part.first,
        col_at: 0,
        groups: part.groups(),
        rows,
        part_blocks,
        parts,
        part_stride: 0,
        add: u32::from(epilogue.add),
    };
    let mut run = |tile: Tile, store: Store, params: Params, to: View<'_>, cols: u32, z: u32| {
        let key = (part.ty as u64) << 32 | u64::from(tile.rows << 20 | tile.cols << 10 | tile.step << 2) | store as u64;
        let kernel = rec.gpu().remembered(("matmul_tensor.wgsl", key), |gpu| variant(part.ty, tile, store).kernel(gpu));
        let cost = Work::product(rows, cols, w.cols, part.bytes() * u64::from(cols) / u64::from(part.rows));
        rec.dispatch(&kernel, &part.views(&[x, to]), &params, [rows.div_ceil(tile.rows), cols.div_ceil(tile.cols), z], cost);
    };
    let mut last = ReduceParams {
        n: part.rows,
        ldp: 0,
        ldy: y.ld,
        y_at: part.first,
        bias_at: part.first,
        parts: 0,
        part_stride: 0,
        bias: u32::from(epilogue.bias.is_some()),
        add: 1,
    };
    if plan.side_by_side && parts > 1 {
        let (padded, cols) = (rows.next_multiple_of(tile.rows), part.rows.next_multiple_of(tile.cols));
        let stride = padded * cols;
        debug_assert!(u64::from(parts * stride) * 4 <= scratch.size);
        let params = Params { ldy: cols / 4, y_at: 0, parts: 1, part_stride: stride / 4, add: 0, ..params };
        run(tile, Store::Tiles, params, scratch, cols, parts);
        if epilogue.later {
            return Some(Pieces { view: scratch, count: parts, ld: cols, stride });
        }
        (last.ldp, last.parts, last.part_stride, last.add) = (cols, parts, stride, u32::from(epilogue.add));
    } else {
        // Whole tiles, then the columns that fill none.
        let aligned = y.ld.is_multiple_of(4) && part.first.is_multiple_of(4);
        let all = part.rows.next_multiple_of(tile.cols);
        let behind = part.first + part.rows == w.rows && y.ld >= part.first + all;
        let whole = match aligned {
            true if behind => all,
            true => part.rows / tile.cols * tile.cols,
            false => 0,
        };
        let store = if parts > 1 || epilogue.add { Store::Sums } else { Store::Tiles };
        run(tile, store, Params { ldy: y.ld / 4, y_at: part.first / 4, ..params }, y.view, whole, 1);
        let checked = CHECKED[usize::from(!w.blocks().is_multiple_of(2))];
        run(checked, Store::Checked, Params { col_at: whole, ..params }, y.view, part.rows.saturating_sub(whole), 1);
    }
    if last.parts > 0 || last.bias > 0 {
        let kernel = rec.gpu().remembered(("tensor_reduce.wgsl", 0), |gpu| reduce_variant().kernel(gpu));
        let cost = u64::from(rows) * u64::from(part.rows) * u64::from(parts);
        let views = [scratch, y.view, epilogue.bias.unwrap_or(x)];
        rec.dispatch(&kernel, &views, &last, [rows, part.rows.div_ceil(128), 1], cost);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::half;
    use super::super::testing::{Random, download, matrix, matrix_recorder, upload};
    use super::super::weight::TYPES;
    use super::*;
    use crate::gpu::{Buffer, Gpu, GpuOptions};
    use pollster::block_on;
    use std::sync::Arc;

    const ROWS: usize = 200;

    /// f16 rows with the padding that the product wants, of garbage that no output may see.
    fn upload_x(gpu: &Gpu, x: &[f32], k: usize) -> crate::gpu::Buffer {
        let mut bits = half::reference(x);
        bits.resize(padded(ROWS as u32) as usize * k, 0x7e00);
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
            (2560, 64, (6, 14)),
            (4096, 32, (8, 16)),
        ] {
            assert_eq!(cut(k, n), wanted, "{k} x {n}");
        }
        for k in (32..20000).step_by(32) {
            for n in [1, 64, 200, 1024, 2560, 4096, 9000] {
                let (part, parts) = cut(k, n);
                assert!(part * parts >= k / 32 && part * (parts - 1) < k / 32 && part % 2 == 0);
                assert!(parts == 1 || parts * n <= 8192);
            }
        }
    }

    /// A joined matrix: each type's rows decide its cut, also where a binding limit splits them.
    #[test]
    fn rows_of_a_type_are_cut_alike() {
        let gpu = block_on(Gpu::open(&GpuOptions::default())).unwrap();
        let buffer: Arc<Buffer> = Arc::new(block_on(gpu.buffer("planes", 64)).unwrap());
        let mut first = 0;
        let mut part = |ty, rows| {
            first += rows;
            Part { ty, first: first - rows, rows, buffer: buffer.clone(), planes: Vec::new() }
        };
        let (q4, q6) = (TensorType::Q4_K, TensorType::Q6_K);
        let parts = vec![part(q4, 4096), part(q4, 4096), part(q6, 1024), part(q4, 1024)];
        let w = Matrix { cols: 2560, rows: 10240, parts };
        let rows: Vec<u32> = w.parts.iter().map(|p| w.rows_of_type(p)).collect();
        assert_eq!(rows, [8192, 8192, 1024, 1024]);
        assert_eq!(rows.iter().map(|n| cut(2560, *n)).collect::<Vec<_>>(), [(80, 1), (80, 1), (20, 4), (20, 4)]);
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
            let before = random.values(padded(ROWS as u32) as usize * (n + 12));
            let bias_buffer = upload(&gpu, &bias);
            let scratch = block_on(gpu.buffer("scratch", scratch_bytes(ROWS as u32))).unwrap();
            // Rows of y are longer than the product, and there are whole tiles of them.
            let ld = n + 12;
            let padded = padded(ROWS as u32) as usize;
            for (with_bias, add) in [(false, false), (true, true)] {
                let epilogue = Epilogue { bias: with_bias.then(|| bias_buffer.all()), add, later: false };
                let mut first: Option<Vec<u32>> = None;
                // The end of the kernel is the same for every type, and each variant takes about a second to compile.
                let all = [TensorType::F32, TensorType::Q8_0, TensorType::Q4_K].contains(&ty);
                for tile in if all { &TILES[..] } else { &TILES[2..4] } {
                    let tile = *tile;
                    for (side_by_side, rows) in [(false, ROWS), (true, ROWS), (false, 1), (true, 33), (false, 150)] {
                        let y = upload(&gpu, &before);
                        let plan = Plan { tile, side_by_side };
                        for part in &w.parts {
                            let y = Mat::new(&y, ld as u32);
                            product(&mut rec, &w, part, plan, bits.all(), y, rows as u32, epilogue, scratch.all());
                        }
                        let found: Vec<u32> = download(&mut rec, &y, padded * ld);
                        for (found, before) in found.chunks(ld).zip(before.chunks(ld)) {
                            assert!(found[n..].iter().zip(&before[n..]).all(|(a, b)| *a == b.to_bits()), "{ty} {plan:?}: wrote beside y");
                        }
                        match &first {
                            None => first = Some(found),
                            Some(all) => assert!(found[..rows * ld] == all[..rows * ld], "{ty} {plan:?}, {rows} rows: other bits"),
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
                        wanted += if with_bias { f64::from(bias[c]) } else { 0.0 } + if add { f64::from(before[m * ld + c]) } else { 0.0 };
                        error += (f64::from(found[m * ld + c]) - wanted).powi(2);
                    }
                }
                let relative = (error / scale).sqrt();
                println!("{ty}: relative error {relative:.1e}");
                assert!(relative < 6e-4, "{ty}: {relative}");
            }
        }
    }

    /// Rows of y with room behind their last column take whole tiles, and the same bits.
    #[test]
    fn room_behind_the_last_column() {
        let Some(mut rec) = matrix_recorder() else { return };
        let gpu = rec.gpu().clone();
        let mut random = Random::new(23);
        let (n, k, rows) = (4192usize, 512usize, 150usize);
        let (w, _) = matrix(&gpu, &[(TensorType::Q8_0, 64), (TensorType::Q4_K, n - 64)], k, &mut random);
        let x = upload_x(&gpu, &random.values(ROWS * k), k);
        let scratch = block_on(gpu.buffer("scratch", scratch_bytes(ROWS as u32))).unwrap();
        let padded = padded(ROWS as u32) as usize;
        let mut run = |ld: usize, tile: Tile| {
            let y = upload(&gpu, &vec![7f32; padded * ld]);
            for part in &w.parts {
                let plan = Plan { tile, side_by_side: false };
                product(&mut rec, &w, part, plan, x.all(), Mat::new(&y, ld as u32), rows as u32, Epilogue::default(), scratch.all());
            }
            let y: Vec<u32> = download(&mut rec, &y, rows * ld);
            y.chunks(ld).map(|row| row[..n].to_vec()).collect::<Vec<_>>()
        };
        let wanted = run(n, TILES[2]);
        for tile in TILES {
            assert!((n - 64) % tile.cols as usize != 0 || tile.cols < 128, "something stands behind");
            assert!(run(stride(n as u32) as usize + 160, tile) == wanted, "{tile:?}");
        }
    }
}
