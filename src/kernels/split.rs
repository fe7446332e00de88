//! Products of few outputs and long rows, cut along k: the pieces run side by side and are added up in a fixed order afterwards. The cut is
//! a function of the weight's shape alone, so that no number of rows in flight changes a bit.

use super::matmul::Epilogue;
use super::weight::Part;
use super::{Mat, Variant};
use crate::gpu::template::Defs;
use crate::gpu::{Access, Recorder, View, Work};
use bytemuck::{Pod, Zeroable};

/// How k is cut: `count` pieces of `span` blocks of 32, the last one perhaps shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Pieces, 1 for most weights.
    pub count: u32,
    /// Blocks of a piece.
    pub span: u32,
}

/// Outputs up to which k is cut at all. What is wider has tiles enough at any number of rows.
const WIDEST: u32 = 3072;
/// Outputs times pieces that are aimed at.
const WANTED: u32 = 6144;
/// Most pieces.
const MOST: u32 = 8;

/// The cut for `outputs` rows of `blocks` blocks each (K = 32 blocks): pieces of at least 256 columns.
pub fn split(blocks: u32, outputs: u32) -> Split {
    let wanted = if outputs > WIDEST { 1 } else { WANTED.div_ceil(outputs).min(MOST).min(blocks / 8).max(1) };
    let span = blocks.div_ceil(wanted);
    Split { count: blocks.div_ceil(span), span }
}

/// f32 values of scratch that the pieces of any matrix with at most `outputs` rows need for `rows` rows of x.
pub fn scratch(outputs: u32, rows: u64) -> u64 {
    // WANTED / n rounded up, times n, is below WANTED + n.
    rows * u64::from((WANTED + WIDEST).min(outputs * MOST))
}

/// Pieces of a product that nobody has added up yet: `[count][rows][ld]`.
#[derive(Debug, Clone, Copy)]
pub struct Pieces<'a> {
    /// Where they stand.
    pub view: View<'a>,
    /// How many.
    pub count: u32,
    /// Row stride in f32.
    pub ld: u32,
    /// Distance of two pieces in f32.
    pub stride: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    n: u32,
    rows: u32,
    split: u32,
    ldy: u32,
    y_at: u32,
    bias_at: u32,
}

/// The kernel that adds the pieces up.
pub fn variant(bias: bool, add: bool) -> Variant {
    let all = [Access::Read, Access::Write, Access::Read];
    Variant {
        label: format!("add_parts{}{}", if bias { "_bias" } else { "" }, if add { "_add" } else { "" }),
        file: "add_parts.wgsl",
        defs: Defs::new().with("BIAS", u8::from(bias)).with("ADD", u8::from(add)),
        access: all[..2 + usize::from(bias)].to_vec(),
    }
}

/// [`add_parts`], or what is left to do where the epilogue says so.
pub fn finish<'a>(
    rec: &mut Recorder,
    pieces: View<'a>,
    count: u32,
    part: &Part,
    y: Mat<'_>,
    rows: u32,
    epilogue: Epilogue<'_>,
) -> Option<Pieces<'a>> {
    if epilogue.later {
        return Some(Pieces { view: pieces, count, ld: part.rows, stride: rows * part.rows });
    }
    add_parts(rec, pieces, count, part, y, rows, epilogue);
    None
}

/// `y[m, part] (+)= sum of the pieces (+ bias)` for m < `rows`; `pieces` is `[count, rows, part.rows]`.
pub fn add_parts(rec: &mut Recorder, pieces: View<'_>, count: u32, part: &Part, y: Mat<'_>, rows: u32, epilogue: Epilogue<'_>) {
    let kernel = variant(epilogue.bias.is_some(), epilogue.add).kernel(rec.gpu());
    let params = Params { n: part.rows, rows, split: count, ldy: y.ld, y_at: part.first, bias_at: part.first };
    let mut views = vec![pieces, y.view];
    views.extend(epilogue.bias);
    let values = u64::from(rows) * u64::from(part.rows);
    let cost = Work { operations: values * u64::from(count), bytes: values * 4 * u64::from(count + 1), ..Work::default() };
    rec.dispatch(&kernel, &views, &params, [rows, part.rows.div_ceil(128), 1], cost);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every block is in exactly one piece, no piece is empty, and the scratch is enough.
    #[test]
    fn pieces_cover_k_and_fit() {
        for outputs in [1, 32, 64, 256, 896, 1024, 2048, 2560, 2561, 3071, 3072, 3073, 12352] {
            for blocks in 1..400 {
                let s = split(blocks, outputs);
                assert!(s.count >= 1 && s.count <= MOST, "{outputs} {blocks}: {s:?}");
                assert!((s.count - 1) * s.span < blocks && s.count * s.span >= blocks, "{outputs} {blocks}: {s:?}");
                if s.count > 1 {
                    assert!(u64::from(s.count * outputs) <= scratch(outputs, 1), "{outputs} {blocks}: {s:?}");
                }
            }
        }
        assert_eq!(split(288, 2560), Split { count: 3, span: 96 });
        assert_eq!(split(64, 1024), Split { count: 6, span: 11 });
    }
}
