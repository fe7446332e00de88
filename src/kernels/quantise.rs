//! 8-bit activations: blocks of 32 columns with a scale, and with scale times sum for weights that have minima.

use super::{Mat, Variant};
use crate::gpu::template::Defs;
use crate::gpu::{Access, Buffer, Gpu, GpuError, Recorder, View, Work};
use bytemuck::{Pod, Zeroable};

/// Room for rows in 8-bit blocks, laid out as the products read them: blocks of all rows side by side.
#[derive(Debug)]
pub struct Quants {
    /// int8 `[k / 32][rows][32]`.
    pub values: Buffer,
    /// f32 pairs `[k / 32][rows]`: scale, scale * sum of the block's integers.
    pub scales: Buffer,
    /// Rows that there is room for.
    pub rows: u32,
}

impl Quants {
    /// Room for `rows` rows of up to `cols` columns.
    ///
    /// # Errors
    /// Out of memory.
    pub async fn new(gpu: &Gpu, rows: u32, cols: u32) -> Result<Self, GpuError> {
        let values = u64::from(rows) * u64::from(cols);
        Ok(Self { values: gpu.buffer("8-bit rows", values).await?, scales: gpu.buffer("scales of 8-bit rows", values / 4).await?, rows })
    }

    /// The integers of rows of `cols` columns, row after row, from the words of [`Quants::values`].
    pub fn integers(&self, words: &[u32], cols: usize) -> Vec<i8> {
        let rows = self.rows as usize;
        let word = |i: usize| words[(i % cols / 32 * rows + i / cols) * 8 + i % 32 / 4];
        (0..rows * cols).map(|i| word(i).to_le_bytes()[i % 4] as i8).collect()
    }

    /// GPU bytes of that.
    pub fn bytes(rows: u64, cols: u32) -> u64 {
        let values = rows * u64::from(cols);
        values + values / 4
    }
}

/// In which forms a kernel hands rows over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// f32.
    Floats,
    /// 8-bit blocks.
    Q8,
    /// Both, for matrices that mix float and integer weights.
    Both,
    /// f16 as `half.wgsl` says, for the tensor tier.
    Half,
}

/// All forms.
pub const FORMS: [Form; 4] = [Form::Floats, Form::Q8, Form::Both, Form::Half];

impl Form {
    /// The end of a variant's label.
    pub fn suffix(self) -> &'static str {
        match self {
            Form::Floats => "",
            Form::Q8 => "_q8",
            Form::Both => "_both",
            Form::Half => "_half",
        }
    }

    fn has(self) -> (u32, u32) {
        (u32::from(self != Form::Q8), u32::from(matches!(self, Form::Q8 | Form::Both)))
    }

    /// Template definitions of a kernel that writes this form after `reads` read bindings.
    pub fn defs(self, reads: u32) -> Defs {
        let (floats, q8) = self.has();
        Defs::new().with("FLOATS", floats).with("Q8", q8).with("B_Q8", reads + floats).with("HALF", u8::from(self == Form::Half))
    }

    /// Its bindings.
    pub fn access(self, reads: usize) -> Vec<Access> {
        let (floats, q8) = self.has();
        let mut all = vec![Access::Read; reads];
        all.resize(reads + (floats + 2 * q8) as usize, Access::Write);
        all
    }
}

/// Where rows go, in one form or both.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    form: Form,
    floats: Mat<'a>,
    q8: Option<&'a Quants>,
}

impl<'a> Target<'a> {
    /// To `floats` alone.
    pub fn floats(floats: Mat<'a>) -> Self {
        Self { form: Form::Floats, floats, q8: None }
    }

    /// To `q8`, and to `floats` too if asked.
    pub fn q8(q8: &'a Quants, floats: Mat<'a>, both: bool) -> Self {
        Self { form: if both { Form::Both } else { Form::Q8 }, floats, q8: Some(q8) }
    }

    /// To f16 rows of `cols` columns.
    pub fn half(rows: View<'a>, cols: u32) -> Self {
        Self { form: Form::Half, floats: Mat { view: rows, ld: cols }, q8: None }
    }

    /// Which forms.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Row stride of the floats (f32 or f16) in units of 4, and rows that the 8-bit buffers hold.
    pub fn strides(&self) -> (u32, u32) {
        (self.floats.ld / 4, self.q8.map_or(0, |q| q.rows))
    }

