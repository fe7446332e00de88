//! A model on a GPU, as commands use it: opened with a progress bar, asked, and described for result rows.

use std::io::IsTerminal as _;
use std::str::FromStr as _;
use std::time::{Duration, Instant};

use indicatif::style::ProgressTracker;
use indicatif::{DecimalBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::decision::{ModelRef, ServingConfig};
use crate::engine::{Ask, Engine, EngineError, ErrorKind, Group, GroupsReading, LoadOptions, LoadProgress, Precision, SharedAsk};
use crate::gguf::ByteSource;
use crate::gpu::{Gpu, GpuError, GpuOptions};
use crate::hub::{Event, Hub, HubError, Ladder, PullOptions};

use super::args::ModelArgs;
use super::batch::{Kept, Read, Reading, Scorer, Wanted, WantedPart};
use super::fail::{Exit, Failure};
use super::interrupt;
use super::load::ModelFile;

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        let exit = match error.kind() {
            ErrorKind::Input => Exit::Input,
            ErrorKind::ModelFile => Exit::ModelFile,
            ErrorKind::Gpu => Exit::Gpu,
            ErrorKind::Interrupted => Exit::Interrupted,
        };
        Failure { exit, message: error.to_string() }
    }
}

impl From<GpuError> for Failure {
    fn from(error: GpuError) -> Failure {
        // A name that was mistyped is the caller's; everything else is the GPU's.
        let exit = if let GpuError::NoSuchAdapter { .. } = error { Exit::Input } else { Exit::Gpu };
        Failure { exit, message: error.to_string() }
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Failure {
        let exit = match error.exit_code() {
            2 => Exit::Input,
            130 => Exit::Interrupted,
            _ => Exit::ModelFile,
        };
        Failure { exit, message: error.to_string() }
    }
}

/// The tier asked for.
///
/// # Errors
/// Exit code 2: no such tier.
pub fn precision(args: &ModelArgs) -> Result<Precision, Failure> {
    Precision::from_str(args.tier().name()).map_err(Failure::input)
}

/// Refuses a tier that the adapter lacks before anything slow happens.
///
/// # Errors
/// Exit codes 2 (no such adapter, or one without the tier) and 4.
pub fn check_tier(args: &ModelArgs) -> Result<(), Failure> {
    let precision = precision(args)?;
    // The other tiers run on every native adapter.
    if precision == Precision::Tensor {
        let options = GpuOptions { adapter: args.adapter.clone(), ..GpuOptions::default() };
        precision.tier(pollster::block_on(Gpu::open(&options))?.info())?;
    }
    Ok(())
}

/// A progress bar on stderr, silent where that is no terminal. The keys `rows` and `speed` are how quick it has been, in rows and in bytes,
/// and how much longer it takes.
pub fn progress_bar(total: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(8));
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar.set_style(style(template));
    bar
}

fn style(template: &str) -> ProgressStyle {
    // The templates are constants; the default style is a fine fallback.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let speed = |per_second: f64| format!("{}/s", DecimalBytes(per_second as u64));
    style.with_key("rows", Pace::new(super::view::pace)).with_key("speed", Pace::new(speed)).progress_chars("█▉▊▋▌▍▎▏ ")
}

/// Says on a terminal that something is going on which may take long, with the seconds so far.
pub fn busy(message: impl Into<String>) -> ProgressBar {
    let bar = progress_bar(0, "{spinner} {msg}, {elapsed}");
    bar.set_message(message.into());
    bar.enable_steady_tick(TICK);
    bar
}

/// How often a bar is redrawn while nothing is done.
pub const TICK: Duration = Duration::from_millis(120);

/// How quick a bar's work has been and how long the rest will take, from the whole so far: a row may take longer than any average of late.
#[derive(Clone)]
struct Pace {
    rate: fn(f64) -> String,
    /// The position, and when it was reached.
    at: (u64, Duration),
}

impl Pace {
    fn new(rate: fn(f64) -> String) -> Pace {
        Pace { rate, at: (0, Duration::ZERO) }
    }

    /// Nothing can be foretold before the first step is done.
    fn text(&self, len: u64, elapsed: Duration) -> String {
        let (done, reached) = self.at;
        if done == 0 {
            return format!("{:#}", HumanDuration(elapsed));
        }
        let per_second = done as f64 / reached.as_secs_f64().max(1e-3);
        let all = Duration::from_secs_f64(len.saturating_sub(done) as f64 / per_second);
        let left = all.saturating_sub(elapsed.saturating_sub(reached));
        let left =
            if left.as_secs() > 0 { format!("{:#} left", HumanDuration(left)) } else { format!("{:#} so far", HumanDuration(elapsed)) };
        format!("{}, {left}", (self.rate)(per_second))
    }
}

impl ProgressTracker for Pace {
    fn clone_box(&self) -> Box<dyn ProgressTracker> {
        Box::new(self.clone())
    }

    fn tick(&mut self, state: &ProgressState, _: Instant) {
        if state.pos() != self.at.0 {
            self.at = (state.pos(), state.elapsed());
        }
    }

