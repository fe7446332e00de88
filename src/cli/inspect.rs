//! `semif inspect`: what a model file contains and needs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::engine::ModelInfo;
use crate::gguf::{Gguf, Value};
use crate::kernels::linear::Tier;
use crate::model::{Class, Config, Limits, ModelError, ModelPlan};

use super::args::InspectArgs;
use super::fail::{Exit, Failure, print, print_json, safe};
use super::load::ModelFile;
use super::models;

#[derive(Serialize)]
struct TypeCount {
    tensors: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct TensorLine<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    ty: &'static str,
    dims: &'a [u64],
    offset: u64,
    bytes: u64,
}

/// Tensor types by name, with how many tensors and bytes each has.
fn types(gguf: &Gguf) -> BTreeMap<&'static str, TypeCount> {
    let mut types = BTreeMap::new();
    for tensor in &gguf.tensors {
        let count = types.entry(tensor.ty.name()).or_insert(TypeCount { tensors: 0, bytes: 0 });
        count.tensors += 1;
        count.bytes += tensor.bytes;
    }
    types
}

/// A metadata value as JSON; arrays by kind and length, since vocabularies have hundreds of thousands of entries.
fn value_json(value: &Value) -> serde_json::Value {
    use serde_json::json;
    match value {
        Value::Bool(v) => json!(v),
        // Through f64 the shortest digits would be those of another number.
        Value::F32(v) => serde_json::from_str(&v.to_string()).unwrap_or_else(|_| json!(v.to_string())),
        Value::F64(v) => json!(v),
        Value::String(v) => json!(v),
        Value::Array(array) => json!(format!("{} of {}", value.kind(), array.len())),
        Value::U64(v) => json!(v),
        Value::I64(v) => json!(v),
        other => other.as_integer().and_then(|v| i64::try_from(v).ok()).map_or(serde_json::Value::Null, |v| json!(v)),
    }
}

/// Bytes in the unit that suits them, with the exact count where it is rounded.
pub fn bytes(count: u64) -> String {
    let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    match units.iter().find(|(_, size)| count as f64 >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", count as f64 / size),
        None => format!("{count} bytes"),
    }
}

/// Rows of scratch that the estimate counts with: a hardware adapter's.
const CHUNK: u32 = 1024;

/// What the model takes on a GPU, or why it cannot run. Counted with the limits that every adapter has.
fn plan(gguf: &Gguf, max_tokens: u32) -> Result<ModelInfo, ModelError> {
    let config = Config::read(gguf)?;
    let limits = Limits { binding: 128 << 20, buffer: 256 << 20 };
    let plan = ModelPlan::new(gguf, &config, limits)?;
    Ok(ModelInfo::new(gguf, &config, &plan, Tier::Exact, max_tokens, CHUNK))
}

fn class(class: Class) -> &'static str {
    match class {
        Class::Embedding => "embedding",
        Class::Output => "output",
        Class::Mixer => "attention",
        Class::FeedForward => "feed-forward",
        Class::Vectors => "vectors",
    }
}

pub fn run(args: &InspectArgs) -> Result<Exit, Failure> {
    let file = ModelFile::open(&models::path(&args.file, &args.hub)?)?;
    let reference = file.reference();
    let gguf = &file.gguf;
    let meta = &gguf.metadata;
    let arch = reference.architecture.clone();
    let tokenizer = file.text();
    let number = |key: &str| meta.get(&format!("{arch}.{key}")).map(value_json);
    let named = ["block_count", "embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv"];
    let dimensions: Vec<(&str, serde_json::Value)> = named
        .into_iter()
        .chain(["attention.key_length", "context_length", "rope.freq_base", "nextn_predict_layers"])
        .filter_map(|key| number(key).map(|value| (key, value)))
        .collect();
    let types = types(gguf);
    let planned = plan(gguf, args.max_tokens);

    if args.json {
        let tensors: Vec<_> = gguf
            .tensors
            .iter()
            .map(|t| TensorLine { name: &t.name, ty: t.ty.name(), dims: &t.dims, offset: t.offset, bytes: t.bytes })
            .collect();
        let metadata: serde_json::Map<_, _> = meta.iter().map(|(key, value)| (key.to_owned(), value_json(value))).collect();
        print_json(&serde_json::json!({
            "file": reference.file,
            "bytes": reference.bytes,
            "gguf_version": gguf.version,
            "name": reference.name,
            "architecture": arch,
            "dimensions": dimensions.iter().cloned().collect::<BTreeMap<_, _>>(),
            "vocabulary": tokenizer.as_ref().ok().map(|t| t.tokenizer.vocab_len()),
            "tokenizer_problem": tokenizer.as_ref().err().map(|e| e.message.clone()),
            "chat_template_problem": tokenizer.as_ref().ok().and_then(|t| t.template().err()).map(|e| e.to_string()),
            "tensor_types": types,
            "runs": planned.is_ok(),
            "problem": planned.as_ref().err().map(ModelError::to_string),
            "max_tokens": args.max_tokens,
            "gpu_bytes": planned.as_ref().ok().map(|info| info.memory.total()),
            "gpu_memory": planned.as_ref().ok().map(|info| &info.memory),
            "metadata": metadata,
            "tensors": tensors,
        }))?;
        return Ok(Exit::Done);
    }

    let mut out = format!("{}\n", safe(&reference.file));
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "  {name:<24}{value}");
    };
    line("size", format!("{} ({} bytes), GGUF version {}", bytes(reference.bytes), reference.bytes, gguf.version));
    if let Some(name) = &reference.name {
        line("name", safe(name));
    }
    line("architecture", safe(&arch));
    for (key, value) in &dimensions {
        line(key, safe(&value.to_string()));
    }
    match &tokenizer {
        Ok(text) => {
            line("vocabulary", format!("{} tokens", text.tokenizer.vocab_len()));
            line("chat template", text.template().map_or_else(|e| safe(&e.to_string()), |_| "yes".to_owned()));
        }
        Err(failure) => line("tokenizer", safe(&failure.message)),
    }
    let tensor_bytes: u64 = gguf.tensors.iter().map(|t| t.bytes).sum();
    line("tensors", format!("{}, {}", gguf.tensors.len(), bytes(tensor_bytes)));
    for (name, count) in &types {
        line("", format!("{name:<5} {:>4} tensors, {}", count.tensors, bytes(count.bytes)));
    }
    match &planned {
        Ok(info) => {
            let memory = &info.memory;
            line("GPU memory", format!("{} for prompts of up to {} tokens", bytes(memory.total()), args.max_tokens));
            let weights = memory.weights.iter().map(|(name, size)| (class(*name), *size));
            for (name, size) in weights.chain([("keys and values", memory.cache), ("scratch", memory.scratch)]) {
                line("", format!("{name:<16}{:>10}", bytes(size)));
            }
            if info.skipped_layers > 0 {
                line("left out", format!("{} trailing blocks for multi-token prediction", info.skipped_layers));
            }
        }
        Err(problem) => line("does not run", safe(&problem.to_string())),
    }
    print(&out)?;
    Ok(Exit::Done)
}
