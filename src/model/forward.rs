//! The forward pass: one chunk of rows through all layers, readable from top to bottom in [`Forward::layers`].

use super::cache::{Cache, Sequence};
use super::config::Config;
use super::weights::{Layer, Mixer, Weights};
use super::{ModelError, turns};
use crate::gpu::{Buffer, Gpu, Recorder, View};
use crate::kernels::attention::{ROWS, Tile, Tiles};
use crate::kernels::attention_step;
use crate::kernels::delta::{Segment, Segments, Shape, Vectors};
use crate::kernels::embed::embed;
use crate::kernels::gather::gather;
use crate::kernels::linear::{Input, Linear, Rows, Sizes, Tier, padded_rows, row_stride};
use crate::kernels::matmul::Epilogue;
use crate::kernels::matvec::{Along, Place, matvec};
use crate::kernels::quantise::Target;
use crate::kernels::rms_norm::rms_norm_to;
use crate::kernels::rope::{Positions, Row, rope};
use crate::kernels::split::Pieces;
use crate::kernels::{Mat, head};

/// A token of a batch and the place of its keys and values.
#[derive(Debug, Clone, Copy)]
pub struct BatchRow {
    /// Token id, below the vocabulary size.
    pub token: u32,
    /// Position and cache slot.
    pub row: Row,
}

/// Rows that go through the layers together: pieces of one or more sequences.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    rows: Vec<BatchRow>,
    segments: Vec<Segment>,
    positions: Vec<u32>,
    page_at: Vec<u32>,
    pages: Vec<u32>,
    outputs: Vec<u32>,
}

impl Batch {
    /// Adds the next `tokens` of a sequence whose room is reserved, and notes that it has grown. With `output`, the last token's
    /// logits are wanted.
    pub fn push(&mut self, sequence: &mut Sequence, tokens: &[u32], output: bool) {
        let (row, rows) = (self.rows.len() as u32, tokens.len() as u32);
        self.segments.push(Segment { row, rows, state_in: sequence.state_in(), state_out: sequence.state_out() });
        self.positions.push(sequence.len);
        self.page_at.push(self.pages.len() as u32);
        self.pages.extend_from_slice(&sequence.pages);
        for (i, &token) in (sequence.len..).zip(tokens) {
            self.rows.push(BatchRow { token, row: Row { position: i, slot: sequence.slot(i) } });
        }
        sequence.advance(rows);
        if output && rows > 0 {
            self.outputs.push(row + rows - 1);
        }
    }

    /// Single rows of one sequence that follow each other, for generation steps.
    pub(super) fn steps(rows: Vec<BatchRow>, segment: Segment, pages: Vec<u32>) -> Self {
        Self { rows, segments: vec![segment], pages, ..Self::default() }
    }

    /// Entries of its page table.
    pub fn page_entries(&self) -> usize {
        self.pages.len()
    }

    /// Rows whose logits are wanted.
    pub fn output_count(&self) -> usize {
        self.outputs.len()
    }

    /// Rows in it.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// No rows?
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Attention tiles of all rows, and the sum of positions x keys.
    fn tiles(&self, per_tile: u32) -> (Vec<Tile>, u64) {
        let (mut tiles, mut work) = (Vec::new(), 0);
        for ((s, &position), &page_at) in self.segments.iter().zip(&self.positions).zip(&self.page_at) {
            let mut i = 0;
            while i < s.rows {
                let positions = per_tile.min(s.rows - i);
                tiles.push(Tile { q_row: s.row + i, o_row: s.row + i, positions, position: position + i, page_at });
                work += u64::from(positions) * u64::from(position + i + positions);
                i += positions;
            }
        }
        (tiles, work)
    }

    /// One tile for each row whose logits are wanted, with outputs packed to the front.
    fn output_tiles(&self) -> (Vec<Tile>, u64) {
        let (mut tiles, mut work) = (Vec::new(), 0);
        for (o, &row) in (0..).zip(&self.outputs) {
            let i = self.segments.partition_point(|s| s.row <= row) - 1;
            let position = self.positions[i] + row - self.segments[i].row;
            tiles.push(Tile { q_row: row, o_row: o, positions: 1, position, page_at: self.page_at[i] });
            work += u64::from(position) + 1;
        }
        (tiles, work)
    }
}

/// Which rows leave the last layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outputs {
    /// None: the chunk only fills the cache.
    None,
    /// This many, packed.
    Packed(u32),
    /// All, where they are.
    Same,
}

