//! What a fault leaves behind, wherever it strikes: finished readings stay, nothing wrong is kept, and the next decision has the same bits.
//!
//! Needs the tiny models in the folder `SEMIF_TEST_MODELS` (`./test` makes them).

use super::{Ask, Engine, EngineError, Group, GroupsReading, LoadOptions, RunGroup, SharedAsk, SharedRun};
use crate::gguf::MemorySource;
use crate::gpu::faults::{Stage, order::Order};
use crate::gpu::{Gpu, GpuError, GpuOptions};
use crate::model::Cache;
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

fn ask() -> SharedAsk {
    SharedAsk { labels: vec![32, 33, 34], stats: true, prefix: 0 }
}

/// Two states of 20 and 9 tokens with three and one questions.
fn groups() -> Vec<RunGroup> {
    let prompt = |state: u32, prefix: u32, own: u32| (0..prefix).map(|i| 7 * i + state).chain((0..4).map(|i| 100 * own + i)).collect();
    vec![
        RunGroup { prompts: (1..4).map(|own| prompt(1, 20, own)).collect(), prefix: 20 },
        RunGroup { prompts: vec![prompt(2, 9, 1)], prefix: 9 },
    ]
}

type Bits = Vec<Vec<(Vec<u32>, u64, u32)>>;

fn bits(run: &SharedRun) -> Bits {
    let of = |r: &super::Reading| (r.labels.iter().map(|v| v.to_bits()).collect(), r.lse.unwrap().to_bits(), r.argmax.unwrap());
    run.read().readings.iter().map(|group| group.iter().map(of).collect()).collect()
}

/// Runs all steps, or to the first error.
fn run(run: &mut SharedRun, engine: &mut Engine) -> Result<(), EngineError> {
    while !block_on(run.step(engine, &mut go))? {}
    Ok(())
}

fn check(model: &str) {
    let Some(file) = file(model) else { return };
    let mut engine = load(&file);
    let fresh = || SharedRun::of_groups(groups(), ask());
    let mut whole = fresh();
    run(&mut whole, &mut engine).unwrap();
    let wanted = bits(&whole);
    let next: Vec<u32> = (50..75).collect();
    let labels = Ask { labels: vec![1, 2], ..Ask::default() };
    let next_wanted = block_on(engine.logits(&next, &labels)).unwrap().labels;
    // How often each stage comes, from an empty cache.
    engine.clear_cache();
    engine.gpu().order(None);
    run(&mut fresh(), &mut engine).unwrap();
    let counts = STAGES.map(|stage| engine.gpu().passed(stage));
    assert!(counts.iter().all(|n| *n > 0), "{counts:?}");
    let (mut struck, mut cases) = (0, 0);
    for (stage, count) in STAGES.into_iter().zip(counts) {
        // Events of a stage are much alike: a few of each, the first and the last among them.
        let places = [0, count / 3, 2 * count / 3, count - 1];
        for (i, after) in places.into_iter().enumerate().filter(|(i, after)| !places[..*i].contains(after)) {
            let error = match (cases + i) % 3 {
                0 => GpuError::OutOfMemory { what: "a test".into(), needed: 1, detail: String::new() },
                1 => GpuError::Validation("a test".into()),
                _ => GpuError::Lost("a test".into()),
            };
            let place = format!("{model}: {error:?} at {stage:?} {after} of {count}");
            engine.clear_cache();
            engine.gpu().order(Some(Order { stage, after, error: error.clone() }));
            let mut batch = fresh();
            let result = run(&mut batch, &mut engine);
            // How often a stage comes also depends on what was kept, and on the measured speed.
            let hit = !engine.gpu().ordered();
            engine.gpu().order(None);
            struck += usize::from(hit);
            // What is finished is right, whatever has failed.
            for (found, wanted) in bits(&batch).iter().zip(&wanted) {
                assert_eq!(found[..], wanted[..found.len()], "{place}: what was finished");
            }
            match &error {
                GpuError::Lost(_) if hit => {
                    assert!(matches!(result, Err(EngineError::Gpu(_) | EngineError::Model(_))), "{place}: {result:?}");
                    assert!(block_on(engine.logits(&next, &labels)).is_err(), "{place}: a lost device stays lost");
                    engine = load(&file);
                }
                GpuError::Validation(_) if hit => {
                    assert!(result.is_err(), "{place}: unheard");
                    assert_eq!(engine.cache_usage().0, 0, "{place}: nobody knows what is in the cache");
                }
                _ => result.unwrap_or_else(|e| panic!("{place}: with less memory: {e}")),
            }
            // Gone on with, on this engine or another one.
            run(&mut batch, &mut engine).unwrap_or_else(|e| panic!("{place}: afterwards: {e}"));
            assert_eq!(bits(&batch), wanted, "{place}: gone on with");
            assert_eq!(block_on(engine.logits(&next, &labels)).unwrap().labels, next_wanted, "{place}: the next decision");
            engine.clear_cache();
            assert_eq!((engine.cache.allocated(), engine.cache_usage()), (0, (0, 0)), "{place}: every page and state was given back");
        }
        cases += 1;
    }
    assert!(struck >= 10, "{struck} faults struck");
}

