//! Reading the reference files. Their columns are explained in `docs/testing.md`.

use serde_json::Value;
use std::path::{Path, PathBuf};

/// One sequence with what is known about the logits after its last token.
pub struct Row {
    /// What the reference calls it.
    pub id: String,
    pub tokens: Vec<u32>,
    /// Which tokens `expected` is about; `None` means the whole vocabulary in order.
    pub labels: Option<Vec<u32>>,
    /// Logits in float64, computed by numpy.
    pub expected: Vec<f64>,
    /// The most likely token of the whole vocabulary.
    pub argmax: u32,
    /// The most likely tokens with their float64 logits, best first, where the reference lists them.
    pub top: Vec<(u32, f64)>,
    /// The prompt as text, where the reference has it.
    pub text: Option<String>,
}

pub struct Reference {
    /// The GGUF file, found or not.
    pub model: PathBuf,
    pub rows: Vec<Row>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/oracle")
}

/// Any JSON file of the fixtures.
pub fn json(name: &str) -> Value {
    let path = folder().join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Where a model file should be. Fails with the remedy when it is not there.
pub fn model_file(name: &str) -> PathBuf {
    let folder = std::env::var_os("SEMIF_TEST_MODELS").map(PathBuf::from).unwrap_or_else(|| {
        let cache = std::env::var_os("SEMIF_CACHE").map(PathBuf::from).unwrap_or_else(|| {
            let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
            std::env::var_os("XDG_CACHE_HOME").map_or_else(|| home().join(".cache"), PathBuf::from).join("semif")
        });
        cache.join("models")
    });
    let path = folder.join(name);
    assert!(
        path.is_file(),
        "{} is missing. ./test makes and fetches the model files, or set SEMIF_TEST_MODELS to a folder that has them",
        path.display()
    );
    path
}

pub fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list of numbers").iter().map(|v| v.as_f64().expect("a number")).collect()
}

pub fn ids(value: &Value) -> Vec<u32> {
    let id = |v: &Value| v.as_u64().and_then(|v| u32::try_from(v).ok()).expect("a token id");
    value.as_array().expect("a list of token ids").iter().map(id).collect()
}

impl Reference {
    /// Reads `NAME.json`: a synthetic model's sequences or a real model's prompts.
    pub fn load(name: &str) -> Reference {
        let file = json(&format!("{name}.json"));
        let model = model_file(file["file"].as_str().expect("a file name"));
        let rows = file.get("sequences").or_else(|| file.get("prompts")).and_then(Value::as_array).expect("rows");
        Reference { model, rows: rows.iter().map(Row::read).collect() }
    }
}

impl Row {
    fn read(row: &Value) -> Row {
        let id = row.get("id").or_else(|| row.get("len")).expect("an id or a length");
        let labels = row.get("label_ids").map(ids);
        let top: Vec<(u32, f64)> = match row.get("top20") {
            Some(top) => ids(&top["ids"]).into_iter().zip(numbers(&top["f64"])).collect(),
            None => Vec::new(),
        };
        let argmax = match row.get("argmax") {
            Some(argmax) => argmax["f64"].as_u64().expect("a token id") as u32,
            None => top.first().expect("an argmax or the top tokens").0,
        };
        Row {
            id: id.as_str().map_or_else(|| id.to_string(), str::to_owned),
            tokens: ids(&row["tokens"]),
            expected: numbers(if labels.is_some() { &row["labels"]["f64"] } else { &row["logits"]["f64"] }),
            labels,
            argmax,
            top,
            text: row.get("text").and_then(Value::as_str).map(str::to_owned),
        }
    }
}
