//! The ladder's models with their true dimensions and tensor types and random weights, made up while they are read: benches then need no
//! file, neither on a bare machine nor in the page. Speed is real, answers are not; there is no tokenizer.

use super::Tokens;
use crate::gguf::testing::{Tensor, Writer};
use crate::gguf::{BlockingSource, ByteSource, SourceError, TensorType, Value};

/// The models there are, as `semif models` names them.
pub const NAMES: [&str; 3] = ["qwen3-0.6b", "minicpm5-2b", "qwen3.5-4b"];

/// Small ones of each architecture, that the self-test has references for ([`super::references`]).
pub const TINY: [&str; 3] = ["qwen3-tiny", "llama-tiny", "qwen35-tiny"];

/// Dimensions of a model.
struct Dims {
    architecture: &'static str,
    layers: u32,
    dim: u32,
    ffn: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    vocab: u32,
    context: u32,
    rope_base: f32,
    tied: bool,
    /// Key heads and value heads of DeltaNet layers, which all but every fourth are.
    delta: Option<(u32, u32)>,
}

fn dims(name: &str) -> Option<Dims> {
    Some(match name {
        "qwen3-0.6b" => Dims {
            architecture: "qwen3",
            layers: 28,
            dim: 1024,
            ffn: 3072,
            heads: 16,
            kv_heads: 8,
            head_dim: 128,
            vocab: 151_936,
            context: 40_960,
            rope_base: 1e6,
            tied: true,
            delta: None,
        },
        "minicpm5-2b" => Dims {
            architecture: "llama",
            layers: 42,
            dim: 2048,
            ffn: 6144,
            heads: 16,
            kv_heads: 2,
            head_dim: 128,
            vocab: 130_560,
            context: 131_072,
            rope_base: 5e6,
            tied: false,
            delta: None,
        },
        "qwen3.5-4b" => Dims {
            architecture: "qwen35",
            layers: 32,
            dim: 2560,
            ffn: 9216,
            heads: 16,
            kv_heads: 4,
            head_dim: 256,
            vocab: 248_320,
            context: 262_144,
            rope_base: 1e7,
            tied: true,
            delta: Some((16, 32)),
        },
        "qwen3-tiny" => Dims { architecture: "qwen3", layers: 2, heads: 4, kv_heads: 2, head_dim: 128, ..tiny() },
        "llama-tiny" => Dims { architecture: "llama", layers: 2, heads: 4, kv_heads: 1, head_dim: 64, tied: false, ..tiny() },
        "qwen35-tiny" => Dims { architecture: "qwen35", layers: 4, heads: 2, kv_heads: 1, head_dim: 256, delta: Some((2, 4)), ..tiny() },
        _ => return None,
    })
}

/// What the tiny models have in common.
fn tiny() -> Dims {
    Dims {
        architecture: "",
        layers: 0,
        dim: 256,
        ffn: 512,
        heads: 0,
        kv_heads: 0,
        head_dim: 0,
        vocab: 512,
        context: 512,
        rope_base: 1e4,
        tied: true,
        delta: None,
    }
}

/// What a tensor's values are like.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Zero-mean noise.
    Matrix(TensorType),
    /// Around one: norm weights.
    Norm,
    /// Small numbers of both signs.
    Small,
    /// Negative: the decay of DeltaNet heads.
    Decay,
}

impl Kind {
    const fn ty(self) -> TensorType {
        match self {
            Self::Matrix(ty) => ty,
            _ => TensorType::F32,
        }
    }
}

/// The kinds that a repeated pattern is kept for.
const KINDS: [Kind; 8] = [
    Kind::Matrix(TensorType::F32),
    Kind::Matrix(TensorType::Q8_0),
    Kind::Matrix(TensorType::Q4_K),
    Kind::Matrix(TensorType::Q5_K),
    Kind::Matrix(TensorType::Q6_K),
    Kind::Norm,
    Kind::Small,
    Kind::Decay,
];

/// Blocks of a pattern. A prime: rows, whose numbers of blocks are even, then do not repeat each other.
const BLOCKS: usize = 8191;

