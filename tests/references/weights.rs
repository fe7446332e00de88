//! Real weights: the prompts' token ids, the answer letters' logits, the best tokens.

use crate::compare::{TOLERANCE, check};
use crate::program::{logits, run};
use crate::reference::{Reference, ids};

fn compare(name: &str) {
    let reference = Reference::load(name);
    for row in reference.rows.iter() {
        if let Some(text) = &row.text {
            let model = reference.model.to_str().expect("a UTF-8 path");
            let out = run(["tokenize", "--gguf", model, "--text", text.as_str(), "--control"]);
            let got = serde_json::from_str(&out).map(|v| ids(&v)).unwrap_or_else(|e| panic!("{e}: {out}"));
            assert_eq!(got, row.tokens, "{name}, row {}: token ids", row.id);
        }
    }
    let labels = reference.rows[0].labels.clone().expect("label ids");
    assert!(reference.rows.iter().all(|r| r.labels.as_ref() == Some(&labels)), "one process serves all rows");
    let labels: Vec<String> = labels.iter().map(u32::to_string).collect();
    let sequences: Vec<&[u32]> = reference.rows.iter().map(|r| r.tokens.as_slice()).collect();
    let lines = logits(&reference.model, &sequences, &["--labels", &labels.join(","), "--top", "20"]);
    check(name, &reference, &lines, TOLERANCE);
}

#[test]
fn smollm2_135m() {
    compare("real-smollm2");
}

#[test]
fn qwen25_coder_05b() {
    compare("real-qwen25coder05");
}