#[test]
fn qwen3() {
    check("qwen3-tiny-Q4_0");
}

#[test]
fn qwen35() {
    check("qwen35-tiny-lmstudio");
}

/// A batch of 21 questions, in chunks that cut them, grows the cache at most once; the next one finds its room there.
#[test]
fn a_batch_grows_the_cache_once() {
    for model in ["qwen3-tiny-Q4_0", "qwen35-tiny-lmstudio"] {
        let Some(file) = file(model) else { return };
        let mut engine = load(&file);
        let prompt = |state: u32, prefix: u32, own: u32| -> Vec<u32> {
            (0..34).map(|i| 7 * i).chain((34..prefix).map(|i| i + state)).chain((0..3 + own % 5).map(|i| 10 * own + i)).collect()
        };
        let one = vec![(0..21).map(|own| prompt(1, 45, own)).collect::<Vec<_>>()];
        // What both states begin with becomes a prefix of its own.
        let two = vec![(0..12).map(|own| prompt(2, 41, own)).collect(), (0..9).map(|own| prompt(3, 50, own)).collect()];
        for (states, prefixes) in [(one, vec![45]), (two, vec![41, 50])] {
            let groups: Vec<Group<'_>> = states
                .iter()
                .zip(prefixes)
                .map(|(prompts, prefix): (&Vec<Vec<u32>>, usize)| Group { prompts: prompts.iter().map(Vec::as_slice).collect(), prefix })
                .collect();
            let buffers = |engine: &mut Engine| {
                engine.gpu().order(None);
                let read = block_on(engine.read_groups(&groups, &ask(), &mut go)).unwrap();
                assert!(read.prefixes.iter().all(|p| p.tokens > 0), "{model}: kept");
                (engine.gpu().passed(Stage::Buffer), read.readings)
            };
            engine.clear_cache();
            let (first, readings) = buffers(&mut engine);
            // Two buffers a layer, and a few others: the list of pages to copy, the table of positions, readbacks.
            let once = 2 * engine.config.is_delta.len();
            assert!((once..2 * once).contains(&first), "{model}: {first} buffers, {once} for growing once");
            let allocated = engine.cache.allocated();
            let (second, again) = buffers(&mut engine);
            assert!(second < once && engine.cache.allocated() == allocated, "{model}: {second} buffers for the second batch");
            assert_eq!(again, readings, "{model}");
        }
    }
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
        assert!(failed.is_err() && !engine.gpu().ordered(), "{stage:?}");
        assert_eq!(asked(&mut engine, id), (wanted.clone(), 0), "{stage:?}: read again");
        let usage = block_on(engine.append_state(id, &[5, 6], &mut go)).unwrap();
        assert!(usage.reused >= 32, "{stage:?}: {usage:?}");
        block_on(engine.update_state(id, &state, &mut go)).unwrap();
        assert_eq!(asked(&mut engine, id), (wanted.clone(), 40), "{stage:?}: held again");
    }
    // Asking alone holds it again, for a fork too.
    let fork = engine.fork_state(id).unwrap();
    engine.forget_prefixes();
    assert_eq!(asked(&mut engine, id), (wanted.clone(), 0), "forgotten");
    engine.set_cache_budget(0);
    for id in [id, fork] {
        assert_eq!(asked(&mut engine, id), (wanted.clone(), 40), "held without room for anything else");
        engine.close_state(id).unwrap();
    }
    assert_eq!((engine.cache.allocated(), engine.cache_usage()), (0, (0, 0)), "all is given back");
}

/// A cancel is heard between the chunks of the very first prompt, when nothing is known of the adapter's speed.
#[test]
fn the_first_prompt_can_be_cancelled() {
    let Some(file) = file("qwen3-tiny-Q4_0") else { return };
    let mut engine = load(&file);
    assert_eq!(engine.rate(), 0.0);
    let prompt: Vec<u32> = (0..60).collect();
    let mut heard = 0;
    let mut stop = || {
        heard += 1;
        if heard == 2 { ControlFlow::Break(()) } else { go() }
    };
    let ask = Ask { labels: vec![1], ..Ask::default() };
    assert!(matches!(block_on(engine.logits_with(&prompt, &ask, &mut stop)), Err(EngineError::Cancelled)));
    assert_eq!(heard, 2);
    engine.clear_cache();
    assert_eq!(engine.cache.allocated(), 0, "what it took is given back");
}