/// `BLOCKS` valid blocks of random quants whose values have a standard deviation of about 0.02.
fn pattern(kind: Kind, random: &mut Tokens) -> Vec<u8> {
    let ty = kind.ty();
    let words = (BLOCKS * ty.block_bytes()).div_ceil(2);
    let mut bytes: Vec<u8> = random.take(words, 1 << 16).into_iter().flat_map(|w| (w as u16).to_le_bytes()).collect();
    bytes.truncate(BLOCKS * ty.block_bytes());
    // Offsets of f16 numbers in a block, and what they are.
    let scales: &[(usize, f32)] = match ty {
        TensorType::Q8_0 => &[(0, 2.7e-4)],
        TensorType::Q4_K => &[(0, 1.36e-4), (2, 1.0e-3)],
        TensorType::Q5_K => &[(0, 6.8e-5), (2, 1.05e-3)],
        TensorType::Q6_K => &[(208, 1.46e-5)],
        _ => &[],
    };
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        for &(at, scale) in scales {
            block[at..at + 2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
        }
        if ty == TensorType::F32 {
            let unit = f32::from(i16::from_le_bytes([block[0], block[1]])) / 32768.0;
            let value = match kind {
                Kind::Norm => 1.0 + 0.1 * unit,
                Kind::Decay => -1.1 - unit,
                _ => 0.035 * unit,
            };
            block.copy_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}

/// Layers that a Q4_K_M file stores with more bits: the first and last eighth and every third between.
fn more_bits(i: u32, n: u32) -> bool {
    i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
}

/// A tensor and where its bytes lie.
struct Piece {
    at: u64,
    end: u64,
    /// Index into `KINDS`.
    pattern: usize,
    /// Byte of the pattern that it begins with.
    shift: u64,
}

/// A model file that is made up while it is read. Every read of a range gives the same bytes.
pub struct Synthetic {
    name: String,
    header: Vec<u8>,
    pieces: Vec<Piece>,
    patterns: Vec<Vec<u8>>,
    len: u64,
}

/// Collects tensors.
struct Layout {
    writer: Writer,
    pieces: Vec<(usize, u64)>,
    next: u64,
}

impl Layout {
    fn tensor(&mut self, name: String, kind: Kind, dims: &[u32]) {
        let dims: Vec<u64> = dims.iter().map(|d| u64::from(*d)).collect();
        let rows: u64 = dims.iter().skip(1).product();
        let bytes = kind.ty().row_bytes(dims[0]).unwrap_or(0) * rows;
        let offset = self.next;
        self.next = (offset + bytes).next_multiple_of(32);
        self.writer.tensors.push(Tensor { name, type_id: kind.ty().id(), dims, offset: Some(offset), data: Vec::new() });
        self.pieces.push((KINDS.iter().position(|k| *k == kind).unwrap_or(0), bytes));
    }

    /// `real` is the layer of the published file whose types this layer has.
    fn layer(&mut self, d: &Dims, i: u32, real: u32) {
        use TensorType::{F32, Q4_K, Q5_K, Q6_K, Q8_0};
        let extra = if more_bits(real, d.layers) { Q6_K } else { Q4_K };
        let ty = |role: &str| match (d.architecture, role) {
            ("qwen3", _) => Q8_0,
            (_, "ffn_down") => extra,
            ("llama", "attn_v") | ("qwen35", "attn_q" | "attn_v") => extra,
            ("qwen35", "attn_qkv") => Q6_K,
            ("qwen35", "attn_k" | "attn_output") => Q5_K,
            ("qwen35", "ssm_alpha" | "ssm_beta") => F32,
            ("qwen35", "ssm_out") if extra == Q6_K => Q8_0,
            _ => Q4_K,
        };
        let name = |role: &str| format!("blk.{i}.{role}.weight");
        let mut matrix = |role: &str, cols: u32, rows: u32| self.tensor(name(role), Kind::Matrix(ty(role)), &[cols, rows]);
        let (q, kv) = (d.heads * d.head_dim, d.kv_heads * d.head_dim);
        let delta = d.delta.filter(|_| !(i + 1).is_multiple_of(4));
        if let Some((key_heads, value_heads)) = delta {
            matrix("attn_qkv", d.dim, (2 * key_heads + value_heads) * 128);
            matrix("attn_gate", d.dim, value_heads * 128);
            matrix("ssm_alpha", d.dim, value_heads);
            matrix("ssm_beta", d.dim, value_heads);
            matrix("ssm_out", value_heads * 128, d.dim);
        } else {
            matrix("attn_q", d.dim, if d.architecture == "qwen35" { 2 * q } else { q });
            matrix("attn_k", d.dim, kv);
            matrix("attn_v", d.dim, kv);
            matrix("attn_output", q, d.dim);
        }
        matrix("ffn_gate", d.dim, d.ffn);
        matrix("ffn_up", d.dim, d.ffn);
        matrix("ffn_down", d.ffn, d.dim);
        self.tensor(name("attn_norm"), Kind::Norm, &[d.dim]);
        self.tensor(name(if d.architecture == "qwen35" { "post_attention_norm" } else { "ffn_norm" }), Kind::Norm, &[d.dim]);
        if let Some((key_heads, value_heads)) = delta {
            self.tensor(name("ssm_conv1d"), Kind::Small, &[4, (2 * key_heads + value_heads) * 128]);
            self.tensor(format!("blk.{i}.ssm_a"), Kind::Decay, &[value_heads]);
            self.tensor(format!("blk.{i}.ssm_dt.bias"), Kind::Small, &[value_heads]);
            self.tensor(name("ssm_norm"), Kind::Norm, &[128]);
        } else if d.architecture != "llama" {
            self.tensor(name("attn_q_norm"), Kind::Norm, &[d.head_dim]);
            self.tensor(name("attn_k_norm"), Kind::Norm, &[d.head_dim]);
        }
    }
}

/// Which layers of the published file stand for `layers` layers: the first ones and some from the middle, in fours, so that every mixture of
/// types is there.
fn real_layer(i: u32, layers: u32, of: u32) -> u32 {
    let first = (layers / 2).next_multiple_of(4).min(layers);
    if layers >= of || i < first { i } else { of / 2 / 4 * 4 + i - first }
}

impl Synthetic {
    /// A model of [`NAMES`] or [`TINY`] with all its layers and its vocabulary, or with fewer. `None` for any other name.
    pub fn new(name: &str, layers: Option<u32>, vocab: Option<u32>) -> Option<Synthetic> {
        let d = dims(name)?;
        let d = Dims { vocab: vocab.unwrap_or(d.vocab).next_multiple_of(32), ..d };
        let layers = layers.unwrap_or(d.layers).clamp(1, d.layers);
        let mut layout = Layout { writer: header(name, &d, layers), pieces: Vec::new(), next: 0 };
        let quants = if d.architecture == "qwen3" { [TensorType::Q8_0; 2] } else { [TensorType::Q6_K, TensorType::Q4_K] };
        if !d.tied {
            layout.tensor("output.weight".into(), Kind::Matrix(quants[0]), &[d.dim, d.vocab]);
        }
        layout.tensor("output_norm.weight".into(), Kind::Norm, &[d.dim]);
        layout.tensor("token_embd.weight".into(), Kind::Matrix(quants[usize::from(!d.tied)]), &[d.dim, d.vocab]);
        for i in 0..layers {
            layout.layer(&d, i, real_layer(i, layers, d.layers));
        }
        let mut header = layout.writer.header();
        header.resize(header.len().next_multiple_of(32), 0);
        let data = header.len() as u64;
        let mut random = Tokens::new(11);
        let patterns: Vec<Vec<u8>> = KINDS.iter().map(|kind| pattern(*kind, &mut random)).collect();
        let tensors = layout.writer.tensors.iter().zip(&layout.pieces);
        let pieces: Vec<Piece> = (0..)
            .zip(tensors)
            .map(|(i, (tensor, &(pattern, bytes)))| {
                let at = data + tensor.offset.unwrap_or(0);
                // Another beginning for every tensor, at a whole block.
                let shift = i * 613 % BLOCKS as u64 * KINDS[pattern].ty().block_bytes() as u64;
                Piece { at, end: at + bytes, pattern, shift }
            })
            .collect();
        let len = data + layout.next;
        Some(Synthetic { name: format!("{name} (synthetic, {layers} layers)"), header, pieces, patterns, len })
    }

    fn fill(&self, mut at: u64, mut buf: &mut [u8]) {
        if let Some(head) = self.header.get(at as usize..) {
            let n = head.len().min(buf.len());
            buf[..n].copy_from_slice(&head[..n]);
            (at, buf) = (at + n as u64, &mut buf[n..]);
        }
        let mut i = self.pieces.partition_point(|p| p.end <= at);
        while !buf.is_empty() {
            let Some(piece) = self.pieces.get(i) else {
                buf.fill(0);
                return;
            };
            if at < piece.at {
                let n = ((piece.at - at) as usize).min(buf.len());
                buf[..n].fill(0);
                (at, buf) = (at + n as u64, &mut buf[n..]);
                continue;
            }
            let pattern = &self.patterns[piece.pattern];
            let from = ((at - piece.at + piece.shift) % pattern.len() as u64) as usize;
            let n = (pattern.len() - from).min((piece.end - at) as usize).min(buf.len());
            buf[..n].copy_from_slice(&pattern[from..from + n]);
            (at, buf) = (at + n as u64, &mut buf[n..]);
            if at == piece.end {
                i += 1;
            }
        }
    }
}

fn header(name: &str, d: &Dims, layers: u32) -> Writer {
    let key = |key: &str| format!("{}.{key}", d.architecture);
    let mut numbers = vec![
        ("block_count", layers),
        ("context_length", d.context),
        ("embedding_length", d.dim),
        ("feed_forward_length", d.ffn),
        ("attention.head_count", d.heads),
        ("attention.head_count_kv", d.kv_heads),
        ("attention.key_length", d.head_dim),
        ("attention.value_length", d.head_dim),
    ];
    if let Some((key_heads, value_heads)) = d.delta {
        numbers.extend([
            ("ssm.conv_kernel", 4),
            ("ssm.state_size", 128),
            ("ssm.group_count", key_heads),
            ("ssm.time_step_rank", value_heads),
            ("ssm.inner_size", value_heads * 128),
            ("rope.dimension_count", 64),
        ]);
    }
    let writer = Writer::default().text("general.architecture", d.architecture).text("general.name", &format!("synthetic {name}"));
    let writer = numbers.into_iter().fold(writer, |w, (k, v)| w.entry(&key(k), Value::U32(v)));
    writer.entry(&key("attention.layer_norm_rms_epsilon"), Value::F32(1e-6)).entry(&key("rope.freq_base"), Value::F32(d.rope_base))
}

impl BlockingSource for Synthetic {
    fn read_blocking(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.check_range(offset, buf.len())?;
        self.fill(offset, buf);
        Ok(())
    }
}

impl ByteSource for Synthetic {
    fn len(&self) -> u64 {
        self.len
    }

    fn describe(&self) -> String {
        self.name.clone()
    }

    async fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.read_blocking(offset, buf)
    }

    fn blocking(&self) -> Option<&dyn BlockingSource> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Gguf;
    use crate::model::{Config, Limits, ModelPlan};
    use crate::quant::dequantize;
    use pollster::block_on;

    /// Every model is accepted, with the published number of tensors, types and bytes (the prediction block of Qwen3.5 left out).
    #[test]
    fn the_ladder_as_published() {
        let wanted = [(310, 633_495_552, 197, 0), (381, 1_556_172_800, 0, 43), (426, 2_873_882_624, 12, 49)];
        for (name, (tensors, bytes, q8, q6)) in NAMES.into_iter().zip(wanted) {
            let source = Synthetic::new(name, None, None).unwrap();
            let gguf = block_on(Gguf::read(&source)).unwrap();
            let config = Config::read(&gguf).unwrap();
            let plan = ModelPlan::new(&gguf, &config, Limits { binding: 1 << 30, buffer: 1 << 30 }).unwrap();
            let count = |ty| gguf.tensors.iter().filter(|t| t.ty == ty).count();
            assert_eq!((gguf.tensors.len(), count(TensorType::Q8_0), count(TensorType::Q6_K)), (tensors, q8, q6), "{name}");
            assert_eq!(plan.source_bytes(), bytes, "{name}");
        }
        assert!(Synthetic::new("other", None, None).is_none());
    }

    #[test]
    fn values_are_as_wide_as_weights() {
        let source = Synthetic::new("qwen3.5-4b", Some(8), Some(4096)).unwrap();
        let gguf = block_on(Gguf::read(&source)).unwrap();
        assert!(gguf.tensor("blk.7.attn_q.weight").is_some() && gguf.tensor("blk.6.ssm_a").is_some());
        for t in gguf.tensors.iter().filter(|t| t.rows() > 1 && t.name != "blk.0.ssm_conv1d.weight") {
            let bytes = t.bytes / t.rows() * 8;
            let mut raw = vec![0; bytes as usize];
            block_on(source.read_at(t.offset + bytes, &mut raw)).unwrap();
            let mut values = vec![0.0; t.dims[0] as usize * 8];
            dequantize(t.ty, &raw, &mut values).unwrap();
            let deviation = (values.iter().map(|v| f64::from(v * v)).sum::<f64>() / values.len() as f64).sqrt();
            assert!((0.01..0.04).contains(&deviation), "{}: {deviation}", t.name);
        }
    }

    #[test]
    fn any_range_reads_the_same() {
        let source = Synthetic::new("qwen3-0.6b", Some(1), Some(64)).unwrap();
        let mut all = vec![1; source.len() as usize];
        source.read_blocking(0, &mut all).unwrap();
        for (at, n) in [(0, 10), (source.header.len() as u64 - 3, 4000), (source.len() - 5000, 5000), (777_777, 300_000)] {
            let mut some = vec![2; n];
            source.read_blocking(at, &mut some).unwrap();
            assert_eq!(some, all[at as usize..][..n], "{at}");
        }
        assert!(source.read_blocking(source.len(), &mut [0]).is_err());
    }
}
