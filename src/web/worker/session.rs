//! The engine as the worker uses it: one GPU, at most one model, one request at a time.

use js_sys::{Function, Object, Promise, Reflect};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::{JsFuture, spawn_local};

use super::ask;
use super::job::{Job, cancelled, now, scope, sleep};
use super::source::WebSource;
use crate::bench::references;
use crate::decision::{Json, ModelRef, Wording};
use crate::engine::{Ask, Engine, EngineError, ErrorKind, LoadOptions, LoadProgress, Precision, PrefixUse, StateId, grown, state_tokens};
use crate::gguf::{ByteSource, SourceError};
use crate::gpu::{Gpu, GpuError, GpuOptions};
use crate::kernels::selftest;
use crate::model::ModelError;
use crate::web::protocol::{
    Answer, CacheUse, Command, Count, Device, Event, Fault, FaultKind, KernelCheck, LoadChoice, Model, ModelSource, Phase, State,
};

/// Tries before a missing adapter is believed: right after the browser's start the first answer can be null.
const ADAPTER_TRIES: i32 = 3;

/// What the worker holds between requests.
#[derive(Default)]
pub struct Session {
    gpu: Option<Gpu>,
    loaded: Option<Loaded>,
    /// Counts loads, so that a batch of an earlier model is not run on a later one.
    pub load: u32,
}

/// A model on the GPU and where it came from.
pub struct Loaded {
    pub engine: Engine,
    pub file: ModelRef,
    states: Vec<OpenState>,
    next_state: u32,
}

/// A state that the page holds open.
struct OpenState {
    id: u32,
    state: Json,
    held: StateId,
}

impl Loaded {
    fn index(&self, id: u32) -> Result<usize, Fault> {
        self.states.iter().position(|state| state.id == id).ok_or_else(|| ask::input(format!("no state {id} is open")))
    }

    /// An open state and the tokens that are kept of it.
    pub fn state(&self, id: u32) -> Result<(&Json, &[u32]), Fault> {
        let open = &self.states[self.index(id)?];
        let tokens = self.engine.state_tokens(open.held).map_err(|error| fault(&error))?;
        Ok((&open.state, tokens))
    }

    /// The tokens that every prompt on a state begins with.
    pub fn tokens(&self, state: &Json) -> Result<Vec<u32>, Fault> {
        let text = self.engine.text().map_err(|error| fault(&error))?;
        state_tokens(text, &Wording::default(), state).map_err(ask::input)
    }

    fn keep(&mut self, state: Json, held: StateId) -> u32 {
        self.next_state += 1;
        self.states.push(OpenState { id: self.next_state, state, held });
        self.next_state
    }

    async fn open(&mut self, job: &Job, state: &str) -> Result<State, Fault> {
        let start = now();
        let state = json(state)?;
        let tokens = self.tokens(&state)?;
        let (held, usage) = self.engine.open_state(&tokens, &mut || job.flow()).await.map_err(|error| fault(&error))?;
        Ok(opened(self.keep(state, held), usage, start))
    }

    async fn append(&mut self, job: &Job, id: u32, more: &str) -> Result<State, Fault> {
        let start = now();
        let i = self.index(id)?;
        let state = grown(&self.states[i].state, &json(more)?).map_err(ask::input)?;
        let tokens = self.tokens(&state)?;
        let held = self.states[i].held;
        let usage = self.engine.update_state(held, &tokens, &mut || job.flow()).await.map_err(|error| fault(&error))?;
        self.states[i].state = state;
        Ok(opened(id, usage, start))
    }

    fn fork(&mut self, id: u32) -> Result<State, Fault> {
        let start = now();
        let i = self.index(id)?;
        let held = self.engine.fork_state(self.states[i].held).map_err(|error| fault(&error))?;
        let tokens = self.engine.state_tokens(held).map_err(|error| fault(&error))?.len() as u32;
        let state = self.states[i].state.clone();
        Ok(opened(self.keep(state, held), PrefixUse { tokens, reused: tokens }, start))
    }

    fn drop_state(&mut self, id: u32) -> Result<(), Fault> {
        let i = self.index(id)?;
        let open = self.states.swap_remove(i);
        self.engine.close_state(open.held).map_err(|error| fault(&error))
    }
}

fn json(text: &str) -> Result<Json, Fault> {
    Json::parse(text).map_err(|error| ask::input(format!("the state is no JSON: {error}")))
}

