//! Matrix products with quantised weights, register-tiled, for many rows.

use super::split::{Pieces, finish, split};
use super::weight::{Matrix, Part, access, defs};
use super::{Mat, Variant};
use crate::gguf::TensorType;
use crate::gpu::template::Defs;
use crate::gpu::{Access, GpuInfo, Recorder, View, Work};
use bytemuck::{Pod, Zeroable};

/// Rows of a tile, each a kernel variant; outputs do not depend on the choice. The first is for adapters that are processors: its threads
/// share nothing (2.3 times as fast on lavapipe as the tile of 64 rows, docs/experiments.md).
pub const TILES: [u32; 3] = [PLAIN, 32, 64];

/// Rows of the tile without memory of a workgroup.
const PLAIN: u32 = 8;

/// Rows that buffers must be padded to, so that no tile leaves them.
pub const ROW_PADDING: u32 = 64;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    n: u32,
    blocks: u32,
    ldx: u32,
    ldy: u32,
    y_at: u32,
    n_groups: u32,
    bias_at: u32,
    rows: u32,
    span: u32,
}

pub(super) fn with_epilogue(ty: TensorType, bias: bool) -> Vec<Access> {
    let rest = [Access::Read, Access::Write, Access::Read];
    access(ty, if bias { &rest } else { &rest[..2] })
}

/// What a tiled product does with its sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// Stores the pieces of a split of k.
    Parts,
    /// Stores the outputs.
    Outputs {
        /// With a bias.
        bias: bool,
        /// Onto what stands there.
        add: bool,
    },
}

/// All there are.
pub const STORES: [Store; 5] = [
    Store::Parts,
    Store::Outputs { bias: false, add: false },
    Store::Outputs { bias: true, add: false },
    Store::Outputs { bias: false, add: true },
    Store::Outputs { bias: true, add: true },
];

impl Store {
    /// For a product in `pieces`, whose epilogue comes when they are added up, or in one.
    pub fn new(pieces: u32, epilogue: &Epilogue<'_>) -> Self {
        match pieces {
            1 => Store::Outputs { bias: epilogue.bias.is_some(), add: epilogue.add },
            _ => Store::Parts,
        }
    }

    /// The end of a variant's label.
    pub fn suffix(self) -> &'static str {
        match self {
            Store::Parts => "_parts",
            Store::Outputs { bias: false, add: false } => "",
            Store::Outputs { bias: true, add: false } => "_bias",
            Store::Outputs { bias: false, add: true } => "_add",
            Store::Outputs { bias: true, add: true } => "_bias_add",
        }
    }

    /// A bias is bound.
    pub fn bias(self) -> bool {
        matches!(self, Store::Outputs { bias: true, .. })
    }

    /// Template definitions.
    pub fn define(self, defs: Defs) -> Defs {
        let add = matches!(self, Store::Outputs { add: true, .. });
        defs.with("PARTS", u8::from(self == Store::Parts)).with("BIAS", u8::from(self.bias())).with("ADD", u8::from(add))
    }
}

/// The tiled product for weights of `ty`.
pub fn matmul_variant(ty: TensorType, tile: u32, store: Store) -> Variant {
    let defs = store.define(defs(ty)).with("BM", tile);
    let (file, defs) = match tile {
        PLAIN => ("matmul_plain.wgsl", defs.with("WG", 8).with("CN", 8)),
        _ => ("matmul.wgsl", defs.with("RM", tile / 8)),
    };
    let label = format!("matmul_{}_{tile}x64{}", ty.name(), store.suffix());
    Variant { label, file, defs, access: with_epilogue(ty, store.bias()) }
}

/// The tile for so many rows on this device.
pub fn tile(gpu: &GpuInfo, rows: u32) -> u32 {
    match rows {
        _ if gpu.software => PLAIN,
        0..=32 => 32,
        _ => 64,
    }
}

