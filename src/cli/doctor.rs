//! `semif doctor`: adapters, what they offer, and whether every kernel computes what it should.

use std::ops::ControlFlow;

use serde::Serialize;

use crate::bench::references;
use crate::gpu::{AdapterSummary, Gpu, GpuError, GpuOptions, adapters};
use crate::kernels::linear::Tier;
use crate::kernels::selftest::{self, Check};

use super::args::DoctorArgs;
use super::fail::{Exit, Failure, print, print_json, safe};
use super::inspect::bytes;
use super::runner::progress_bar;

#[derive(Serialize)]
struct Report {
    adapters: Vec<AdapterSummary>,
    /// The one that was tested.
    tested: String,
    /// Tiers and, where one does not run, why.
    tiers: Vec<(String, Option<String>)>,
    /// What `--precision auto` runs.
    auto: String,
    kernels: Vec<Check>,
    passed: bool,
}

pub fn run(args: &DoctorArgs) -> Result<Exit, Failure> {
    let found = pollster::block_on(adapters());
    if found.is_empty() {
        return Err(GpuError::NoAdapter.into());
    }
    if !args.json {
        print(&list(&found))?;
    }
    let gpu = pollster::block_on(Gpu::open(&GpuOptions { adapter: args.adapter.clone(), ..GpuOptions::default() }))?;
    let tiers: Vec<(String, Option<String>)> = Tier::ALL.into_iter().map(|tier| (tier.to_string(), tier.check(gpu.info()).err())).collect();
    let auto = Tier::best(gpu.info());
    if !args.json {
        print(&format!("Tested: {}\n", safe(&gpu.info().adapter.name)))?;
        for (tier, problem) in &tiers {
            print(&format!("  {tier:<7}{}\n", problem.as_deref().map_or("runs".to_owned(), safe)))?;
        }
        print(&format!("  auto   is {auto} here\n"))?;
    }
    let bar = progress_bar((selftest::COUNT + references::count(&gpu)) as u64, "self-test {bar:24} {pos} of {len} checks, {elapsed}");
    let mut seen = |_: &Check| {
        bar.inc(1);
        ControlFlow::Continue(())
    };
    let kernels = pollster::block_on(selftest::run(&gpu, &mut seen));
    let models = pollster::block_on(references::run(&gpu, &mut seen));
    bar.finish_and_clear();
    let (mut kernels, models) = (kernels?, models?);
    let of_kernels = kernels.len();
    kernels.extend(models);
    let wrong: Vec<&Check> = kernels.iter().filter(|check| !check.passed).collect();
    let passed = wrong.is_empty();
    if !args.json {
        let mut out = String::new();
        for check in &wrong {
            out.push_str(&format!("  WRONG  {}: {:.1} times the error that rounding explains\n", check.kernel, check.error));
        }
        let worst = kernels.iter().map(|check| check.error).fold(0.0, f64::max);
        out.push_str(&match passed {
            true => format!(
                "  self-test: all {of_kernels} kernels are right (errors of at most {worst:.2}, where more than 1 would be wrong), and so are {} whole models\n",
                kernels.len() - of_kernels
            ),
            false => format!("  self-test: {} of {} kernels and models are wrong on this adapter; do not trust its results. Another driver version, or --adapter, may help\n", wrong.len(), kernels.len()),
        });
        print(&out)?;
    } else {
        print_json(&Report { adapters: found, tested: gpu.info().adapter.name.clone(), tiers, auto: auto.to_string(), kernels, passed })?;
    }
    Ok(if passed { Exit::Done } else { Exit::Gpu })
}

fn list(found: &[AdapterSummary]) -> String {
    let mut out = String::from("Adapters, best first (for --adapter: the number or a part of the name)\n");
    for (i, adapter) in found.iter().enumerate() {
        out.push_str(&format!(
            "  {i}  {} ({}, {}), driver {}\n",
            safe(&adapter.name),
            adapter.kind,
            adapter.backend,
            safe(&adapter.driver)
        ));
        out.push_str(&format!(
            "     binding up to {}, buffer up to {}, {} kB workgroup memory, {} invocations\n",
            bytes(adapter.max_binding),
            bytes(adapter.max_buffer),
            adapter.workgroup_memory / 1024,
            adapter.invocations
        ));
        let features = if adapter.features.is_empty() { "none".to_owned() } else { adapter.features.join(", ") };
        out.push_str(&format!("     features: {features}; subgroups of {} to {}\n", adapter.subgroups.0, adapter.subgroups.1));
    }
    out
}
