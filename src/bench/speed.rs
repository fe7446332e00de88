//! Prompt, generation and loading speed.

use super::{Tokens, labels, percentile};
use crate::engine::{Ask, Engine, EngineError, LoadOptions, LoadProgress};
use crate::gguf::ByteSource;
use crate::gpu::{Gpu, now_seconds};
use serde::Serialize;
use std::ops::ControlFlow;

/// One prompt length.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PromptReport {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Median seconds from the first upload to the logits being read back.
    pub seconds: f64,
    /// The fastest run.
    pub fastest: f64,
    /// Prompt tokens a second, by the median.
    pub tokens_per_second: f64,
}

/// Reads prompts of each length `repeats` times, after one run that is not counted; 20 logits come back each time.
///
/// # Errors
/// A length over the budget, GPU faults.
pub async fn prompt(engine: &mut Engine, lengths: &[usize], repeats: usize) -> Result<Vec<PromptReport>, EngineError> {
    let vocab = engine.info().vocab;
    let ask = Ask { labels: labels(vocab), ..Ask::default() };
    let mut reports = Vec::with_capacity(lengths.len());
    for &tokens in lengths {
        let ids = Tokens::new(tokens as u64).take(tokens, vocab);
        engine.logits(&ids, &ask).await?;
        let mut times = Vec::with_capacity(repeats);
        for _ in 0..repeats.max(1) {
            times.push(engine.logits(&ids, &ask).await?.forward_seconds);
        }
        let seconds = percentile(&times, 0.5);
        let tokens_per_second = tokens as f64 / seconds.max(1e-9);
        reports.push(PromptReport { tokens, seconds, fastest: percentile(&times, 0.0), tokens_per_second });
    }
    Ok(reports)
}

/// Generation after one prompt length.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GenerateReport {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens generated.
    pub tokens: usize,
    /// Median seconds to the first token.
    pub first_token_seconds: f64,
    /// Median of the tokens a second after the first.
    pub tokens_per_second: f64,
}

/// Generates `new` tokens after prompts of each length, `repeats` times after one run that is not counted. No token ends it.
///
/// # Errors
/// Prompt and answer over the budget, GPU faults.
pub async fn generate(engine: &mut Engine, lengths: &[usize], new: usize, repeats: usize) -> Result<Vec<GenerateReport>, EngineError> {
    let vocab = engine.info().vocab;
    let mut reports = Vec::with_capacity(lengths.len());
    for &prompt in lengths {
        let ids = Tokens::new(prompt as u64).take(prompt, vocab);
        let (mut first, mut rates, mut tokens) = (Vec::new(), Vec::new(), 0);
        for run in 0..=repeats.max(1) {
            let made = engine.generate(&ids, new, &[], &mut |_| ControlFlow::Continue(())).await?;
            tokens = made.tokens.len();
            if run > 0 {
                first.push(made.first_token_seconds);
                let rest = made.total_seconds - made.first_token_seconds;
                rates.push(tokens.saturating_sub(1) as f64 / rest.max(1e-9));
            }
        }
        let (first_token_seconds, tokens_per_second) = (percentile(&first, 0.5), percentile(&rates, 0.5));
        reports.push(GenerateReport { prompt, tokens, first_token_seconds, tokens_per_second });
    }
    Ok(reports)
}

/// One start, from an open file and an open adapter to a model that answers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadReport {
    /// Header, vocabulary and template.
    pub header_seconds: f64,
    /// Weights: reading, repacking, upload.
    pub weights_seconds: f64,
    /// Kernels and the first token.
    pub warm_up_seconds: f64,
    /// All of it.
    pub seconds: f64,
    /// Bytes of the weights in the file.
    pub bytes: u64,
    /// 10^9 bytes of weights a second.
    pub gigabytes_per_second: f64,
}

/// Loads the model `repeats` times, one after the other, each given back before the next.
///
/// # Errors
/// As [`Engine::load`].
pub async fn load(gpu: &Gpu, source: &impl ByteSource, options: &LoadOptions, repeats: usize) -> Result<Vec<LoadReport>, EngineError> {
    let mut reports = Vec::new();
    for _ in 0..repeats.max(1) {
        let start = now_seconds();
        let (mut weights, mut warm, mut bytes) = (start, start, 0);
        let engine = Engine::load(gpu, source, options, &mut |progress| {
            match progress {
                LoadProgress::Header => {}
                LoadProgress::Weights { total, .. } => {
                    if bytes == 0 {
                        weights = now_seconds();
                    }
                    bytes = total;
                }
                LoadProgress::WarmUp => warm = now_seconds(),
            }
            ControlFlow::Continue(())
        })
        .await?;
        let end = now_seconds();
        drop(engine);
        gpu.wait().await?;
        reports.push(LoadReport {
            header_seconds: weights - start,
            weights_seconds: warm - weights,
            warm_up_seconds: end - warm,
            seconds: end - start,
            bytes,
            gigabytes_per_second: bytes as f64 / 1e9 / (warm - weights).max(1e-9),
        });
    }
    Ok(reports)
}
