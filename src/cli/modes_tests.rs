//! States, orderings and results that wait for their turn, with a model made of arithmetic: every mode writes the same results in the same
//! order, and an interruption at any step loses nothing that was finished.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::batch::*;
use super::fail::Failure;
use super::held::{Held, waiting_path};
use super::output::Output;
use super::resume::{self, Expected};
use super::schedule::Mode;
use crate::decision::orderings::Orderings;
use crate::decision::result::RefusedRow;
use crate::decision::{Json, ModelRef, ServingConfig};

/// Logits are a function of a prompt alone. Option 0 is liked, and so is whatever stands first.
#[derive(Default)]
struct Fake {
    /// Prompts read, call by call.
    calls: Vec<usize>,
    fail_at: Option<(usize, Failure)>,
    /// The prefix that is kept, as the engine would.
    kept: Vec<u32>,
    /// No memory to keep anything.
    full: bool,
    /// 30 where nothing is said.
    portion: usize,
    /// A failing call has read so many prompts.
    finishes: usize,
    /// Rows that are alone come together.
    packs: bool,
}

impl Scorer for Fake {
    fn read(&mut self, wanted: &Wanted<'_>) -> Result<Read, Failure> {
        let fails = self.fail_at.as_ref().filter(|(at, _)| *at == self.calls.len()).map(|(_, failure)| failure.clone());
        let all: usize = wanted.parts.iter().map(|part| part.prompts.len()).sum();
        let (stopped, read) = match fails {
            Some(failure) if self.finishes == 0 => return Err(failure),
            Some(failure) => (Some(failure), self.finishes.min(all)),
            None => (None, all),
        };
        self.calls.push(read);
        let (mut readings, mut kept) = (Vec::new(), Vec::new());
        for part in &wanted.parts {
            let prefix = part.prefix.unwrap_or(0);
            assert!(part.prompts.iter().all(|p| p.len() > prefix && p[..prefix] == part.prompts[0][..prefix]));
            assert!(part.prefix.is_some() || (part.prompts.len() == 1 && (self.packs || wanted.parts.len() == 1)));
            let reused = if self.kept == part.prompts[0][..prefix] { prefix } else { 0 };
            self.kept = part.prompts[0][..prefix].to_vec();
            kept.push(if self.full { Kept::default() } else { Kept { tokens: prefix, reused } });
            readings.extend(part.prompts.iter().map(|p| {
                let sum: u32 = p.iter().zip(1..).map(|(t, i)| t * i % 97).sum();
                let liked = |at: usize| p.get(20 + at) == Some(&(100 * p[p.len() - 1]));
                let logit = |(at, slot): (usize, &u32)| {
                    (sum * slot % 31) as f32 / 7.0 + if at == 0 { 2.0 } else { 0.0 } + if liked(at) { 8.0 } else { 0.0 }
                };
                Reading { logits: wanted.slots.iter().enumerate().map(logit).collect(), lse: None, argmax: None }
            }));
        }
        readings.truncate(read);
        Ok(Read { readings, kept, prefill_seconds: 0.5, forward_seconds: 0.25, stopped })
    }

    fn portion(&self) -> usize {
        if self.portion > 0 { self.portion } else { 30 }
    }

    fn packs(&self) -> bool {
        self.packs
    }
}

/// A row on a state of 20 tokens, with its options in some orders.
fn row(n: u32, state: u32, options: usize, orderings: Option<Orderings>) -> Planned {
    let orders = orderings.map_or_else(|| vec![(0..options).collect()], |o| o.orders(options).unwrap());
    let prompt = |order: Vec<usize>| {
        let own = order.iter().map(|i| 100 * n + *i as u32).chain([n; 4]);
        Prompt { tokens: [state; 20].into_iter().chain(own).collect(), sha256: format!("{n:032}{order:?}"), order }
    };
    Planned::Ready(Prompted {
        id: format!("r{n}"),
        place: format!("line {n}"),
        option_ids: (0..options).map(|i| format!("o{i}")).collect(),
        state_key: state.to_string(),
        prompts: orders.into_iter().map(prompt).collect(),
        slots: (1..=options as u32).collect(),
        prepare_seconds: 0.0,
        system_folded: false,
    })
}

/// Three states, scattered; the last row is alone with its state.
fn plan(orderings: Option<Orderings>) -> Vec<Planned> {
    let states = [1, 2, 1, 1, 2, 1, 1, 2, 3];
    (0..).zip(states).map(|(n, state)| row(n, state, 2 + n as usize % 3, orderings)).collect()
}

fn facts(mode: Mode, orderings: Option<Orderings>) -> Facts {
    let config = ServingConfig { precision: "exact".into(), ..ServingConfig::default() };
    Facts { prompt_version: "v".into(), model: ModelRef::default(), config, mode, orderings }
}

