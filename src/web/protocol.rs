//! The messages between page and worker.
//!
//! The page sends [`Request`]s, each with a job number of its own; the worker answers with any number of progress events
//! and exactly one [`Event::Done`] or [`Event::Failed`] for that job. Job 0 belongs to the worker's own announcements.
//! States and result rows travel as JSON text: numbers in them keep the digits that the user typed.
//!
//! Work that only waits for the GPU comes in two classes. A [`Class::Batch`] runs in steps of about 0.2 s; between two steps, and between
//! two chunks of a long prefix, the worker first answers every [`Class::Click`] that has come meanwhile.

use serde::{Deserialize, Serialize};

use crate::bench::suite::{Measured, Sizes};
use crate::decision::Combined;

/// One request of the page.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct Request {
    /// Chosen by the page, unique in its lifetime, never 0.
    pub job: u32,
    pub class: Class,
    pub command: Command,
}

/// Who waits for an answer.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Class {
    /// A person: before every batch, in the order of clicks.
    #[default]
    Click,
    /// Nobody at once. Of [`Command::Decide`], [`Command::Ask`] and [`Command::Read`]; every other command is a click.
    Batch,
}

/// What the page can ask for.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub enum Command {
    /// Open the GPU (once) and describe it: [`Answer::Device`].
    Probe,
    /// Kept models and the storage they take: [`Answer::Kept`].
    List,
    /// Remove a kept or partly downloaded model: [`Answer::Kept`].
    Delete { name: String },
    /// Copy a picked file into the browser's storage: [`Answer::Stored`].
    Import {
        #[serde(with = "serde_wasm_bindgen::preserve")]
        file: web_sys::File,
    },
    /// Download into the browser's storage, going on where an earlier try stopped: [`Answer::Stored`].
    /// With `sha256` (64 hex digits) the file must be exactly that one, also when a later try goes on without saying so.
    Download { url: String, sha256: Option<String> },
    /// How fast the adapter multiplies, from one short product: [`Answer::Pace`].
    Pace,
    /// Run every kernel against constants on this adapter: [`Event::Checked`] for each, then [`Answer::SelfTest`].
    SelfTest,
    /// Measure the loaded model: [`Event::Measuring`] and [`Event::Measured`], then [`Answer::Measured`].
    Bench { sizes: Sizes },
    /// Put a model on the GPU, in place of the one that is there: [`Answer::Loaded`].
    Load { source: ModelSource, options: LoadChoice },
    /// Tokens of a decision's prompt: [`Answer::Counted`]. `row` is an input row of the contract.
    Count { row: String },
    /// Decisions by direct readout, each in all orders of its options where `orderings` (`rotations`, `all`, `reverse`) asks for them. Rows
    /// with an equal state share it: [`Event::Decided`] for each row, in the order in which they are read, then [`Answer::Decided`]. With `mass`, how much of the
    /// whole vocabulary's probability the letters hold is read as well. With `keep`, the first row's state is kept even for that row alone:
    /// whoever asks again soon reads only what has changed since.
    Decide { rows: Vec<String>, orderings: Option<String>, mass: bool, keep: bool },
    /// One decision written as JSON by greedy decoding, at most `limit` tokens: [`Event::Written`] for each token, then
    /// [`Answer::Generated`].
    Generate { row: String, limit: u32 },
    /// Greedy decoding of at most `limit` tokens behind a token list, whatever they are: [`Answer::Completed`].
    Complete { tokens: Vec<u32>, limit: u32 },
    /// Last-position logits of token lists, each afresh: [`Answer::Logits`].
    Logits { tokens: Vec<Vec<u32>>, labels: Vec<u32> },
    /// The same on prefixes that are kept: [`Event::Stepped`] after each step, then [`Answer::Read`].
    Read { groups: Vec<TokenGroup>, labels: Vec<u32> },
    /// Read a state (JSON text) and keep it: [`Answer::State`].
    Open { state: String },
    /// Append to a state (JSON text: text to text, elements to a list, members to an object), at the cost of what is new:
    /// [`Answer::State`].
    Append { id: u32, more: String },
    /// Questions on a state, as rows without a state; otherwise as [`Command::Decide`].
    Ask { id: u32, questions: Vec<String>, orderings: Option<String> },
    /// A second state with the same content, which may grow differently; it costs nothing: [`Answer::State`].
    Fork { id: u32 },
    /// Let a state go: [`Answer::Dropped`]. Its memory is given back when something else needs it.
    Drop { id: u32 },
    /// How many bytes of the GPU kept prefixes may take from now on (none: as it is). What exceeds it goes, oldest first:
    /// [`Answer::Cache`].
    Cache { bytes: Option<f64> },
    /// Keep a text of the page in the browser's storage, or give it back: [`Answer::Record`].
    Record { name: String, action: RecordAction },
    /// Stop a job as soon as its current step ends; the job itself answers.
    Cancel { job: u32 },
}

