//! `semif bench`: measurements on this machine, as a table or JSON.

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::bench::shared::{Report, Workload};
use crate::bench::synthetic::{NAMES, Synthetic};
use crate::bench::{shared, speed};
use crate::engine::{Engine, EngineError, LoadOptions};
use crate::gguf::ByteSource as _;
use crate::gpu::GpuOptions;

use super::args::ModelArgs;
use super::bench_kernels;
use super::fail::{Exit, Failure, print, print_json, safe};
use super::interrupt;
use super::load::ModelFile;
use super::runner::{self, Runner, progress_bar};
use super::view;

/// Measure this machine: prompts, generation, loading, and what shared states save.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  semif bench prompt --gguf qwen.gguf
  semif bench prompt --model synthetic:qwen3.5-4b --profile
  semif bench shared --gguf qwen.gguf --rows 21 --json
  semif bench kernels

A model synthetic:ID has the dimensions and tensor types of that model of `semif models` and random weights; it needs no file.
Texts and token ids come from fixed seeds, so every run and machine does the same work. A GPU or CPU that others use gives upper
bounds only.")]
pub struct BenchArgs {
    #[command(subcommand)]
    pub what: What,
}

#[derive(Debug, Subcommand)]
pub enum What {
    Kernels(bench_kernels::KernelsArgs),
    Prompt(PromptArgs),
    Generate(GenerateArgs),
    Load(LoadArgs),
    Shared(SharedArgs),
}

/// Time from a prompt's upload to its logits: median after a warm-up.
#[derive(Debug, Args)]
pub struct PromptArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    /// Prompt lengths in tokens
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "64,150,512,2048,8000", value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: Vec<u32>,

    /// Runs of each length that count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,

    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Tokens a second of greedy generation.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    /// Prompt lengths in tokens
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "64,1800", value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: Vec<u32>,

    /// Tokens to generate
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..))]
    pub max_new: u32,

    /// Runs of each length that count
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,

    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Time from the open file to a model that answers, by phase.
#[derive(Debug, Args)]
pub struct LoadArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    /// Loads, one after the other; the first one may find the file outside the system's cache
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,

    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Many questions on each of many states, read afresh, serially and together; all bits are compared.
#[derive(Debug, Args)]
#[command(after_help = "Exit code 4 where a path changes a single bit of a logit.")]
pub struct SharedArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    /// At most so many decisions in all
    #[arg(long, value_name = "N")]
    pub rows: Option<u32>,

    /// States
    #[arg(long, value_name = "N", default_value_t = 37, value_parser = clap::value_parser!(u32).range(1..))]
    pub states: u32,

    /// Questions on each state
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..))]
    pub questions: u32,

    /// Tokens of a state, instructions included: about so many
    #[arg(long, value_name = "N", default_value_t = 1800, value_parser = clap::value_parser!(u32).range(1..))]
    pub state_tokens: u32,

    /// Tokens of a question with its options
    #[arg(long, value_name = "N", default_value_t = 80, value_parser = clap::value_parser!(u32).range(1..))]
    pub suffix_tokens: u32,

    /// Options of a question: 2 are yes and no
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=4))]
    pub options: u32,

    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// What a measurement is worth without: the machine and the model.
#[derive(Serialize)]
struct Measured<'a, T> {
    bench: &'static str,
    model: &'a str,
    adapter: &'a str,
    backend: &'a str,
    driver: &'a str,
    precision: &'a str,
    results: T,
}

pub fn run(args: &BenchArgs) -> Result<Exit, Failure> {
    match &args.what {
        What::Kernels(args) => bench_kernels::run(args),
        What::Prompt(args) => prompt(args),
        What::Generate(args) => generate(args),
        What::Load(args) => load(args),
        What::Shared(args) => shared(args),
    }
}

/// What stands before the id of a model that is made up.
const SYNTHETIC: &str = "synthetic:";

/// A model that is made up, where the arguments ask for one.
fn synthetic(model: &ModelArgs) -> Result<Option<Synthetic>, Failure> {
    let Some(name) = model.choice.model.as_deref().and_then(|name| name.strip_prefix(SYNTHETIC)) else { return Ok(None) };
    let unknown =
        || Failure::input(format!("{name:?} cannot be made up; there are {}", NAMES.map(|n| format!("{SYNTHETIC}{n}")).join(", ")));
    Synthetic::new(name, None, None).map(Some).ok_or_else(unknown)
}

