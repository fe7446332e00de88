//! The same bits on every path: alone, from the cache, in batches of any size, order and chunk, after eviction and other work.
//!
//! Needs the tiny models in the folder `SEMIF_TEST_MODELS` (`./test` makes them). `SEMIF_BITS=full`, for a GPU: every tiny model in every
//! precision that the adapter runs, and every path in every chunk size.

use pollster::block_on;
use semif::engine::{Ask, Engine, EngineError, Group, LoadOptions, Precision, PrefixUse, RunGroup, SharedAsk, SharedRun, shared_prefix};
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

/// The whole matrix, on an adapter with all that it offers.
fn full() -> bool {
    std::env::var("SEMIF_BITS").is_ok_and(|value| value == "full")
}

fn engine(folder: &std::path::Path, model: &str, chunk: u32) -> Engine {
    engine_in(folder, model, chunk, Precision::Exact).expect("every adapter runs the exact tier")
}

/// None where this adapter does not run the precision.
fn engine_in(folder: &std::path::Path, model: &str, chunk: u32, precision: Precision) -> Option<Engine> {
    let path = folder.join(format!("{model}.gguf"));
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}; ./test makes it", path.display()));
    let gpu =
        block_on(Gpu::open(&GpuOptions { default_limits: !full() && precision != Precision::Tensor, ..GpuOptions::default() })).unwrap();
    precision.tier(gpu.info()).ok()?;
    let options = LoadOptions { chunk, precision, ..LoadOptions::default() };
    Some(block_on(Engine::load(&gpu, &MemorySource::new(model, bytes), &options, &mut |_| go())).unwrap())
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

/// Every path for one model in one precision.
fn check(model: &str, precision: Precision) {
    let Some(folder) = folder() else { return };
    let Some(mut engine_16) = engine_in(&folder, model, 16, precision) else {
        println!("SKIPPED: this adapter does not run the {precision} precision");
        return;
    };
    let prompts = prompts(7, 45, 64);
    let all: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let prefix = shared_prefix(&all);
    assert_eq!(prefix, 45);
    let place = format!("{model}, {precision}");

    let compared = if full() { 64 } else { 24 };
    let wanted = alone(&mut engine_16, &prompts[..compared]);
    // Another code path, which the oracle tests hold against f64.
    let direct = block_on(engine_16.logits(&prompts[3], &Ask { labels: ask(0).labels, ..Ask::default() })).unwrap();
    assert_eq!(direct.labels.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), wanted[3], "{place}: logits()");
    drop(engine_16);

    // The last one, that of large GPUs, takes all suffixes at once.
    let chunks: &[u32] = if full() { &[16, 64, 256, 1024, 2048] } else { &[16, 64, 256, 1024] };
    for &chunk in chunks {
        let mut engine = engine_in(&folder, model, chunk, precision).expect("as before");
        // The whole 64 once, shuffled; elsewhere as many as are compared.
        let many = if chunk == 64 || full() { 64 } else { 24 };
        let turned = |count: usize, step: usize| -> Vec<usize> { (0..count).map(|i| i * step % count).collect() };
        for (order, reused) in [(turned(many, 7), 0), (turned(21, 8), prefix), (vec![20, 3], prefix)] {
            let shuffled: Vec<&[u32]> = order.iter().map(|i| all[*i]).collect();
            let (shared, usage) = read(&mut engine, &shuffled, prefix);
            assert_eq!(usage.reused as usize, reused, "{place}: reused of the prefix");
            for (i, bits) in order.iter().zip(&shared).filter(|(i, _)| **i < compared) {
                assert_eq!(bits, &wanted[*i], "{place}: shuffled batch of {}, chunks of {chunk}, prompt {i}", order.len());
            }
        }
        if chunk == 256 || full() {
            paths(&place, &mut engine, &prompts, prefix, &wanted);
        }
    }
}

