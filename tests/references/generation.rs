//! Greedy generation on real weights, token by token.

use crate::program::run;
use crate::reference::{ids, json, model_file, numbers};
use serde_json::Value;

/// Where two candidates are closer than this, float32 sums in another order may choose the other one.
const EXCUSED_GAP: f64 = 0.002;

/// The first step at which `got` leaves `expected` without the excuse of a near tie. After an excused step the two
/// texts differ, so nothing can be said about the rest.
fn unexcused(got: &[u32], expected: &[u32], gaps: &[f64]) -> Option<usize> {
    let step = (0..expected.len()).find(|&i| got.get(i) != Some(&expected[i]))?;
    (step >= got.len() || gaps[step] >= EXCUSED_GAP).then_some(step)
}

#[test]
fn greedy_tokens_are_the_references() {
    let file = json("real-greedy.json");
    let model = model_file(file["file"].as_str().expect("a file name"));
    for generation in file["generations"].as_array().expect("generations") {
        let prompt: Vec<String> = ids(&generation["tokens"]).iter().map(u32::to_string).collect();
        let expected = &generation["greedy"]["llama_f32"];
        let (tokens, gaps) = (ids(&expected["tokens"]), numbers(&expected["gap"]));
        let count = tokens.len().to_string();
        let model = model.to_str().expect("a UTF-8 path");
        let out = run(["generate", "--gguf", model, "--tokens", &prompt.join(","), "--max-new", &count, "--precision", "exact", "--json"]);
        let reply: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"));
        let got = ids(&reply["tokens"]);
        if let Some(step) = unexcused(&got, &tokens, &gaps) {
            panic!(
                "{}: step {step} gives {:?}, the reference {} (gap {})\nall: {got:?}\nreference: {tokens:?}",
                generation["id"],
                got.get(step),
                tokens[step],
                gaps[step]
            );
        }
    }
}

#[test]
fn only_near_ties_are_excused() {
    let (expected, gaps) = ([5, 6, 7], [1.0, 0.001, 1.0]);
    assert_eq!(unexcused(&[5, 6, 7], &expected, &gaps), None);
    assert_eq!(unexcused(&[5, 9, 9], &expected, &gaps), None);
    assert_eq!(unexcused(&[9, 6, 7], &expected, &gaps), Some(0));
    assert_eq!(unexcused(&[5, 6, 8], &expected, &gaps), Some(2));
    assert_eq!(unexcused(&[5], &expected, &gaps), Some(1), "stopping early has no excuse");
}