/// How a model is loaded. But for the precision nothing here changes a bit of a result.
#[derive(Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct LoadChoice {
    /// `exact`, `fast`, `tensor` or `auto`; none chooses as `auto` does.
    pub precision: Option<String>,
    /// Longest prompt in tokens.
    pub max_tokens: Option<u32>,
    /// Rows of a chunk.
    pub chunk: Option<u32>,
    /// Bytes for kept prefixes.
    pub cache_bytes: Option<f64>,
    /// On a GPU that is opened anew, so that kernels are compiled again: to measure loading.
    pub fresh: bool,
}

/// Prompts that begin alike, as tokens.
#[derive(Serialize, Deserialize, Debug, Clone, Default)]
#[serde(default)]
pub struct TokenGroup {
    pub prompts: Vec<Vec<u32>>,
    /// Leading tokens that all share and that are kept; 0 reads each prompt whole.
    pub prefix: u32,
}

/// What to do with a kept text. None of them fails where there is no such text.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub enum RecordAction {
    Read,
    Replace { text: String },
    Append { text: String },
    Delete,
}

/// Where the bytes of a model come from.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub enum ModelSource {
    /// Kept in the browser's storage under this name.
    Kept { name: String },
    /// A picked file, read where it lies and not kept.
    File {
        #[serde(with = "serde_wasm_bindgen::preserve")]
        file: web_sys::File,
    },
    /// Read by HTTP ranges straight into the GPU, not kept.
    Url { url: String },
}

/// One message of the worker.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct Message {
    pub job: u32,
    pub event: Event,
}

/// What the worker tells.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub enum Event {
    /// The worker listens. Posted once, before anything else.
    Ready,
    /// The GPU went away on its own; the model is gone, the next load opens the GPU again.
    DeviceLost {
        reason: String,
    },
    Progress(Progress),
    /// The worker asked a server for something. Belongs to no job.
    Requested {
        /// Host and path, without what stands behind a question mark.
        address: String,
    },
    /// Everything written so far, `tokens` tokens, `seconds` after the start.
    Written {
        text: String,
        tokens: u32,
        seconds: f64,
    },
    /// A row is decided; `index` counts from 0 in the order of the request.
    Decided {
        index: u32,
        decision: Box<Decision>,
    },
    /// So many prompts of a batch are read.
    Stepped {
        done: u32,
        total: u32,
    },
    /// One kernel of a self-test is done.
    Checked {
        done: u32,
        total: u32,
    },
    /// A bench is at measurement `index` of `total`, and at which.
    Measuring {
        index: u32,
        total: u32,
        what: String,
    },
    /// A measurement of a bench is done.
    Measured(Box<Measured>),
    Done(Answer),
    Failed(Fault),
}

/// How far a job is.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    pub phase: Phase,
    /// Bytes of `total`, kernels in [`Phase::Compile`]; both 0 where a phase has no measure.
    pub done: f64,
    pub total: f64,
}

/// The steps between a click and a model that answers.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Bytes into the browser's storage, from the network or a picked file.
    Fetch,
    /// SHA-256 of the stored bytes, read back.
    Verify,
    /// Bytes onto the GPU.
    Upload,
    /// Kernels, counted instead of bytes: beside whatever else goes on, as soon as the file's header tells which.
    Compile,
    /// First run, which compiles what is not compiled yet.
    WarmUp,
}

/// How a job ended well.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub enum Answer {
    Device(Device),
    SelfTest(Vec<KernelCheck>),
    /// In the order in which they were made.
    Measured(Vec<Measured>),
    /// Multiplications and additions a second.
    Pace(f64),
    Kept(Kept),
    Stored {
        name: String,
    },
    Loaded(Model),
    Counted(Count),
    /// In the order of the request.
    Decided(Vec<Decision>),
    Generated(Generation),
    Completed(Completion),
    Logits(Vec<Vec<f32>>),
    Read(TokenReading),
    State(State),
    Dropped,
    Cache(CacheUse),
    /// The text that was read; none where there is none, and after everything but a read.
    Record(Option<String>),
}

/// What was written behind a token list.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct Completion {
    pub tokens: Vec<u32>,
    /// All logits that the last token was chosen by.
    pub logits: Vec<f32>,
    pub first_token_seconds: f64,
    pub total_seconds: f64,
}

/// The GPU in words and numbers.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct Device {
    pub name: String,
    /// Vendor, architecture or driver, whatever the browser tells; may be empty.
    pub detail: String,
    pub software: bool,
    /// Bytes.
    pub max_buffer: f64,
    /// Bytes of one storage binding.
    pub max_binding: f64,
    pub max_invocations: u32,
    /// Bytes of workgroup memory.
    pub workgroup_memory: u32,
    pub f16: bool,
    /// The precision tier that a model is loaded in, unless another one is asked for.
    pub tier: String,
}

