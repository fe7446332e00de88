//! Which kernels a model will need, told from its header alone: a browser compiles them while the rest of the file is on its way.

use super::run::USUAL;
use super::{Engine, EngineError, LoadOptions, ModelInfo};
use crate::gguf::Gguf;
use crate::gpu::{Gpu, Kernel};
use crate::model::{Config, Forward, ModelPlan, Weights};
use std::sync::Arc;

/// Rows of the longest of [`USUAL`], all that the rehearsal needs.
const ROWS: u32 = USUAL[USUAL.len() - 1] as u32;

impl Engine {
    /// The kernels of a model's first runs, in the order in which they meet them. Nothing is compiled or run; the GPU memory that this takes
    /// (some 100 MB for a model of 3 GB, by its dimensions) is given back at once. A device keeps its kernels, so [`Engine::load`] finds compiled what was compiled by then.
    ///
    /// # Errors
    /// As for [`Engine::load`], as far as the header tells.
    pub async fn kernels_of(gpu: &Gpu, gguf: &Gguf, options: &LoadOptions) -> Result<Vec<Arc<Kernel>>, EngineError> {
        let config = Config::read(gguf)?;
        let tier = options.precision.tier(gpu.info())?;
        let tier = options.precision.proven(gpu, tier, gguf, config.attention.heads.head_dim).await?;
        let plan = ModelPlan::new(gguf, &config, gpu.info().into())?;
        let weights = Weights::outline(gpu, &config, &plan).await?;
        let max_tokens = options.max_tokens.min(ROWS);
        let info = ModelInfo::new(gguf, &config, &plan, tier, max_tokens, ROWS);
        let forward = Forward::new(gpu, &config, tier, ROWS).await?;
        let mut engine = Engine::assemble(gpu, config, weights, forward, info, (max_tokens, 0)).await?;
        engine.rec.begin_rehearsal();
        let rehearsed = engine.runs(&USUAL).await;
        let kernels = engine.rec.end_rehearsal();
        rehearsed.map(|()| kernels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::MemorySource;
    use crate::gpu::GpuOptions;
    use pollster::block_on;
    use std::ops::ControlFlow;

    /// The kernels told from the header are exactly those that the first runs of the loaded model compile, and looking takes no memory.
    #[test]
    fn the_header_tells_the_kernels() {
        let Some(folder) = std::env::var_os("SEMIF_TEST_MODELS") else {
            println!("SKIPPED: SEMIF_TEST_MODELS is not set; ./test sets it");
            return;
        };
        for name in ["qwen3-tiny-Q4_K", "qwen35-tiny-real"] {
            let gpu = block_on(Gpu::open(&GpuOptions { default_limits: true, ..GpuOptions::default() })).unwrap();
            let file = std::path::Path::new(&folder).join(format!("{name}.gguf"));
            let source =
                MemorySource::new(name, std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}; ./test makes it", file.display())));
            let gguf = block_on(Gguf::read(&source)).unwrap();
            // Another budget and larger chunks than the rehearsal's.
            let options = LoadOptions { max_tokens: 200, chunk: 512, ..LoadOptions::default() };
            let before = gpu.memory_in_use();
            let mut told: Vec<String> =
                block_on(Engine::kernels_of(&gpu, &gguf, &options)).unwrap().iter().map(|k| k.label.clone()).collect();
            assert_eq!((gpu.memory_in_use(), gpu.compiled_kernels().len()), (before, 0), "{name}");
            assert!(gpu.peak_memory() - before < 64 << 20, "{name}: {}", gpu.peak_memory());
            told.sort();
            let mut engine = block_on(Engine::load(&gpu, &source, &options, &mut |_| ControlFlow::Continue(()))).unwrap();
            block_on(engine.runs(&USUAL)).unwrap();
            assert_eq!(told, gpu.compiled_kernels(), "{name}");
        }
    }
}
