//! Every kernel that a model of the ladder runs, at its true shapes: GPU time, rate, share of what the card can do at most, and for products
//! the error against f64.
//!
//! The kernels are not listed here: synthetic models with a few layers run in every precision tier that the device has, and timestamps tell
//! what ran. A new tier or kernel appears by itself.

use super::peaks::{Peaks, measure};
use super::synthetic::{NAMES, Synthetic};
use super::{Tokens, labels, products};
use crate::engine::{Ask, Engine, EngineError, LoadOptions, Precision};
use crate::gpu::{Gpu, KernelTime, now_seconds};
use crate::kernels::linear::Tier;
use serde::Serialize;
use std::ops::ControlFlow;

/// What is measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Options {
    /// Models, of [`NAMES`].
    pub models: Vec<String>,
    /// Prompt lengths.
    pub tokens: Vec<usize>,
    /// Tokens generated, for the kernels of single rows.
    pub steps: usize,
    /// Layers of each model.
    pub layers: u32,
    /// Rows of its output matrix; all of them when `None`.
    pub vocab: Option<u32>,
    /// Runs of each length that count.
    pub repeat: usize,
    /// Tiers; all that the device runs when empty.
    pub tiers: Vec<String>,
}

impl Options {
    /// The whole ladder on a GPU; a little of everything where `quick`, as on software adapters.
    pub fn new(quick: bool) -> Options {
        match quick {
            true => Options {
                models: vec![NAMES[0].into()],
                tokens: vec![24],
                steps: 2,
                layers: 1,
                vocab: Some(1024),
                repeat: 1,
                tiers: Vec::new(),
            },
            false => Options {
                models: NAMES.map(String::from).into(),
                tokens: vec![150, 512, 2048],
                steps: 16,
                layers: 8,
                vocab: None,
                repeat: 5,
                tiers: Vec::new(),
            },
        }
    }
}

/// One kernel at one shape.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KernelReport {
    /// The model whose shape it is.
    pub model: String,
    /// Precision tier.
    pub tier: &'static str,
    /// Prompt length; 0 for generation.
    pub tokens: usize,
    /// Rows, outputs and inputs of a product; zeros for other kernels.
    pub shape: [u32; 3],
    /// Seconds of one dispatch, the gap before it included.
    pub each: f64,
    /// 10^12 operations a second.
    pub tera: f64,
    /// 10^9 bytes a second, where they are counted.
    pub giga: f64,
    /// The larger of the two over the card's peak: of the tier's arithmetic for products, of f32 for everything else.
    pub of_peak: f64,
    /// The variant, how often it ran, and its totals.
    #[serde(flatten)]
    pub time: KernelTime,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Of the same run.
    pub peaks: Peaks,
    /// By model, tier, prompt length, and time.
    pub kernels: Vec<KernelReport>,
    /// Products of each shape and tier against f64.
    pub errors: Vec<products::ProductError>,
}

/// Measures. `progress` hears what comes next and may stop it.
///
/// # Errors
/// An unknown model or tier, no timestamps, too little memory, GPU faults, [`EngineError::Cancelled`].
pub async fn run(gpu: &Gpu, options: &Options, progress: &mut dyn FnMut(&str) -> ControlFlow<()>) -> Result<Report, EngineError> {
    let mut say = |what: &str| match progress(what) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(EngineError::Cancelled),
    };
    say("peaks")?;
    let peaks = measure(gpu).await?;
    let wanted = |tier: &Tier| options.tiers.is_empty() || options.tiers.iter().any(|name| name == tier.name());
    let tiers: Vec<Tier> = Tier::ALL.into_iter().filter(|tier| wanted(tier) && tier.check(gpu.info()).is_ok()).collect();
    let mut report = Report { peaks, kernels: Vec::new(), errors: Vec::new() };
    for model in &options.models {
        for &tier in &tiers {
            say(&format!("{model}, {tier}"))?;
            let Some(source) = Synthetic::new(model, Some(options.layers), options.vocab) else { continue };
            let max_tokens = options.tokens.iter().copied().max().unwrap_or(1).max(64) + options.steps + 1;
            let precision = match tier {
                Tier::Exact => Precision::Exact,
                Tier::Fast => Precision::Fast,
                Tier::Tensor => Precision::Tensor,
            };
            let load = LoadOptions { precision, max_tokens: max_tokens as u32, ..LoadOptions::default() };
            let mut engine = Engine::load(gpu, &source, &load, &mut |_| ControlFlow::Continue(())).await?;
            warm(&mut engine).await?;
            for &tokens in options.tokens.iter().chain(&[0]) {
                say(&format!("{model}, {tier}, {tokens} tokens"))?;
                for time in times(&mut engine, tokens, options).await? {
                    report.kernels.push(judged(model, tier, tokens, time, &peaks));
                }
            }
        }
        say(&format!("{model}, errors"))?;
        report.errors.extend(products::errors(gpu, model, &tiers, options).await?);
    }
    Ok(report)
}

