//! A loaded model and what is asked of it: logits, decisions, generation.

mod ahead;
mod chunk;
mod decide;
mod error;
#[cfg(test)]
mod faults;
mod info;
mod precision;
mod prefix;
mod room;
mod run;
mod session;
mod shared;

pub use decide::{Decided, Decisions, OrderedPrompt, Prepared, grown, prepare, state_tokens};
pub use error::{EngineError, ErrorKind};
pub use info::ModelInfo;
pub use precision::Precision;
pub use prefix::{PrefixUse, common_prefix, shared_prefix};
pub use run::{Ask, Generation, Logits};
pub use session::{RunGroup, SharedRun, StateId};
pub use shared::{Group, GroupsReading, Reading, SharedAsk, SharedReading};

use crate::gguf::{ByteSource, Gguf};
use crate::gpu::{Buffer, Gpu, KernelTime, Mark, Recorder, background, now_seconds};
use crate::kernels::linear::Tier;
use crate::model::{Cache, Config, Forward, ModelError, ModelPlan, StreamTimes, UploadProgress, Weights};
use crate::text::TextModel;
use std::collections::VecDeque;
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
    /// So many kernels are being compiled, beside the weights; not told where none is.
    Kernels(usize),
    /// Compiling what is not compiled yet and running a token through it.
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
        Self { precision: Precision::Auto, max_tokens: 4096, chunk: 0, cache_bytes: None }
    }
}

