//! Matrix products of 8-bit activations with quantised weights: integer dot products inside blocks of 32.

use super::matmul::{Epilogue, Store, with_epilogue};
use super::quantise::Quants;
use super::split::{Pieces, Split, finish, split};
use super::weight::{Part, defs};
use super::{Mat, Variant};
use crate::gguf::TensorType;
use crate::gpu::{Access, Recorder, View, Work};
use bytemuck::{Pod, Zeroable};

/// Outputs that a workgroup of 128 threads computes; the choice changes no bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    /// Rows of x, a multiple of 8.
    pub rows: u32,
    /// Rows of w: 64 or 128.
    pub cols: u32,
    /// Speed on large products, in percent of the fastest.
    rate: u32,
}

/// The tiles, each a kernel variant. Wider ones (64 and 80 rows) were slower on an H200: their registers leave too few workgroups.
pub const TILES: [Tile; 3] =
    [Tile { rows: 32, cols: 64, rate: 88 }, Tile { rows: 32, cols: 128, rate: 98 }, Tile { rows: 48, cols: 128, rate: 100 }];

/// Rows of x that no tile reaches beyond, for up to `rows` rows.
pub fn padded(rows: u32) -> u32 {
    TILES.iter().map(|tile| rows.next_multiple_of(tile.rows)).max().unwrap_or(rows)
}

/// Workgroups that keep a large adapter busy.
const BUSY: u32 = 264;

/// The tile for `rows` rows, `outputs` rows of a weight whose k is cut into `pieces`: the one with the least work, idle and padded parts
/// of the adapter included.
pub fn tile(rows: u32, outputs: u32, pieces: u32) -> Tile {
    let cost = |tile: &Tile| {
        let groups = rows.div_ceil(tile.rows) * outputs.div_ceil(tile.cols) * pieces;
        let idle = f64::from(BUSY) / f64::from(groups.max(1));
        let work = f64::from(groups) * f64::from(tile.rows * tile.cols) / f64::from(tile.rate);
        work * idle.max(1.0)
    };
    TILES.into_iter().min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap_or(TILES[0])
}

/// Are there 8-bit products for weights of this type? Floats would only lose bits by it.
pub fn takes(ty: TensorType) -> bool {
    !matches!(ty, TensorType::F32 | TensorType::F16 | TensorType::BF16)
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    n: u32,
    blocks: u32,
    mp: u32,
    ldy: u32,
    y_at: u32,
    n_groups: u32,
    bias_at: u32,
    rows: u32,
    span: u32,
}

/// The product for weights of `ty`.
pub fn variant(ty: TensorType, tile: Tile, store: Store) -> Variant {
    let (minima, pair) = match ty {
        TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K => (1, 1),
        TensorType::Q6_K => (0, 1),
        _ => (0, 0),
    };
    // Where registers are left for it: a fifth faster where few workgroups are there to hide the latency of memory.
    let deep = tile.cols == 64;
    let mut access = with_epilogue(ty, store.bias());
    // The scales of x stand between x and y.
    access.insert(super::weight::plane_count(ty), Access::Read);
    Variant {
        label: format!("matmul_q8_{}_{}x{}{}", ty.name(), tile.rows, tile.cols, store.suffix()),
        file: "matmul_q8.wgsl",
        defs: store
            .define(defs(ty))
            .with("WIDE", 1)
            .with("BM", tile.rows)
            .with("BN", tile.cols)
            .with("TY", 8)
            .with("RM", tile.rows / 8)
            .with("RN", tile.cols / 16)
            .with("XL", (2 * tile.rows).div_ceil(128))
            .with("WL", tile.cols / 64)
            .with("DEEP", u8::from(deep))
            .with("OLD_X", if deep { "xv" } else { "xn" })
            .with("OLD_W", if deep { "wv" } else { "wn" })
            .with("OLD_S", if deep { "sv" } else { "sn" })
            .with("OLD_E", if deep { "ev" } else { "en" })
            .with("SHARE", u8::from(tile.cols == 128))
            .with("MINIMA", minima)
            .with("PAIR", pair),
        access,
    }
}

/// `y[m, part] (+)= x[m, :] w^T (+ bias)` for m < `rows` and one part of a matrix with `blocks` blocks of 32 in a row. x is padded to
/// [`padded`] rows; `scratch` holds the pieces of a split (see [`super::split::scratch`]).
#[allow(clippy::too_many_arguments)]
pub fn matmul_q8<'a>(
    rec: &mut Recorder,
    part: &Part,
    blocks: u32,
    x: &Quants,
    y: Mat<'_>,
    rows: u32,
    epilogue: Epilogue<'_>,
    scratch: View<'a>,
) -> Option<Pieces<'a>> {
    let cut = split(blocks, part.rows);
    let tile = tile(rows, part.rows, cut.count);
    with_tile(rec, part, blocks, x, y, rows, epilogue, scratch, tile, cut)
}

