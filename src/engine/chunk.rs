//! How many rows a chunk has. No number changes a bit of any result.

use crate::gpu::{Gpu, GpuError, GpuInfo};
use crate::kernels::linear::Tier;
use crate::model::{Config, Forward, ModelError};

/// Rows of a chunk where memory is short, or small buffers tell of a small device.
pub(super) const LEAST: u32 = 512;
/// Rows of a chunk on the slowest adapter, where the scratch has room for them.
const FEWEST: usize = 256;

/// What an adapter says of its memory.
#[derive(Debug, Clone, Copy)]
struct Memory {
    all: Option<u64>,
    max_buffer: u64,
    max_binding: u64,
}

/// Rows of a chunk where nobody has said how many, for scratch buffers of up to `widest` bytes for so many rows.
pub(super) fn usual(info: &GpuInfo, widest: impl Fn(u32) -> u64) -> u32 {
    let memory = Memory { all: info.memory, max_buffer: info.max_buffer, max_binding: info.max_binding };
    // Its kernels gain nothing from more.
    if info.software { 128 } else { within(memory, widest) }
}

fn within(memory: Memory, widest: impl Fn(u32) -> u64) -> u32 {
    let mut rows = match memory.all {
        // Products of twice as many rows are up to 14 % faster, and take 0.17 GB more for a model of 3 GB.
        Some(all) if all >= 16 << 30 => 2048,
        Some(all) if all >= 8 << 30 => 1024,
        // Browsers do not say; phones and old GPUs have smaller buffers.
        None if memory.max_buffer >= 2 << 30 => 1024,
        _ => LEAST,
    };
    while rows > LEAST && widest(rows) > memory.max_binding {
        rows /= 2;
    }
    rows
}

/// The same or fewer, so that a plan of `total` bytes for so many rows fits; [`LEAST`] where none does.
pub(super) fn fitting(mut rows: u32, available: u64, total: impl Fn(u32) -> u64) -> u32 {
    while rows > LEAST && total(rows) > available {
        rows /= 2;
    }
    rows
}

/// Scratch for chunks of `rows`, or of [`LEAST`] where memory is too short and `fixed` does not forbid it; with its rows.
///
/// # Errors
/// Out of memory.
pub(super) async fn scratch(gpu: &Gpu, config: &Config, tier: Tier, rows: u32, fixed: bool) -> Result<(Forward, u32), ModelError> {
    match Forward::new(gpu, config, tier, rows).await {
        Err(ModelError::Gpu(GpuError::OutOfMemory { .. })) if !fixed && rows > LEAST => {
            Ok((Forward::new(gpu, config, tier, LEAST).await?, LEAST))
        }
        other => Ok((other?, rows)),
    }
}

/// As many rows as take a moment, in whole tiles, within what is sensible.
pub(super) fn in_a_moment(moment: usize, all: usize) -> usize {
    (moment / 128 * 128).max(FEWEST).min(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{Gguf, MemorySource};
    use crate::gpu::GpuOptions;
    use crate::gpu::faults::{Stage, order::Order};
    use pollster::block_on;

    #[test]
    fn rows_by_memory() {
        let gb = |n: u64| Some(n << 30);
        let rows = |all, max_buffer: u64| {
            within(Memory { all, max_buffer: max_buffer << 30, max_binding: 1 << 30 }, |rows| u64::from(rows) * 4 * 20_000)
        };
        assert_eq!([rows(gb(141), 4), rows(gb(16), 4), rows(gb(15), 4), rows(gb(8), 4), rows(gb(4), 4)], [2048, 2048, 1024, 1024, 512]);
        assert_eq!([rows(None, 4), rows(None, 2), rows(None, 1)], [1024, 1024, 512]);
        // 80 kB a row: 2048 rows are 164 MB.
        let bound = |max_binding| within(Memory { all: gb(24), max_buffer: 4 << 30, max_binding }, |rows| u64::from(rows) * 4 * 20_000);
        assert_eq!([bound(163_840_000), bound(163_839_999), bound(1 << 20)], [2048, 1024, 512]);
    }

    #[test]
    fn shorter_chunks_before_a_refusal() {
        let total = |rows: u32| 3_000_000_000 + u64::from(rows) * 200_000;
        assert_eq!(
            [3_409_600_000, 3_409_599_999, 3_204_799_999, 0].map(|available| fitting(2048, available, total)),
            [2048, 1024, 512, 512]
        );
        assert_eq!(fitting(128, 0, total), 128);
    }

    #[test]
    fn a_slow_adapter_has_shorter_chunks() {
        let rows = |moment| in_a_moment(moment, 2048);
        assert_eq!([rows(0), rows(255), rows(700), rows(2047), rows(2048), rows(usize::MAX)], [256, 256, 640, 1920, 2048, 2048]);
        assert_eq!([in_a_moment(0, 128), in_a_moment(4000, 500)], [128, 500]);
    }

    #[test]
    fn short_memory_makes_short_chunks() {
        let Some(folder) = std::env::var_os("SEMIF_TEST_MODELS") else {
            println!("SKIPPED: SEMIF_TEST_MODELS is not set; ./test sets it");
            return;
        };
        let file = std::path::Path::new(&folder).join("qwen35-tiny-real.gguf");
        let source =
            MemorySource::new("model", std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}; ./test makes it", file.display())));
        let config = Config::read(&block_on(Gguf::read(&source)).unwrap()).unwrap();
        let gpu = block_on(Gpu::open(&GpuOptions { default_limits: true, ..GpuOptions::default() })).unwrap();
        let made = |fixed| {
            // Some of its buffers are made by then.
            let error = GpuError::OutOfMemory { what: "a buffer".into(), needed: 1, detail: "made up".into() };
            gpu.order(Some(Order { stage: Stage::Buffer, after: 5, error }));
            let made = block_on(scratch(&gpu, &config, Tier::Exact, 1024, fixed)).map(|(forward, rows)| (forward.max_rows(), rows));
            assert_eq!((gpu.ordered(), gpu.memory_in_use()), (false, 0), "what was made is given back");
            made
        };
        assert_eq!(made(false).unwrap(), (LEAST, LEAST));
        assert!(matches!(made(true), Err(ModelError::Gpu(GpuError::OutOfMemory { .. }))));
    }
}
