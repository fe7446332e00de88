//! The same bits on every path: alone, from the cache, in batches of any size, order and chunk, after eviction and other work.
//!
//! Needs the tiny models in the folder `SEMIF_TEST_MODELS` (`./test` makes them).

use pollster::block_on;
use semif::engine::{Ask, Engine, EngineError, LoadOptions, Precision, PrefixUse, SharedAsk, SharedRun, shared_prefix};
use semif::gguf::MemorySource;
use semif::gpu::{Gpu, GpuOptions};
use std::ops::ControlFlow;

fn go() -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn folder() -> Option<std::path::PathBuf> {
    let folder = std::env::var_os("SEMIF_TEST_MODELS");
    if folder.is_none() {
        println!("SKIPPED: SEMIF_TEST_MODELS is not set; ./test sets it");
    }
    folder.map(Into::into)
}

fn engine(folder: &std::path::Path, model: &str, chunk: u32) -> Engine {
    engine_in(Precision::Exact, folder, model, chunk)
}

fn engine_in(precision: Precision, folder: &std::path::Path, model: &str, chunk: u32) -> Engine {
    let path = folder.join(format!("{model}.gguf"));
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}; ./test makes it", path.display()));
    let gpu = block_on(Gpu::open(&GpuOptions { default_limits: true, ..GpuOptions::default() })).unwrap();
    let options = LoadOptions { precision, chunk, ..LoadOptions::default() };
    block_on(Engine::load(&gpu, &MemorySource::new(model, bytes), &options, &mut |_| go())).unwrap()
}

/// Deterministic prompts: `count` suffixes of 7 to 40 tokens on a prefix of `prefix`.
fn prompts(seed: u64, prefix: usize, count: usize) -> Vec<Vec<u32>> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) % n
    };
    let start: Vec<u32> = (0..prefix).map(|_| next(500) as u32).collect();
    (0..count)
        .map(|i| {
            // The first token differs, so that the shared prefix is exactly the common start.
            let own = 7 + next(34) as usize;
            start.iter().copied().chain([i as u32]).chain((1..own).map(|_| next(500) as u32)).collect()
        })
        .collect()
}

fn ask(prefix: usize) -> SharedAsk {
    SharedAsk { labels: (32..52).collect(), stats: false, prefix }
}

type Bits = Vec<Vec<u32>>;

fn read(engine: &mut Engine, prompts: &[&[u32]], prefix: usize) -> (Bits, PrefixUse) {
    let read = block_on(engine.read_shared(prompts, &ask(prefix), &mut go)).unwrap();
    (read.readings.iter().map(|r| r.labels.iter().map(|v| v.to_bits()).collect()).collect(), read.prefix)
}

fn alone(engine: &mut Engine, prompts: &[Vec<u32>]) -> Bits {
    prompts.iter().map(|p| read(engine, &[p], 0).0.remove(0)).collect()
}

/// Every path for one model in one tier.
fn check(model: &str, precision: Precision) {
    let Some(folder) = folder() else { return };
    let engine = |folder: &std::path::Path, model: &str, chunk: u32| engine_in(precision, folder, model, chunk);
    let prompts = prompts(7, 45, 64);
    let all: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let prefix = shared_prefix(&all);
    assert_eq!(prefix, 45);

    let mut engine_16 = engine(&folder, model, 16);
    let wanted = alone(&mut engine_16, &prompts[..24]);
    // Another code path, which the oracle tests hold against f64.
    let direct = block_on(engine_16.logits(&prompts[3], &Ask { labels: ask(0).labels, ..Ask::default() })).unwrap();
    assert_eq!(direct.labels.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), wanted[3], "{model}: logits()");

    for chunk in [16, 64, 256, 1024] {
        let mut engine = engine(&folder, model, chunk);
        // The whole 64 once; elsewhere as many as are compared.
        let many = if chunk == 64 { &all[..] } else { &all[..24] };
        let (shared, _) = read(&mut engine, many, prefix);
        assert_eq!(shared[..24], wanted, "{model}: shared batch of {}, chunks of {chunk}", many.len());
        let order: Vec<usize> = (0..21).map(|i| i * 8 % 21).collect();
        let shuffled: Vec<&[u32]> = order.iter().map(|i| all[*i]).collect();
        let (shared, usage) = read(&mut engine, &shuffled, prefix);
        assert_eq!(usage.reused as usize, prefix, "{model}: the prefix is in the cache");
        for (i, bits) in order.iter().zip(&shared) {
            assert_eq!(bits, &wanted[*i], "{model}: shuffled batch of 21, chunks of {chunk}, prompt {i}");
        }
        if chunk == 256 {
            paths(model, &mut engine, &prompts, prefix, &wanted);
        }
    }
}