/// Runs until a card that was idle has raised its clocks.
async fn warm(engine: &mut Engine) -> Result<(), EngineError> {
    let start = now_seconds();
    let ids = Tokens::new(1).take(32, engine.info().vocab);
    while !engine.gpu().info().software && now_seconds() - start < 0.5 {
        engine.logits(&ids, &Ask { labels: vec![0], ..Ask::default() }).await?;
    }
    Ok(())
}

/// GPU times by shape of a prompt, or of generation after a short one.
async fn times(engine: &mut Engine, tokens: usize, options: &Options) -> Result<Vec<KernelTime>, EngineError> {
    let vocab = engine.info().vocab;
    let ids = Tokens::new(tokens as u64).take(tokens.max(8), vocab);
    let ask = Ask { labels: labels(vocab), ..Ask::default() };
    for run in 0..=options.repeat {
        if tokens > 0 {
            engine.logits(&ids, &ask).await?;
        } else {
            engine.generate(&ids, options.steps + 1, &[], &mut |_| ControlFlow::Continue(())).await?;
        }
        if run == 0 {
            // The first run may compile.
            engine.set_profile(true)?;
        }
    }
    let mut times = engine.take_profile_by_shape().await?;
    engine.set_profile(false)?;
    if tokens == 0 {
        // The short prompt before the steps is no step.
        times.retain(|t| t.dispatches > options.repeat as u64 * 2);
    }
    Ok(times)
}

fn judged(model: &str, tier: Tier, tokens: usize, time: KernelTime, peaks: &Peaks) -> KernelReport {
    let seconds = time.seconds.max(1e-12);
    let (tera, giga) = (time.operations as f64 / seconds / 1e12, time.bytes as f64 / seconds / 1e9);
    let most = match tier {
        Tier::Fast if time.shape != [0; 3] => peaks.dot4,
        Tier::Tensor if time.shape != [0; 3] => peaks.matrix.unwrap_or(peaks.fma),
        _ => peaks.fma,
    };
    let of_peak = (tera / most.max(1e-12)).max(giga / peaks.read.max(1e-12));
    let each = time.seconds / time.dispatches.max(1) as f64;
    KernelReport { model: model.into(), tier: tier.name(), tokens, shape: time.shape, each, tera, giga, of_peak, time }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuOptions;

    /// A quick run on whatever adapter there is: kernels of every kind are seen, and their times and errors make sense.
    #[test]
    fn a_quick_run_sees_the_kernels() {
        let gpu = pollster::block_on(Gpu::open(&GpuOptions::default())).unwrap();
        if !gpu.info().timestamps {
            return;
        }
        let options = Options { tiers: vec!["exact".into()], ..Options::new(true) };
        let report = pollster::block_on(run(&gpu, &options, &mut |_| ControlFlow::Continue(()))).unwrap();
        for (name, tokens) in [("matmul", 24), ("attention", 24), ("rms_norm", 24), ("rope", 24), ("matvec", 0)] {
            let found = report.kernels.iter().find(|k| k.time.kernel.starts_with(name) && k.tokens == tokens);
            assert!(found.is_some_and(|k| k.each > 0.0), "{name}: {:#?}", report.kernels);
        }
        // The only layer is the last one: what follows the attention is computed for the last row alone.
        let qkv = report.kernels.iter().find(|k| k.shape == [24, 4096, 1024]).expect("the product of q, k and v");
        assert!(qkv.tera > 0.0 && qkv.of_peak > 0.0 && qkv.time.operations == 2 * 24 * 4096 * 1024);
        assert!(report.errors.len() >= 4 && report.errors.iter().all(|e| e.rms < 1e-5), "{:#?}", report.errors);
    }
}