/// Serial, pairs, without a prefix, longer and shorter prefixes, after eviction, after other work.
fn paths(place: &str, engine: &mut Engine, prompts: &[Vec<u32>], prefix: usize, wanted: &Bits) {
    let all: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    for (i, p) in all[..6].iter().enumerate() {
        let (bits, usage) = read(engine, &[p], prefix);
        assert_eq!((bits[0].clone(), usage.reused as usize), (wanted[i].clone(), prefix), "{place}: serial");
    }
    assert_eq!(read(engine, &all[2..4], prefix).0, wanted[2..4], "{place}: pair");
    assert_eq!(read(engine, &all[..21], 0).0, wanted[..21], "{place}: a batch without a prefix");
    for shorter in [1, 31, 32, 33, 44] {
        assert_eq!(read(engine, &all[..3], shorter).0, wanted[..3], "{place}: a prefix of {shorter}");
    }
    // A prompt's whole length less one as the prefix, reusing what is there.
    let (bits, usage) = read(engine, &[all[5]], all[5].len() - 1);
    assert_eq!(bits[0], wanted[5], "{place}: a prefix of all but one token");
    assert!(usage.reused as usize >= prefix, "{place}: a longer prefix starts from the shorter one");
    let with_cache = engine.gpu().memory_in_use();
    engine.set_cache_budget(0);
    assert_eq!(engine.cache_usage(), (0, 0));
    let without = engine.gpu().memory_in_use();
    assert!(without < with_cache, "{place}: eviction by a lower budget gives memory back");
    engine.clear_cache();
    assert_eq!(engine.gpu().memory_in_use(), without, "{place}: and all of it");
    let (bits, usage) = read(engine, &all[..3], prefix);
    assert_eq!((&bits[..], usage.reused), (&wanted[..3], 0), "{place}: after eviction");
    engine.set_cache_budget(1 << 26);
    let others = self::prompts(99, 20, if full() { 100 } else { 25 });
    for (i, other) in others.iter().enumerate() {
        read(engine, &[other], if i % 3 == 0 { 0 } else { 12 });
        if i % 10 == 0 {
            block_on(engine.generate(other, 3, &[], &mut |_| go())).unwrap();
        }
    }
    assert_eq!(read(engine, &all[..3], prefix).0, wanted[..3], "{place}: refilled after other work");
    engine.clear_cache();
    assert_eq!(read(engine, &all[..3], prefix).0, wanted[..3], "{place}: after the cache was given back");
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

/// The other architectures' fast tier is in [`the_whole_matrix`]: minutes each on a software adapter.
#[test]
fn qwen3_fast() {
    check("qwen3-tiny-Q5_1", Precision::Fast);
}

/// Cooperative matrices, where the adapter has them: no software adapter does. docs/testing.md says where this ran.
#[test]
fn qwen3_tensor() {
    check("qwen3-tiny-Q4_K", Precision::Tensor);
}

#[test]
fn qwen2_tensor() {
    check("qwen2-tiny-Q8_0", Precision::Tensor);
}

#[test]
fn llama_tensor() {
    check("minicpm5-tiny-real", Precision::Tensor);
}

#[test]
fn qwen35_tensor() {
    check("qwen35-tiny-real", Precision::Tensor);
}

/// Everything there is; hours on a software adapter.
#[test]
fn the_whole_matrix() {
    if !full() {
        println!("SKIPPED: SEMIF_BITS=full is not set");
        return;
    }
    let Some(folder) = folder() else { return };
    let names = std::fs::read_dir(&folder).unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut models: Vec<String> = names.filter(|n| n.contains("-tiny-")).filter_map(|n| Some(n.strip_suffix(".gguf")?.into())).collect();
    models.sort();
    assert!(models.len() >= 10, "{models:?}");
    for model in &models {
        for precision in [Precision::Exact, Precision::Fast, Precision::Tensor] {
            let start = std::time::Instant::now();
            check(model, precision);
            println!("{model}, {precision}: {:.1} s", start.elapsed().as_secs_f64());
        }
    }
}

/// A software adapter has products of its own. They give the bits of those for hardware, in every chunk size and for every type of weight
/// of the two files.
#[test]
fn kernels_for_hardware_on_a_software_adapter() {
    let Some(folder) = folder() else { return };
    for model in ["qwen3-tiny-Q4_K", "minicpm5-tiny-real"] {
        let prompts = prompts(17, 30, 3);
        let wanted = alone(&mut engine(&folder, model, 64), &prompts);
        let gpu = block_on(Gpu::open(&GpuOptions { default_limits: true, as_hardware: true, ..GpuOptions::default() })).unwrap();
        assert!(!gpu.info().software);
        let file = MemorySource::new(model, std::fs::read(folder.join(format!("{model}.gguf"))).unwrap());
        for chunk in [16, 256] {
            let options = LoadOptions { chunk, precision: Precision::Exact, ..LoadOptions::default() };
            let mut engine = block_on(Engine::load(&gpu, &file, &options, &mut |_| go())).unwrap();
            assert_eq!(alone(&mut engine, &prompts), wanted, "{model}, chunks of {chunk}");
        }
    }
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
            // What was computed of the prefix, in chunks of 16, is kept.
            let reused = (16 * (stop + 1)).min(50);
            let (bits, usage) = read(&mut engine, &all, 50);
            assert_eq!((bits, usage.reused), (wanted.clone(), reused), "{model}: after a cancel at chunk {stop}");
        }
    }
}