static NEVER: AtomicBool = AtomicBool::new(false);

/// One start of the program, going on with what is there.
fn go(path: &Path, mode: Mode, orderings: Option<Orderings>, fake: &mut Fake) -> Result<Tally, Failure> {
    let (planned, facts) = (plan(orderings), facts(mode, orderings));
    let name = orderings.map(Orderings::name);
    let expected =
        Expected { planned: &planned, model: &facts.model, prompt_version: &facts.prompt_version, mass: false, orderings: name.as_deref() };
    let waiting = waiting_path(path);
    let early = resume::waiting(&waiting, expected)?;
    let (output, done) = match path.exists() {
        true => resume::resume(path, expected).map(|r| (r.output, r.done))?,
        false => (Output::create(path)?, 0),
    };
    let mut out = Held::new(output, done, Some(waiting));
    if let Some((lines, file)) = early {
        out.take_over(lines, file)?;
    }
    run(&planned, &facts, fake, &mut out, &NEVER, &mut || ())
}

fn lines(path: &Path) -> Vec<Json> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| Json::parse(line).unwrap()).collect()
}

/// What must be the same whatever the mode.
fn results(path: &Path) -> Vec<String> {
    let keys = ["id", "option_logits", "probabilities", "prompt_sha256", "orderings", "combined"];
    lines(path).iter().map(|line| keys.map(|key| line.get(key).map_or(String::new(), Json::to_string)).join(" ")).collect()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

const MODES: [Mode; 4] = [Mode::Direct, Mode::Serial, Mode::Shared, Mode::Auto];

#[test]
fn every_mode_writes_the_same_results_in_input_order() {
    for orderings in [None, Some(Orderings::Rotations), Some(Orderings::Reverse), Some(Orderings::All)] {
        let dir = folder();
        let paths = MODES.map(|mode| {
            let path = dir.path().join(format!("{mode:?}"));
            let tally = go(&path, mode, orderings, &mut Fake::default()).unwrap();
            assert_eq!((tally.decided, tally.interrupted), (9, false));
            assert!(!waiting_path(&path).exists());
            path
        });
        let direct = results(&paths[0]);
        assert_eq!(lines(&paths[0]).iter().map(|l| l.get("id").unwrap().to_string()).collect::<Vec<_>>().len(), 9);
        for path in &paths[1..] {
            assert_eq!(results(path), direct, "{}", path.display());
        }
    }
}

#[test]
fn rows_say_how_they_were_read() {
    let dir = folder();
    let path = dir.path().join("serial");
    go(&path, Mode::Serial, None, &mut Fake::default()).unwrap();
    let rows = lines(&path);
    let text = |row: &Json, key: &str| row.get(key).map_or("absent".to_owned(), Json::to_string);
    let mode = |row: &Json| row.get("serving_config").and_then(|c| c.get("mode")).map_or(String::new(), Json::to_string);
    let hits: Vec<_> = rows.iter().map(|row| text(row, "cache_hit")).collect();
    assert_eq!(hits, ["false", "false", "true", "true", "true", "true", "true", "true", "absent"]);
    assert_eq!((mode(&rows[0]), mode(&rows[8])), ("\"serial\"".into(), "\"direct\"".into()));
    assert_eq!(text(&rows[0], "prefix_tokens"), "20");
    // python3: hashlib.sha256(struct.pack("<20I", *[1] * 20)).hexdigest()
    assert_eq!(text(&rows[0], "prefix_sha256"), "\"89b3dbf9191d8528ac2a52d3fad034a696e50f2c327d01d2090147647d0522e9\"");
    assert_eq!((text(&rows[0], "prefill_seconds"), text(&rows[0], "suffix_forward_seconds")), ("0.5".into(), "0.25".into()));
    assert_eq!(text(&rows[0], "shared_timing"), "absent");

    let path = dir.path().join("shared");
    let mut fake = Fake::default();
    go(&path, Mode::Shared, None, &mut fake).unwrap();
    // Portions of at most 30 suffix tokens; the row without company by itself.
    assert_eq!(fake.calls, [4, 1, 3, 1]);
    let rows = lines(&path);
    let timing = rows[0].get("shared_timing").unwrap();
    for (key, value) in [("rows", "4"), ("prompts", "4"), ("prefix_tokens", "20"), ("prefix_reused", "0"), ("suffix_tokens", "28")] {
        assert_eq!(text(timing, key), value, "{key}");
    }
    assert_eq!((text(timing, "prefill_seconds"), text(timing, "suffix_seconds")), ("0.5".into(), "0.25".into()));
    assert_eq!(rows[2].get("shared_timing"), rows[0].get("shared_timing"));
    assert_eq!((text(&rows[0], "cache_hit"), text(&rows[8], "shared_timing")), ("absent".into(), "absent".into()));
    assert_eq!(text(timing, "states"), "1");

    // Several states in one reading: each has its part of the time.
    let path = dir.path().join("packed");
    let mut fake = Fake { portion: 200, ..Fake::default() };
    go(&path, Mode::Shared, None, &mut fake).unwrap();
    assert_eq!(fake.calls, [8, 1]);
    let packed = lines(&path);
    let timings: Vec<&Json> = [0, 1].map(|i| packed[i].get("shared_timing").unwrap()).into();
    for (key, values) in [("states", ["2", "2"]), ("rows", ["5", "3"]), ("prefix_tokens", ["20", "20"]), ("suffix_tokens", ["34", "21"])] {
        assert_eq!(timings.iter().map(|t| text(t, key)).collect::<Vec<_>>(), values, "{key}");
    }
    let sum = |key: &str| timings.iter().filter_map(|t| t.get(key)?.as_f64()).sum::<f64>();
    assert!((sum("prefill_seconds") - 0.5).abs() < 1e-12 && (sum("suffix_seconds") - 0.25).abs() < 1e-12);
    assert_eq!(results(&path), results(&dir.path().join("shared")));

    // The row that is alone comes with them, and says what it is.
    let path = dir.path().join("packed-too");
    let mut fake = Fake { portion: 200, packs: true, ..Fake::default() };
    go(&path, Mode::Auto, None, &mut fake).unwrap();
    assert_eq!(fake.calls, [9]);
    let rows = lines(&path);
    assert_eq!((mode(&rows[8]), text(&rows[8], "shared_timing")), ("\"direct\"".into(), "absent".into()));
    assert_eq!(results(&path), results(&dir.path().join("shared")));

    // What could not be kept is said, not hidden.
    for (name, mode_asked) in [("full-shared", Mode::Shared), ("full-serial", Mode::Serial)] {
        let path = dir.path().join(name);
        go(&path, mode_asked, None, &mut Fake { full: true, ..Fake::default() }).unwrap();
        let rows = lines(&path);
        assert_eq!(mode(&rows[0]), "\"direct\"");
        let fallbacks = rows[0].get("serving_config").and_then(|c| c.get("fallbacks")).map(Json::to_string).unwrap();
        assert!(fallbacks.contains("too short to keep"), "{fallbacks}");
        assert_eq!((text(&rows[0], "shared_timing"), text(&rows[0], "cache_hit")), ("absent".into(), "absent".into()));
        assert_eq!(results(&path), results(&dir.path().join("shared")));
    }
}

#[test]
fn orderings_are_read_and_combined() {
    let dir = folder();
    let path = dir.path().join("out");
    go(&path, Mode::Auto, Some(Orderings::Rotations), &mut Fake::default()).unwrap();
    for (n, row) in lines(&path).iter().enumerate() {
        let Some(Json::Array(orders)) = row.get("orderings") else { panic!() };
        assert_eq!(orders.len(), 2 + n % 3);
        // The given order is the row's own reading.
        for key in ["option_logits", "probabilities", "prompt_sha256", "input_tokens"] {
            assert_eq!(orders[0].get(key), row.get(key), "{key}");
        }
        let combined = row.get("combined").unwrap();
        assert_eq!(combined.get("read").unwrap().to_string(), orders.len().to_string());
    }
    // Certainty reads all rotations, less does not; and it never reads more.
    let count = |confidence: f64| {
        let path = dir.path().join(confidence.to_string());
        let mut fake = Fake::default();
        go(&path, Mode::Auto, Some(Orderings::Adaptive { confidence }), &mut fake).unwrap();
        fake.calls.iter().sum::<usize>()
    };
    let all = plan(Some(Orderings::Rotations)).iter().map(|p| if let Planned::Ready(r) = p { r.prompts.len() } else { 0 }).sum::<usize>();
    assert_eq!(count(1.0), all);
    assert!(count(0.8) < all);
}

/// Stopped or failed at every step, in every mode, and gone on with in another: the same file, and no finished row read twice.
#[test]
fn an_interruption_loses_nothing_finished() {
    let dir = folder();
    let whole = dir.path().join("whole");
    go(&whole, Mode::Direct, None, &mut Fake::default()).unwrap();
    let wanted = results(&whole);
    for failure in [Failure::interrupted(""), Failure::other("the GPU is gone")] {
        for mode in MODES {
            for then in MODES {
                for at in 0..9 {
                    let path = dir.path().join("out");
                    let mut fake = Fake { fail_at: Some((at, failure.clone())), ..Fake::default() };
                    let first = go(&path, mode, None, &mut fake);
                    let mut rest = Fake::default();
                    if first.as_ref().is_ok_and(|tally| !tally.interrupted) {
                        assert!(at >= 4, "it has stopped");
                    } else {
                        go(&path, then, None, &mut rest).unwrap();
                    }
                    assert_eq!(results(&path), wanted, "{mode:?} stopped at {at}, then {then:?}");
                    assert_eq!(fake.calls.iter().sum::<usize>() + rest.calls.iter().sum::<usize>(), 9, "{mode:?} {at} {then:?}");
                    assert!(!waiting_path(&path).exists());
                    std::fs::remove_file(&path).unwrap();
                }
            }
        }
    }
}

/// What a reading had finished when it was stopped is written, and so are rows that were settled in rounds before.
#[test]
fn a_stopped_reading_keeps_what_it_finished() {
    let dir = folder();
    for orderings in [None, Some(Orderings::Rotations), Some(Orderings::Adaptive { confidence: 0.8 })] {
        let whole = dir.path().join("whole");
        let mut fresh = Fake { portion: 500, ..Fake::default() };
        go(&whole, Mode::Shared, orderings, &mut fresh).unwrap();
        let wanted = results(&whole);
        for failure in [Failure::interrupted(""), Failure::other("the GPU is gone")] {
            for (at, finishes) in (0..fresh.calls.len()).flat_map(|at| (0..7).map(move |finishes| (at, finishes))) {
                let path = dir.path().join("out");
                let mut fake = Fake { portion: 500, fail_at: Some((at, failure.clone())), finishes, ..Fake::default() };
                let first = go(&path, Mode::Shared, orderings, &mut fake);
                assert!(first.map_or_else(|failed| failed.message.contains("the GPU is gone"), |tally| tally.interrupted));
                // A line that has waited may be in both files.
                let there = [path.clone(), waiting_path(&path)].into_iter().filter(|path| path.exists());
                let kept = there.flat_map(|path| lines(&path)).map(|l| l.get("id").unwrap().to_string()).collect::<HashSet<_>>().len();
                if orderings.is_none() {
                    assert_eq!(kept, fake.calls.iter().sum::<usize>(), "{failure:?} at {at} after {finishes}");
                } else if let (Some(Orderings::Adaptive { .. }), true) = (orderings, at > 0) {
                    assert!(kept > 0, "some rows are settled after the first round");
                }
                let mut rest = Fake { portion: 500, ..Fake::default() };
                go(&path, Mode::Shared, orderings, &mut rest).unwrap();
                assert_eq!(results(&path), wanted, "{orderings:?} {failure:?} at {at} after {finishes}");
                std::fs::remove_file(&path).unwrap();
            }
        }
        std::fs::remove_file(&whole).unwrap();
    }
}

#[test]
fn waiting_results_are_checked_too() {
    let dir = folder();
    let path = dir.path().join("out");
    let stop = || Fake { fail_at: Some((1, Failure::interrupted(""))), ..Fake::default() };
    go(&path, Mode::Shared, None, &mut stop()).unwrap();
    let waiting = waiting_path(&path);
    let text = std::fs::read_to_string(&waiting).unwrap();
    assert_eq!((lines(&path).len(), lines(&waiting).len()), (1, 3));
    for (bad, part) in [
        (text.replace("\"id\":\"r2\"", "\"id\":\"x\""), "which this input has not"),
        (text.replacen("\"v\"", "\"w\"", 1), "another prompt (w)"),
        (format!("hello\n{text}"), "not a result row"),
    ] {
        std::fs::write(&waiting, &bad).unwrap();
        let failure = go(&path, Mode::Shared, None, &mut Fake::default()).unwrap_err();
        assert!(failure.message.contains(part) && failure.message.contains(".waiting"), "{}", failure.message);
        assert_eq!(std::fs::read_to_string(&waiting).unwrap(), bad, "left as it is");
    }
    // A later row that is refused because it has the id of one of them changes nothing.
    std::fs::write(&waiting, &text).unwrap();
    let mut planned = plan(None);
    planned.push(Planned::Refused(RefusedRow { id: Some("r2".into()), error: "id already used".into() }));
    let facts = facts(Mode::Shared, None);
    let expected = Expected { planned: &planned, model: &facts.model, prompt_version: "v", mass: false, orderings: None };
    let (found, _) = resume::waiting(&waiting, expected).unwrap().unwrap();
    assert!(found.len() == 3 && found.contains_key(&2), "{:?}", found.keys());
    // A torn last line is computed again, the others are not.
    std::fs::write(&waiting, &text[..text.len() - 9]).unwrap();
    let mut fake = Fake::default();
    go(&path, Mode::Direct, None, &mut fake).unwrap();
    assert_eq!((lines(&path).len(), fake.calls.len()), (9, 6));
    // Orderings are a method of their own.
    let failure = go(&path, Mode::Auto, Some(Orderings::Reverse), &mut Fake::default()).unwrap_err();
    assert!(failure.message.contains("--orderings reverse"), "{}", failure.message);
}