fn opened(id: u32, usage: PrefixUse, start: f64) -> State {
    State { id, tokens: usage.tokens, reused: usage.reused, seconds: (now() - start) / 1e3 }
}

impl Session {
    /// Runs one engine command. After a lost device the model and the GPU are dropped: the next load starts afresh.
    pub async fn run(&mut self, job: &Job, command: Command) -> Result<Answer, Fault> {
        let result = self.answer(job, command).await;
        self.settle(result)
    }

    /// Drops model and GPU after a fault of the GPU.
    pub fn settle<T>(&mut self, result: Result<T, Fault>) -> Result<T, Fault> {
        if let Err(fault) = &result
            && fault.kind == FaultKind::Gpu
        {
            let had_model = self.loaded.take().is_some();
            self.gpu = None;
            if had_model {
                super::job::post(0, Event::DeviceLost { reason: fault.message.clone() });
            }
        }
        result
    }

    async fn answer(&mut self, job: &Job, command: Command) -> Result<Answer, Fault> {
        match command {
            Command::Probe => {
                let gpu = self.gpu().await?;
                Ok(Answer::Device(describe(&gpu, &adapter_words().await)))
            }
            Command::Pace => {
                let gpu = self.gpu().await?;
                Ok(Answer::Pace(selftest::pace(&gpu).await.map_err(|error| gpu_fault(&error))?))
            }
            Command::SelfTest => Ok(Answer::SelfTest(self.self_test(job).await?)),
            Command::Bench { sizes } => Ok(Answer::Measured(super::bench::run(self.loaded()?, sizes, job).await?)),
            Command::Load { source, options } => Ok(Answer::Loaded(self.load(job, &source, options).await?)),
            Command::Count { row } => {
                let loaded = self.loaded()?;
                let tokens = ask::prepared(loaded, &row, None)?.prompts[0].prompt.tokens.len() as u32;
                Ok(Answer::Counted(Count { tokens, max_tokens: loaded.engine.max_tokens() }))
            }
            command @ (Command::Decide { .. } | Command::Ask { .. } | Command::Read { .. }) => {
                let mut steps = self.begin(command)?;
                loop {
                    if let Some(answer) = self.step(job, &mut steps, &|| false).await? {
                        return Ok(answer);
                    }
                }
            }
            Command::Generate { row, limit } => Ok(Answer::Generated(ask::generate(self.loaded()?, &row, limit as usize, job).await?)),
            Command::Complete { tokens, limit } => {
                Ok(Answer::Completed(ask::complete(self.loaded()?, &tokens, limit as usize, job).await?))
            }
            Command::Open { state } => Ok(Answer::State(self.loaded()?.open(job, &state).await?)),
            Command::Append { id, more } => Ok(Answer::State(self.loaded()?.append(job, id, &more).await?)),
            Command::Fork { id } => Ok(Answer::State(self.loaded()?.fork(id)?)),
            Command::Drop { id } => {
                self.loaded()?.drop_state(id)?;
                Ok(Answer::Dropped)
            }
            Command::Cache { bytes } => {
                let engine = &mut self.loaded()?.engine;
                if let Some(bytes) = bytes {
                    engine.set_cache_budget(bytes.max(0.0) as u64);
                }
                let (tokens, bytes) = engine.cache_usage();
                Ok(Answer::Cache(CacheUse { tokens: tokens as f64, bytes: bytes as f64 }))
            }
            Command::Logits { tokens, labels } => {
                let engine = &mut self.loaded()?.engine;
                let ask = Ask { labels, ..Ask::default() };
                let mut all = Vec::with_capacity(tokens.len());
                for tokens in &tokens {
                    job.check()?;
                    all.push(engine.logits_with(tokens, &ask, &mut || job.flow()).await.map_err(|error| fault(&error))?.labels);
                }
                Ok(Answer::Logits(all))
            }
            // Storage commands and cancels never come here.
            _ => Err(Fault::new(FaultKind::Crash, "the engine got a request that is not its own")),
        }
    }

    pub fn loaded(&mut self) -> Result<&mut Loaded, Fault> {
        self.loaded.as_mut().ok_or_else(|| Fault::new(FaultKind::NoModel, "No model is loaded."))
    }