/// Serial, pairs, without a prefix, longer and shorter prefixes, after eviction, after other work.
fn paths(model: &str, engine: &mut Engine, prompts: &[Vec<u32>], prefix: usize, wanted: &Bits) {
    let all: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    for (i, p) in all[..6].iter().enumerate() {
        let (bits, usage) = read(engine, &[p], prefix);
        assert_eq!((bits[0].clone(), usage.reused as usize), (wanted[i].clone(), prefix), "{model}: serial");
    }
    assert_eq!(read(engine, &all[2..4], prefix).0, wanted[2..4], "{model}: pair");
    assert_eq!(read(engine, &all[..21], 0).0, wanted[..21], "{model}: a batch without a prefix");
    for shorter in [1, 31, 32, 33, 44] {
        assert_eq!(read(engine, &all[..3], shorter).0, wanted[..3], "{model}: a prefix of {shorter}");
    }
    // A prompt's whole length less one as the prefix, reusing what is there.
    let (bits, usage) = read(engine, &[all[5]], all[5].len() - 1);
    assert_eq!(bits[0], wanted[5], "{model}: a prefix of all but one token");
    assert!(usage.reused as usize >= prefix, "{model}: a longer prefix starts from the shorter one");
    engine.set_cache_budget(0);
    assert_eq!(engine.cache_usage(), (0, 0));
    let (bits, usage) = read(engine, &all[..3], prefix);
    assert_eq!((&bits[..], usage.reused), (&wanted[..3], 0), "{model}: after eviction");
    engine.set_cache_budget(1 << 26);
    for other in self::prompts(99, 20, 10) {
        read(engine, &[&other], 12);
        block_on(engine.generate(&other, 3, &[], &mut |_| go())).unwrap();
    }
    assert_eq!(read(engine, &all[..3], prefix).0, wanted[..3], "{model}: refilled after other work");
    engine.clear_cache();
    assert_eq!(read(engine, &all[..3], prefix).0, wanted[..3], "{model}: after the cache was given back");
}

#[test]
fn qwen2() {
    check("qwen2-tiny-Q8_0", Precision::Exact);
}

#[test]
fn qwen3() {
    check("qwen3-tiny-Q4_K", Precision::Exact);
}

#[test]
fn llama() {
    check("minicpm5-tiny-real", Precision::Exact);
}

#[test]
fn qwen35() {
    check("qwen35-tiny-real", Precision::Exact);
}

/// Weights of many types, floats among them.
#[test]
fn qwen35_fast() {
    check("qwen35-tiny-real", Precision::Fast);
}

#[test]
fn qwen3_fast() {
    check("qwen3-tiny-Q5_1", Precision::Fast);
}