/// What happens to a product before it is stored.
#[derive(Debug, Clone, Copy, Default)]
pub struct Epilogue<'a> {
    /// f32 vector of `w.rows` values added to each row.
    pub bias: Option<View<'a>>,
    /// Add to what stands in y (the residual) instead of replacing it.
    pub add: bool,
    /// Where k is cut, leave the pieces to the norm that reads y next: it adds them ([`Pieces`]). For whole rows that are added to, without
    /// a bias.
    pub later: bool,
}

/// `y[m, :] (+)= x[m, :] w^T (+ bias)` for m < `rows`. x is padded to [`ROW_PADDING`] rows; `scratch` holds the pieces of a split of k (as
/// many f32 as [`super::split::scratch`] says).
pub fn matmul(rec: &mut Recorder, w: &Matrix, x: Mat<'_>, y: Mat<'_>, rows: u32, epilogue: Epilogue<'_>, scratch: View<'_>) {
    let tile = tile(rec.gpu().info(), rows);
    with_tile(rec, w, x, y, rows, epilogue, scratch, tile);
}

/// The same in a tile of [`TILES`].
#[allow(clippy::too_many_arguments)]
pub fn with_tile(rec: &mut Recorder, w: &Matrix, x: Mat<'_>, y: Mat<'_>, rows: u32, epilogue: Epilogue<'_>, scratch: View<'_>, tile: u32) {
    for part in &w.parts {
        matmul_part(rec, part, w.blocks(), x, y, rows, epilogue, scratch, tile);
    }
}

/// The product with one part of a matrix of `blocks` blocks of 32 in a row, in a tile of [`TILES`].
#[allow(clippy::too_many_arguments)]
pub fn matmul_part<'a>(
    rec: &mut Recorder,
    part: &Part,
    blocks: u32,
    x: Mat<'_>,
    y: Mat<'_>,
    rows: u32,
    epilogue: Epilogue<'_>,
    scratch: View<'a>,
    tile: u32,
) -> Option<Pieces<'a>> {
    let cut = split(blocks, part.rows);
    let store = Store::new(cut.count, &epilogue);
    let kernel = matmul_variant(part.ty, tile, store).kernel(rec.gpu());
    let params = Params {
        n: part.rows,
        blocks,
        ldx: x.ld / 4,
        ldy: y.ld,
        y_at: part.first,
        n_groups: part.groups(),
        bias_at: part.first,
        rows,
        span: cut.span,
    };
    let mut rest = vec![x.view, if store == Store::Parts { scratch } else { y.view }];
    if store.bias() {
        rest.extend(epilogue.bias);
    }
    let cost = Work::product(rows, part.rows, blocks * 32, part.bytes());
    rec.dispatch(&kernel, &part.views(&rest), &params, [rows.div_ceil(tile), part.rows.div_ceil(64), cut.count], cost);
    if store == Store::Parts { finish(rec, scratch, cut.count, part, y, rows, epilogue) } else { None }
}

#[cfg(test)]
mod tests {
    use super::super::split::scratch;
    use super::super::testing::{Random, download, matrix, recorder, upload};
    use super::super::weight::TYPES;
    use super::*;
    use pollster::block_on;

    /// x[m, k] w[n, k]^T in f64.
    fn reference(x: &[f32], w: &[f32], k: usize) -> Vec<f64> {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        x.chunks(k).flat_map(|a| w.chunks(k).map(move |b| dot(a, b))).collect()
    }

    /// The largest error over the sum of the products' magnitudes, which is what rounding grows with.
    fn relative(found: &[f32], wanted: &[f64], magnitude: &[f64]) -> f64 {
        let worst = found.iter().zip(wanted).zip(magnitude).map(|((a, b), m)| (f64::from(*a) - b).abs() / (1.0 + m));
        worst.fold(0.0, |m, e| if e.is_nan() { f64::INFINITY } else { m.max(e) })
    }