/// Where a chunk's inputs stand in the input buffers.
#[derive(Debug, Clone, Copy)]
struct At {
    rows: u32,
    row_at: u32,
    token_at: u32,
    tile_at: u32,
    tiles: u32,
    tile_rows: u32,
    work: u64,
    out_tile_at: u32,
    out_work: u64,
    segments: u32,
    longest: u32,
}

/// Scratch buffers for chunks of up to `max_rows` rows, and the pass over them.
pub struct Forward {
    max_rows: u32,
    linear: Linear,
    pub(super) tokens: Buffer,
    pub(super) rows: Buffer,
    pub(super) tiles: Buffer,
    pub(super) pages: Buffer,
    outputs: Buffer,
    pub(super) segments: Buffer,
    pub(super) turns: Buffer,
    positions: u32,
    pub(super) x: Buffer,
    x_out: Buffer,
    pub(super) normed: Buffer,
    /// What a layer's input is projected to: queries, keys and values, or the joined inputs of a DeltaNet layer; later gate and up.
    pub(super) wide: Buffer,
    /// What a DeltaNet layer has convolved; later the feed-forward's hidden rows.
    pub(super) inner: Buffer,
    pub(super) mixed: Buffer,
    /// Normed final rows `[outputs, dim]`.
    pub(super) last: Buffer,
    /// Full-vocabulary logits of one row.
    vocab: Buffer,
    stats: Buffer,
    vocab_parts: Buffer,
    /// Pieces of a generation step's attention.
    pub(super) pieces: Buffer,
}

/// A product that is added to the residual, in the end by the norm that reads it.
const RESIDUAL: Epilogue<'_> = Epilogue { add: true, bias: None, later: true };

/// Bytes allowed for what is small: kernel parameters, answer slots, statistics, rounding of buffer sizes.
const SMALL: u64 = 1 << 20;

/// Bytes of the input buffers for this many entries.
pub(super) const ENTRIES: u32 = 4096;

fn joined_columns(config: &Config) -> u32 {
    let attention = config.attention.heads.columns();
    config.delta.map_or(attention, |_| attention.max(shape(config).columns()))
}

fn mixed_columns(config: &Config) -> u32 {
    let h = &config.attention.heads;
    (h.heads * h.head_dim).max(config.delta.map_or(0, |d| d.inner()))
}

fn sizes(config: &Config, tier: Tier, max_rows: u32) -> Sizes {
    Sizes {
        rows: padded_rows(tier, max_rows),
        widest: config.dim.max(config.ffn).max(mixed_columns(config)),
        tallest: config.dim.max(2 * config.ffn).max(joined_columns(config)),
    }
}

pub(super) fn shape(config: &Config) -> Shape {
    let (key_heads, value_heads) = config.delta.map_or((0, 0), |d| (d.key_heads, d.value_heads));
    Shape { key_heads, value_heads, eps: config.eps }
}

fn wide_columns(config: &Config, tier: Tier) -> u32 {
    joined_columns(config).max(row_stride(tier, 2 * config.ffn))
}

fn inner_columns(config: &Config) -> u32 {
    config.ffn.max(config.delta.map_or(0, |d| d.channels()))
}

impl Forward {
    /// Bytes of the widest scratch buffer for chunks of up to `max_rows` rows.
    pub fn widest(config: &Config, tier: Tier, max_rows: u32) -> u64 {
        u64::from(padded_rows(tier, max_rows)) * u64::from(wide_columns(config, tier)) * 4
    }

    /// GPU bytes of everything beside weights and cache: activations of `max_rows` rows, inputs, the RoPE table for `max_tokens` positions,
    /// logits and their readback.
    pub fn bytes(config: &Config, tier: Tier, max_rows: u32, max_tokens: u32) -> u64 {
        let entry = 4 + 8 + 2 * size_of::<Tile>() + 16 + 4 + size_of::<Segment>();
        let inputs = u64::from(ENTRIES.max(max_rows)) * entry as u64;
        let positions = max_tokens.max(512).checked_next_power_of_two().unwrap_or(1 << 31);
        let table = u64::from(positions) * u64::from(config.attention.heads.rotated / 2) * 8;
        let pieces = attention_step::scratch_bytes(&config.attention.heads, positions);
        let row = 3 * config.dim + wide_columns(config, tier) + inner_columns(config) + mixed_columns(config);
        let rows = u64::from(padded_rows(tier, max_rows)) * (u64::from(row) + u64::from(config.dim)) * 4;
        // What grows with the positions stands beside the old one of half its size.
        let linear = Linear::bytes(tier, sizes(config, tier, max_rows));
        rows + linear + inputs + (table + pieces) * 3 / 2 + 2 * u64::from(config.vocab) * 4 + SMALL
    }

