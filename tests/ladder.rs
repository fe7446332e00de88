//! What the ladder's sizes and mixtures bring: generation against prefill, cuts at every offset, split matrices, too little memory.
//!
//! Needs the tiny models in the folder `SEMIF_TEST_MODELS` (`./test` makes them).

use pollster::block_on;
use semif::engine::{Ask, Engine, EngineError, LoadOptions, LoadProgress, SharedAsk};
use semif::gguf::MemorySource;
use semif::gpu::{Buffer, Gpu, GpuError, GpuOptions};
use semif::model::ModelError;
use std::ops::ControlFlow;
use std::path::PathBuf;

fn go() -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("SEMIF_TEST_MODELS");
    if folder.is_none() {
        println!("SKIPPED: SEMIF_TEST_MODELS is not set; ./test sets it");
    }
    folder.map(Into::into)
}

fn source(folder: &std::path::Path, model: &str) -> MemorySource {
    let path = folder.join(format!("{model}.gguf"));
    MemorySource::new(model, std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}; ./test makes it", path.display())))
}

fn open(options: GpuOptions) -> Gpu {
    block_on(Gpu::open(&GpuOptions { default_limits: true, ..options })).unwrap()
}

fn load(gpu: &Gpu, source: &MemorySource, options: &LoadOptions) -> Result<Engine, EngineError> {
    block_on(Engine::load(gpu, source, options, &mut |_| go()))
}

fn small(max_tokens: u32, chunk: u32) -> LoadOptions {
    LoadOptions { max_tokens, chunk, ..LoadOptions::default() }
}

/// Deterministic tokens below the tiny vocabulary.
fn tokens(seed: u64, count: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 20) % 500) as u32
    };
    (0..count).map(|_| next()).collect()
}