    pub async fn gpu(&mut self) -> Result<Gpu, Fault> {
        if let Some(gpu) = &self.gpu {
            return Ok(gpu.clone());
        }
        if !Reflect::get(&scope().navigator(), &"gpu".into()).is_ok_and(|gpu| gpu.is_object()) {
            return Err(Fault::new(
                FaultKind::NoWebGpu,
                "The models run on the GPU through WebGPU, which this browser does not offer at this address.",
            ));
        }
        let mut tries = 1;
        let gpu = loop {
            match Gpu::open(&GpuOptions::default()).await {
                Ok(gpu) => break gpu,
                Err(GpuError::NoAdapter) if tries < ADAPTER_TRIES => sleep(300 * tries).await,
                Err(error) => return Err(gpu_fault(&error)),
            }
            tries += 1;
        };
        self.gpu = Some(gpu.clone());
        Ok(gpu)
    }

    async fn self_test(&mut self, job: &Job) -> Result<Vec<KernelCheck>, Fault> {
        let gpu = self.gpu().await?;
        let mut done = 0;
        let total = (selftest::COUNT + references::count(&gpu)) as u32;
        let mut seen = |_: &selftest::Check| {
            done += 1;
            job.post(Event::Checked { done, total });
            job.flow()
        };
        let mut checks = selftest::run(&gpu, &mut seen).await.map_err(|error| gpu_fault(&error))?;
        job.check()?;
        checks.extend(references::run(&gpu, &mut seen).await.map_err(|error| fault(&error))?);
        job.check()?;
        let check = |check: selftest::Check| KernelCheck { kernel: check.kernel, error: check.error, passed: check.passed };
        Ok(checks.into_iter().map(check).collect())
    }

    async fn load(&mut self, job: &Job, source: &ModelSource, choice: LoadChoice) -> Result<Model, Fault> {
        let start = now();
        // The old model goes first: two rarely fit side by side.
        self.loaded = None;
        self.load += 1;
        if choice.fresh {
            self.gpu = None;
        }
        let gpu = self.gpu().await?;
        let bytes = WebSource::open(source, job).await?;
        let usual = LoadOptions::default();
        let precision = choice.precision.as_deref().map(str::parse::<Precision>).transpose().map_err(ask::input)?;
        let options = LoadOptions {
            precision: precision.unwrap_or(usual.precision),
            max_tokens: choice.max_tokens.unwrap_or(usual.max_tokens),
            chunk: choice.chunk.unwrap_or(usual.chunk),
            cache_bytes: choice.cache_bytes.map(|bytes| bytes.max(0.0) as u64),
            ..usual
        };
        let mut warm_up = None;
        let mut progress = |progress: LoadProgress| {
            match progress {
                LoadProgress::Header => job.progress(Phase::Upload, 0.0, 0.0),
                LoadProgress::Weights { done, total } => job.progress(Phase::Upload, done as f64, total as f64),
                LoadProgress::Kernels(count) => {
                    job.progress(Phase::Compile, 0.0, count as f64);
                    let (gpu, job) = (gpu.clone(), job.clone());
                    spawn_local(async move {
                        // They were handed over before the weights, so they are done before them.
                        gpu.idle().await;
                        job.progress(Phase::Compile, count as f64, count as f64);
                    });
                }
                LoadProgress::WarmUp => {
                    warm_up = Some(now());
                    job.progress(Phase::WarmUp, 0.0, 0.0);
                }
            }
            job.flow()
        };
        let engine = Engine::load(&gpu, &bytes, &options, &mut progress).await.map_err(|error| fault(&error))?;
        let end = now();
        let warm_up = warm_up.unwrap_or(end);
        let info = engine.info();
        let model = Model {
            name: info.name.clone().unwrap_or_else(|| bytes.describe()),
            architecture: info.architecture.clone(),
            bytes: info.file_bytes as f64,
            gpu_bytes: (info.memory.weight_bytes() + info.memory.scratch) as f64,
            layers: info.layers,
            vocabulary: info.vocab,
            precision: engine.tier().to_string(),
            max_tokens: engine.max_tokens(),
            upload_seconds: (warm_up - start) / 1e3,
            warm_up_seconds: (!gpu.info().software).then_some((end - warm_up) / 1e3),
        };
        let note = match source {
            ModelSource::Kept { name } => super::store::read_note(name).await.unwrap_or_default(),
            _ => super::store::Note::default(),
        };
        // The hash of a part is not that of the model.
        let sha256 = Some(note.sha256).filter(|sha256| !sha256.is_empty() && bytes.parts().len() == 1);
        let file = ModelRef {
            source: match source {
                ModelSource::Url { url } => url.clone(),
                ModelSource::Kept { .. } if !note.url.is_empty() => note.url.clone(),
                ModelSource::File { .. } | ModelSource::Kept { .. } => "local file".into(),
            },
            revision: None,
            file: bytes.describe(),
            bytes: bytes.len(),
            sha256,
            architecture: info.architecture.clone(),
            name: info.name.clone(),
        };
        self.loaded = Some(Loaded { engine, file, states: Vec::new(), next_state: 0 });
        Ok(model)
    }
}