/// Loads the model for prompts of up to `longest` tokens.
fn open(model: &ModelArgs, longest: usize) -> Result<(String, Runner), Failure> {
    runner::check_tier(model)?;
    let model = &ModelArgs { max_tokens: model.max_tokens.max(longest as u32), profile: false, ..model.clone() };
    if let Some(source) = synthetic(model)? {
        return Ok((source.describe(), Runner::load_source(&source, model)?));
    }
    let file = ModelFile::open(&model.choice.path()?)?;
    Ok((file.reference().file, Runner::load(&file, model)?))
}

/// Runs once more with GPU timestamps, apart from what counts, and lists them.
fn profile(
    args: &ModelArgs,
    runner: &mut Runner,
    what: &str,
    run: impl AsyncFnOnce(&mut Engine) -> Result<(), EngineError>,
) -> Result<(), Failure> {
    if args.profile {
        runner.engine.set_profile(true)?;
        pollster::block_on(run(&mut runner.engine))?;
        super::fail::say_on!("\n{what}");
        super::profile::report(&mut runner.engine)?;
        runner.engine.set_profile(false)?;
    }
    Ok(())
}

fn show<T: Serialize>(bench: &'static str, model: &str, runner: &Runner, json: bool, results: T, table: String) -> Result<(), Failure> {
    let config = &runner.config;
    if json {
        let (adapter, backend, driver, precision) = (&config.adapter, &config.backend, &config.driver, &config.precision);
        return print_json(&Measured { bench, model, adapter, backend, driver, precision, results });
    }
    let machine = [model, &config.precision, &config.adapter, &config.backend, &config.driver].map(safe);
    print(&format!("{}, {} on {} ({}, {})\n\n{table}", machine[0], machine[1], machine[2], machine[3], machine[4]))
}

fn sizes(tokens: &[u32]) -> Vec<usize> {
    tokens.iter().map(|n| *n as usize).collect()
}

fn prompt(args: &PromptArgs) -> Result<Exit, Failure> {
    let lengths = sizes(&args.tokens);
    let (model, mut runner) = open(&args.model, lengths.iter().copied().max().unwrap_or(1))?;
    let results = pollster::block_on(speed::prompt(&mut runner.engine, &lengths, args.repeat as usize, None))?;
    for &tokens in &lengths {
        profile(&args.model, &mut runner, &format!("{tokens} tokens"), async |engine| speed::once(engine, tokens).await)?;
    }
    let mut table = format!("{:>8} {:>12} {:>12} {:>12}\n", "tokens", "median", "fastest", "tokens/s");
    for r in &results {
        table.push_str(&format!(
            "{:>8} {:>12} {:>12} {:>12.0}\n",
            r.tokens,
            view::seconds(r.seconds),
            view::seconds(r.fastest),
            r.tokens_per_second
        ));
    }
    show("prompt", &model, &runner, args.json, &results, table)?;
    Ok(Exit::Done)
}

fn generate(args: &GenerateArgs) -> Result<Exit, Failure> {
    let lengths = sizes(&args.tokens);
    let (model, mut runner) = open(&args.model, lengths.iter().copied().max().unwrap_or(1) + args.max_new as usize)?;
    let work = speed::generate(&mut runner.engine, &lengths, args.max_new as usize, args.repeat as usize, None);
    let results = pollster::block_on(work)?;
    for &tokens in &lengths {
        let once = async |engine: &mut Engine| speed::generate(engine, &[tokens], args.max_new as usize, 0, None).await.map(|_| ());
        profile(&args.model, &mut runner, &format!("{} tokens after {tokens}, with the prompt", args.max_new), once)?;
    }
    let mut table = format!("{:>8} {:>8} {:>12} {:>12}\n", "prompt", "new", "first token", "tokens/s");
    for r in &results {
        let first = view::seconds(r.first_token_seconds);
        table.push_str(&format!("{:>8} {:>8} {first:>12} {:>12.1}\n", r.prompt, r.tokens, r.tokens_per_second));
    }
    show("generate", &model, &runner, args.json, &results, table)?;
    Ok(Exit::Done)
}

