//! The engine as the worker uses it: one GPU, at most one model, one request at a time.

use js_sys::{Function, Object, Promise, Reflect};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;

use super::ask;
use super::job::{Job, cancelled, now, scope, sleep};
use super::source::WebSource;
use crate::decision::ModelRef;
use crate::engine::{Ask, Engine, EngineError, ErrorKind, LoadOptions, LoadProgress};
use crate::gguf::{ByteSource, SourceError};
use crate::gpu::{Gpu, GpuError, GpuOptions};
use crate::kernels::selftest;
use crate::model::ModelError;
use crate::web::protocol::{Answer, Command, Count, Device, Event, Fault, FaultKind, KernelCheck, Model, ModelSource, Phase};

/// Tries before a missing adapter is believed: right after the browser's start the first answer can be null.
const ADAPTER_TRIES: i32 = 3;

/// What the worker holds between requests.
#[derive(Default)]
pub struct Session {
    gpu: Option<Gpu>,
    loaded: Option<Loaded>,
}

/// A model on the GPU and where it came from.
pub struct Loaded {
    pub engine: Engine,
    pub file: ModelRef,
}

impl Session {
    /// Runs one engine command. After a lost device the model and the GPU are dropped: the next load starts afresh.
    pub async fn run(&mut self, job: &Job, command: Command) -> Result<Answer, Fault> {
        let result = self.answer(job, command).await;
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
            Command::SelfTest => Ok(Answer::SelfTest(self.self_test(job).await?)),
            Command::Load { source } => Ok(Answer::Loaded(self.load(job, &source).await?)),
            Command::Count { row } => {
                let loaded = self.loaded()?;
                let prompt = ask::prepare(loaded, &row)?;
                Ok(Answer::Counted(Count { tokens: prompt.tokens() as u32, max_tokens: loaded.engine.max_tokens() }))
            }
            Command::Decide { row } => Ok(Answer::Decided(ask::decide(self.loaded()?, &row).await?)),
            Command::Generate { row, limit } => Ok(Answer::Generated(ask::generate(self.loaded()?, &row, limit as usize, job).await?)),
            Command::Logits { tokens, labels } => {
                let engine = &mut self.loaded()?.engine;
                let ask = Ask { labels, ..Ask::default() };
                let mut all = Vec::with_capacity(tokens.len());
                for tokens in &tokens {
                    job.check()?;
                    all.push(engine.logits(tokens, &ask).await.map_err(|error| fault(&error))?.labels);
                }
                Ok(Answer::Logits(all))
            }
            // Storage commands and cancels never come here.
            _ => Err(Fault::new(FaultKind::Crash, "the engine got a request that is not its own")),
        }
    }

    fn loaded(&mut self) -> Result<&mut Loaded, Fault> {
        self.loaded.as_mut().ok_or_else(|| Fault::new(FaultKind::NoModel, "No model is loaded."))
    }

    async fn gpu(&mut self) -> Result<Gpu, Fault> {
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
        let mut seen = |_: &selftest::Check| {
            done += 1;
            job.post(Event::Checked { done, total: selftest::COUNT as u32 });
        };
        let checks = selftest::run(&gpu, &mut seen).await.map_err(|error| gpu_fault(&error))?;
        let check = |check: selftest::Check| KernelCheck { kernel: check.kernel, error: check.error, passed: check.passed };
        Ok(checks.into_iter().map(check).collect())
    }

    async fn load(&mut self, job: &Job, source: &ModelSource) -> Result<Model, Fault> {
        let gpu = self.gpu().await?;
        // The old model goes first: two rarely fit side by side.
        self.loaded = None;
        let bytes = WebSource::open(source, job).await?;
        let options = LoadOptions::default();
        let start = now();
        let mut warm_up = None;
        let mut progress = |progress: LoadProgress| {
            match progress {
                LoadProgress::Header => job.progress(Phase::Upload, 0.0, 0.0),
                LoadProgress::Weights { done, total } => job.progress(Phase::Upload, done as f64, total as f64),
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
            warm_up_seconds: (end - warm_up) / 1e3,
        };
        let note = match source {
            ModelSource::Kept { name } => super::store::read_note(name).await.unwrap_or_default(),
            _ => super::store::Note::default(),
        };
        let file = ModelRef {
            source: match source {
                ModelSource::Url { url } => url.clone(),
                ModelSource::Kept { .. } if !note.url.is_empty() => note.url.clone(),
                ModelSource::File { .. } | ModelSource::Kept { .. } => "local file".into(),
            },
            revision: None,
            file: bytes.describe(),
            bytes: bytes.len(),
            sha256: Some(note.sha256).filter(|sha256| !sha256.is_empty()),
            architecture: info.architecture.clone(),
            name: info.name.clone(),
        };
        self.loaded = Some(Loaded { engine, file });
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
