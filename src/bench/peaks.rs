//! What a card can do at most, measured: arithmetic in registers and a straight read of memory. Kernels are held against it.

use crate::gpu::template::Defs;
use crate::gpu::{Access, Buffer, Gpu, GpuError, Recorder, now_seconds};
use crate::kernels::Variant;
use serde::Serialize;

/// Measured peaks of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Peaks {
    /// f32 multiply-adds, 10^12 operations a second.
    pub fma: f64,
    /// `dot4I8Packed`, 10^12 operations a second.
    pub dot4: f64,
    /// Cooperative matrices, f16 into f32, 10^12 operations a second, where the adapter has them.
    pub matrix: Option<f64>,
    /// Reading, 10^9 bytes a second.
    pub read: f64,
}

/// Work of one measurement: enough for a GPU to be busy for milliseconds, little enough for a software adapter.
struct Size {
    groups: u32,
    rounds: u32,
    bytes: u64,
    /// Seconds of arithmetic before anything counts, so that an idle card has raised its clocks.
    warm: f64,
}

fn one(file: &'static str, access: &[Access]) -> Variant {
    Variant { label: file.trim_end_matches(".wgsl").to_string(), file, defs: Defs::new(), access: access.to_vec() }
}

/// For adapters with cooperative matrices.
fn matrix_variant() -> Variant {
    one("peak_matrix.wgsl", &[Access::Write])
}

fn variants() -> [Variant; 3] {
    [one("peak_fma.wgsl", &[Access::Write]), one("peak_dot4.wgsl", &[Access::Write]), one("peak_read.wgsl", &[Access::Read, Access::Write])]
}

/// Measures the peaks: the best of five runs of each loop.
///
/// # Errors
/// GPU faults.
pub async fn measure(gpu: &Gpu) -> Result<Peaks, GpuError> {
    let size = match gpu.info().software {
        true => Size { groups: 16, rounds: 64, bytes: 32 << 20, warm: 0.0 },
        false => Size { groups: 4096, rounds: 256, bytes: gpu.info().max_binding.min(gpu.info().max_buffer).min(1 << 30), warm: 1.0 },
    };
    let mut rec = Recorder::new(gpu).await?;
    let out = gpu.buffer("peak", 8192).await?;
    let [fma, dot4, read] = variants().map(|v| v.kernel(gpu));
    let threads = u64::from(size.groups) * 256;
    let factor = 0.999f32.to_bits();

    let start = now_seconds();
    let mut loops = |rec: &mut Recorder| rec.dispatch(&fma, &[out.all()], &[size.rounds, factor], [size.groups, 1, 1], 0);
    best(&mut rec, &out, 1, &mut loops).await?;
    while now_seconds() - start < size.warm {
        best(&mut rec, &out, 1, &mut loops).await?;
    }
    let seconds = best(&mut rec, &out, 5, &mut loops).await?;
    let fma = threads as f64 * f64::from(size.rounds) * 32.0 * 4.0 * 2.0 / seconds / 1e12;

    let mut loops = |rec: &mut Recorder| rec.dispatch(&dot4, &[out.all()], &[size.rounds, 0x0103_fe02], [size.groups, 1, 1], 0);
    let seconds = best(&mut rec, &out, 5, &mut loops).await?;
    let dot4 = threads as f64 * f64::from(size.rounds) * 64.0 * 8.0 / seconds / 1e12;

    let matrix = match gpu.info().abilities.matrices {
        true => {
            let kernel = matrix_variant().kernel(gpu);
            let factor = 0.001f32.to_bits();
            let mut loops = |rec: &mut Recorder| rec.dispatch(&kernel, &[out.all()], &[size.rounds, factor], [size.groups, 1, 1], 0);
            let seconds = best(&mut rec, &out, 5, &mut loops).await?;
            // Four subgroups a workgroup, each with 16 products of 2 * 16^3 operations a round.
            Some(f64::from(size.groups) * 4.0 * f64::from(size.rounds) * 16.0 * 8192.0 / seconds / 1e12)
        }
        false => None,
    };

    // Whole rounds of eight units for every thread.
    let round = 16 * 8 * threads.min(1 << 18);
    let bytes = size.bytes / round * round;
    let memory = gpu.buffer("peak memory", bytes).await?;
    let params = [(bytes / 16) as u32, threads.min(1 << 18) as u32];
    let groups = [params[1] / 256, 1, 1];
    let mut loops = |rec: &mut Recorder| rec.dispatch(&read, &[memory.all(), out.all()], &params, groups, 0);
    let seconds = best(&mut rec, &out, 5, &mut loops).await?;
    Ok(Peaks { fma, dot4, matrix, read: bytes as f64 / seconds / 1e9 })
}

/// Seconds of one dispatch, the best of `runs` measurements of several dispatches in one submit; a submit's own time is taken off.
async fn best(rec: &mut Recorder, out: &Buffer, runs: usize, one: &mut dyn FnMut(&mut Recorder)) -> Result<f64, GpuError> {
    let time = async |rec: &mut Recorder, count: usize, one: &mut dyn FnMut(&mut Recorder)| -> Result<f64, GpuError> {
        let start = now_seconds();
        (0..count).for_each(|_| one(rec));
        rec.finish_and_read(out.range(0, 4)).await?;
        Ok(now_seconds() - start)
    };
    time(rec, 1, one).await?;
    let mut best = f64::INFINITY;
    for _ in 0..runs {
        // The difference of six dispatches and one is five dispatches, without what a submit and a readback take.
        let (short, long) = (time(rec, 1, one).await?, time(rec, 6, one).await?);
        best = best.min(if long > short { (long - short) / 5.0 } else { long / 6.0 });
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naga_validates_the_loops() {
        for variant in variants().into_iter().chain([matrix_variant()]) {
            let text = variant.wgsl();
            let module = naga::front::wgsl::parse_str(&text).unwrap_or_else(|e| panic!("{}: {}", variant.label, e.emit_to_string(&text)));
            naga::valid::Validator::new(
                naga::valid::ValidationFlags::all(),
                naga::valid::Capabilities::SHADER_FLOAT16 | naga::valid::Capabilities::COOPERATIVE_MATRIX,
            )
            .validate(&module)
            .unwrap();
        }
    }

    /// On the software adapter: figures of the size that a CPU can have, and not a loop that the compiler has removed.
    #[test]
    fn peaks_are_plausible() {
        let gpu = pollster::block_on(Gpu::open(&crate::gpu::GpuOptions::default())).unwrap();
        let peaks = pollster::block_on(measure(&gpu)).unwrap();
        if gpu.info().software {
            assert!(peaks.fma > 1e-5 && peaks.fma < 20.0, "{peaks:?}");
            assert!(peaks.dot4 > 1e-5 && peaks.dot4 < 50.0, "{peaks:?}");
            assert!(peaks.read > 0.01 && peaks.read < 2000.0, "{peaks:?}");
        }
    }
}
