//! `--profile`: GPU time by kernel, as a table on stderr.

use crate::engine::Engine;
use crate::gpu::KernelTime;

use super::fail::{Failure, safe};

/// A table of GPU times, longest first: with TFLOP/s where a kernel's operations are its work, and GB/s where its bytes are counted.
pub fn table(times: &[KernelTime]) -> String {
    let all: f64 = times.iter().map(|t| t.seconds).sum();
    let width = times.iter().map(|t| t.kernel.len()).max().unwrap_or(6).max(6);
    let mut out = format!("{:width$} {:>10} {:>10} {:>6} {:>9} {:>9}\n", "kernel", "dispatches", "total ms", "share", "TFLOP/s", "GB/s");
    let rate = |amount: u64, unit: f64, seconds: f64| if amount > 0 && seconds > 0.0 { amount as f64 / unit / seconds } else { 0.0 };
    let shown = |rate: f64, digits: usize| if rate > 0.0 { format!("{rate:.digits$}") } else { String::new() };
    for t in times {
        out.push_str(&format!(
            "{:width$} {:>10} {:>10.3} {:>5.1}% {:>9} {:>9}\n",
            safe(&t.kernel),
            t.dispatches,
            t.seconds * 1e3,
            100.0 * t.seconds / all.max(1e-12),
            shown(rate(t.operations, 1e12, t.seconds), 2),
            shown(rate(t.bytes, 1e9, t.seconds), 0),
        ));
    }
    let dispatches: u64 = times.iter().map(|t| t.dispatches).sum();
    out.push_str(&format!("{:width$} {dispatches:>10} {:>10.3}\n", "all", all * 1e3));
    out
}

/// Prints what an engine that was told to profile has measured since the last call, if anything.
///
/// # Errors
/// Exit code 4.
pub fn report(engine: &mut Engine) -> Result<(), Failure> {
    let times = pollster::block_on(engine.take_profile())?;
    if !times.is_empty() {
        super::fail::say!("\nGPU time by kernel (timestamps lengthen a run a little)\n{}", table(&times));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_what_was_counted() {
        let times = [
            KernelTime { kernel: "matmul".into(), dispatches: 2, seconds: 0.003, operations: 6_000_000_000, ..KernelTime::default() },
            KernelTime { kernel: "copy".into(), dispatches: 1, seconds: 0.001, bytes: 2_000_000_000, ..KernelTime::default() },
        ];
        let table = table(&times);
        let lines: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["matmul", "2", "3.000", "75.0%", "2.00"]);
        assert_eq!(lines[2], ["copy", "1", "1.000", "25.0%", "2000"]);
        assert_eq!(lines[3], ["all", "3", "4.000"]);
    }
}
