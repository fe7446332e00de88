//! Hyper-parameters from metadata as converters write it, and memory plans of the ladder's files by their shapes alone.

use super::{Class, Config, Limits, ModelError, ModelPlan};
use crate::engine::ModelInfo;
use crate::gguf::testing::{Tensor, Writer};
use crate::gguf::{Array, ByteSource, Gguf, SourceError, TensorType, Value};
use crate::kernels::linear::Tier;
use TensorType::{F32, Q4_K, Q5_K, Q6_K, Q8_0};

/// What every adapter has.
const SMALL: Limits = Limits { binding: 128 << 20, buffer: 256 << 20 };

/// A file with an index and no data: zeros, up to the length that the index asks for.
struct Hollow {
    header: Vec<u8>,
    len: u64,
}

impl ByteSource for Hollow {
    fn len(&self) -> u64 {
        self.len
    }

    fn describe(&self) -> String {
        "hollow".into()
    }

    async fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        buf.fill(0);
        let from = self.header.get(offset as usize..).unwrap_or_default();
        let n = from.len().min(buf.len());
        buf[..n].copy_from_slice(&from[..n]);
        Ok(())
    }
}

/// A file's index: tensors by their shapes, of which no byte is ever made.
struct Shapes {
    writer: Writer,
    end: u64,
}

impl Shapes {
    fn new(writer: Writer) -> Self {
        Self { writer, end: 0 }
    }

    fn add(&mut self, name: &str, ty: TensorType, dims: &[u64]) {
        let bytes = ty.row_bytes(dims[0]).expect("whole blocks") * dims[1..].iter().product::<u64>();
        let tensor = Tensor { name: name.into(), type_id: ty.id(), dims: dims.into(), offset: Some(self.end), data: Vec::new() };
        self.writer.tensors.push(tensor);
        self.end = (self.end + bytes).next_multiple_of(32);
    }

    fn without(mut self, gone: impl Fn(&str) -> bool) -> Self {
        self.writer.tensors.retain(|t| !gone(&t.name));
        self
    }

    fn gguf(&self) -> Gguf {
        let header = self.writer.header();
        let len = (header.len() as u64).next_multiple_of(32) + self.end;
        pollster::block_on(Gguf::read(&Hollow { header, len })).expect("readable")
    }
}

fn u32s(writer: Writer, arch: &str, values: &[(&str, u32)]) -> Writer {
    values.iter().fold(writer, |w, (key, value)| w.entry(&format!("{arch}.{key}"), Value::U32(*value)))
}

fn base(arch: &str, values: &[(&str, u32)]) -> Writer {
    let writer = Writer::default().text("general.architecture", arch);
    u32s(writer, arch, values).entry(&format!("{arch}.attention.layer_norm_rms_epsilon"), Value::F32(1e-6))
}

const TINY: [(&str, u32); 6] = [
    ("block_count", 2),
    ("embedding_length", 256),
    ("feed_forward_length", 512),
    ("attention.head_count", 4),
    ("attention.head_count_kv", 2),
    ("attention.key_length", 64),
];

fn embedded(writer: Writer) -> Gguf {
    let mut shapes = Shapes::new(writer);
    shapes.add("token_embd.weight", F32, &[256, 300]);
    shapes.gguf()
}

