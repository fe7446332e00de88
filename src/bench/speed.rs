//! Prompt, generation and loading speed.

use super::{Tokens, labels, percentile};
use crate::engine::{Ask, Engine, EngineError, LoadOptions, LoadProgress, LoadTimes};
use crate::gguf::ByteSource;
use crate::gpu::{Gpu, GpuInfo, GpuOptions, now_seconds};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;

/// One prompt length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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

/// Hears between the chunks of a prompt or after each token, and may stop a bench.
pub type Go<'a> = &'a mut dyn FnMut() -> ControlFlow<()>;

/// Seconds of work before runs count: an idle GPU's clock takes so long to rise.
const WARM_SECONDS: f64 = 0.3;

/// Reads prompts of each length `repeats` times, after runs that are not counted: one, or as many as take [`WARM_SECONDS`]; 20 logits come back
/// each time. With `go`, as for decisions that somebody may cancel.
///
/// # Errors
/// A length over the budget, GPU faults, [`EngineError::Cancelled`].
pub async fn prompt(
    engine: &mut Engine,
    lengths: &[usize],
    repeats: usize,
    mut go: Option<Go<'_>>,
) -> Result<Vec<PromptReport>, EngineError> {
    let vocab = engine.info().vocab;
    let ask = Ask { labels: labels(vocab), ..Ask::default() };
    let mut reports = Vec::with_capacity(lengths.len());
    for &tokens in lengths {
        let ids = Tokens::new(tokens as u64).take(tokens, vocab);
        let (mut times, start, mut warm) = (Vec::with_capacity(repeats), now_seconds(), false);
        while times.len() < repeats.max(1) {
            let read = match &mut go {
                Some(go) => engine.logits_with(&ids, &ask, go).await?,
                None => engine.logits(&ids, &ask).await?,
            };
            if warm {
                times.push(read.forward_seconds);
            }
            warm = warm || now_seconds() - start > WARM_SECONDS;
        }
        let seconds = percentile(&times, 0.5);
        let tokens_per_second = tokens as f64 / seconds.max(1e-9);
        reports.push(PromptReport { tokens, seconds, fastest: percentile(&times, 0.0), tokens_per_second });
    }
    Ok(reports)
}

/// Reads a prompt once.
///
/// # Errors
/// A length over the budget, GPU faults.
pub async fn once(engine: &mut Engine, tokens: usize) -> Result<(), EngineError> {
    let vocab = engine.info().vocab;
    let ids = Tokens::new(tokens as u64).take(tokens, vocab);
    engine.logits(&ids, &Ask { labels: labels(vocab), ..Ask::default() }).await?;
    Ok(())
}

/// Generation after one prompt length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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

/// Generates `new` tokens after prompts of each length, `repeats` times after one run that counts only where it is the only one. No token ends
/// it, but `go` may.
///
/// # Errors
/// Prompt and answer over the budget, GPU faults, [`EngineError::Cancelled`].
pub async fn generate(
    engine: &mut Engine,
    lengths: &[usize],
    new: usize,
    repeats: usize,
    mut go: Option<Go<'_>>,
) -> Result<Vec<GenerateReport>, EngineError> {
    let vocab = engine.info().vocab;
    let mut reports = Vec::with_capacity(lengths.len());
    for &prompt in lengths {
        let ids = Tokens::new(prompt as u64).take(prompt, vocab);
        let (mut first, mut rates, mut tokens) = (Vec::new(), Vec::new(), 0);
        for run in 0..=repeats {
            let made = match &mut go {
                Some(go) => engine.generate(&ids, new, &[], &mut |_| go()).await?,
                None => engine.generate(&ids, new, &[], &mut |_| ControlFlow::Continue(())).await?,
            };
            if made.cancelled {
                return Err(EngineError::Cancelled);
            }
            tokens = made.tokens.len();
            if run > 0 || repeats == 0 {
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

/// One start, from an open file to a model that answers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadReport {
    /// Opening the adapter.
    pub device_seconds: f64,
    /// The parts of loading.
    pub parts: LoadTimes,
    /// All of it.
    pub seconds: f64,
    /// Bytes of the weights in the file.
    pub bytes: u64,
    /// 10^9 bytes of weights a second, read, repacked and uploaded.
    pub gigabytes_per_second: f64,
    /// 10^9 bytes a second that one thread repacks.
    pub repacked_per_second: f64,
}

/// Loads the model `repeats` times, each on a device of its own, so that kernels are compiled each time, and given back before the next.
///
/// # Errors
/// As [`Gpu::open`] and [`Engine::load`].
pub async fn load(
    gpu: &GpuOptions,
    source: &impl ByteSource,
    options: &LoadOptions,
    repeats: usize,
) -> Result<(GpuInfo, Vec<LoadReport>), EngineError> {
    let mut reports = Vec::new();
    loop {
        let start = now_seconds();
        let gpu = Gpu::open(gpu).await?;
        let opened = now_seconds();
        let mut bytes = 0;
        let engine = Engine::load(&gpu, source, options, &mut |progress| {
            if let LoadProgress::Weights { total, .. } = progress {
                bytes = total;
            }
            ControlFlow::Continue(())
        })
        .await?;
        let seconds = now_seconds() - start;
        let parts = *engine.load_times();
        drop(engine);
        gpu.wait().await?;
        let rate = |seconds: f64| bytes as f64 / 1e9 / seconds.max(1e-9);
        reports.push(LoadReport {
            device_seconds: opened - start,
            parts,
            seconds,
            bytes,
            gigabytes_per_second: rate(parts.weights),
            repacked_per_second: rate(parts.stream.repack),
        });
        if reports.len() >= repeats {
            return Ok((gpu.info().clone(), reports));
        }
    }
}
