//! Every synthetic model, every length, against float64: all 512 logits of the last position.

use crate::compare::{TOLERANCE, check};
use crate::program::logits;
use crate::reference::Reference;

fn compare(name: &str, tolerance: f64) {
    let reference = Reference::load(name);
    let sequences: Vec<&[u32]> = reference.rows.iter().map(|r| r.tokens.as_slice()).collect();
    let lines = logits(&reference.model, &sequences, &["--full"]);
    check(name, &reference, &lines, tolerance);
}

macro_rules! models {
    ($($test:ident: $name:literal, $tolerance:expr;)*) => {
        $(#[test] fn $test() { compare($name, $tolerance); })*

        /// A fixture that no test names would be a reference that nobody meets.
        #[test]
        fn every_synthetic_reference_is_compared() {
            let named = [$($name),*];
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/oracle");
            for entry in std::fs::read_dir(folder).expect("the fixtures") {
                let file = entry.expect("an entry").file_name().into_string().expect("UTF-8");
                if let Some(name) = file.strip_suffix(".json").filter(|n| n.contains("-tiny-")) {
                    assert!(named.contains(&name), "{file} is compared by no test");
                }
            }
        }
    };
}

models! {
    qwen3_q8_0: "qwen3-tiny-Q8_0", TOLERANCE;
    qwen3_q4_0: "qwen3-tiny-Q4_0", TOLERANCE;
    qwen3_q4_1: "qwen3-tiny-Q4_1", TOLERANCE;
    qwen3_q5_0: "qwen3-tiny-Q5_0", TOLERANCE;
    qwen3_q5_1: "qwen3-tiny-Q5_1", TOLERANCE;
    qwen3_q4_k: "qwen3-tiny-Q4_K", TOLERANCE;
    qwen3_q5_k: "qwen3-tiny-Q5_K", TOLERANCE;
    qwen3_q6_k: "qwen3-tiny-Q6_K", TOLERANCE;
    qwen3_f16: "qwen3-tiny-F16", TOLERANCE;
    qwen3_bf16: "qwen3-tiny-BF16", TOLERANCE;
    qwen2_biases: "qwen2-tiny-Q8_0", TOLERANCE;
    minicpm5_mixed_types: "minicpm5-tiny-real", TOLERANCE;
    // Rounding grows along the recurrence of its linear-attention layers.
    qwen35_hybrid: "qwen35-tiny-real", 2.0 * TOLERANCE;
    qwen35_lmstudio_mix: "qwen35-tiny-lmstudio", 2.0 * TOLERANCE;
    qwen35_unsloth_mix: "qwen35-tiny-unsloth", 2.0 * TOLERANCE;
    // Each matrix of another type, vectors in F16 and BF16, head counts and feed-forward lengths as arrays, no prediction block.
    qwen35_any_types_and_arrays: "qwen35-tiny-any", 2.0 * TOLERANCE;
    // Llama 3 frequency factors, heads of 64.
    llama3_rope_freqs: "llama3-tiny-Q8_0", TOLERANCE;
    // Biases, heads of 128, an output matrix of its own, positions divided by 4.
    qwen2_linear_scaling: "qwen2-tiny-linear", TOLERANCE;
}