fn refused(writer: Writer) -> String {
    match Config::read(&embedded(writer)) {
        Err(error) => error.to_string(),
        Ok(config) => panic!("accepted: {config:?}"),
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    for (arch, words) in [
        ("clip", "\"clip\" (the vision part of a model"),
        ("qwen35moe", "\"qwen35moe\" (a mixture of experts)"),
        ("qwen3moe", "\"qwen3moe\" (a mixture of experts)"),
        ("gemma3", "\"gemma3\" is not supported; supported are qwen2, qwen3, llama and qwen35"),
    ] {
        let error = refused(base(arch, &TINY));
        assert!(error.contains(words), "{error}");
    }
    for (key, value, words) in [
        ("llama.expert_count", Value::U32(8), "mixture of experts"),
        ("llama.rope.scaling.type", Value::String("yarn".into()), "RoPE scaling of type \"yarn\""),
        ("llama.rope.scaling.type", Value::String("longrope".into()), "\"longrope\""),
        ("general.type", Value::String("adapter".into()), "\"adapter\""),
        ("general.type", Value::String("mmproj".into()), "\"mmproj\""),
        ("llama.rope.scaling.factor", Value::F32(-2.0), "scaling factor of -2"),
        ("llama.rope.scaling.factor", Value::F32(f32::NAN), "scaling.factor` is NaN"),
        ("llama.nextn_predict_layers", Value::U32(2), "2 blocks, 2 of them"),
        ("llama.attention.value_length", Value::U32(32), "64 key and 32 value dimensions"),
    ] {
        let error = refused(base("llama", &TINY).entry(key, value));
        assert!(error.contains(words), "{key}: {error}");
    }
}

#[test]
fn rope_scaling_as_files_write_it() {
    let divisor = |entries: &[(&str, Value)]| {
        let writer = entries.iter().fold(base("llama", &TINY), |w, (key, value)| w.entry(key, value.clone()));
        Config::read(&embedded(writer)).unwrap().attention.rope_divisor
    };
    let linear = Value::String("linear".into());
    assert_eq!(divisor(&[]), 1.0);
    assert_eq!(divisor(&[("llama.rope.scaling.type", linear.clone()), ("llama.rope.scaling.factor", Value::F32(4.0))]), 4.0);
    assert_eq!(divisor(&[("llama.rope.scaling.factor", Value::F32(4.0))]), 4.0, "linear without its name");
    assert_eq!(divisor(&[("llama.rope.scale_linear", Value::F32(8.0))]), 8.0, "its older name");
    assert_eq!(divisor(&[("llama.rope.scaling.type", linear), ("llama.rope.scaling.factor", Value::F32(0.0))]), 1.0);
    let none = Value::String("none".into());
    assert_eq!(divisor(&[("llama.rope.scaling.type", none), ("llama.rope.scaling.factor", Value::F32(4.0))]), 1.0);
}

#[test]
fn sizes_of_other_models_are_accepted() {
    // Heads, key heads, head size, embedding: Qwen2.5 0.5B to 72B, Qwen3 1.7B to 32B, Llama 3.x, SmolLM2 1.7B.
    for (arch, heads, kv, size, dim) in [
        ("qwen2", 14, 2, 64, 896),
        ("qwen2", 12, 2, 128, 1536),
        ("qwen2", 16, 2, 128, 2048),
        ("qwen2", 28, 4, 128, 3584),
        ("qwen2", 64, 8, 128, 8192),
        ("qwen3", 16, 8, 128, 2048),
        ("qwen3", 32, 8, 128, 2560),
        ("qwen3", 64, 8, 128, 5120),
        ("llama", 32, 8, 64, 2048),
        ("llama", 24, 8, 128, 3072),
        ("llama", 32, 32, 64, 2048),
    ] {
        let values = [
            ("block_count", 2),
            ("embedding_length", dim),
            ("feed_forward_length", 4 * dim),
            ("attention.head_count", heads),
            ("attention.head_count_kv", kv),
        ];
        let mut writer = base(arch, &values);
        if arch == "qwen3" {
            writer = u32s(writer, arch, &[("attention.key_length", size), ("attention.value_length", size)]);
        }
        let mut shapes = Shapes::new(writer);
        shapes.add("token_embd.weight", F32, &[u64::from(dim), 300]);
        let config = Config::read(&shapes.gguf()).unwrap_or_else(|e| panic!("{arch} {dim}: {e}"));
        let h = &config.attention.heads;
        assert_eq!((h.heads, h.kv_heads, h.head_dim, h.rotated), (heads, kv, size, size), "{arch} {dim}");
    }
}

/// Qwen3.5 by its shapes: `blocks` of which the last `predict` are for multi-token prediction.
fn qwen35(d: &Qwen35, extra: impl FnOnce(Writer) -> Writer) -> Shapes {
    let kv = |i| if i < d.layers && (i + 1) % 4 != 0 { 0 } else { d.kv_heads };
    let key_heads = if d.arrays { Value::Array(Array::U32((0..d.layers + d.predict).map(kv).collect())) } else { Value::U32(d.kv_heads) };
    let writer = base(
        "qwen35",
        &[
            ("block_count", d.layers + d.predict),
            ("embedding_length", d.dim),
            ("feed_forward_length", d.ffn),
            ("attention.head_count", d.heads),
            ("attention.key_length", 256),
            ("attention.value_length", 256),
            ("rope.dimension_count", 64),
            ("ssm.conv_kernel", 4),
            ("ssm.state_size", 128),
            ("ssm.group_count", d.key_heads),
            ("ssm.time_step_rank", d.value_heads),
            ("ssm.inner_size", d.value_heads * 128),
        ],
    );
    let mut s = Shapes::new(extra(writer.entry("qwen35.attention.head_count_kv", key_heads)));
    let (dim, ffn) = (u64::from(d.dim), u64::from(d.ffn));
    let (keys, values) = (u64::from(d.key_heads) * 128, u64::from(d.value_heads) * 128);
    let extra_bits = |i: u32| i < d.layers / 8 || i >= 7 * d.layers / 8 || (i - d.layers / 8) % 3 == 2;
    s.add("output_norm.weight", F32, &[dim]);
    s.add("token_embd.weight", Q6_K, &[dim, d.vocab]);
    for i in 0..d.layers + d.predict {
        let more = if extra_bits(i) { Q6_K } else { Q4_K };
        let mut add = |role: &str, ty, dims: &[u64]| s.add(&format!("blk.{i}.{role}"), ty, dims);
        add("attn_norm.weight", F32, &[dim]);
        add("post_attention_norm.weight", F32, &[dim]);
        if i < d.layers && (i + 1) % 4 != 0 {
            add("attn_qkv.weight", Q6_K, &[dim, 2 * keys + values]);
            add("attn_gate.weight", Q4_K, &[dim, values]);
            add("ssm_conv1d.weight", F32, &[4, 2 * keys + values]);
            add("ssm_dt.bias", F32, &[u64::from(d.value_heads)]);
            add("ssm_a", F32, &[u64::from(d.value_heads)]);
            add("ssm_alpha.weight", F32, &[dim, u64::from(d.value_heads)]);
            add("ssm_beta.weight", F32, &[dim, u64::from(d.value_heads)]);
            add("ssm_norm.weight", F32, &[128]);
            add("ssm_out.weight", if extra_bits(i) { Q8_0 } else { Q4_K }, &[values, dim]);
        } else {
            let (q, kv) = (u64::from(d.heads) * 256, u64::from(d.kv_heads) * 256);
            add("attn_q.weight", more, &[dim, 2 * q]);
            add("attn_k.weight", Q5_K, &[dim, kv]);
            add("attn_v.weight", more, &[dim, kv]);
            add("attn_output.weight", Q5_K, &[q, dim]);
            add("attn_q_norm.weight", F32, &[256]);
            add("attn_k_norm.weight", F32, &[256]);
        }
        add("ffn_gate.weight", Q4_K, &[dim, ffn]);
        add("ffn_up.weight", Q4_K, &[dim, ffn]);
        add("ffn_down.weight", more, &[ffn, dim]);
        if i >= d.layers {
            add("nextn.eh_proj.weight", Q8_0, &[2 * dim, dim]);
        }
    }
    s
}

#[derive(Clone)]
struct Qwen35 {
    layers: u32,
    predict: u32,
    dim: u32,
    ffn: u32,
    heads: u32,
    kv_heads: u32,
    key_heads: u32,
    value_heads: u32,
    vocab: u64,
    arrays: bool,
}

const QWEN35_4B: Qwen35 = Qwen35 {
    layers: 32,
    predict: 1,
    dim: 2560,
    ffn: 9216,
    heads: 16,
    kv_heads: 4,
    key_heads: 16,
    value_heads: 32,
    vocab: 248_320,
    arrays: false,
};

#[test]
fn prediction_blocks_are_left_out_however_they_are_declared() {
    let declared = |w: Writer| w.entry("qwen35.nextn_predict_layers", Value::U32(1));
    let same = |w: Writer| w;
    let without = Qwen35 { predict: 0, ..QWEN35_4B };
    let cases = [
        ("declared and there", qwen35(&QWEN35_4B, declared), 1),
        ("there, not declared", qwen35(&QWEN35_4B, same), 1),
        ("neither", qwen35(&without, same), 0),
        ("with arrays", qwen35(&Qwen35 { arrays: true, ..QWEN35_4B }, declared), 1),
        ("arrays without it", qwen35(&Qwen35 { arrays: true, ..without }, same), 0),
    ];
    let mut bytes = Vec::new();
    for (name, shapes, skipped) in cases {
        let gguf = shapes.gguf();
        let config = Config::read(&gguf).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!((config.layers, config.skipped_layers), (32, skipped), "{name}");
        assert_eq!(config.is_delta.iter().filter(|d| **d).count(), 24, "{name}");
        assert_eq!((config.attention.heads.kv_heads, config.attention.heads.rotated), (4, 64), "{name}");
        let plan = ModelPlan::new(&gguf, &config, SMALL).unwrap_or_else(|e| panic!("{name}: {e}"));
        bytes.push(plan.source_bytes());
    }
    assert!(bytes.iter().all(|b| *b == bytes[0]), "prediction blocks are neither read nor uploaded: {bytes:?}");
    // Declared, and its tensors taken out of the file: block 32 is never asked for.
    let stripped = qwen35(&QWEN35_4B, declared).without(|name| name.starts_with("blk.32."));
    let config = Config::read(&stripped.gguf()).unwrap();
    assert_eq!((config.layers, config.skipped_layers), (32, 1));
    // More than there are: a layer would be missing.
    let many = qwen35(&QWEN35_4B, |w| w.entry("qwen35.nextn_predict_layers", Value::U32(2)));
    let error = Config::read(&many.gguf()).unwrap_err().to_string();
    assert!(error.contains("block 31 is an ordinary layer"), "{error}");
}

#[test]
fn smaller_members_of_the_family_are_accepted() {
    // Qwen3.5 0.8B and 2B: as many key heads as value heads.
    for (dim, ffn, layers, heads, kv_heads) in [(1024, 3584, 24, 8, 2), (2048, 6144, 24, 8, 2)] {
        let d = Qwen35 { layers, dim, ffn, heads, kv_heads, key_heads: 16, value_heads: 16, ..QWEN35_4B };
        let gguf = qwen35(&d, |w| w).gguf();
        let config = Config::read(&gguf).unwrap();
        assert!(ModelPlan::new(&gguf, &config, SMALL).is_ok());
    }
}

#[test]
fn missing_norms_are_missed() {
    let gone = ["blk.3.attn_q_norm.weight", "blk.3.attn_k_norm.weight"];
    let gguf = qwen35(&QWEN35_4B, |w| w).without(|name| gone.contains(&name)).gguf();
    let config = Config::read(&gguf).unwrap();
    match ModelPlan::new(&gguf, &config, SMALL) {
        Err(ModelError::MissingTensor(name)) => assert_eq!(name, "blk.3.attn_q_norm.weight"),
        other => panic!("{:?}", other.map(|_| ())),
    }
}

#[test]
fn the_ladder_plan_respects_the_smallest_limits() {
    let gguf = qwen35(&QWEN35_4B, |w| w.entry("qwen35.nextn_predict_layers", Value::U32(1))).gguf();
    let tensor_bytes: u64 = gguf.tensors.iter().filter(|t| !t.name.starts_with("blk.32.")).map(|t| t.bytes).sum();
    let config = Config::read(&gguf).unwrap();
    let plan = ModelPlan::new(&gguf, &config, SMALL).unwrap();
    assert_eq!(plan.embedding.parts.len(), 3, "248320 rows of 1280 bytes of quants in bindings of 128 MiB");
    for matrix in plan.matrices() {
        for part in &matrix.parts {
            assert!(part.bytes <= SMALL.buffer, "{}", matrix.label);
            assert!(part.planes.iter().all(|(at, size)| *size <= SMALL.binding && at % 256 == 0), "{}", matrix.label);
        }
        let rows: u32 = matrix.parts.iter().map(|p| p.rows).sum();
        assert_eq!(rows, matrix.rows, "{}", matrix.label);
    }
    let info = ModelInfo::new(&gguf, &config, &plan, Tier::Exact, 4096, 512);
    let weights = info.memory.weight_bytes();
    assert!(weights as f64 <= 1.05 * tensor_bytes as f64, "{weights} bytes for {tensor_bytes} of tensors");
    // f32 keys and values of 8 layers for 4096 tokens; states and the last three inputs of the convolution of 24 layers.
    assert_eq!(info.memory.cache, 4096 * 65_536 + 24 * (32 * 128 * 128 + 3 * 8192) * 4);
    let entry = crate::hub::Ladder::built_in().get("qwen3.5-4b").unwrap();
    assert_eq!(entry.token_bytes, 65_536);
    assert!(info.memory.total() <= entry.gpu_bytes(4096), "{} is promised, {} planned", entry.gpu_bytes(4096), info.memory.total());
    println!("Qwen3.5-4B at 4096 tokens: {:?}, total {}", info.memory, info.memory.total());
    // A budget beyond all reason is a number, not a crash.
    assert!(ModelInfo::new(&gguf, &config, &plan, Tier::Exact, u32::MAX, 512).memory.total() > 1 << 40);
    let classes: Vec<Class> = info.memory.weights.keys().copied().collect();
    assert_eq!(classes, [Class::Embedding, Class::Mixer, Class::FeedForward, Class::Vectors]);
}
