//! What a fault leaves behind, wherever it strikes: finished readings stay, nothing wrong is kept, and the next decision has the same bits.
//!
//! Needs the tiny models in the folder `SEMIF_TEST_MODELS` (`./test` makes them).

use super::{Engine, LoadOptions};
use crate::gguf::MemorySource;
use crate::gpu::faults::{Stage, order::Order};
use crate::gpu::{Gpu, GpuError, GpuOptions};
use pollster::block_on;
use std::ops::ControlFlow;

const STAGES: [Stage; 4] = [Stage::Buffer, Stage::Write, Stage::Submit, Stage::Read];

fn go() -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn file(model: &str) -> Option<MemorySource> {
    let Some(folder) = std::env::var_os("SEMIF_TEST_MODELS") else {
        println!("SKIPPED: SEMIF_TEST_MODELS is not set; ./test sets it");
        return None;
    };
    let path = std::path::Path::new(&folder).join(format!("{model}.gguf"));
    Some(MemorySource::new(model, std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}; ./test makes it", path.display()))))
}

fn load(file: &MemorySource) -> Engine {
    let gpu = block_on(Gpu::open(&GpuOptions { default_limits: true, ..GpuOptions::default() })).unwrap();
    let options = LoadOptions { chunk: 16, max_tokens: 64, ..LoadOptions::default() };
    block_on(Engine::load(&gpu, file, &options, &mut |_| go())).unwrap()
}

/// Open states outlive a fault: what is kept of them goes, and is read again.
#[test]
fn open_states_are_read_again() {
    let Some(file) = file("qwen35-tiny-lmstudio") else { return };
    let mut engine = load(&file);
    let state: Vec<u32> = (0..40).map(|i| i * 3).collect();
    let suffix: &[u32] = &[9, 8, 7];
    let asked = |engine: &mut Engine, id| {
        let read = block_on(engine.ask_state(id, &[suffix], &[32, 33], false, &mut go)).unwrap();
        (read.readings[0].labels.clone(), read.prefix.reused)
    };
    let (id, _) = block_on(engine.open_state(&state, &mut go)).unwrap();
    let (wanted, reused) = asked(&mut engine, id);
    assert_eq!(reused, 40);
    for stage in STAGES {
        engine.gpu().order(Some(Order { stage, after: 0, error: GpuError::Validation("a test".into()) }));
        // Another state is opened, or asked, while the fault strikes.
        let other: Vec<u32> = (0..50).map(|i| 400 - i).collect();
        let failed = match block_on(engine.open_state(&other, &mut go)) {
            Err(error) => Err(error),
            Ok((other, _)) => block_on(engine.ask_state(other, &[suffix], &[32], false, &mut go)).map(|_| ()),
        };
        assert!(failed.is_err() && !engine.gpu().ordered() && engine.gpu().passed(stage) > 0, "{stage:?}");
        assert_eq!(asked(&mut engine, id), (wanted.clone(), 0), "{stage:?}: read again");
        let usage = block_on(engine.append_state(id, &[5, 6], &mut go)).unwrap();
        assert!(usage.reused >= 32, "{stage:?}: {usage:?}");
        block_on(engine.update_state(id, &state, &mut go)).unwrap();
        assert_eq!(asked(&mut engine, id), (wanted.clone(), 40), "{stage:?}: held again");
    }
}