    fn reset(&mut self, _: &ProgressState, _: Instant) {
        self.at = (0, Duration::ZERO);
    }

    fn write(&self, state: &ProgressState, out: &mut dyn std::fmt::Write) {
        // Writing to a string cannot fail.
        let _ = out.write_str(&self.text(state.len().unwrap_or(0), state.elapsed()));
    }
}

const BYTES: &str = "{msg} {bar:24} {decimal_bytes} of {decimal_total_bytes}, {speed}";

/// What result rows say about a model file, its SHA-256 included. The hash is computed once for each file and remembered.
///
/// # Errors
/// The file cannot be read; interrupted.
pub fn model_ref(file: &ModelFile) -> Result<ModelRef, Failure> {
    let mut reference = file.reference();
    let path = file.source.paths().next().map(std::path::Path::to_owned).unwrap_or_default();
    // Without a home folder there is nothing to remember in, and a temporary one does.
    let hub = Hub::new(true, None, PullOptions::default())
        .or_else(|_| Hub::with(Ladder::built_in().clone(), std::env::temp_dir().join("semif"), true, None, PullOptions::default()))?;
    let bar = progress_bar(reference.bytes, BYTES);
    bar.set_message("hashing");
    let local = hub.file(&path, &mut |event| {
        if let Event::Hashing { done, .. } = event {
            bar.set_position(done);
        }
        interrupt::go_on()
    });
    bar.finish_and_clear();
    let provenance = local?.provenance;
    reference.source = provenance.source;
    reference.revision = provenance.revision;
    reference.sha256 = Some(provenance.sha256);
    Ok(reference)
}

/// A model that did not load. One that is too large gets advice: a shorter budget, or the ladder's model that would fit.
fn refusal(error: EngineError, max_tokens: u32) -> Failure {
    let mut advice = String::new();
    if let EngineError::TooLarge { plan, available } = &error {
        // Only keys and values grow with the tokens.
        let by_tokens = plan.cache.saturating_sub(plan.states);
        let fixed = plan.total().saturating_sub(by_tokens);
        let tokens = u128::from(available.saturating_sub(fixed)) * u128::from(max_tokens) / u128::from(by_tokens.max(1));
        // A budget too short for a decision would be no help.
        if tokens >= 512 {
            advice = format!("; it would fit with --max-tokens {}", tokens / 64 * 64);
        } else if let Some(entry) = Ladder::built_in().fitting(*available, max_tokens)
            && entry.gpu_bytes(max_tokens) < plan.total()
        {
            advice = format!("; {} would fit: --model {}", entry.title, entry.id);
        } else {
            advice = "; no smaller model of the ladder would fit".to_owned();
            if fixed < *available {
                advice.push_str(", a shorter --max-tokens may help");
            }
        }
    }
    let failure = Failure::from(error);
    Failure { message: failure.message + &advice, ..failure }
}

/// A loaded model.
pub struct Runner {
    pub engine: Engine,
    pub config: ServingConfig,
    /// Ask for log-sum-exp and argmax over the vocabulary with every reading.
    pub mass: bool,
}

impl Runner {
    /// Opens the adapter and loads the model.
    ///
    /// # Errors
    /// Exit codes 2 (adapter name, tier), 3, 4, 130.
    pub fn load(file: &ModelFile, args: &ModelArgs) -> Result<Runner, Failure> {
        Self::load_source(&file.source, args)
    }

    /// The same from any source.
    ///
    /// # Errors
    /// The same.
    pub fn load_source(source: &impl ByteSource, args: &ModelArgs) -> Result<Runner, Failure> {
        let options =
            LoadOptions { precision: precision(args)?, max_tokens: args.max_tokens, cache_bytes: args.cache, ..LoadOptions::default() };
        let gpu =
            pollster::block_on(Gpu::open(&GpuOptions { adapter: args.adapter.clone(), memory: args.gpu_memory, ..GpuOptions::default() }))?;
        // How many bytes there are to load is known once the header is read.
        let bar = busy("loading");
        let mut streaming = false;
        let loaded = pollster::block_on(Engine::load(&gpu, source, &options, &mut |progress| {
            match progress {
                // Memory is still being taken.
                LoadProgress::Header | LoadProgress::Kernels(_) | LoadProgress::Weights { done: 0, .. } => {}
                LoadProgress::Weights { done, total } => {
                    if !std::mem::replace(&mut streaming, true) {
                        bar.set_length(total);
                        bar.reset_elapsed();
                        bar.set_style(style(BYTES));
                    }
                    bar.set_position(done);
                }
                LoadProgress::WarmUp => {
                    bar.set_style(style("{spinner} {msg}, {elapsed}"));
                    bar.set_message("compiling kernels");
                }
            }
            interrupt::go_on()
        }));
        bar.finish_and_clear();
        let mut engine = loaded.map_err(|error| {
            let failure = refusal(error, args.max_tokens);
            match failure.exit {
                Exit::ModelFile => Failure::model_file(format!("{}: {}", source.describe(), failure.message)),
                _ => failure,
            }
        })?;
        engine.set_profile(args.profile)?;
        let adapter = &gpu.info().adapter;
        let config = ServingConfig {
            engine: format!("semif {}", env!("CARGO_PKG_VERSION")),
            precision: engine.tier().to_string(),
            mode: "direct".to_owned(),
            adapter: adapter.name.clone(),
            backend: adapter.backend.clone(),
            driver: adapter.driver.clone(),
            max_tokens: args.max_tokens,
            system_text: "own turn".to_owned(),
            ..ServingConfig::default()
        };
        Ok(Runner { engine, config, mass: false })
    }

