//! Driving the `semif` program as a user would.

use crate::reference::numbers;
use serde_json::Value;
use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// One line of `semif logits`.
#[derive(Debug)]
pub struct LogitsLine {
    /// How many tokens the sequence had.
    pub n: usize,
    pub labels: Vec<f64>,
    pub top: Vec<(u32, f64)>,
    pub argmax: Option<u32>,
    pub lse: Option<f64>,
    pub full: Option<Vec<f64>>,
}

/// Runs the program to its end and returns what it wrote to stdout. A failure shows its stderr.
pub fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semif"));
    command.args(arguments).stdin(Stdio::null());
    let done = command.output().expect("semif starts");
    assert!(
        done.status.success(),
        "{command:?} ended with {}\n{}",
        done.status,
        String::from_utf8_lossy(&done.stderr).lines().rev().take(20).collect::<Vec<_>>().join("\n")
    );
    String::from_utf8(done.stdout).expect("stdout is UTF-8")
}

/// `semif logits` over several sequences in one process, so that the model is loaded once.
pub fn logits(model: &Path, sequences: &[&[u32]], more: &[&str]) -> Vec<LogitsLine> {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(serde_json::to_string(sequences).expect("JSON").as_bytes()).expect("written");
    let mut arguments =
        vec![OsStr::new("logits"), OsStr::new("--gguf"), model.as_os_str(), OsStr::new("--tokens-file"), file.path().as_os_str()];
    arguments.extend(more.iter().map(OsStr::new));
    let lines: Vec<LogitsLine> = run(arguments).lines().map(LogitsLine::read).collect();
    assert_eq!(lines.len(), sequences.len(), "one line for each sequence");
    for (line, sequence) in lines.iter().zip(sequences) {
        assert_eq!(line.n, sequence.len(), "\"n\" counts the tokens of its own sequence");
    }
    lines
}

impl LogitsLine {
    pub fn read(line: &str) -> LogitsLine {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("not JSON ({e}): {line}"));
        let list = |key: &str| value.get(key).filter(|v| !v.is_null()).map(numbers);
        let pair = |pair: &Value| (pair[0].as_u64().expect("an id") as u32, pair[1].as_f64().expect("a logit"));
        LogitsLine {
            n: value["n"].as_u64().expect("n") as usize,
            labels: list("labels").unwrap_or_default(),
            top: value["top"].as_array().map(|top| top.iter().map(pair).collect()).unwrap_or_default(),
            argmax: value["argmax"].as_u64().map(|v| v as u32),
            lse: value["lse"].as_f64(),
            full: list("logits"),
        }
    }
}
