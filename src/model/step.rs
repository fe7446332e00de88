//! Generation: one row through all layers by matrix-vector products in f32, whatever the tier of the prompt, several steps recorded in a
//! row. No decision ever reads a step's states, so its sums may run in another order than a prompt's.

use super::cache::{Cache, Sequence};
use super::config::Config;
use super::forward::{Batch, BatchRow, ENTRIES, Forward, shape};
use super::weights::{Layer, Mixer, Weights};
use crate::gpu::{Recorder, View};
use crate::kernels::Mat;
use crate::kernels::attention::PAGE;
use crate::kernels::attention_step::{Step, attention_step};
use crate::kernels::delta::{Segment, Segments, Vectors, delta};
use crate::kernels::embed::embed;
use crate::kernels::matvec::{Along, Place, gate_up, matvec, takes_norm, takes_pairs};
use crate::kernels::quantise::Target;
use crate::kernels::rms_norm::rms_norm;
use crate::kernels::rope::{Positions, Row, rope};
use crate::kernels::swiglu::swiglu;
use crate::kernels::weight::Matrix;

impl Forward {
    /// Records `steps` greedy generation steps for a sequence whose room is reserved, the first one with `token`. The chosen tokens come to
    /// stand at `tokens[1 ..= steps]`; read them with [`Forward::chosen`].
    #[allow(clippy::too_many_arguments)]
    pub fn generate(
        &self,
        rec: &mut Recorder,
        config: &Config,
        weights: &Weights,
        cache: &Cache,
        sequence: &mut Sequence,
        token: u32,
        steps: u32,
    ) {
        let segment = Segment { row: 0, rows: 1, state_in: sequence.state_in(), state_out: sequence.state_out() };
        let rows = (sequence.len..).take(steps as usize).map(|position| Row { position, slot: sequence.slot(position) });
        let inputs = Batch::steps(rows.map(|row| BatchRow { token, row }).collect(), segment, sequence.pages.clone());
        self.upload(rec.gpu(), &inputs, &[]);
        for i in 0..steps {
            self.step(rec, config, weights, cache, i, sequence.len + i);
            self.vocabulary(rec, weights, 0, i + 1);
            // The GPU begins with a step while the next one is recorded.
            rec.submit();
        }
        sequence.advance(steps);
    }

    /// One row: entry `at` of the tokens and rows.
    fn step(&self, rec: &mut Recorder, config: &Config, weights: &Weights, cache: &Cache, at: u32, position: u32) {
        let (dim, eps) = (config.dim, config.eps);
        let x = Mat::new(&self.x, dim);
        embed(rec, &weights.embedding, self.tokens.all(), at, x, 1);
        for (i, layer) in weights.layers.iter().enumerate() {
            self.step_mix(rec, config, layer, cache, i, at, position);
            let norm = layer.ffn_norm.view();
            let hidden = Mat::new(&self.inner, config.ffn);
            if takes_pairs(rec.gpu().info(), &layer.gate_up) {
                gate_up(rec, &layer.gate_up, Place { x, row: 0, y: hidden.view, y_at: 0 }, (norm, eps));
            } else {
                let both = Mat::new(&self.wide, 2 * config.ffn);
                self.normed_product(rec, &layer.gate_up, norm, eps, None, both.view);
                swiglu(rec, both, hidden, config.ffn, 1);
            }
            let residual = Along { add: true, ..Along::default() };
            matvec(rec, &layer.down, Place { x: hidden, row: 0, y: x.view, y_at: 0 }, residual);
        }
        rms_norm(rec, x, weights.output_norm.view(), Mat::new(&self.last, dim), dim, 1, eps);
    }

    /// `y = w norm(x) (+ bias)` for the residual row.
    fn normed_product(&self, rec: &mut Recorder, w: &Matrix, norm: View<'_>, eps: f32, bias: Option<View<'_>>, y: View<'_>) {
        let x = Mat::new(&self.x, w.cols);
        if takes_norm(rec.gpu().info(), w) {
            return matvec(rec, w, Place { x, row: 0, y, y_at: 0 }, Along { norm: Some((norm, eps)), bias, add: false });
        }
        let normed = Mat::new(&self.normed, w.cols);
        rms_norm(rec, x, norm, normed, w.cols, 1, eps);
        matvec(rec, w, Place { x: normed, row: 0, y, y_at: 0 }, Along { norm: None, bias, add: false });
    }

    /// Attention or DeltaNet of a layer, added to the residual.
    #[allow(clippy::too_many_arguments)]
    fn step_mix(&self, rec: &mut Recorder, config: &Config, layer: &Layer, cache: &Cache, i: usize, at: u32, position: u32) {
        let norm = layer.mixer_norm.view();
        let residual = Along { add: true, ..Along::default() };
        let y = self.x.all();
        match (&layer.mixer, cache.attention(i), cache.delta(i)) {
            (Mixer::Attention { qkv, bias, norms, out }, Some(kv), _) => {
                let a = &config.attention;
                let projected = Mat::new(&self.wide, a.heads.columns());
                let mixed = Mat::new(&self.mixed, a.heads.heads * a.heads.head_dim);
                self.normed_product(rec, qkv, norm, config.eps, bias.as_ref().map(|b| b.view()), projected.view);
                let norms = norms.as_ref().map(|(q, k)| (q.view(), k.view()));
                let positions = Positions { rows: self.rows.all(), row_at: at, turns: self.turns.all() };
                rope(rec, projected, &a.heads, a.pairs, norms, config.eps, positions, kv, 1);
                let step = Step { pages: self.pages.all(), position, scratch: self.pieces.all() };
                attention_step(rec, projected.view, &a.heads, a.gated, kv, step, mixed.view);
                matvec(rec, out, Place { x: mixed, row: 0, y, y_at: 0 }, residual);
            }
            (Mixer::Delta { input, conv, a, dt, norm: head_norm, out }, _, Some(states)) => {
                let shape = shape(config);
                let projected = Mat::new(&self.wide, shape.columns());
                let convolved = Mat::new(&self.inner, shape.channels());
                let mixed = Mat::new(&self.mixed, shape.value_heads * 128);
                self.normed_product(rec, input, norm, config.eps, None, projected.view);
                let vectors = Vectors { conv: conv.view(), a: a.view(), dt: dt.view(), norm: head_norm.view() };
                let segments = Segments { view: self.segments.all(), count: 1, longest: 1, rows: 1 };
                delta(rec, projected, &shape, vectors, states, segments, convolved, mixed, Target::floats(mixed));
                matvec(rec, out, Place { x: mixed, row: 0, y, y_at: 0 }, residual);
            }
            _ => unreachable!("the cache is built from the same list of layer kinds as the weights"),
        }
    }

    /// The tokens that [`Forward::generate`] chose.
    pub fn chosen(&self, steps: u32) -> View<'_> {
        self.tokens.range(4, u64::from(steps) * 4)
    }

    /// Generation steps that can be in flight together.
    pub fn max_steps() -> u32 {
        ENTRIES.min(PAGE * 8) - 1
    }
}