    /// Every type, odd numbers of rows and columns of the output, two parts, with and without bias and residual.
    #[test]
    fn every_type_against_f64() {
        let mut rec = recorder();
        let gpu = rec.gpu().clone();
        let mut random = Random::new(1);
        let (rows, n) = (37usize, 72usize);
        let scratch = block_on(gpu.buffer("pieces", scratch(n as u32, rows as u64) * 4)).unwrap();
        // Rows of 512 columns are cut in two, rows of 256 are not; the cut is the same code for every type.
        for (ty, k) in TYPES.map(|ty| (ty, 256)).into_iter().chain([(TensorType::Q8_0, 512), (TensorType::Q6_K, 512)]) {
            // The second part is of another type: joined matrices mix them.
            let (w, values) = matrix(&gpu, &[(ty, 40), (TensorType::Q8_0, 32)], k, &mut random);
            let mut x = random.values(rows * k);
            let wanted = reference(&x, &values, k);
            let positive = |v: &[f32]| v.iter().map(|v| v.abs()).collect::<Vec<_>>();
            let magnitude = reference(&positive(&x), &positive(&values), k);
            x.resize(64 * k, 0.5);
            let x = upload(&gpu, &x);
            let bias = random.values(n);
            let before = random.values(64 * n);
            for ((with_bias, add), tile) in
                [(false, false), (true, true)].into_iter().flat_map(|epilogue| TILES.map(|tile| (epilogue, tile)))
            {
                let y = upload(&gpu, &before);
                let bias_buffer = upload(&gpu, &bias);
                let epilogue = Epilogue { bias: with_bias.then(|| bias_buffer.all()), add, later: false };
                let (xs, ys) = (Mat::new(&x, k as u32), Mat::new(&y, n as u32));
                with_tile(&mut rec, &w, xs, ys, rows as u32, epilogue, scratch.all(), tile);
                let found: Vec<f32> = download(&mut rec, &y, rows * n);
                let expect = |i: usize| {
                    wanted[i] + if with_bias { f64::from(bias[i % n]) } else { 0.0 } + if add { f64::from(before[i]) } else { 0.0 }
                };
                let wanted: Vec<f64> = (0..rows * n).map(expect).collect();
                let e = relative(&found, &wanted, &magnitude);
                assert!(e < 2e-6, "{ty}, tile of {tile} rows: {e}");
            }
        }
    }

    /// A row's outputs are the same bits in every tile and whatever the other rows are.
    #[test]
    fn rows_do_not_depend_on_company_or_tile() {
        let mut rec = recorder();
        let gpu = rec.gpu().clone();
        let mut random = Random::new(2);
        let (n, k) = (96usize, 768usize);
        let scratch = block_on(gpu.buffer("pieces", scratch(n as u32, 128) * 4)).unwrap();
        let (w, _) = matrix(&gpu, &[(TensorType::Q4_K, n)], k, &mut random);
        let x = random.values(128 * k);
        let mut run = |x: &[f32], rows: usize, tile: u32| -> Vec<u32> {
            let (x, y) = (upload(&gpu, x), upload(&gpu, &vec![0f32; 128 * n]));
            let (xs, ys) = (Mat::new(&x, k as u32), Mat::new(&y, n as u32));
            with_tile(&mut rec, &w, xs, ys, rows as u32, Epilogue::default(), scratch.all(), tile);
            download(&mut rec, &y, rows * n)
        };
        let all = run(&x, 128, 64);
        // Row 70 alone, moved to the front.
        let mut moved = vec![0.25; 128 * k];
        moved[..k].copy_from_slice(&x[70 * k..71 * k]);
        for tile in TILES {
            for rows in [1, 20, 32, 33, 64, 100, 128] {
                assert_eq!(run(&x, rows, tile), all[..rows * n], "{rows} rows, tile of {tile}");
            }
            assert_eq!(run(&moved, 1, tile), all[70 * n..71 * n], "tile of {tile}");
        }
    }
}