    /// Scratch for chunks of up to `max_rows` rows.
    ///
    /// # Errors
    /// Out of memory.
    pub async fn new(gpu: &Gpu, config: &Config, tier: Tier, max_rows: u32) -> Result<Self, ModelError> {
        let rows = u64::from(padded_rows(tier, max_rows));
        let matrix = async |label, columns: u32| gpu.buffer(label, rows * u64::from(columns) * 4).await;
        let entries = u64::from(ENTRIES.max(max_rows));
        Ok(Self {
            max_rows,
            linear: Linear::new(gpu, tier, sizes(config, tier, max_rows)).await?,
            tokens: gpu.buffer("tokens", entries * 4).await?,
            rows: gpu.buffer("rows", entries * 8).await?,
            tiles: gpu.buffer("tiles", entries * 2 * size_of::<Tile>() as u64).await?,
            pages: gpu.buffer("page tables", entries * 16).await?,
            outputs: gpu.buffer("output rows", entries * 4).await?,
            segments: gpu.buffer("segments", entries * size_of::<Segment>() as u64).await?,
            turns: gpu.buffer("cosines and sines", 256).await?,
            positions: 0,
            x: matrix("residual", config.dim).await?,
            x_out: matrix("residual of the last rows", config.dim).await?,
            normed: matrix("normed", config.dim).await?,
            wide: matrix("projected, gate and up", wide_columns(config, tier)).await?,
            inner: matrix("convolved, feed-forward", inner_columns(config)).await?,
            mixed: matrix("mixed", mixed_columns(config)).await?,
            last: matrix("final rows", config.dim).await?,
            vocab: gpu.buffer("vocabulary logits", u64::from(config.vocab) * 4).await?,
            stats: gpu.buffer("vocabulary statistics", 256).await?,
            vocab_parts: gpu.buffer("parts of the vocabulary statistics", head::PARTS_BYTES).await?,
            pieces: gpu.buffer("attention pieces", 256).await?,
        })
    }

    /// Entries that a batch's page table may have.
    pub fn max_pages(&self) -> usize {
        (self.pages.size / 4) as usize
    }

    /// The precision tier of the products.
    pub fn tier(&self) -> Tier {
        self.linear.tier()
    }

    /// Rows a chunk may have.
    pub fn max_rows(&self) -> u32 {
        self.max_rows
    }

    /// Makes sure that the RoPE table covers `positions`.
    ///
    /// # Errors
    /// Out of memory.
    pub async fn cover(&mut self, rec: &mut Recorder, config: &Config, weights: &Weights, positions: u32) -> Result<(), ModelError> {
        if positions <= self.positions {
            return Ok(());
        }
        let positions = positions.next_power_of_two().max(512);
        let table = turns::table(&config.attention, weights.rope_freqs.as_deref(), positions);
        rec.submit();
        let turns = rec.gpu().buffer("cosines and sines", table.len() as u64 * 8).await?;
        rec.gpu().write(&turns, 0, bytemuck::cast_slice(&table));
        // Only with both are the positions covered.
        self.turns = turns;
        self.pieces = rec.gpu().buffer("attention pieces", attention_step::scratch_bytes(&config.attention.heads, positions)).await?;
        self.positions = positions;
        Ok(())
    }

    pub(super) fn upload(&self, gpu: &Gpu, batch: &Batch, tiles: &[Tile]) {
        let tokens: Vec<u32> = batch.rows.iter().map(|r| r.token).collect();
        let rows: Vec<Row> = batch.rows.iter().map(|r| r.row).collect();
        gpu.write(&self.tokens, 0, bytemuck::cast_slice(&tokens));
        gpu.write(&self.rows, 0, bytemuck::cast_slice(&rows));
        gpu.write(&self.tiles, 0, bytemuck::cast_slice(tiles));
        gpu.write(&self.pages, 0, bytemuck::cast_slice(&batch.pages));
        gpu.write(&self.outputs, 0, bytemuck::cast_slice(&batch.outputs));
        gpu.write(&self.segments, 0, bytemuck::cast_slice(&batch.segments));
    }