/// What was finished before a fault or a cancel stays: portions of 8 prompts, as 512 labels allow.
#[test]
fn finished_portions_stay() {
    let Some(file) = file("qwen3-tiny-Q4_0") else { return };
    let mut engine = load(&file);
    let prompts: Vec<Vec<u32>> = (0..20).map(|own| (0..20).chain([100 + own, 5]).collect()).collect();
    let half = |from: usize| Group { prompts: prompts[from..from + 10].iter().map(Vec::as_slice).collect(), prefix: 20 };
    let groups = [half(0), half(10)];
    let ask = SharedAsk { labels: (0..512).collect(), ..ask() };
    let mut whole = GroupsReading::default();
    block_on(engine.read_groups_into(&groups, &ask, &mut go, &mut whole)).unwrap();
    assert_eq!(whole.prefixes.iter().map(|p| p.reused).collect::<Vec<_>>(), [0, 20], "one prefix for both");
    for error in [GpuError::Validation("a test".into()), GpuError::OutOfMemory { what: "a test".into(), needed: 1, detail: String::new() }]
    {
        engine.gpu().order(Some(Order { stage: Stage::Read, after: 1, error: error.clone() }));
        let mut read = GroupsReading::default();
        let result = block_on(engine.read_groups_into(&groups, &ask, &mut go, &mut read));
        let counts: Vec<usize> = read.readings.iter().map(Vec::len).collect();
        match error {
            GpuError::Validation(_) => assert!(result.is_err() && counts == [8, 0], "{result:?} {counts:?}"),
            _ => assert!(result.is_ok() && counts == [10, 10], "{result:?} {counts:?}"),
        }
        for (found, wanted) in read.readings.iter().zip(&whole.readings) {
            assert_eq!(found[..], wanted[..found.len()]);
        }
    }
}

/// Prefixes that are read together stay within the cache budget: as many groups at a time as fit, at least one.
#[test]
fn prefixes_fit_the_budget() {
    for model in ["qwen3-tiny-Q4_0", "qwen35-tiny-lmstudio"] {
        let Some(file) = file(model) else { return };
        let mut engine = load(&file);
        let prompt = |state: u32, own: u32| -> Vec<u32> { (0..30).map(|i| i + 40 * state).chain([own, 5]).collect() };
        let prompts: Vec<Vec<u32>> = (0..12).map(|i| prompt(i / 2, 300 + i)).collect();
        let groups: Vec<Group<'_>> =
            prompts.chunks(2).map(|of_state| Group { prompts: of_state.iter().map(Vec::as_slice).collect(), prefix: 30 }).collect();
        let wanted = block_on(engine.read_groups(&groups, &ask(), &mut go)).unwrap().readings;
        let one = Cache::bytes(&engine.config, 30);
        for (budget, most) in [(0, 1), (one, 1), (2 * one + 1, 2), (5 * one, 5)] {
            engine.clear_cache();
            engine.set_cache_budget(budget);
            assert_eq!(engine.cache.allocated(), 0, "{model}: a lower budget gives back");
            assert_eq!(engine.fitting(&groups), most, "{model}");
            let read = block_on(engine.read_groups(&groups, &ask(), &mut go)).unwrap();
            assert_eq!(read.readings, wanted, "{model}");
            assert!(read.prefixes.iter().all(|p| p.tokens == 30), "{model}");
            assert!(engine.cache_usage().1 <= budget, "{model}: {:?} of {budget}", engine.cache_usage());
            // Slots come in powers of two, and a cache grows to twice its size.
            assert!(engine.cache.slots() <= 2 * (most as u32).next_power_of_two(), "{model}: {} states", engine.cache.slots());
        }
    }
}

/// States are held against the limits of a buffer, as keys and values are: fewer are then read together.
#[test]
fn states_fit_a_buffer() {
    let Some(file) = file("qwen35-tiny-lmstudio") else { return };
    let mut engine = load(&file);
    let one = engine.config.delta.map(|d| u64::from(d.inner() * d.head_dim) * 4).unwrap();
    let most = 3;
    engine.cache.set_limit(4 * one - 1);
    engine.set_cache_budget(1 << 30);
    let error = block_on(engine.cache.provide(&mut engine.rec, 0, most + 1)).unwrap_err();
    assert!(error.to_string().contains(&format!("allow {most} states")), "{error}");
    block_on(engine.cache.provide(&mut engine.rec, 0, most)).unwrap();
    engine.cache.shrink(&mut engine.rec);
    let prompts: Vec<Vec<u32>> = (0..10).map(|i| (0..18).map(|t| t + i / 2).chain([300 + i, 5]).collect()).collect();
    let groups: Vec<Group<'_>> =
        prompts.chunks(2).map(|of_state| Group { prompts: of_state.iter().map(Vec::as_slice).collect(), prefix: 18 }).collect();
    let read = block_on(engine.read_groups(&groups, &ask(), &mut go)).unwrap();
    assert_eq!(read.readings.iter().map(Vec::len).sum::<usize>(), prompts.len());
    let alone = block_on(engine.logits(&prompts[3], &Ask { labels: ask().labels, ..Ask::default() })).unwrap();
    assert_eq!(read.readings[1][1].labels, alone.labels);
}
