//! Logits: the few answer slots of many rows, or statistics over the whole vocabulary of one row.

use super::weight::{Matrix, access, defs};
use super::{Mat, Variant};
use crate::gguf::TensorType;
use crate::gpu::template::Defs;
use crate::gpu::{Access, Recorder, View};
use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct SlotParams {
    first: u32,
    count: u32,
    blocks: u32,
    ldh: u32,
    ids: u32,
    row_at: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct StatParams {
    n: u32,
    at: u32,
    chunk: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct JoinParams {
    parts: u32,
    out_at: u32,
    token_at: u32,
}

/// Parts a vocabulary is cut into for its statistics.
const PARTS: u32 = 128;

/// Bytes of scratch for [`vocab_stats`].
pub const PARTS_BYTES: u64 = PARTS as u64 * 16;

/// The slot kernel for an output matrix of `ty`.
pub fn slots_variant(ty: TensorType) -> Variant {
    Variant {
        label: format!("head_slots_{}", ty.name()),
        file: "head_slots.wgsl",
        defs: defs(ty),
        access: access(ty, &[Access::Read, Access::Read, Access::Write]),
    }
}

/// The statistics kernel for parts of the vocabulary, and the one that joins them.
pub fn stats_variants() -> [Variant; 2] {
    use Access::{Read, Write};
    let variant = |file: &'static str, access: &[Access]| Variant {
        label: file.trim_end_matches(".wgsl").into(),
        file,
        defs: Defs::new(),
        access: access.to_vec(),
    };
    [variant("vocab_stats.wgsl", &[Read, Write]), variant("vocab_join.wgsl", &[Read, Write, Write])]
}

/// `logits[row_at + m, i] = w[ids[i], :] . h[m, :]` for m < `rows`, i < `count`.
#[allow(clippy::too_many_arguments)]
pub fn slots(rec: &mut Recorder, w: &Matrix, h: Mat<'_>, rows: u32, ids: View<'_>, count: u32, logits: View<'_>, row_at: u32) {
    for part in &w.parts {
        let kernel = slots_variant(part.ty).kernel(rec.gpu());
        let params = SlotParams { first: part.first, count: part.rows, blocks: w.blocks(), ldh: h.ld / 4, ids: count, row_at };
        let cost = 2 * u64::from(rows) * u64::from(count) * u64::from(w.cols);
        rec.dispatch(&kernel, &part.views(&[h.view, ids, logits]), &params, [count, rows, 1], cost);
    }
}

/// Where the statistics of a row of logits go.
#[derive(Debug, Clone, Copy)]
pub struct StatsOut<'a> {
    /// Scratch of [`PARTS_BYTES`].
    pub parts: View<'a>,
    /// (maximum f32, sum of exp(logit - maximum) f32, first index of the maximum u32) ...
    pub stats: View<'a>,
    /// ... from this word on.
    pub at: u32,
    /// The index also goes here ...
    pub tokens: View<'a>,
    /// ... as this entry.
    pub token_at: u32,
}

/// Statistics over the `n` logits from `logits[at]`.
pub fn vocab_stats(rec: &mut Recorder, logits: View<'_>, at: u32, n: u32, out: StatsOut<'_>) {
    let kernel = |i: usize| rec.gpu().remembered(("vocab_stats.wgsl", i as u64), |gpu| stats_variants()[i].kernel(gpu));
    let (stats, join) = (kernel(0), kernel(1));
    let params = StatParams { n, at, chunk: n.div_ceil(PARTS) };
    rec.dispatch(&stats, &[logits, out.parts], &params, [PARTS, 1, 1], u64::from(n) * 8);
    let params = JoinParams { parts: PARTS, out_at: out.at, token_at: out.token_at };
    rec.dispatch(&join, &[out.parts, out.stats, out.tokens], &params, [1, 1, 1], u64::from(PARTS) * 8);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Random, download, error, matrix, recorder, upload};
    use super::super::weight::TYPES;
    use super::*;

    #[test]
    fn slots_of_every_type_against_f64() {
        let mut rec = recorder();
        let gpu = rec.gpu().clone();
        let mut random = Random::new(9);
        for ty in TYPES {
            let (w, values) = matrix(&gpu, &[(ty, 64), (ty, 40)], 256, &mut random);
            let h = random.values(2 * 256);
            let ids = [103u32, 0, 63, 64, 7];
            let (hb, ib, l) = (upload(&gpu, &h), upload(&gpu, &ids), upload(&gpu, &[0f32; 64]));
            slots(&mut rec, &w, Mat::new(&hb, 256), 2, ib.all(), 5, l.all(), 1);
            let found: Vec<f32> = download::<f32>(&mut rec, &l, 15)[5..].to_vec();
            let dot = |r: usize, id: u32| {
                h[r * 256..][..256].iter().zip(&values[id as usize * 256..]).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
            };
            let wanted: Vec<f64> = (0..2).flat_map(|r| ids.map(|id| dot(r, id))).collect();
            let e = error(&found, &wanted, 1.0);
            assert!(e < 2e-5, "{ty}: {e}");
        }
    }

    #[test]
    fn statistics_against_f64_and_first_maximum() {
        let mut rec = recorder();
        let gpu = rec.gpu().clone();
        let mut random = Random::new(10);
        for n in [1usize, 255, 1000, 5000] {
            let mut logits: Vec<f32> = random.values(n + 3).iter().map(|v| v * 30.0).collect();
            // The maximum twice: the first one counts.
            let (first, second) = (3 + n / 3, 3 + n - 1);
            (logits[first], logits[second]) = (31.0, 31.0);
            let (l, stats, tokens) = (upload(&gpu, &logits), upload(&gpu, &[0u32; 8]), upload(&gpu, &[0u32; 8]));
            let parts = upload(&gpu, &vec![u32::MAX; PARTS_BYTES as usize / 4]);
            let out = StatsOut { parts: parts.all(), stats: stats.all(), at: 2, tokens: tokens.all(), token_at: 5 };
            vocab_stats(&mut rec, l.all(), 3, n as u32, out);
            let words: Vec<u32> = download(&mut rec, &stats, 5);
            assert_eq!((f32::from_bits(words[2]), words[4]), (31.0, first as u32 - 3));
            let sum: f64 = logits[3..].iter().map(|v| (f64::from(*v) - 31.0).exp()).sum();
            assert!((f64::from(f32::from_bits(words[3])) / sum - 1.0).abs() < 1e-5);
            let tokens: Vec<u32> = download(&mut rec, &tokens, 8);
            assert_eq!(tokens[5], first as u32 - 3);
        }
    }
}
