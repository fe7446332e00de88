//! `semif inspect`: what a model file contains and needs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use crate::engine::ModelInfo;
use crate::gguf::{Gguf, ListedTensor, Outline, Problem, TensorType, Value};
use crate::hub::FileSource;
use crate::kernels::linear::Tier;
use crate::model::{Class, Config, Limits, ModelError, ModelPlan};

use super::args::InspectArgs;
use super::fail::{Exit, Failure, print, print_json, safe};
use super::load;
use super::models;

#[derive(Serialize)]
struct TypeCount {
    tensors: usize,
    bytes: u64,
    /// There are kernels for it.
    supported: bool,
}

#[derive(Serialize)]
struct TensorLine<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    ty: String,
    dims: &'a [u64],
    offset: u64,
    bytes: u64,
}

fn type_name(tensor: &ListedTensor) -> String {
    TensorType::name_of_id(tensor.type_id).map_or_else(|| format!("type {}", tensor.type_id), str::to_owned)
}

/// Tensor types by name, with how many tensors and bytes each has.
fn types(tensors: &[ListedTensor]) -> BTreeMap<String, TypeCount> {
    let mut types = BTreeMap::new();
    for tensor in tensors {
        let supported = TensorType::from_id(tensor.type_id).is_some();
        let count = types.entry(type_name(tensor)).or_insert(TypeCount { tensors: 0, bytes: 0, supported });
        count.tensors += 1;
        count.bytes = count.bytes.saturating_add(tensor.bytes);
    }
    types
}

/// A file as it lists itself, and its index where this engine can read all of it.
struct Listed {
    source: FileSource,
    outline: Outline,
    gguf: Option<Gguf>,
}

impl Listed {
    fn open(path: &Path) -> Result<Listed, Failure> {
        let source = FileSource::open(path).map_err(Failure::model_file)?;
        match pollster::block_on(Gguf::read(&source)) {
            Ok(gguf) => Ok(Listed { source, outline: Outline::from(&gguf), gguf: Some(gguf) }),
            Err(error) if error.problem().is_some_and(Problem::is_unsupported_type) => {
                let outline = pollster::block_on(Outline::read(&source)).map_err(Failure::model_file)?;
                Ok(Listed { source, outline, gguf: None })
            }
            Err(error) => Err(Failure::model_file(error)),
        }
    }

    /// What the model takes on a GPU, or every reason why it cannot run. Counted with the limits that every adapter has.
    fn plan(&self, max_tokens: u32) -> Result<ModelInfo, String> {
        if let Some(gguf) = &self.gguf {
            return plan(gguf, max_tokens).map_err(|e| e.to_string());
        }
        let mut problems: Vec<String> = Config::architecture(&self.outline.metadata).err().map(|e| e.to_string()).into_iter().collect();
        let types = types(&self.outline.tensors);
        let unsupported: Vec<&str> = types.iter().filter(|(_, count)| !count.supported).map(|(name, _)| &name[..]).collect();
        problems.push(format!(
            "there are no kernels for {}; take a file quantised with {}",
            unsupported.join(", "),
            TensorType::supported()
        ));
        Err(problems.join("; "))
    }
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

/// Rows of scratch that the estimate counts with: a GPU of 8 GB's. One of 16 GB takes twice as many, a smaller one half.
const CHUNK: u32 = 1024;

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

/// Exit code 3 where the file cannot run; what it is stands on stdout all the same.
pub fn run(args: &InspectArgs) -> Result<Exit, Failure> {
    let file = Listed::open(&models::path(&args.file, &args.hub)?)?;
    let listed = &file.outline;
    let meta = &listed.metadata;
    let reference = load::reference(&file.source, meta);
    let arch = reference.architecture.clone();
    let tokenizer = load::text(&file.source, meta);
    let number = |key: &str| meta.get(&format!("{arch}.{key}")).map(value_json);
    let named = ["block_count", "embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv"];
    let dimensions: Vec<(&str, serde_json::Value)> = named
        .into_iter()
        .chain(["attention.key_length", "context_length", "rope.freq_base", "nextn_predict_layers"])
        .filter_map(|key| number(key).map(|value| (key, value)))
        .collect();
    let types = types(&listed.tensors);
    let planned = file.plan(args.max_tokens);
    // Everything is shown first.
    let exit = if planned.is_ok() { Exit::Done } else { Exit::ModelFile };

    if args.json {
        let tensors: Vec<_> = listed
            .tensors
            .iter()
            .map(|t| TensorLine { name: &t.name, ty: type_name(t), dims: &t.dims, offset: t.offset, bytes: t.bytes })
            .collect();
        let metadata: serde_json::Map<_, _> = meta.iter().map(|(key, value)| (key.to_owned(), value_json(value))).collect();
        print_json(&serde_json::json!({
            "file": reference.file,
            "bytes": reference.bytes,
            "gguf_version": listed.version,
            "name": reference.name,
            "architecture": arch,
            "dimensions": dimensions.iter().cloned().collect::<BTreeMap<_, _>>(),
            "vocabulary": tokenizer.as_ref().ok().map(|t| t.tokenizer.vocab_len()),
            "tokenizer_problem": tokenizer.as_ref().err().map(|e| e.message.clone()),
            "chat_template_problem": tokenizer.as_ref().ok().and_then(|t| t.template().err()).map(|e| e.to_string()),
            "tensor_types": types,
            "runs": planned.is_ok(),
            "problem": planned.as_ref().err(),
            "max_tokens": args.max_tokens,
            "gpu_bytes": planned.as_ref().ok().map(|info| info.memory.total()),
            "gpu_memory": planned.as_ref().ok().map(|info| &info.memory),
            "metadata": metadata,
            "tensors": tensors,
        }))?;
        return Ok(exit);
    }

    let mut out = format!("{}\n", safe(&reference.file));
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "  {name:<24}{value}");
    };
    line("size", format!("{} ({} bytes), GGUF version {}", bytes(reference.bytes), reference.bytes, listed.version));
    if let Some(name) = &reference.name {
        line("name", safe(name));
    }
    line("architecture", safe(&arch));
    for (key, value) in &dimensions {
        line(key, safe(&value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
    }
    match &tokenizer {
        Ok(text) => {
            line("vocabulary", format!("{} tokens", text.tokenizer.vocab_len()));
            line("chat template", text.template().map_or_else(|e| safe(&e.to_string()), |_| "yes".to_owned()));
        }
        Err(failure) => line("tokenizer", safe(&failure.message)),
    }
    let tensor_bytes = listed.tensors.iter().fold(0u64, |sum, t| sum.saturating_add(t.bytes));
    line("tensors", format!("{}, {}", listed.tensors.len(), bytes(tensor_bytes)));
    for (name, count) in &types {
        let note = if count.supported { "" } else { ", not supported" };
        line("", format!("{name:<7} {:>4} tensors, {}{note}", count.tensors, bytes(count.bytes)));
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
        Err(problem) => line("does not run", safe(problem)),
    }
    print(&out)?;
    Ok(exit)
}