fn full(engine: &mut Engine, tokens: &[u32]) -> Vec<f32> {
    block_on(engine.logits(tokens, &Ask { full: true, stats: true, ..Ask::default() })).unwrap().full.unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The step form against prefill: after 300 tokens, one at a time, the last step's logits are those of one prefill of all the tokens.
#[test]
fn generation_equals_prefill_after_300_tokens() {
    let Some(folder) = folder() else { return };
    for model in ["qwen35-tiny-real", "qwen35-tiny-lmstudio", "qwen35-tiny-unsloth", "minicpm5-tiny-real"] {
        let gpu = open(GpuOptions::default());
        let mut engine = load(&gpu, &source(&folder, model), &small(512, 64)).unwrap();
        let prompt = tokens(11, 13);
        let generated = block_on(engine.generate(&prompt, 300, &[], &mut |_| go())).unwrap().tokens;
        assert_eq!(generated.len(), 300);
        let step = block_on(engine.last_logits()).unwrap();
        let all: Vec<u32> = prompt.iter().chain(&generated[..299]).copied().collect();
        let prefill = full(&mut engine, &all);
        let worst = step.iter().zip(&prefill).map(|(a, b)| if a.is_finite() { (a - b).abs() } else { f32::INFINITY }).fold(0.0, f32::max);
        println!("{model}: step {} against prefill of {} tokens: {worst:.2e}", generated.len(), all.len());
        assert!(worst <= 2e-3, "{model}: {worst}");
        let largest = prefill[generated[299] as usize];
        assert!(prefill.iter().all(|v| *v <= largest + 4e-3), "{model}: the last token is not the largest");
    }
}

/// Keys, values, convolution rows and delta states carried over a cut behind any token, and chunks of odd sizes: the same bits.
#[test]
fn a_cut_at_any_offset_changes_no_bit() {
    let Some(folder) = folder() else { return };
    let file = source(&folder, "qwen35-tiny-real");
    let gpu = open(GpuOptions::default());
    let prompt = tokens(3, 71);
    let labels: Vec<u32> = (0..512).collect();
    let mut engine = load(&gpu, &file, &small(128, 128)).unwrap();
    // Answer slots are read by another kernel than the whole vocabulary: like is compared with like.
    let read = |engine: &mut Engine| {
        let ask = Ask { labels: labels.clone(), ..Ask::default() };
        bits(&block_on(engine.logits(&prompt, &ask)).unwrap().labels)
    };
    let wanted = read(&mut engine);
    for cut in 1..=70 {
        engine.clear_cache();
        let ask = SharedAsk { labels: labels.clone(), stats: false, prefix: cut };
        let shared = block_on(engine.read_shared(&[&prompt], &ask, &mut go)).unwrap();
        assert_eq!((shared.prefix.tokens, shared.prefix.reused), (cut as u32, 0));
        assert!(bits(&shared.readings[0].labels) == wanted, "cut after {cut} tokens");
    }
    drop(engine);
    for chunk in [1, 2, 3, 5, 7, 13, 31, 32, 33, 63, 64, 65, 70] {
        let mut engine = load(&gpu, &file, &small(128, chunk)).unwrap();
        assert!(read(&mut engine) == wanted, "chunks of {chunk}");
    }
}

/// Limits so small that embedding, head and projections are split into several bindings.
#[test]
fn split_matrices_give_the_same_bits() {
    let Some(folder) = folder() else { return };
    for (model, binding) in [("qwen3-tiny-F16", 65_536), ("minicpm5-tiny-real", 40_000), ("qwen35-tiny-real", 40_000)] {
        let file = source(&folder, model);
        let prompt = tokens(5, 31);
        let options = small(32, 32);
        let whole = open(GpuOptions::default());
        let mut engine = load(&whole, &file, &options).unwrap();
        let wanted = bits(&full(&mut engine, &prompt));
        let parts = |engine: &Engine| engine.part_count();
        let unsplit = parts(&engine);
        let generated = block_on(engine.generate(&prompt[..20], 12, &[], &mut |_| go())).unwrap().tokens;
        let gpu = open(GpuOptions { max_binding: Some(binding), ..GpuOptions::default() });
        let mut engine = load(&gpu, &file, &options).unwrap();
        let (embedding, all) = (engine.part_count().0, engine.part_count().1);
        println!("{model}: {} embedding parts and {} in all, {} without the limit", embedding, all, unsplit.1);
        assert!(embedding >= 2 && all > unsplit.1, "{model}: nothing was split: {embedding} of {all}");
        assert_eq!(bits(&full(&mut engine, &prompt)), wanted, "{model}");
        assert_eq!(block_on(engine.generate(&prompt[..20], 12, &[], &mut |_| go())).unwrap().tokens, generated, "{model}");
    }
}

/// What the plan promises is kept: with exactly so much memory the longest prompt and generation run, with less it is refused.
#[test]
fn the_plan_is_what_is_needed() {
    let Some(folder) = folder() else { return };
    for (model, smaller) in [("qwen3-tiny-F16", "qwen3-tiny-Q4_0"), ("qwen35-tiny-real", "qwen3-tiny-Q4_0")] {
        let file = source(&folder, model);
        let options = small(300, 64);
        let need = load(&open(GpuOptions::default()), &file, &options).unwrap().info().memory.total();
        let gpu = open(GpuOptions { memory: Some(need), ..GpuOptions::default() });
        let mut engine = load(&gpu, &file, &options).unwrap_or_else(|e| panic!("{model}, exactly what is planned: {e}"));
        let prompt = tokens(8, 300);
        full(&mut engine, &prompt);
        block_on(engine.generate(&prompt[..150], 150, &[], &mut |_| go())).unwrap_or_else(|e| panic!("{model}: {e}"));
        assert!(gpu.peak_memory() <= need, "{model}: {} of {need} bytes", gpu.peak_memory());
        drop(engine);
        assert_eq!(gpu.memory_in_use(), 0, "{model}: everything is given back");

        let gpu = open(GpuOptions { memory: Some(need - 1), ..GpuOptions::default() });
        match load(&gpu, &file, &options) {
            Err(EngineError::TooLarge { plan, available }) => {
                assert_eq!((plan.total(), available), (need, need - 1));
                let words = EngineError::TooLarge { plan, available }.to_string();
                for class in ["embedding", "attention", "feed-forward", "vectors", "cache", "scratch"] {
                    assert!(words.contains(class), "{words}");
                }
            }
            other => panic!("{model}: {:?}", other.map(|_| ())),
        }
        assert_eq!(gpu.memory_in_use(), 0, "{model}: refused before anything was taken");
        let mut engine = load(&gpu, &source(&folder, smaller), &small(64, 32)).expect("a smaller model fits the same session");
        assert_eq!(full(&mut engine, &prompt[..20]).len(), 512);
    }
}

/// Memory that goes away while a model loads, a buffer limit that only the scratch meets, a cancel: everything is given back, and the next
/// model loads and answers as ever.
#[test]
fn a_failed_load_gives_everything_back() {
    let Some(folder) = folder() else { return };
    let (file, other) = (source(&folder, "qwen35-tiny-real"), source(&folder, "qwen3-tiny-Q8_0"));
    let options = small(128, 64);
    let prompt = tokens(2, 40);
    let fresh = open(GpuOptions::default());
    let need = load(&fresh, &file, &options).unwrap().info().memory.total();
    let wanted = bits(&full(&mut load(&fresh, &other, &options).unwrap(), &prompt));
    let usable = |gpu: &Gpu, what: &str| {
        assert_eq!(gpu.memory_in_use(), 0, "{what}");
        let mut engine = load(gpu, &other, &options).unwrap_or_else(|e| panic!("{what}: the next model: {e}"));
        assert_eq!(bits(&full(&mut engine, &prompt)), wanted, "{what}");
    };

    let gpu = open(GpuOptions { memory: Some(need + 1_000_000), ..GpuOptions::default() });
    // The weights' memory is taken matrix by matrix, before anything is read.
    for matrix in [1, 12, 24] {
        let (mut taken, mut calls): (Option<Buffer>, u32) = (None, 0);
        let mut progress = |p: LoadProgress| {
            if let LoadProgress::Weights { done: 0, .. } = p {
                calls += 1;
            }
            if taken.is_none() && calls == matrix {
                // Somebody else takes what is left but a little.
                let left = need + 1_000_000 - gpu.memory_in_use();
                taken = Some(block_on(gpu.buffer("another program", left - 3000)).unwrap());
            }
            go()
        };
        match block_on(Engine::load(&gpu, &file, &options, &mut progress)) {
            Err(EngineError::Model(ModelError::Gpu(GpuError::OutOfMemory { .. })) | EngineError::Gpu(GpuError::OutOfMemory { .. })) => {}
            other => panic!("at matrix {matrix}: {:?}", other.map(|_| ())),
        }
        let held = taken.as_ref().map_or(0, |b| b.size);
        assert_eq!(gpu.memory_in_use(), held, "at matrix {matrix}: only the other program's is left");
        drop(taken);
        usable(&gpu, "out of memory while loading");
    }

    // The pieces of products that are cut in k are the largest buffer: 4.7 MB for 128 rows, 2.4 MB for up to 64.
    let gpu = open(GpuOptions { max_buffer: Some(3_000_000), ..GpuOptions::default() });
    match load(&gpu, &file, &small(256, 128)) {
        Err(
            EngineError::Model(ModelError::Gpu(GpuError::OutOfMemory { what, .. })) | EngineError::Gpu(GpuError::OutOfMemory { what, .. }),
        ) => {
            println!("refused at the end: {what}");
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
    assert_eq!(gpu.memory_in_use(), 0, "after all weights were there");
    assert!(gpu.peak_memory() > 5_000_000, "the weights were there: {}", gpu.peak_memory());
    load(&gpu, &other, &small(64, 32)).expect("a smaller model stays below the limit");

    let gpu = open(GpuOptions::default());
    for stop in [1, 3, 40] {
        let mut calls = 0;
        let mut progress = |_| {
            calls += 1;
            if calls > stop { ControlFlow::Break(()) } else { go() }
        };
        match block_on(Engine::load(&gpu, &file, &options, &mut progress)) {
            Err(EngineError::Model(ModelError::Cancelled)) => {}
            other => panic!("cancelled at {stop}: {:?}", other.map(|_| ())),
        }
        usable(&gpu, "cancelled");
    }
}