/// Where the time of a load went, in seconds. Tokenizer and kernels are made beside the weights, natively.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LoadTimes {
    /// Reading the header and vocabulary.
    pub header: f64,
    /// Tokenizer and template, beside the weights.
    pub tokenizer: f64,
    /// Taking GPU memory, and finding out which kernels are needed.
    pub allocate: f64,
    /// The weights: reading, repacking and upload, which overlap.
    pub weights: f64,
    /// What the threads of that did.
    pub stream: StreamTimes,
    /// Kernels compiled beside the weights.
    pub kernels: usize,
    /// Seconds until they were.
    pub compile: f64,
    /// What tokenizer and kernels took longer than the weights.
    pub waiting: f64,
    /// First runs.
    pub warm_up: f64,
    /// From the open file to a model that answers.
    pub all: f64,
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
    /// Operations a second of the last runs.
    rates: VecDeque<f64>,
    /// Seconds of submitted work that nobody has waited for, by that measure.
    under_way: f64,
    /// A chunk that may still run.
    chunk: Option<Mark>,
    /// The caller said how many rows a chunk has.
    fixed_chunk: bool,
    times: LoadTimes,
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
        let start = now_seconds();
        let gguf = Arc::new(Gguf::read(source).await.map_err(ModelError::from)?);
        let config = Config::read(&gguf)?;
        let mut times = LoadTimes { header: now_seconds() - start, ..LoadTimes::default() };
        // Nobody needs the tokenizer before the weights are there.
        let text = background({
            let gguf = gguf.clone();
            move || {
                let start = now_seconds();
                (TextModel::from_gguf(&gguf.metadata), now_seconds() - start)
            }
        });
        let tier = options.precision.proven(gpu, tier, &gguf, config.attention.heads.head_dim).await?;
        let limits = gpu.info().into();
        let plan = ModelPlan::new(&gguf, &config, limits)?;
        let fixed_chunk = options.chunk > 0;
        let mut chunk = if fixed_chunk { options.chunk } else { chunk::usual(gpu.info(), |rows| Forward::widest(&config, tier, rows)) };
        let facts = |chunk| ModelInfo::new(&gguf, &config, &plan, tier, options.max_tokens, chunk);
        let mut info = facts(chunk);
        // Kept prefixes may take what the plan leaves free and, while no prompt needs it, the planned cache itself.
        let mut cache_budget = options.cache_bytes.unwrap_or(2 * info.memory.cache);
        if let Some(all) = gpu.info().memory {
            let available = all.saturating_sub(gpu.memory_in_use());
            if !fixed_chunk {
                chunk = chunk::fitting(chunk, available, |rows| facts(rows).memory.total());
                info = facts(chunk);
            }
            if info.memory.total() > available {
                return Err(EngineError::TooLarge { plan: Box::new(info.memory), available });
            }
            cache_budget = cache_budget.min(available - info.memory.total() + info.memory.cache);
        }
        let allocated = now_seconds();
        let mut upload = |p: UploadProgress| progress(LoadProgress::Weights { done: p.done, total: p.total });
        let (weights, loading) = Weights::allocate(gpu, source, &config, &plan, &mut upload).await?;
        // A browser does not say how much memory there is.
        let (forward, rows) = chunk::scratch(gpu, &config, tier, chunk, fixed_chunk).await?;
        if rows != chunk {
            info = facts(rows);
        }
        let mut engine = Engine::assemble(gpu, config, weights, forward, info, (options.max_tokens, cache_budget)).await?;
        // What the first runs will need is compiled while the weights stream in; a software adapter, slow at that, compiles each kernel when a
        // prompt needs it.
        engine.rec.begin_rehearsal();
        let rehearsed = if gpu.info().software { Ok(()) } else { engine.runs(&run::USUAL).await };
        let kernels = engine.rec.end_rehearsal();
        rehearsed?;
        engine.rates.clear();
        engine.fixed_chunk = fixed_chunk;
        times.kernels = kernels.len();
        let compiling = gpu.compile_ahead(kernels);
        let heard = if times.kernels > 0 { go(progress(LoadProgress::Kernels(times.kernels))) } else { Ok(()) };
        times.allocate = now_seconds() - allocated;
        let streaming = now_seconds();
        let mut upload = |p: UploadProgress| progress(LoadProgress::Weights { done: p.done, total: p.total });
        let stream = match heard {
            Ok(()) => loading.stream(gpu, source, &mut upload).await.map_err(EngineError::from),
            Err(stopped) => Err(stopped),
        };
        let streamed = now_seconds();
        times.weights = streamed - streaming;
        // Also after an error: no driver likes to compile while its program ends.
        let going_on = stream.is_ok().then(|| go(progress(LoadProgress::WarmUp)));
        times.compile = compiling.wait();
        times.stream = stream?;
        going_on.unwrap_or(Ok(()))?;
        let (text, seconds) = text.wait();
        times.tokenizer = seconds;
        // A file without a usable tokenizer still has logits.
        match text {
            Ok(text) => engine.text = Some(Arc::new(text)),
            Err(e) => engine.text_error = Some(e.to_string()),
        }
        times.waiting = now_seconds() - streamed;
        engine.warm_up().await?;
        times.warm_up = now_seconds() - streamed - times.waiting;
        times.all = now_seconds() - start;
        engine.times = times;
        Ok(engine)
    }

    /// An engine of its parts: model, scratch, facts, token budget, bytes for kept prefixes.
    async fn assemble(
        gpu: &Gpu,
        config: Config,
        weights: Weights,
        forward: Forward,
        info: ModelInfo,
        (max_tokens, cache_budget): (u32, u64),
    ) -> Result<Engine, EngineError> {
        Ok(Engine {
            gpu: gpu.clone(),
            rec: Recorder::new(gpu).await?,
            forward,
            cache: Cache::new(gpu, &config),
            config,
            weights,
            text: None,
            text_error: None,
            info,
            max_tokens,
            ids: gpu.buffer("slot ids", MOST_IDS as u64 * 4).await?,
            slot_logits: gpu.buffer("slot logits", MOST_IDS as u64 * 4).await?,
            slot_stats: gpu.buffer("slot statistics", 256 * 12).await?,
            store: prefix::Store::default(),
            cache_budget,
            states: Vec::new(),
            next_state: 0,
            rates: VecDeque::new(),
            under_way: 0.0,
            chunk: None,
            fixed_chunk: false,
            times: LoadTimes::default(),
        })
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

    /// Where the time of loading went.
    pub fn load_times(&self) -> &LoadTimes {
        &self.times
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

    /// Takes GPU timestamps of every kernel from now on, or no longer. No result changes, but runs take a little longer.
    ///
    /// # Errors
    /// The adapter has no timestamps.
    pub fn set_profile(&mut self, on: bool) -> Result<(), EngineError> {
        Ok(self.rec.set_profile(on)?)
    }

    /// GPU time by kernel since the last call, longest first; nothing unless [`Engine::set_profile`] was asked for.
    ///
    /// # Errors
    /// GPU faults.
    pub async fn take_profile(&mut self) -> Result<Vec<KernelTime>, EngineError> {
        Ok(self.rec.take_profile(false).await?)
    }

    /// The same, with products of different shapes told apart.
    ///
    /// # Errors
    /// GPU faults.
    pub async fn take_profile_by_shape(&mut self) -> Result<Vec<KernelTime>, EngineError> {
        Ok(self.rec.take_profile(true).await?)
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
