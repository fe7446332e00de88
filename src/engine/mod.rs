//! A loaded model and what is asked of it: logits, decisions, generation.

mod error;
mod info;
mod precision;
mod prefix;
mod run;
mod session;
mod shared;

pub use error::{EngineError, ErrorKind};
pub use info::ModelInfo;
pub use precision::Precision;
pub use prefix::{PrefixUse, common_prefix, shared_prefix};
pub use run::{Ask, Generation, Logits};
pub use session::{SharedRun, StateId};
pub use shared::{Reading, SharedAsk, SharedReading};

use crate::gguf::{ByteSource, Gguf};
use crate::gpu::{Buffer, Gpu, Recorder};
use crate::kernels::linear::Tier;
use crate::model::{Cache, Config, Forward, ModelError, ModelPlan, UploadProgress, Weights};
use crate::text::TextModel;
use std::ops::ControlFlow;
use std::sync::Arc;

/// What loading is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadProgress {
    /// Reading the header, vocabulary and template.
    Header,
    /// Streaming weights to the GPU: file bytes done, file bytes in all.
    Weights {
        /// Bytes done.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// Compiling kernels and running a token through them.
    WarmUp,
}

/// How to load a model.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Arithmetic of the products; refused where the device cannot run it.
    pub precision: Precision,
    /// Token budget: the longest prompt and, for generation, prompt and answer together.
    pub max_tokens: u32,
    /// Rows of a chunk; 0 chooses by adapter. Never changes a bit of a result.
    pub chunk: u32,
    /// GPU bytes that kept prefixes may take; twice the cache of a longest prompt when `None`.
    pub cache_bytes: Option<u64>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { precision: Precision::Exact, max_tokens: 4096, chunk: 0, cache_bytes: None }
    }
}

/// A model on a GPU.
pub struct Engine {
    gpu: Gpu,
    rec: Recorder,
    config: Config,
    weights: Weights,
    forward: Forward,
    cache: Cache,
    text: Option<Arc<TextModel>>,
    text_error: Option<String>,
    info: ModelInfo,
    max_tokens: u32,
    /// Answer slots' ids and logits.
    ids: Buffer,
    slot_logits: Buffer,
    /// Maximum, sum and argmax over the vocabulary of each prompt of a portion.
    slot_stats: Buffer,
    /// Kept prefixes, and the bytes they may take.
    store: prefix::Store,
    cache_budget: u64,
    /// States that callers hold open.
    states: Vec<session::OpenState>,
    next_state: u64,
    /// Operations a second as last measured, 0 before.
    rate: f64,
}

/// Most answer slots or labels read at once.
const MOST_IDS: usize = 4096;

impl Engine {
    /// Reads a model file's index, streams its weights to the GPU and makes everything ready. On failure or cancel all GPU memory is given
    /// back.
    ///
    /// # Errors
    /// An unsupported or damaged file, too little GPU memory, or `progress` asked to stop.
    pub async fn load(
        gpu: &Gpu,
        source: &impl ByteSource,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<Engine, EngineError> {
        let go = |flow: ControlFlow<()>| match flow {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(EngineError::Model(ModelError::Cancelled)),
        };
        let tier = options.precision.tier(gpu.info())?;
        go(progress(LoadProgress::Header))?;
        let gguf = Gguf::read(source).await.map_err(ModelError::from)?;
        let config = Config::read(&gguf)?;
        // A file without a usable tokenizer still has logits.
        let (text, text_error) = match TextModel::from_gguf(&gguf.metadata) {
            Ok(text) => (Some(Arc::new(text)), None),
            Err(e) => (None, Some(e.to_string())),
        };
        let limits = gpu.info().into();
        let plan = ModelPlan::new(&gguf, &config, limits)?;
        let chunk = if options.chunk > 0 { options.chunk } else { Self::default_chunk(gpu) };
        let info = ModelInfo::new(&gguf, &config, &plan, tier, options.max_tokens, chunk);
        // Kept prefixes may take what the plan leaves free, at most twice the cache of a longest prompt.
        let mut cache_budget = options.cache_bytes.unwrap_or(2 * info.memory.cache);
        if let Some(all) = gpu.info().memory {
            let available = all.saturating_sub(gpu.memory_in_use());
            if info.memory.total() > available {
                return Err(EngineError::TooLarge { plan: Box::new(info.memory), available });
            }
            cache_budget = cache_budget.min(available - info.memory.total());
        }
        let mut upload = |p: UploadProgress| progress(LoadProgress::Weights { done: p.done, total: p.total });
        let weights = Weights::upload(gpu, source, &config, &plan, &mut upload).await?;
        go(progress(LoadProgress::WarmUp))?;
        let mut engine = Engine {
            gpu: gpu.clone(),
            rec: Recorder::new(gpu).await?,
            forward: Forward::new(gpu, &config, tier, chunk).await?,
            cache: Cache::new(gpu, &config),
            config,
            weights,
            text,
            text_error,
            info,
            max_tokens: options.max_tokens,
            ids: gpu.buffer("slot ids", MOST_IDS as u64 * 4).await?,
            slot_logits: gpu.buffer("slot logits", MOST_IDS as u64 * 4).await?,
            slot_stats: gpu.buffer("slot statistics", 256 * 12).await?,
            store: prefix::Store::default(),
            cache_budget,
            states: Vec::new(),
            next_state: 0,
            rate: 0.0,
        };
        // Half a second of work at the speed of a slow adapter, until a measurement is there.
        engine.rec.set_budget(20_000_000_000);
        engine.warm_up().await?;
        Ok(engine)
    }

    fn default_chunk(gpu: &Gpu) -> u32 {
        if gpu.info().software { 128 } else { 512 }
    }

    /// Tokenizer and chat template.
    ///
    /// # Errors
    /// The file has none that can be used, and why.
    pub fn text(&self) -> Result<&TextModel, EngineError> {
        self.text.as_deref().ok_or_else(|| EngineError::NoText(self.text_error.clone().unwrap_or_default()))
    }

    /// The same, to keep: for callbacks that turn tokens into text while the engine runs.
    ///
    /// # Errors
    /// As for [`Engine::text`].
    pub fn shared_text(&self) -> Result<Arc<TextModel>, EngineError> {
        self.text.clone().ok_or_else(|| EngineError::NoText(self.text_error.clone().unwrap_or_default()))
    }

    /// What the model is and what it takes.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// The device it runs on.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The precision tier that runs.
    pub fn tier(&self) -> Tier {
        self.forward.tier()
    }

    /// Buffers that the embedding and all matrices together are in: more where a binding limit splits them.
    pub fn part_count(&self) -> (usize, usize) {
        let layer = |l: &crate::model::Layer| l.gate_up.parts.len() + l.down.parts.len() + l.mixer.part_count();
        let layers: usize = self.weights.layers.iter().map(layer).sum();
        let embedding = self.weights.embedding.parts.len();
        (embedding, embedding + self.weights.output.as_ref().map_or(0, |o| o.parts.len()) + layers)
    }

    /// Token budget.
    pub fn max_tokens(&self) -> u32 {
        self.max_tokens
    }
}