    /// Runs a batch; the wanted rows' final states stand in order in `last_rows`. What is recorded must be submitted before the next call.
    ///
    /// # Errors
    /// A batch larger than the scratch, or a page table larger than its buffer: split it.
    pub fn run(&self, rec: &mut Recorder, config: &Config, weights: &Weights, cache: &Cache, batch: &Batch) -> Result<(), ModelError> {
        let heads = &config.attention.heads;
        let tile_rows = self.linear.attention_rows(rec.gpu().info(), batch.rows.len() as u32, heads);
        let (mut tiles, work) = batch.tiles((tile_rows / (heads.heads / heads.kv_heads)).max(1));
        let (out_tiles, out_work) = batch.output_tiles();
        let (count, out_tile_at) = (tiles.len() as u32, tiles.len() as u32);
        tiles.extend(out_tiles);
        let rows = batch.rows.len() as u32;
        if rows > self.max_rows
            || batch.pages.len() as u64 * 4 > self.pages.size
            || tiles.len() * size_of::<Tile>() > self.tiles.size as usize
        {
            return Err(ModelError::Unsupported(format!("a batch of {rows} rows exceeds the scratch of {}", self.max_rows)));
        }
        self.upload(rec.gpu(), batch, &tiles);
        let longest = batch.segments.iter().map(|s| s.rows).max().unwrap_or(0);
        let segments = batch.segments.len() as u32;
        let at = At { rows, row_at: 0, token_at: 0, tile_at: 0, tiles: count, tile_rows, work, out_tile_at, out_work, segments, longest };
        let outputs = if batch.outputs.is_empty() { Outputs::None } else { Outputs::Packed(batch.outputs.len() as u32) };
        self.layers(rec, config, weights, cache, at, outputs);
        Ok(())
    }

    fn layers(&self, rec: &mut Recorder, config: &Config, weights: &Weights, cache: &Cache, at: At, outputs: Outputs) {
        let (dim, eps) = (config.dim, config.eps);
        let (x, x_out, normed) = (Mat::new(&self.x, dim), Mat::new(&self.x_out, dim), Mat::new(&self.normed, dim));
        embed(rec, &weights.embedding, self.tokens.all(), at.token_at, x, at.rows);
        let last = weights.layers.len() - 1;
        let mut x = x;
        let mut rows = Rows { count: at.rows };
        // What the last product has left for the next norm.
        let mut left = None;
        for (i, layer) in weights.layers.iter().enumerate() {
            let input = self.linear.norm(rec, x, left, layer.mixer_norm.view(), eps, normed, rows, layer.mixer.input());
            let packed = if i == last { outputs } else { Outputs::Same };
            left = self.mix(rec, config, layer, cache, i, input, x, at, packed);
            if packed == Outputs::None {
                return;
            }
            if let Outputs::Packed(count) = packed {
                (x, rows.count) = (x_out, count);
            }
            let (gate_up, hidden) = (Mat::new(&self.wide, row_stride(self.tier(), 2 * config.ffn)), Mat::new(&self.inner, config.ffn));
            let input = self.linear.norm(rec, x, left, layer.ffn_norm.view(), eps, normed, rows, &layer.gate_up);
            self.linear.product(rec, &layer.gate_up, input, gate_up, Epilogue::default());
            let input = self.linear.swiglu(rec, gate_up, hidden, rows, &layer.down);
            left = self.linear.product(rec, &layer.down, input, x, RESIDUAL);
        }
        let target = Target::floats(Mat::new(&self.last, dim));
        rms_norm_to(rec, x, left, weights.output_norm.view(), target, dim, rows.count, eps);
    }

