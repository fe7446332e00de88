//! Whole models against references: tiny ones of each architecture, made up here, whose logits numpy computed in float64
//! (`tests/tools/selftest_references.py`). The self-test runs them after the kernels: what is right one by one may still be put together wrong,
//! or be compiled wrong in company.

use super::synthetic::{Synthetic, TINY};
use crate::engine::{Ask, Engine, EngineError, LoadOptions, Precision};
use crate::gpu::Gpu;
use crate::kernels::linear::Tier;
use crate::kernels::selftest::Check;
use serde::Deserialize;
use std::ops::ControlFlow;

/// What the name of each check begins with; kernels have none such.
pub const MODEL: &str = "model ";

#[derive(Deserialize)]
struct Reference {
    name: String,
    /// Of all bytes of the model.
    #[cfg_attr(not(test), allow(dead_code))]
    sha256: String,
    labels: Vec<u32>,
    sequences: Vec<Sequence>,
}

#[derive(Deserialize)]
struct Sequence {
    tokens: Vec<u32>,
    /// Of the labels, after the last token.
    logits: Vec<f64>,
}

fn references() -> Vec<Reference> {
    serde_json::from_str(include_str!("../../assets/selftest-references.json")).unwrap_or_default()
}

/// Allowed error of a logit; they have a standard deviation of about 0.4. The exact tier's is a hundred times its rounding, the others' twice
/// what f16 and 8-bit activations were seen to be off.
const fn allowed(tier: Tier) -> f64 {
    match tier {
        Tier::Exact => 1e-4,
        Tier::Tensor => 4e-3,
        Tier::Fast => 6e-2,
    }
}

/// The tiers that are tried: the exact one, and the one that `auto` chooses here.
fn tiers(gpu: &Gpu) -> Vec<Tier> {
    let mut tiers = vec![Tier::Exact];
    tiers.extend(Some(Tier::best(gpu.info())).filter(|tier| *tier != Tier::Exact));
    tiers
}

/// How many checks there will be.
pub fn count(gpu: &Gpu) -> usize {
    TINY.len() * tiers(gpu).len()
}

/// Every tiny model in every tier that counts; `seen` hears of each, and a break ends it early.
///
/// # Errors
/// A device that is lost or out of memory.
pub async fn run(gpu: &Gpu, seen: &mut dyn FnMut(&Check) -> ControlFlow<()>) -> Result<Vec<Check>, EngineError> {
    let mut all = Vec::new();
    for reference in references() {
        for tier in tiers(gpu) {
            let error = off(gpu, &reference, tier).await? / allowed(tier);
            all.push(Check { kernel: format!("{MODEL}{}, {tier}", reference.name), error, passed: error <= 1.0 });
            if all.last().is_some_and(|check| seen(check).is_break()) {
                return Ok(all);
            }
        }
    }
    Ok(all)
}

/// The greatest difference of a logit.
async fn off(gpu: &Gpu, reference: &Reference, tier: Tier) -> Result<f64, EngineError> {
    let Some(source) = Synthetic::new(&reference.name, None, None) else { return Ok(f64::INFINITY) };
    let precision = match tier {
        Tier::Exact => Precision::Exact,
        Tier::Fast => Precision::Fast,
        Tier::Tensor => Precision::Tensor,
    };
    // Small chunks: the longer sequence takes three.
    let options = LoadOptions { precision, chunk: 32, max_tokens: 256, ..LoadOptions::default() };
    let mut engine = Engine::load(gpu, &source, &options, &mut |_| ControlFlow::Continue(())).await?;
    let ask = Ask { labels: reference.labels.clone(), ..Ask::default() };
    let mut worst: f64 = if reference.sequences.is_empty() { f64::INFINITY } else { 0.0 };
    for sequence in &reference.sequences {
        let read = engine.logits(&sequence.tokens, &ask).await?;
        for (found, wanted) in read.labels.iter().zip(&sequence.logits) {
            let off = (f64::from(*found) - wanted).abs();
            worst = if off.is_nan() { f64::INFINITY } else { worst.max(off) };
        }
    }
    Ok(worst)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{BlockingSource as _, ByteSource as _};
    use crate::gpu::GpuOptions;
    use sha2::{Digest, Sha256};

    /// The references are those of these bytes. `SEMIF_SELFTEST_MODELS` names a folder that the models are written to, for the tool.
    #[test]
    fn references_belong_to_the_models() {
        let references = references();
        let mut wrong = Vec::new();
        for name in TINY {
            let source = Synthetic::new(name, None, None).unwrap();
            let mut bytes = vec![0; source.len() as usize];
            source.read_blocking(0, &mut bytes).unwrap();
            if let Some(folder) = std::env::var_os("SEMIF_SELFTEST_MODELS") {
                std::fs::write(std::path::Path::new(&folder).join(format!("{name}.gguf")), &bytes).unwrap();
            }
            let sha256: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
            let complete = |r: &&Reference| r.sequences.len() == 2 && r.sequences.iter().all(|s| s.logits.len() == r.labels.len());
            if references.iter().filter(complete).all(|r| r.name != name || r.sha256 != sha256) {
                wrong.push(name);
            }
        }
        assert!(wrong.is_empty(), "make the references of {wrong:?} anew");
    }

    #[test]
    fn models_are_right() {
        let gpu = pollster::block_on(Gpu::open(&GpuOptions { default_limits: true, ..GpuOptions::default() })).unwrap();
        let mut seen = 0;
        let checks = pollster::block_on(run(&gpu, &mut |_| {
            seen += 1;
            ControlFlow::Continue(())
        }))
        .unwrap();
        assert_eq!((checks.len(), seen), (count(&gpu), count(&gpu)));
        for check in checks {
            println!("{}: {:.3} of what is allowed", check.kernel, check.error);
            assert!(check.passed, "{check:?}");
        }
    }

    /// The fast tier too, which a software adapter does not choose by itself.
    #[test]
    fn models_are_right_in_eight_bits() {
        let gpu = pollster::block_on(Gpu::open(&GpuOptions::default())).unwrap();
        for reference in references() {
            let off = pollster::block_on(off(&gpu, &reference, Tier::Fast)).unwrap();
            println!("{}: off by {off:.4}", reference.name);
            assert!(off > 0.0 && off <= allowed(Tier::Fast), "{}: off by {off}", reference.name);
        }
    }
}