fn load(args: &LoadArgs) -> Result<Exit, Failure> {
    let options = LoadOptions { precision: runner::precision(&args.model)?, max_tokens: args.model.max_tokens, ..LoadOptions::default() };
    let gpu = GpuOptions { adapter: args.model.adapter.clone(), memory: args.model.gpu_memory, ..GpuOptions::default() };
    let repeat = args.repeat as usize;
    let (model, (info, results)) = match synthetic(&args.model)? {
        Some(source) => (source.describe(), pollster::block_on(speed::load(&gpu, &source, &options, repeat))?),
        None => {
            let file = ModelFile::open(&args.model.choice.path()?)?;
            (file.reference().file, pollster::block_on(speed::load(&gpu, &file.source, &options, repeat))?)
        }
    };
    let adapter = &info.adapter;
    if args.json {
        let precision = options.precision.tier(&info)?.to_string();
        print_json(&Measured {
            bench: "load",
            model: &model,
            adapter: &adapter.name,
            backend: &adapter.backend,
            driver: &adapter.driver,
            precision: &precision,
            results: &results,
        })?;
        return Ok(Exit::Done);
    }
    let mut table = format!(
        "{:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7}   {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
        "device",
        "header",
        "allocate",
        "weights",
        "waiting",
        "warm-up",
        "all",
        "GB/s",
        "tokenizer",
        "compile",
        "read",
        "repack",
        "upload",
        "GPU wait"
    );
    for r in &results {
        let p = &r.parts;
        let line = [r.device_seconds, p.header, p.allocate, p.weights, p.waiting, p.warm_up, r.seconds]
            .map(|s| format!("{:>9}", view::seconds(s)));
        let beside = [p.tokenizer, p.compile, p.stream.read, p.stream.repack, p.stream.upload, p.stream.wait]
            .map(|s| format!("{:>9}", view::seconds(s)));
        table.push_str(&format!("{} {:>7.2}   {}\n", line.join(" "), r.gigabytes_per_second, beside.join(" ")));
    }
    let first = results.first().map_or(String::new(), |r| {
        format!(
            "The columns on the right run beside the weights: {} kernels, and {} threads whose times are added up; one repacks {:.2} GB/s.\n",
            r.parts.kernels, r.parts.stream.threads, r.repacked_per_second
        )
    });
    print(&format!("{} on {}\n\n{table}\n{first}", safe(&model), safe(&adapter.name)))?;
    Ok(Exit::Done)
}

fn shared(args: &SharedArgs) -> Result<Exit, Failure> {
    let (model, mut runner) = open(&args.model, (args.state_tokens + args.suffix_tokens) as usize)?;
    interrupt::graceful();
    let workload = Workload {
        states: args.states as usize,
        questions: args.questions as usize,
        state_tokens: args.state_tokens as usize,
        suffix_tokens: args.suffix_tokens as usize,
        options: args.options as usize,
        rows: args.rows.map(|n| n as usize),
    };
    let bar = progress_bar(0, "{msg} {bar:24} {pos} of {len}, {elapsed}");
    let report = pollster::block_on(shared::run(&mut runner.engine, &workload, &mut |path, done, all| {
        bar.set_message(path);
        bar.set_length(all as u64);
        bar.set_position(done as u64);
        interrupt::go_on()
    }));
    bar.finish_and_clear();
    let report: Report = report?;
    let of = if report.text { "text" } else { "token ids" };
    let mut table = format!("{:.0} tokens a state, {:.0} a question, of {of}\n\n", report.state_tokens, report.suffix_tokens);
    table.push_str(&format!(
        "{:8} {:>9} {:>9} {:>11} {:>10} {:>10} {:>8} {:>8} {:>6} {:>9} {:>5}\n",
        "path", "decisions", "seconds", "decisions/s", "state p50", "state p95", "speedup", "peak GB", "flips", "max diff", "bits"
    ));
    for p in &report.paths {
        let (p50, p95) = (view::seconds(p.state_p50), view::seconds(p.state_p95));
        table.push_str(&format!(
            "{:8} {:>9} {:>9.2} {:>11.2} {p50:>10} {p95:>10} {:>7.1}x {:>8.2} {:>6} {:>9.1e} {:>5}\n",
            p.path,
            p.decisions,
            p.seconds,
            p.decisions_per_second,
            p.speedup,
            p.peak_bytes as f64 / 1e9,
            p.flips,
            p.max_difference,
            if p.same_bits { "same" } else { "OTHER" }
        ));
    }
    let agrees = report.agrees();
    profile(&args.model, &mut runner, "one state, together", async |engine| shared::together(engine, &workload).await)?;
    show("shared", &model, &runner, args.json, &report, table)?;
    if !agrees {
        return Err(Failure { exit: Exit::Gpu, message: "the paths do not agree in every bit".to_owned() });
    }
    Ok(Exit::Done)
}