/// A cancelled batch keeps what it computed, and the cache stays consistent.
#[test]
fn cancel_loses_nothing() {
    let Some(folder) = folder() else { return };
    for model in ["qwen3-tiny-Q8_0", "qwen35-tiny-real"] {
        let mut engine = engine(&folder, model, 16);
        let prompts = prompts(5, 50, 6);
        let all: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        let wanted = alone(&mut engine, &prompts);
        for stop in 0..9 {
            engine.clear_cache();
            let mut chunks = 0;
            let mut progress = || {
                chunks += 1;
                if chunks > stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            match block_on(engine.read_shared(&all, &ask(50), &mut progress)) {
                Err(EngineError::Cancelled) => {}
                other => panic!("{model}: stopped after {stop} chunks: {other:?}"),
            }
            // Four chunks of 16 make the prefix; from then on it is kept.
            let reused = if stop >= 4 { 50 } else { 0 };
            let (bits, usage) = read(&mut engine, &all, 50);
            assert_eq!((bits, usage.reused), (wanted.clone(), reused), "{model}: after a cancel at chunk {stop}");
        }
    }
}

/// States that grow, fork and close give the bits of fresh prompts, and cost only what is new; so does a batch in steps with a click in
/// between.
#[test]
fn states_and_steps() {
    let Some(folder) = folder() else { return };
    for model in ["qwen3-tiny-Q8_0", "qwen35-tiny-real"] {
        let mut engine = engine(&folder, model, 64);
        let text: Vec<u32> = prompts(3, 150, 1).remove(0)[..150].to_vec();
        let suffixes: Vec<Vec<u32>> = prompts(4, 0, 5);
        let labels: Vec<u32> = (32..52).collect();
        let fresh = |engine: &mut Engine, state: &[u32]| -> Bits {
            let prompts: Vec<Vec<u32>> = suffixes.iter().map(|s| [state, s].concat()).collect();
            alone(engine, &prompts)
        };
        let wanted: Vec<Bits> = [60, 110, 150].map(|n| fresh(&mut engine, &text[..n])).into();
        let on_state = |engine: &mut Engine, id| -> Bits {
            let suffixes: Vec<&[u32]> = suffixes.iter().map(Vec::as_slice).collect();
            let read = block_on(engine.ask_state(id, &suffixes, &labels, false, &mut go)).unwrap();
            assert_eq!(read.prefix.reused, read.prefix.tokens, "{model}: a held state is in the cache");
            read.readings.iter().map(|r| r.labels.iter().map(|v| v.to_bits()).collect()).collect()
        };
        let (id, usage) = block_on(engine.open_state(&text[..60], &mut go)).unwrap();
        assert!(usage.reused <= 32);
        assert_eq!(on_state(&mut engine, id), wanted[0], "{model}: opened");
        let fork = engine.fork_state(id).unwrap();
        let usage = block_on(engine.append_state(id, &text[60..110], &mut go)).unwrap();
        assert!(usage.reused >= 60, "{model}: appending reuses the state, {usage:?}");
        assert_eq!(on_state(&mut engine, id), wanted[1], "{model}: appended");
        assert_eq!(on_state(&mut engine, fork), wanted[0], "{model}: the fork is as it was");
        // A text whose last tokens changed: the checkpoint before them is reused.
        let mut changed = text[..105].to_vec();
        changed.extend_from_slice(&[1, 2, 3]);
        let usage = block_on(engine.update_state(fork, &changed, &mut go)).unwrap();
        assert!(usage.reused >= 60, "{model}: {usage:?}");
        assert_eq!(on_state(&mut engine, fork), fresh(&mut engine, &changed), "{model}: changed at its end");
        engine.close_state(fork).unwrap();
        assert!(matches!(engine.close_state(fork), Err(EngineError::NoState)));
        block_on(engine.append_state(id, &text[110..], &mut go)).unwrap();
        // Under pressure a held state stays, and generation on the same tokens leaves it alone.
        engine.set_cache_budget(0);
        block_on(engine.generate(&text, 5, &[], &mut |_| go())).unwrap();
        assert_eq!(on_state(&mut engine, id), wanted[2], "{model}: held under pressure, after generation");
        engine.close_state(id).unwrap();
        assert_eq!(engine.cache_usage().0, 0);

        let prompts = prompts(7, 45, 9);
        let wanted = alone(&mut engine, &prompts);
        let mut run = SharedRun::new(prompts.clone(), ask(45));
        let mut steps = 0;
        while !block_on(run.step(&mut engine, &mut go)).unwrap() {
            // A click in between.
            assert_eq!(read(&mut engine, &[&prompts[8]], 0).0[0], wanted[8], "{model}: click");
            steps += 1;
            assert!(steps <= 9);
        }
        let found: Bits = run.finish().readings.iter().map(|r| r.labels.iter().map(|v| v.to_bits()).collect()).collect();
        assert_eq!(found, wanted, "{model}: a batch in steps");
    }
}
