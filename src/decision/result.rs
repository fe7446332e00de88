//! Result rows: what a decision leaves behind, in the contract's keys and order.

use serde::{Deserialize, Serialize};

use super::orderings::{Combined, OrderReading};

/// Stands in every result row, so that nobody takes the numbers for more than they are.
pub const PROBABILITY_STATUS: &str = "conditional option scores: a softmax over the answer letters' logits, given that one of the listed options is \
     answered; not calibrated probabilities of being right";

/// How the logits were read, for `readout` of a direct decision.
pub const READOUT_DIRECT: &str = "direct: logits of the answer letters after one forward pass, nothing generated";

/// The model file behind a result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRef {
    /// Where the file came from: `local file`, a repository, a URL.
    pub source: String,
    /// The source's revision, where there is one.
    pub revision: Option<String>,
    /// File name without folders.
    pub file: String,
    pub bytes: u64,
    /// Hex SHA-256 of the whole file, where it is known.
    pub sha256: Option<String>,
    /// `general.architecture` of the file.
    pub architecture: String,
    /// `general.name` of the file, where it has one.
    pub name: Option<String>,
}

/// How the model was run. A changed field means that logits may differ in their last bits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServingConfig {
    /// Program and version.
    pub engine: String,
    /// Precision tier that really ran: `exact`, `fast`, `tensor`.
    pub precision: String,
    /// `direct`, `serial`, `shared`: how this row was read. It changes no bit of the logits.
    pub mode: String,
    /// Orders of the options that were asked for; absent where only the given one is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orderings: Option<String>,
    /// Adapter name, backend and driver.
    pub adapter: String,
    pub backend: String,
    pub driver: String,
    /// Prompt budget in tokens.
    pub max_tokens: u32,
    /// `own turn`, or `in front of the user text` where the template refuses a system turn.
    pub system_text: String,
    /// Everything that did not run as asked, in words; empty normally.
    pub fallbacks: Vec<String>,
}

/// One result row. Logits are f32 and probabilities f64, both written with the fewest digits that read back exactly.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResultRow {
    pub id: String,
    /// In the row's order; so are the three lists below.
    pub option_ids: Vec<String>,
    pub probabilities: Vec<f64>,
    pub option_logits: Vec<f32>,
    pub answer_token_ids: Vec<u32>,
    /// Length of the prompt in tokens.
    pub input_tokens: usize,
    /// Share of the whole vocabulary's probability on the answer letters; null unless asked for.
    pub allowed_token_mass: Option<f64>,
    /// Most probable token of the whole vocabulary; null unless asked for.
    pub full_vocab_argmax_id: Option<u32>,
    /// Hex SHA-256 of the rendered prompt.
    pub prompt_sha256: String,
    /// Version name of the wording.
    pub prompt_version: String,
    pub model: ModelRef,
    pub serving_config: ServingConfig,
    pub readout: String,
    pub probability_status: String,
    /// From submitting the forward pass to its logits being read back. A row of a shared batch: its part of the batch, an equal
    /// part of the prefix and of the suffixes by their tokens.
    pub forward_seconds: f64,
    /// The row's share of everything: tokens, forward pass, readout.
    pub total_seconds: f64,
    /// Serial: the whole prefix was in the cache already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_hit: Option<bool>,
    /// Serial: tokens of the prefix that rows with this state share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_tokens: Option<usize>,
    /// Serial: hex SHA-256 over the prefix's token ids, each as four bytes, lowest first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_sha256: Option<String>,
    /// Serial: seconds until the prefix stood in the cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_seconds: Option<f64>,
    /// Serial: seconds of the rest of the prompt and the readout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suffix_forward_seconds: Option<f64>,
    /// Shared: the batch that this row was read in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_timing: Option<SharedTiming>,
    /// Every order of the options that was read, the given one first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orderings: Option<Vec<OrderReading>>,
    /// What they say together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub combined: Option<Combined>,
}

/// Rows that were read together on one state; the same in each of them. Where several states were read together, times are the state's
/// part: of the prefixes by the tokens that were new, of the suffixes by their tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SharedTiming {
    /// States of the batch.
    #[serde(default)]
    pub states: usize,
    /// Rows on this state.
    pub rows: usize,
    /// Their prompts: more than rows where several orders of the options are read.
    pub prompts: usize,
    /// Tokens of the shared prefix.
    pub prefix_tokens: usize,
    /// Of these, tokens that were in the cache already.
    pub prefix_reused: usize,
    /// Hex SHA-256 over the prefix's token ids, each as four bytes, lowest first.
    pub prefix_sha256: String,
    /// Tokens after the prefix, of all prompts.
    pub suffix_tokens: usize,
    /// Seconds until the prefix stood in the cache.
    pub prefill_seconds: f64,
    /// Seconds of all suffixes and the readout.
    pub suffix_seconds: f64,
}

/// Stands in an output file in the place of a row that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRow {
    /// Null where the row had no readable id.
    pub id: Option<String>,
    pub error: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_and_shortest_floats() {
        let row = ResultRow {
            id: "r\u{2028}".into(),
            option_ids: vec!["a".into(), "b".into()],
            probabilities: vec![0.1 + 0.2, 1e-300],
            option_logits: vec![0.1, -16777216.0],
            answer_token_ids: vec![32, 33],
            input_tokens: 7,
            allowed_token_mass: None,
            full_vocab_argmax_id: None,
            prompt_sha256: "00".into(),
            prompt_version: "v".into(),
            model: ModelRef::default(),
            serving_config: ServingConfig::default(),
            readout: READOUT_DIRECT.into(),
            probability_status: PROBABILITY_STATUS.into(),
            forward_seconds: 0.5,
            total_seconds: 1.0,
            ..ResultRow::default()
        };
        let text = serde_json::to_string(&row).unwrap();
        assert!(!text.contains('\n'));
        assert!(text.contains("\"probabilities\":[0.30000000000000004,1e-300]"), "{text}");
        assert!(text.contains("\"option_logits\":[0.1,-16777216.0]"), "{text}");
        assert!(text.contains("\"allowed_token_mass\":null,\"full_vocab_argmax_id\":null"), "{text}");
        let keys: Vec<_> = match crate::decision::Json::parse(&text).unwrap() {
            crate::decision::Json::Object(members) => members.into_iter().map(|(k, _)| k).collect(),
            _ => Vec::new(),
        };
        assert_eq!(
            keys.join(", "),
            "id, option_ids, probabilities, option_logits, answer_token_ids, input_tokens, allowed_token_mass, \
             full_vocab_argmax_id, prompt_sha256, prompt_version, model, serving_config, readout, probability_status, \
             forward_seconds, total_seconds"
        );
        assert_eq!(serde_json::from_str::<ResultRow>(&text).unwrap(), row);
    }
}