/// What one kernel did in a self-test.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct KernelCheck {
    pub kernel: String,
    /// Largest error over what rounding explains: at most 1 when right.
    pub error: f64,
    pub passed: bool,
}

/// What the browser keeps for this page.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
pub struct Kept {
    /// False where the browser gives this page no file storage (some private windows).
    pub available: bool,
    pub files: Vec<KeptFile>,
    /// Bytes used by this page and bytes it may use; 0 where the browser does not say.
    pub usage: f64,
    pub quota: f64,
    /// The browser has promised not to clear it by itself.
    pub persisted: bool,
}

/// One model in the browser's storage.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct KeptFile {
    pub name: String,
    /// Bytes of the complete file; 0 while unknown.
    pub bytes: f64,
    /// Bytes that are here. Less than `bytes`: a download that can go on.
    pub stored: f64,
    /// Where it was downloaded from; empty for a picked file.
    pub url: String,
    /// Hex digest of the complete file; empty while unknown.
    pub sha256: String,
}

impl KeptFile {
    pub fn complete(&self) -> bool {
        self.bytes > 0.0 && self.stored == self.bytes
    }
}

/// A model on the GPU.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct Model {
    pub name: String,
    pub architecture: String,
    /// File size in bytes.
    pub bytes: f64,
    /// Bytes of GPU buffers, weights and caches.
    pub gpu_bytes: f64,
    pub layers: u32,
    pub vocabulary: u32,
    pub precision: String,
    /// Longest prompt that is accepted, in tokens.
    pub max_tokens: u32,
    /// From the request to the last weight, with opening the GPU and the file.
    pub upload_seconds: f64,
    /// None where there was no first run: a software adapter would take too long for it.
    pub warm_up_seconds: Option<f64>,
}

/// Logits of every prompt of every group.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct TokenReading {
    pub logits: Vec<Vec<Vec<f32>>>,
    /// Each group's prefix: tokens, and of these, tokens that were kept already.
    pub prefixes: Vec<(u32, u32)>,
    pub seconds: f64,
}

/// A state that is kept.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq)]
pub struct State {
    pub id: u32,
    /// Tokens that every prompt on it begins with, instructions included.
    pub tokens: u32,
    /// Of these, tokens that were kept already.
    pub reused: u32,
    pub seconds: f64,
}

/// What kept prefixes take.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq)]
pub struct CacheUse {
    pub tokens: f64,
    pub bytes: f64,
}

/// How long a prompt is.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq)]
pub struct Count {
    pub tokens: u32,
    pub max_tokens: u32,
}

/// A direct readout.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct Decision {
    /// In option order.
    pub probabilities: Vec<f64>,
    pub input_tokens: u32,
    /// Of these, tokens that had been read before and were kept.
    pub reused_tokens: u32,
    pub forward_seconds: f64,
    pub total_seconds: f64,
    /// Shannon entropy in nats.
    pub entropy: f64,
    /// First minus second probability.
    pub margin: f64,
    /// Share of the whole vocabulary's probability on the answer letters, where it was asked for.
    pub mass: Option<f64>,
    /// What all orders of the options say together, where several were read.
    pub combined: Option<Combined>,
    /// The result row of the contract, as JSON text.
    pub row: String,
}

/// A written distribution.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct Generation {
    pub text: String,
    /// In option order; none where the text is not the JSON that was asked for.
    pub probabilities: Option<Vec<f64>>,
    /// Why `probabilities` is none.
    pub problem: Option<String>,
    pub input_tokens: u32,
    pub output_tokens: u32,
    pub first_token_seconds: f64,
    pub total_seconds: f64,
    /// False where it ended at the token limit.
    pub finished: bool,
}

/// How a job ended badly: what happened, in words.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    pub message: String,
}

impl Fault {
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// What kind of trouble, so that the page can offer the way out that fits.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// This browser has no WebGPU.
    NoWebGpu,
    /// WebGPU is there and offers no adapter.
    NoAdapter,
    /// The GPU was lost or refused work.
    Gpu,
    /// The GPU has no room for this.
    GpuMemory,
    /// The browser's storage is full or not given.
    Quota,
    /// A file is no longer in the browser's storage.
    Gone,
    /// A stored file is not what it was.
    Damaged,
    /// The browser's storage failed otherwise, for example because another tab holds the file.
    Storage,
    /// The file is not a model that this page runs.
    ModelFile,
    Network,
    /// The row is not a decision: too long, too few options, ...
    Input,
    /// Asked for a decision before a model is loaded.
    NoModel,
    Cancelled,
    /// The worker itself broke.
    Crash,
}