/// With exactly the planned memory nothing can be kept for long: the batch runs all the same, and so does what comes after it.
#[test]
fn memory_as_planned() {
    let Some(folder) = folder() else { return };
    for model in ["qwen3-tiny-Q8_0", "qwen35-tiny-real"] {
        let prompts = prompts(13, 110, 4);
        let all: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        let longest = prompts.iter().map(Vec::len).max().unwrap();
        let path = folder.join(format!("{model}.gguf"));
        let file = MemorySource::new(model, std::fs::read(&path).unwrap());
        let options = LoadOptions { chunk: 64, max_tokens: longest as u32, ..LoadOptions::default() };
        let load = |memory| {
            let gpu = block_on(Gpu::open(&GpuOptions { default_limits: true, memory, ..GpuOptions::default() })).unwrap();
            block_on(Engine::load(&gpu, &file, &options, &mut |_| go())).unwrap()
        };
        let mut roomy = load(None);
        let wanted = alone(&mut roomy, &prompts);
        let need = roomy.info().memory.total();
        assert_eq!(read(&mut roomy, &all, 110).1.tokens, 110, "{model}: with room the prefix is kept");
        let mut engine = load(Some(need));
        for _ in 0..2 {
            assert_eq!(read(&mut engine, &all, 110).0, wanted, "{model}: a batch");
            assert_eq!(read(&mut engine, &all[1..2], 110).0, wanted[1..2], "{model}: serially");
            let direct = block_on(engine.logits(&prompts[2], &Ask { labels: ask(0).labels, ..Ask::default() })).unwrap();
            assert_eq!(direct.labels.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), wanted[2], "{model}: logits()");
            block_on(engine.generate(&prompts[0][..100], 8, &[], &mut |_| go())).unwrap();
        }
        // A state that is held open gives way too, and is read again.
        let (id, _) = block_on(engine.open_state(&prompts[0][..110], &mut go)).unwrap();
        let suffixes: Vec<&[u32]> = prompts.iter().map(|p| &p[110..]).collect();
        for _ in 0..2 {
            let read = block_on(engine.ask_state(id, &suffixes, &ask(0).labels, false, &mut go)).unwrap();
            let bits: Bits = read.readings.iter().map(|r| r.labels.iter().map(|v| v.to_bits()).collect()).collect();
            assert_eq!(bits, wanted, "{model}: asked");
            alone(&mut engine, &prompts[3..4]);
        }
        engine.close_state(id).unwrap();
        assert!(engine.gpu().peak_memory() <= need, "{model}: {} of {need}", engine.gpu().peak_memory());
    }
}