    /// What is written beside the floats.
    pub fn beside_floats(&self) -> Vec<View<'a>> {
        let half = (self.form == Form::Half).then_some(self.floats.view);
        half.into_iter().chain(self.q8.iter().flat_map(|q| [q.values.all(), q.scales.all()])).collect()
    }

    /// `reads`, then what is written.
    pub fn views(&self, reads: &[View<'a>]) -> Vec<View<'a>> {
        let mut views = reads.to_vec();
        if self.form != Form::Q8 {
            views.push(self.floats.view);
        }
        views.extend(self.q8.iter().flat_map(|q| [q.values.all(), q.scales.all()]));
        views
    }
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    n: u32,
    ldx: u32,
    mp: u32,
}

/// The kernel.
pub fn variant() -> Variant {
    Variant {
        label: "quantise".into(),
        file: "quantise.wgsl",
        defs: Defs::new().with("B_Q8", 1),
        access: vec![Access::Read, Access::Write, Access::Write],
    }
}

/// The first `cols` columns (a multiple of 32) of `rows` rows of x, in 8 bits.
pub fn quantise(rec: &mut Recorder, x: Mat<'_>, q: &Quants, cols: u32, rows: u32) {
    let kernel = variant().kernel(rec.gpu());
    let params = Params { n: cols / 4, ldx: x.ld / 4, mp: q.rows };
    let values = u64::from(rows) * u64::from(cols);
    let cost = Work { operations: values * 4, bytes: values * 5, ..Work::default() };
    rec.dispatch(&kernel, &[x.view, q.values.all(), q.scales.all()], &params, [rows, (cols / 4).div_ceil(128), 1], cost);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::testing::{Random, download, recorder, upload};
    use super::*;
    use pollster::block_on;

    /// Checks what stands in `q` against the rows in f64: every value within half a step, the integers' sums, and nothing lost at
    /// the largest of a block.
    pub fn check(rec: &mut Recorder, q: &Quants, wanted: &[f64], cols: usize) {
        let rows = wanted.len() / cols;
        let values = q.integers(&download::<u32>(rec, &q.values, q.values.size as usize / 4), cols);
        let scales: Vec<[f32; 2]> = download(rec, &q.scales, q.rows as usize * cols / 32);
        for row in 0..rows {
            for kb in 0..cols / 32 {
                let at = kb * q.rows as usize + row;
                let (block, [d, sum]) = (&values[row * cols + kb * 32..][..32], scales[at]);
                let exact = &wanted[row * cols + kb * 32..][..32];
                let most = exact.iter().fold(0.0f64, |m, v| m.max(v.abs()));
                assert!((f64::from(d) * 127.0 - most).abs() <= most * 1e-5 + 1e-30, "row {row}, block {kb}: scale {d} for {most}");
                for (b, v) in block.iter().zip(exact) {
                    assert!(
                        (f64::from(*b) * f64::from(d) - v).abs() <= most / 127.0 * 0.501 + 1e-30,
                        "row {row}, block {kb}: {b} * {d} for {v}"
                    );
                }
                let integers: i32 = block.iter().map(|b| i32::from(*b)).sum();
                assert_eq!(sum, d * integers as f32, "row {row}, block {kb}");
            }
        }
    }

    /// Rows with ordinary, tiny, zero and huge blocks, a stride, and a width that is no multiple of what a workgroup takes.
    #[test]
    fn against_f64() {
        let mut rec = recorder();
        let gpu = rec.gpu().clone();
        let (rows, cols, ld) = (3usize, 672usize, 704usize);
        let mut x = Random::new(31).values(rows * ld);
        x[..32].fill(0.0);
        x[32..64].iter_mut().for_each(|v| *v *= 1e-20);
        x[64..96].iter_mut().for_each(|v| *v *= 1e30);
        let buffer = upload(&gpu, &x);
        let q = block_on(Quants::new(&gpu, 7, cols as u32)).unwrap();
        quantise(&mut rec, Mat::new(&buffer, ld as u32), &q, cols as u32, rows as u32);
        let wanted: Vec<f64> = x.chunks(ld).flat_map(|r| r[..cols].iter().map(|v| f64::from(*v))).collect();
        check(&mut rec, &q, &wanted, cols);
    }
}