/// What the browser tells of its adapter, in the order name, maker, family; browsers leave out what would identify a
/// visitor, and wgpu passes on only the first.
async fn adapter_words() -> Vec<String> {
    let text = |object: &JsValue, key: &str| Reflect::get(object, &key.into()).ok().and_then(|v| v.as_string()).filter(|v| !v.is_empty());
    let info = async {
        let gpu = Reflect::get(&scope().navigator(), &"gpu".into()).ok()?;
        let request: Function = Reflect::get(&gpu, &"requestAdapter".into()).ok()?.dyn_into().ok()?;
        let options = Object::new();
        Reflect::set(&options, &"powerPreference".into(), &"high-performance".into()).ok()?;
        let promise: Promise = request.call1(&gpu, &options).ok()?.dyn_into().ok()?;
        let adapter = JsFuture::from(promise).await.ok()?;
        Reflect::get(&adapter, &"info".into()).ok()
    };
    let Some(info) = info.await else { return Vec::new() };
    ["description", "vendor", "architecture"].iter().filter_map(|key| text(&info, key)).collect()
}

fn describe(gpu: &Gpu, words: &[String]) -> Device {
    let info = gpu.info();
    // SwiftShader, WARP ("Microsoft Basic Render Driver") and llvmpipe are the browsers' software adapters.
    let words_say_software = words.iter().any(|word| {
        let word = word.to_lowercase();
        ["swiftshader", "llvmpipe", "basic render"].iter().any(|name| word.contains(name))
    });
    let mut words = words.iter();
    Device {
        name: words.next().cloned().unwrap_or_else(|| info.adapter.name.clone()),
        detail: words.cloned().collect::<Vec<_>>().join(", "),
        software: info.software || words_say_software,
        max_buffer: info.max_buffer as f64,
        max_binding: info.max_binding as f64,
        max_invocations: info.adapter.invocations,
        workgroup_memory: info.adapter.workgroup_memory,
        f16: info.adapter.features.iter().any(|feature| feature == "shader-f16"),
        tier: Precision::Auto.tier(info).map_or_else(|_| String::new(), |tier| tier.to_string()),
    }
}

/// An engine's error as the page tells it.
pub fn fault(error: &EngineError) -> Fault {
    match error {
        EngineError::Gpu(error) | EngineError::Model(ModelError::Gpu(error)) => gpu_fault(error),
        EngineError::Model(ModelError::Source(SourceError::Cancelled { .. })) => cancelled(),
        EngineError::Budget { tokens, budget } => Fault::new(
            FaultKind::Input,
            format!("The prompt has {tokens} tokens and {budget} are the limit. Nothing is ever cut off, so it was not run."),
        ),
        EngineError::TooLarge { .. } => Fault::new(FaultKind::GpuMemory, sentence(&error.to_string())),
        other => {
            let kind = match other.kind() {
                ErrorKind::Interrupted => return cancelled(),
                ErrorKind::Input => FaultKind::Input,
                ErrorKind::ModelFile => FaultKind::ModelFile,
                ErrorKind::Gpu => FaultKind::Gpu,
            };
            Fault::new(kind, sentence(&other.to_string()))
        }
    }
}

fn gpu_fault(error: &GpuError) -> Fault {
    let kind = match error {
        GpuError::NoAdapter => return Fault::new(FaultKind::NoAdapter, "WebGPU is there, but the browser offers no graphics adapter."),
        GpuError::OutOfMemory { .. } => FaultKind::GpuMemory,
        _ => FaultKind::Gpu,
    };
    Fault::new(kind, sentence(&error.to_string()))
}

/// First letter large unless it begins a file's name, a full stop at the end.
pub fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let name = text.split(' ').next().is_some_and(|word| word.contains(['.', '/', '_']));
    let mut sentence: String =
        if name { text.into() } else { letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect() };
    if !sentence.ends_with(['.', '!', '?']) {
        sentence.push('.');
    }
    sentence
}