/// Prompts of several states in the same chunks, with prefixes that begin alike and differ, and some without any: the bits they have alone.
#[test]
fn several_states_at_once() {
    let Some(folder) = folder() else { return };
    for model in ["qwen2-tiny-Q8_0", "qwen3-tiny-Q8_0", "qwen35-tiny-real"] {
        let start = prompts(21, 40, 1).remove(0)[..40].to_vec();
        let state = |seed: u64, prefix: usize, count: usize| -> (Vec<Vec<u32>>, usize) {
            let own = prompts(seed, prefix, count);
            (own.iter().map(|p| [&start[..], p].concat()).collect(), 40 + prefix)
        };
        let states = [state(1, 5, 3), state(2, 20, 1), state(3, 31, 5), state(4, 24, 2), (prompts(5, 0, 2), 0), state(6, 9, 3)];
        let groups: Vec<Group<'_>> =
            states.iter().map(|(p, prefix)| Group { prompts: p.iter().map(Vec::as_slice).collect(), prefix: *prefix }).collect();
        let mut wanted: Vec<Bits> = Vec::new();
        for chunk in [16, 256] {
            let mut engine = engine(&folder, model, chunk);
            if wanted.is_empty() {
                wanted = states.iter().map(|(p, _)| alone(&mut engine, p)).collect();
            }
            let mut check = |groups: &[Group<'_>], wanted: &[Bits], what: &str| {
                let read = block_on(engine.read_groups(groups, &ask(0), &mut go)).unwrap();
                let bits = |r: &Vec<semif::engine::Reading>| -> Bits {
                    r.iter().map(|r| r.labels.iter().map(|v| v.to_bits()).collect()).collect()
                };
                assert_eq!(read.readings.iter().map(bits).collect::<Vec<_>>(), wanted, "{model}, chunks of {chunk}: {what}");
                read.prefixes.iter().map(|p| (p.tokens, p.reused)).collect::<Vec<_>>()
            };
            let fresh = check(&groups, &wanted, "fresh");
            assert_eq!(fresh, [(45, 40), (60, 40), (71, 40), (64, 40), (0, 0), (49, 40)], "what all begin with is read once");
            let again = check(&groups, &wanted, "kept");
            assert!(again.iter().all(|(tokens, reused)| tokens == reused), "{again:?}");
            let turned: Vec<Group<'_>> = groups.iter().rev().cloned().collect();
            let turned_wanted: Vec<Bits> = wanted.iter().rev().cloned().collect();
            check(&turned, &turned_wanted, "another order");
            // The same in steps, cancelled at every chunk and gone on with.
            let mut engine = self::engine(&folder, model, chunk);
            let owned = states.iter().map(|(p, prefix)| RunGroup { prompts: p.clone(), prefix: *prefix }).collect();
            let mut run = SharedRun::of_groups(owned, ask(0));
            let mut tries = 0;
            loop {
                let (mut heard, limit) = (0, tries);
                let mut once = || {
                    heard += 1;
                    // Each try gets a little further, as with a click that comes in between.
                    if heard > limit { ControlFlow::Break(()) } else { go() }
                };
                tries += 1;
                match block_on(run.step(&mut engine, &mut once)) {
                    Ok(true) => break,
                    Ok(false) | Err(EngineError::Cancelled) => assert!(tries < 200),
                    Err(other) => panic!("{other}"),
                }
            }
            let found = run.finish().readings;
            let bits: Vec<Bits> =
                found.iter().map(|r| r.iter().map(|r| r.labels.iter().map(|v| v.to_bits()).collect()).collect()).collect();
            assert_eq!(bits, wanted, "{model}, chunks of {chunk}: in steps with cancels");
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
        let held = engine.gpu().memory_in_use();
        engine.close_state(id).unwrap();
        assert_eq!(engine.cache_usage().0, 0);
        let left = engine.gpu().memory_in_use();
        engine.clear_cache();
        assert!(left < held && engine.gpu().memory_in_use() == left, "{model}: a closed state's memory is given back");

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
        let found: Bits = run.finish().readings[0].iter().map(|r| r.labels.iter().map(|v| v.to_bits()).collect()).collect();
        assert_eq!(found, wanted, "{model}: a batch in steps");
    }
}