#[allow(clippy::too_many_arguments)]
pub(super) fn with_tile<'a>(
    rec: &mut Recorder,
    part: &Part,
    blocks: u32,
    x: &Quants,
    y: Mat<'_>,
    rows: u32,
    epilogue: Epilogue<'_>,
    scratch: View<'a>,
    tile: Tile,
    cut: Split,
) -> Option<Pieces<'a>> {
    debug_assert!(rows.next_multiple_of(tile.rows) <= x.rows && takes(part.ty));
    let store = Store::new(cut.count, &epilogue);
    let kernel = variant(part.ty, tile, store).kernel(rec.gpu());
    let params = Params {
        n: part.rows,
        blocks,
        mp: x.rows,
        ldy: y.ld,
        y_at: part.first,
        n_groups: part.groups(),
        bias_at: part.first,
        rows,
        span: cut.span,
    };
    let mut rest = vec![x.values.all(), x.scales.all(), if store == Store::Parts { scratch } else { y.view }];
    if store.bias() {
        rest.extend(epilogue.bias);
    }
    let cost = Work::product(rows, part.rows, blocks * 32, part.bytes());
    let groups = [rows.div_ceil(tile.rows), part.rows.div_ceil(tile.cols), cut.count];
    rec.dispatch(&kernel, &part.views(&rest), &params, groups, cost);
    if store == Store::Parts { finish(rec, scratch, cut.count, part, y, rows, epilogue) } else { None }
}

#[cfg(test)]
mod tests {
    use super::super::matmul::Store;
    use super::super::quantise::quantise;
    use super::super::split::scratch;
    use super::super::testing::{Random, download, matrix, recorder, upload};
    use super::super::weight::TYPES;
    use super::*;
    use pollster::block_on;

    /// Every type against f64 sums of the same 8-bit rows: odd numbers of rows and outputs, cut and uncut, with and without bias and
    /// residual. All tiles give the same bits (one type of each form), and so does any number of rows.
    #[test]
    fn every_type_and_tile() {
        let mut rec = recorder();
        let gpu = rec.gpu().clone();
        let mut random = Random::new(11);
        let (rows, n) = (83usize, 72usize);
        let scratch = block_on(gpu.buffer("pieces", scratch(n as u32, rows as u64) * 4)).unwrap();
        let types = TYPES.into_iter().filter(|ty| takes(*ty)).map(|ty| (ty, 256)).chain([(TensorType::Q5_K, 768)]);
        for (ty, k) in types {
            let (w, values) = matrix(&gpu, &[(ty, n)], k, &mut random);
            let part = &w.parts[0];
            let x = random.values(rows * k);
            let (bx, q) = (upload(&gpu, &x), block_on(Quants::new(&gpu, padded(rows as u32), k as u32)).unwrap());
            quantise(&mut rec, Mat::new(&bx, k as u32), &q, k as u32, rows as u32);
            let integers = q.integers(&download::<u32>(&mut rec, &q.values, q.values.size as usize / 4), k);
            let scales: Vec<[f32; 2]> = download(&mut rec, &q.scales, q.rows as usize * k / 32);
            let value = |m: usize, c: usize| f64::from(scales[c / 32 * q.rows as usize + m][0]) * f64::from(integers[m * k + c]);
            let (bias, before) = (random.values(n), random.values(rows * n));
            let bias_buffer = upload(&gpu, &bias);
            for (with_bias, add) in [(false, false), (true, true)] {
                let epilogue = Epilogue { bias: with_bias.then(|| bias_buffer.all()), add, later: false };
                let mut run = |tile: Tile, rows: usize| -> Vec<f32> {
                    let y = upload(&gpu, &before);
                    let y_mat = Mat::new(&y, n as u32);
                    let cut = split(w.blocks(), part.rows);
                    with_tile(&mut rec, part, w.blocks(), &q, y_mat, rows as u32, epilogue, scratch.all(), tile, cut);
                    download(&mut rec, &y, rows * n)
                };
                let first = run(TILES[0], rows);
                for m in [0, 1, 31, 50, 82] {
                    for c in 0..n {
                        let terms = (0..k).map(|i| value(m, i) * f64::from(values[c * k + i]));
                        let (sum, size) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
                        let more = if with_bias { f64::from(bias[c]) } else { 0.0 } + if add { f64::from(before[m * n + c]) } else { 0.0 };
                        // With minima the parts that cancel are larger than the terms.
                        let allowed = 4e-6 * (1.0 + size);
                        let found = f64::from(first[m * n + c]);
                        assert!((found - sum - more).abs() < allowed, "{ty}, {k} columns, row {m}, output {c}: {found} for {}", sum + more);
                    }
                }
                let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                let wanted = bits(&first);
                // Kernels take long to compile on a software adapter.
                let forms = [TensorType::Q8_0, TensorType::Q5_K, TensorType::Q6_K];
                let tiles = if with_bias || !forms.contains(&ty) { &TILES[..0] } else { &TILES[1..] };
                for &tile in tiles {
                    assert_eq!(bits(&run(tile, rows)), wanted, "{ty}, {k} columns, {tile:?}");
                    assert_eq!(bits(&run(tile, 17)), wanted[..17 * n], "{ty}, {k} columns, {tile:?}, 17 rows");
                }
                assert_eq!(bits(&run(TILES[0], 1)), wanted[..n], "{ty}, {k} columns, one row");
            }
        }
    }

    /// Small numbers of rows get small tiles, large products the fast one, and nothing leaves the padding.
    #[test]
    fn tiles_fit_the_work() {
        assert_eq!(tile(1, 1024, 6), TILES[0]);
        assert_eq!(tile(150, 18432, 1), TILES[1]);
        assert_eq!(tile(2048, 18432, 1), TILES[2]);
        for rows in 1..700u32 {
            assert!(TILES.iter().all(|t| rows.next_multiple_of(t.rows) <= padded(rows)));
            assert!(padded(rows) >= padded(rows - 1));
        }
    }

    /// The label says everything that a variant depends on.
    #[test]
    fn labels() {
        let store = Store::Outputs { bias: true, add: true };
        assert_eq!(variant(TensorType::Q4_K, TILES[1], store).label, "matmul_q8_Q4_K_32x128_bias_add");
    }
}
