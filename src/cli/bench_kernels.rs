//! `semif bench kernels`: every kernel of the ladder's models at its true shapes, without a model file.

use clap::Args;

use crate::bench::kernels::{self, KernelReport, Options, Report};
use crate::bench::synthetic::NAMES;
use crate::gpu::{Gpu, GpuOptions};

use super::fail::{Exit, Failure, print, print_json, safe};
use super::interrupt;

/// Time of every kernel at the shapes of the recommended models, against what the card can do at most; needs no model file.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  semif bench kernels
  semif bench kernels --models qwen3-0.6b --tokens 512 --tiers fast --json

Synthetic models with true dimensions, tensor types and a few layers run in every precision tier; GPU timestamps tell what each
kernel took. Peaks are loops measured in the same run: multiply-adds and byte products in registers, and a straight read of memory.
The error is that of the whole product, inputs rounded to what the tier computes with, against f64.")]
pub struct KernelsArgs {
    /// Models, of qwen3-0.6b, minicpm5-2b and qwen3.5-4b [default: all; with --quick the first]
    #[arg(long, value_name = "ID,ID", value_delimiter = ',')]
    pub models: Vec<String>,

    /// Prompt lengths in tokens [default: 150,512,2048; with --quick 24]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: Vec<u32>,

    /// Precision tiers [default: all that the adapter runs]
    #[arg(long, value_name = "TIER,TIER", value_delimiter = ',')]
    pub tiers: Vec<String>,

    /// Layers of each model, of which the widths are the true ones [default: 8; with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub layers: Option<u32>,

    /// Little work, as is the default on software adapters
    #[arg(long)]
    pub quick: bool,

    /// GPU to use: a part of its name, or its number in `semif doctor` [default: the best one]
    #[arg(long, value_name = "NAME")]
    pub adapter: Option<String>,

    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &KernelsArgs) -> Result<Exit, Failure> {
    let gpu = pollster::block_on(Gpu::open(&GpuOptions { adapter: args.adapter.clone(), ..GpuOptions::default() }))?;
    let mut options = Options::new(args.quick || gpu.info().software);
    if let Some(name) = args.models.iter().find(|name| !NAMES.contains(&name.as_str())) {
        return Err(Failure::input(format!("--models: {name:?} is none of {}", NAMES.join(", "))));
    }
    if let Some(name) = args.tiers.iter().find(|name| !["exact", "fast", "tensor"].contains(&name.as_str())) {
        return Err(Failure::input(format!("--tiers: {name:?} is none of exact, fast, tensor")));
    }
    if !args.models.is_empty() {
        options.models.clone_from(&args.models);
    }
    if !args.tokens.is_empty() {
        options.tokens = args.tokens.iter().map(|n| *n as usize).collect();
    }
    options.tiers.clone_from(&args.tiers);
    options.layers = args.layers.unwrap_or(options.layers);
    interrupt::graceful();
    let report = pollster::block_on(kernels::run(&gpu, &options, &mut |what| {
        super::fail::say!("{what}");
        interrupt::go_on()
    }))?;
    let adapter = &gpu.info().adapter;
    if args.json {
        print_json(&serde_json::json!({
            "bench": "kernels",
            "adapter": adapter.name,
            "backend": adapter.backend,
            "driver": adapter.driver,
            "options": options,
            "results": report,
        }))?;
        return Ok(Exit::Done);
    }
    print(&format!("{} ({}, {})\n{}", safe(&adapter.name), safe(&adapter.backend), safe(&adapter.driver), table(&report)))?;
    Ok(Exit::Done)
}

fn shape([m, n, k]: [u32; 3]) -> String {
    if n == 0 { String::new() } else { format!("{m} x {n} x {k}") }
}

fn table(report: &Report) -> String {
    let peaks = &report.peaks;
    let mut out = format!(
        "Peaks: {:.1} TFLOP/s of f32, {:.1} TOP/s of dot4I8Packed, {}{:.0} GB/s read\n",
        peaks.fma,
        peaks.dot4,
        peaks.matrix.map_or(String::new(), |m| format!("{m:.0} TFLOP/s of f16 matrices, ")),
        peaks.read
    );
    let mut group = (String::new(), "", usize::MAX);
    for k in &report.kernels {
        let this = (k.model.clone(), k.tier, k.tokens);
        if this != group {
            let what = if k.tokens > 0 { format!("{} tokens", k.tokens) } else { "generation".to_owned() };
            out.push_str(&format!("\n{}, {}, {what}\n", k.model, k.tier));
            out.push_str(&format!(
                "  {:34} {:>20} {:>10} {:>10} {:>6} {:>9} {:>8} {:>8}\n",
                "kernel", "rows x out x in", "dispatches", "each us", "share", "TFLOP/s", "GB/s", "of peak"
            ));
            group = this;
        }
        let all: f64 = report.kernels.iter().filter(|o| same(o, k)).map(|o| o.time.seconds).sum();
        let shown = |value: f64, digits: usize| if value > 0.0 { format!("{value:.digits$}") } else { String::new() };
        out.push_str(&format!(
            "  {:34} {:>20} {:>10} {:>10.1} {:>5.1}% {:>9} {:>8} {:>7.0}%\n",
            safe(&k.time.kernel),
            shape(k.shape),
            k.time.dispatches,
            k.each * 1e6,
            100.0 * k.time.seconds / all.max(1e-12),
            shown(k.tera, 2),
            shown(k.giga, 0),
            100.0 * k.of_peak
        ));
    }
    out.push_str("\nErrors against f64, over the root mean square of the outputs\n");
    out.push_str(&format!("  {:7} {:6} {:>20} {:>10} {:>10}\n", "tier", "type", "rows x out x in", "rms", "largest"));
    for e in &report.errors {
        out.push_str(&format!("  {:7} {:6} {:>20} {:>10.1e} {:>10.1e}\n", e.tier, e.ty, shape(e.shape), e.rms, e.max));
    }
    out
}

fn same(a: &KernelReport, b: &KernelReport) -> bool {
    (a.model.as_str(), a.tier, a.tokens) == (b.model.as_str(), b.tier, b.tokens)
}