    /// Attention or DeltaNet of a layer, added to the residual but for what is returned. In the last layer only the wanted rows go on (into
    /// `x_out`); where there are none, only the cache is filled and the pass is over.
    #[allow(clippy::too_many_arguments)]
    fn mix(
        &self,
        rec: &mut Recorder,
        config: &Config,
        layer: &Layer,
        cache: &Cache,
        i: usize,
        input: Input<'_>,
        x: Mat<'_>,
        at: At,
        outputs: Outputs,
    ) -> Option<Pieces<'_>> {
        let x_out = Mat::new(&self.x_out, config.dim);
        let rows = Rows { count: at.rows };
        match (&layer.mixer, cache.attention(i), cache.delta(i)) {
            (Mixer::Attention { qkv, bias, norms, out }, Some(kv), _) => {
                let a = &config.attention;
                let (projected, mixed) = (Mat::new(&self.wide, a.heads.columns()), Mat::new(&self.mixed, a.heads.heads * a.heads.head_dim));
                let bias = bias.as_ref().map(|b| b.view());
                self.linear.product(rec, qkv, input, projected, Epilogue { bias, ..Epilogue::default() });
                let norms = norms.as_ref().map(|(q, k)| (q.view(), k.view()));
                let positions = Positions { rows: self.rows.all(), row_at: at.row_at, turns: self.turns.all() };
                rope(rec, projected, &a.heads, a.pairs, norms, config.eps, positions, kv, at.rows);
                let tiles =
                    |tile_at, count, rows, work| Tiles { tiles: self.tiles.all(), tile_at, count, rows, pages: self.pages.all(), work };
                match outputs {
                    Outputs::None => None,
                    Outputs::Same => {
                        let tiles = tiles(at.tile_at, at.tiles, at.tile_rows, at.work);
                        let mixed = self.linear.attention(rec, projected, &a.heads, a.gated, kv, tiles, mixed, rows, out);
                        self.linear.product(rec, out, mixed, x, RESIDUAL)
                    }
                    Outputs::Packed(count) => {
                        let (tiles, rows) = (tiles(at.out_tile_at, count, ROWS[0], at.out_work), Rows { count });
                        let mixed = self.linear.attention(rec, projected, &a.heads, a.gated, kv, tiles, mixed, rows, out);
                        gather(rec, x, self.outputs.all(), 0, x_out, config.dim, count);
                        self.linear.product(rec, out, mixed, x_out, RESIDUAL)
                    }
                }
            }
            (Mixer::Delta { input: matrix, conv, a, dt, norm, out }, _, Some(states)) => {
                let shape = shape(config);
                let projected = Mat::new(&self.wide, shape.columns());
                let convolved = Mat::new(&self.inner, shape.channels());
                let mixed = Mat::new(&self.mixed, shape.value_heads * 128);
                self.linear.product(rec, matrix, input, projected, Epilogue::default());
                let vectors = Vectors { conv: conv.view(), a: a.view(), dt: dt.view(), norm: norm.view() };
                let segments = Segments { view: self.segments.all(), count: at.segments, longest: at.longest, rows: at.rows };
                let mixed = self.linear.delta(rec, projected, &shape, vectors, states, segments, convolved, mixed, rows, out);
                if outputs == Outputs::None {
                    return None;
                }
                let Outputs::Packed(count) = outputs else {
                    return self.linear.product(rec, out, mixed, x, RESIDUAL);
                };
                self.linear.product(rec, out, mixed, x, Epilogue { later: false, ..RESIDUAL });
                gather(rec, x, self.outputs.all(), 0, x_out, config.dim, count);
                None
            }
            _ => unreachable!("the cache is built from the same list of layer kinds as the weights"),
        }
    }

    /// Full-vocabulary logits of final row `row`, their statistics, and the first maximum also as `tokens[token_at]`.
    pub fn vocabulary(&self, rec: &mut Recorder, weights: &Weights, row: u32, token_at: u32) {
        self.vocabulary_into(rec, weights, row, token_at, self.stats.all(), 0);
    }

    /// The same with the statistics at `stats[at ..]` (three words).
    pub fn vocabulary_into(&self, rec: &mut Recorder, weights: &Weights, row: u32, token_at: u32, stats: View<'_>, at: u32) {
        let head = weights.head();
        let place = Place { x: Mat::new(&self.last, head.cols), row, y: self.vocab.all(), y_at: 0 };
        matvec(rec, head, place, Along::default());
        let out = head::StatsOut { parts: self.vocab_parts.all(), stats, at, tokens: self.tokens.all(), token_at };
        head::vocab_stats(rec, self.vocab.all(), 0, head.rows, out);
    }

    /// Final rows `[outputs, dim]` of the last [`Forward::run`].
    pub fn last_rows<'a>(&'a self, config: &Config) -> Mat<'a> {
        Mat::new(&self.last, config.dim)
    }

    /// Full-vocabulary logits of the last [`Forward::vocabulary`].
    pub fn vocab_logits(&self) -> View<'_> {
        self.vocab.all()
    }

    /// Maximum, sum of exponentials and argmax of the last [`Forward::vocabulary`].
    pub fn vocab_stats(&self) -> View<'_> {
        self.stats.range(0, 12)
    }
}