    /// Says on a terminal that this will be slow, where it will.
    pub fn warn_if_slow(&self) {
        let info = self.engine.gpu().info();
        if info.software && std::io::stderr().is_terminal() {
            let name = super::fail::safe(&info.adapter.name);
            super::fail::say!("no GPU here: {name} computes on the CPU, which may take a minute or more");
        }
    }
}

impl Scorer for Runner {
    fn read(&mut self, wanted: &Wanted<'_>) -> Result<Read, Failure> {
        let labels = wanted.slots.to_vec();
        let mut go_on = interrupt::go_on;
        if let [WantedPart { prompts, prefix: None }] = &wanted.parts[..]
            && let [prompt] = prompts[..]
        {
            let ask = Ask { labels, stats: self.mass, ..Ask::default() };
            let logits = pollster::block_on(self.engine.logits_with(prompt, &ask, &mut go_on))?;
            let reading = Reading { logits: logits.labels, lse: logits.lse, argmax: logits.argmax };
            return Ok(Read { readings: vec![reading], forward_seconds: logits.forward_seconds, ..Read::default() });
        }
        let ask = SharedAsk { labels, stats: self.mass, prefix: 0 };
        let parts = wanted.parts.iter();
        let groups: Vec<Group<'_>> = parts.map(|p| Group { prompts: p.prompts.clone(), prefix: p.prefix.unwrap_or(0) }).collect();
        let mut read = GroupsReading::default();
        let done = pollster::block_on(self.engine.read_groups_into(&groups, &ask, &mut go_on, &mut read));
        let reading = |r: crate::engine::Reading| Reading { logits: r.labels, lse: r.lse, argmax: r.argmax };
        Ok(Read {
            readings: read.readings.into_iter().flatten().map(reading).collect(),
            kept: read.prefixes.iter().map(|p| Kept { tokens: p.tokens as usize, reused: p.reused as usize }).collect(),
            prefill_seconds: read.prefill_seconds,
            forward_seconds: read.suffix_seconds,
            stopped: done.err().map(Failure::from),
        })
    }

    /// A second of work or so: software drivers are slow.
    fn portion(&self) -> usize {
        if self.engine.gpu().info().software { 512 } else { 2048 }
    }

    /// A software adapter is no quicker with many rows, and each is worth waiting for.
    fn packs(&self) -> bool {
        !self.engine.gpu().info().software
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Class, MemoryPlan};

    #[test]
    fn bars_foretell_nothing_before_the_first_step() {
        let seconds = Duration::from_secs;
        let mut pace = Pace::new(crate::cli::view::pace);
        assert_eq!(pace.text(3, seconds(12)), "12s");
        pace.at = (1, seconds(30));
        assert_eq!(pace.text(3, seconds(30)), "30 s each, 60s left");
        // The rest gets shorter while a row takes its time, and the pace stays.
        assert_eq!(pace.text(3, seconds(50)), "30 s each, 40s left");
        assert_eq!(pace.text(3, seconds(100)), "30 s each, 2m so far");
    }

    #[test]
    fn what_is_too_large_comes_with_advice() {
        let with_states = |states, available| {
            let weights = [(Class::Embedding, 500_000_000), (Class::FeedForward, 2_500_000_000)].into_iter().collect();
            let plan = MemoryPlan { weights, cache: 400_000_000, states, scratch: 200_000_000 };
            refusal(EngineError::TooLarge { plan: Box::new(plan), available }, 4096)
        };
        let error = |available| with_states(0, available);
        let shorter = error(3_400_000_000);
        assert_eq!(shorter.exit, Exit::Gpu);
        for part in
            ["needs 3.60 GB", "embedding 0.50 GB", "feed-forward 2.50 GB", "cache 0.40 GB", "3.40 GB are available", "--max-tokens 2048"]
        {
            assert!(shorter.message.contains(part), "{}", shorter.message);
        }
        // A state is as large for fewer tokens: 0.1 of the 0.3 GB that grow with them are left, for a third of the tokens.
        let with_state = with_states(100_000_000, 3_400_000_000).message;
        assert!(with_state.ends_with("; it would fit with --max-tokens 1344"), "{with_state}");
        let smaller = error(2_900_000_000).message;
        assert!(smaller.ends_with("; MiniCPM5 2B would fit: --model minicpm5-2b"), "{smaller}");
        let none = error(100_000_000).message;
        assert!(none.contains("no smaller model of the ladder"), "{none}");
    }
}
