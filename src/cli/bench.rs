//! `semif bench`: measurements on this machine, as a table or JSON.

use std::ops::ControlFlow;

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::bench::shared::{Report, Workload};
use crate::bench::{shared, speed};
use crate::engine::LoadOptions;
use crate::gpu::{Gpu, GpuOptions};

use super::args::ModelArgs;
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
  semif bench shared --gguf qwen.gguf --rows 21 --json

Token ids come from a fixed seed, so every run and machine does the same work. A GPU or CPU that others use gives upper
bounds only.")]
pub struct BenchArgs {
    #[command(subcommand)]
    pub what: What,
}

#[derive(Debug, Subcommand)]
pub enum What {
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
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "64,150,512,2048", value_parser = clap::value_parser!(u32).range(1..))]
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

    /// Tokens of a state
    #[arg(long, value_name = "N", default_value_t = 1800, value_parser = clap::value_parser!(u32).range(1..))]
    pub state_tokens: u32,

    /// Tokens of a question with its options
    #[arg(long, value_name = "N", default_value_t = 80, value_parser = clap::value_parser!(u32).range(1..))]
    pub suffix_tokens: u32,

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
        What::Prompt(args) => prompt(args),
        What::Generate(args) => generate(args),
        What::Load(args) => load(args),
        What::Shared(args) => shared(args),
    }
}

fn open(model: &ModelArgs) -> Result<(String, Runner), Failure> {
    runner::check_tier(model)?;
    let file = ModelFile::open(&model.choice.path()?)?;
    Ok((file.reference().file, Runner::load(&file, model)?))
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
    let (model, mut runner) = open(&args.model)?;
    let results = pollster::block_on(speed::prompt(&mut runner.engine, &sizes(&args.tokens), args.repeat as usize))?;
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
    let (model, mut runner) = open(&args.model)?;
    let lengths = sizes(&args.tokens);
    let work = speed::generate(&mut runner.engine, &lengths, args.max_new as usize, args.repeat as usize);
    let results = pollster::block_on(work)?;
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
    let file = ModelFile::open(&args.model.choice.path()?)?;
    let gpu = pollster::block_on(Gpu::open(&GpuOptions { adapter: args.model.adapter.clone(), ..GpuOptions::default() }))?;
    let results = pollster::block_on(speed::load(&gpu, &file.source, &options, args.repeat as usize))?;
    if args.json {
        let adapter = &gpu.info().adapter;
        let precision = options.precision.tier(gpu.info())?.to_string();
        print_json(&Measured {
            bench: "load",
            model: &file.reference().file,
            adapter: &adapter.name,
            backend: &adapter.backend,
            driver: &adapter.driver,
            precision: &precision,
            results: &results,
        })?;
        return Ok(Exit::Done);
    }
    let mut table = format!("{:>10} {:>10} {:>10} {:>10} {:>8}\n", "header", "weights", "warm-up", "all", "GB/s");
    for r in &results {
        let times = [r.header_seconds, r.weights_seconds, r.warm_up_seconds, r.seconds].map(view::seconds);
        table.push_str(&format!("{:>10} {:>10} {:>10} {:>10} {:>8.2}\n", times[0], times[1], times[2], times[3], r.gigabytes_per_second));
    }
    print(&format!("{} on {}\n\n{table}", safe(&file.reference().file), safe(&gpu.info().adapter.name)))?;
    Ok(Exit::Done)
}

fn shared(args: &SharedArgs) -> Result<Exit, Failure> {
    let (model, mut runner) = open(&args.model)?;
    interrupt::graceful();
    let workload = Workload {
        states: args.states as usize,
        questions: args.questions as usize,
        state_tokens: args.state_tokens as usize,
        suffix_tokens: args.suffix_tokens as usize,
        rows: args.rows.map(|n| n as usize),
    };
    let bar = progress_bar(0, "{msg} {bar:24} {pos} of {len}, {eta} left");
    let report = pollster::block_on(shared::run(&mut runner.engine, &workload, &mut |path, done, all| {
        bar.set_message(path);
        bar.set_length(all as u64);
        bar.set_position(done as u64);
        if interrupt::asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }));
    bar.finish_and_clear();
    let report: Report = report?;
    let mut table = format!(
        "{:8} {:>9} {:>9} {:>11} {:>10} {:>10} {:>8} {:>8} {:>6} {:>9} {:>5}\n",
        "path", "decisions", "seconds", "decisions/s", "state p50", "state p95", "speedup", "peak GB", "flips", "max diff", "bits"
    );
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
    show("shared", &model, &runner, args.json, &report, table)?;
    if !agrees {
        return Err(Failure { exit: Exit::Gpu, message: "the paths do not agree in every bit".to_owned() });
    }
    Ok(Exit::Done)
}
