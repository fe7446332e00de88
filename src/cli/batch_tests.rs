//! The row loop and its output file under interruption, full disks and foreign files, with a model made of arithmetic.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::batch::*;
use super::fail::{Exit, Failure};
use super::held::Held;
use super::output::{Output, Store};
use super::resume::{Expected, resume};
use super::schedule::Mode;
use crate::decision::result::RefusedRow;
use crate::decision::{Json, ModelRef, Orderings, ServingConfig};

/// Logits from the tokens; can fail or ask to stop at a given call.
#[derive(Default)]
struct Fake {
    /// First token of what was read.
    calls: Vec<u32>,
    fail_at: Option<(usize, Failure)>,
    stop_at: Option<usize>,
    mass: bool,
}

static NEVER: AtomicBool = AtomicBool::new(false);
thread_local! { static STOP: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false))); }

impl Scorer for Fake {
    fn read(&mut self, wanted: &Wanted<'_>) -> Result<Read, Failure> {
        let call = self.calls.len();
        let first = wanted.parts[0].prompts[0][0];
        self.calls.push(first);
        if self.stop_at == Some(call) {
            STOP.with(|s| s.store(true, Ordering::Relaxed));
        }
        if let Some((at, failure)) = &self.fail_at
            && *at == call
        {
            return Err(failure.clone());
        }
        let logits = wanted.slots.iter().map(|s| (first * s) as f32 / 7.0).collect();
        let reading = Reading { logits, lse: self.mass.then_some(100.0), argmax: self.mass.then_some(3) };
        Ok(Read { readings: vec![reading], forward_seconds: 0.25, ..Read::default() })
    }
}

fn ready(n: u32) -> Planned {
    Planned::Ready(Prompted {
        id: format!("row \"{n}\" é"),
        place: format!("line {n}"),
        option_ids: vec!["yes".into(), "no\u{2028}".into()],
        state_key: n.to_string(),
        prompts: vec![Prompt { order: vec![0, 1], tokens: vec![n; 5], sha256: format!("{n:064}") }],
        slots: vec![1, 2],
        prepare_seconds: 0.0,
        system_folded: n == 2,
    })
}

fn plan() -> Vec<Planned> {
    let refused = RefusedRow { id: None, error: "line 3: not JSON: \"\u{2028}\"".into() };
    vec![ready(1), ready(2), Planned::Refused(refused), ready(4)]
}

/// In memory where the system has such a place: thousands of runs, each synced.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn facts() -> Facts {
    Facts {
        prompt_version: "v1".into(),
        model: ModelRef { file: "m.gguf".into(), bytes: 9, sha256: Some("ab".into()), ..ModelRef::default() },
        config: ServingConfig { precision: "exact".into(), mode: "direct".into(), ..ServingConfig::default() },
        mode: Mode::Auto,
        orderings: None,
    }
}

fn expected<'a>(planned: &'a [Planned], facts: &'a Facts) -> Expected<'a> {
    Expected { planned, model: &facts.model, prompt_version: &facts.prompt_version, mass: false, orderings: None }
}

/// Lines without the one value that a clock decides.
fn untimed(bytes: &[u8]) -> Vec<Json> {
    let text = std::str::from_utf8(bytes).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "a torn line is left: {text}");
    let lines = text.split('\n').filter(|line| !line.is_empty());
    lines
        .map(|line| match Json::parse(line).unwrap() {
            Json::Object(members) => Json::Object(members.into_iter().filter(|(key, _)| key != "total_seconds").collect()),
            other => other,
        })
        .collect()
}

fn go(path: &std::path::Path, resume_it: bool, fake: &mut Fake) -> Result<Tally, Failure> {
    let (planned, facts) = (plan(), facts());
    let (output, done) = if resume_it {
        let resumed = resume(path, expected(&planned, &facts))?;
        (resumed.output, resumed.done)
    } else {
        (Output::create(path)?, 0)
    };
    run(&planned, &facts, fake, &mut Held::new(output, done, None), &NEVER, &mut || ())
}

#[test]
fn a_run_writes_rows_in_order() {
    let dir = folder();
    let path = dir.path().join("out.jsonl");
    let tally = go(&path, false, &mut Fake::default()).unwrap();
    assert_eq!(tally, Tally { decided: 3, refused: 1, interrupted: false });
    let lines = untimed(&std::fs::read(&path).unwrap());
    let ids: Vec<_> = lines.iter().map(|l| l.get("id").unwrap().to_string()).collect();
    assert_eq!(ids, [r#""row \"1\" é""#, r#""row \"2\" é""#, "null", r#""row \"4\" é""#]);
    assert_eq!(lines[2].get("error").and_then(Json::as_str), Some("line 3: not JSON: \"\u{2028}\""));
    let system = |l: &Json| l.get("serving_config").unwrap().get("system_text").unwrap().to_string();
    assert_eq!((system(&lines[0]).as_str(), system(&lines[1]).as_str()), ("\"own turn\"", "\"in front of the user text\""));
    // Never over an existing file, and without touching it.
    let before = std::fs::read(&path).unwrap();
    let failure = go(&path, false, &mut Fake::default()).unwrap_err();
    assert_eq!(failure.exit, Exit::Input);
    assert!(failure.message.contains("--resume"), "{}", failure.message);
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn resume_after_a_kill_at_every_byte() {
    let dir = folder();
    let path = dir.path().join("out.jsonl");
    go(&path, false, &mut Fake::default()).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let wanted = untimed(&whole);
    for cut in 0..=whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let kept = whole[..cut].iter().filter(|b| **b == b'\n').count();
        let mut fake = Fake::default();
        go(&path, true, &mut fake).unwrap_or_else(|e| panic!("cut at {cut}: {}", e.message));
        let after = std::fs::read(&path).unwrap();
        assert_eq!(untimed(&after), wanted, "cut at {cut}");
        assert_eq!(fake.calls.len(), plan()[kept..].iter().filter(|p| matches!(p, Planned::Ready(_))).count(), "cut at {cut}");
        // Finished rows keep their very bytes.
        let end = whole[..cut].iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
        assert_eq!(after[..end], whole[..end]);
    }
}

#[test]
fn foreign_outputs_are_left_alone() {
    let dir = folder();
    let path = dir.path().join("out.jsonl");
    go(&path, false, &mut Fake::default()).unwrap();
    let whole = std::fs::read_to_string(&path).unwrap();
    let line = |n: usize| whole.split_inclusive('\n').nth(n).unwrap().to_owned();
    let swap = |from: &str, to: &str| {
        assert!(whole.contains(from), "{from}");
        whole.replacen(from, to, 1)
    };
    let cases = [
        ("other text\n".to_owned(), "is not a result row"),
        ("other text without an end".to_owned(), "is not the beginning of this row"),
        ("{\"id\":\"row 9\",".to_owned(), "is not the beginning of this row"),
        (format!("{}{}", line(0), "{\"id\":\"x"), "is not the beginning of this row"),
        (line(1), "has the id"),
        (format!("{}{}", line(0), line(3)), "has the id"),
        (format!("{whole}{}", line(0)), "one too many"),
        (format!("{whole}x"), "one too many"),
        (format!("{}\n", whole.trim_end()) + "\n", "one too many"),
        (swap("\"yes\"", "\"maybe\""), "other options"),
        (swap("\"sha256\":\"ab\"", "\"sha256\":\"cd\""), "another model"),
        (swap("\"prompt_version\":\"v1\"", "\"prompt_version\":\"v2\""), "another prompt (v2)"),
        (swap(&format!("{:064}", 2), &format!("{:064}", 3)), "another prompt text"),
        (swap("[1,2]", "[1,3]"), "answer tokens"),
        (swap("\"readout\":\"direct", "\"readout\":\"serial"), "another method"),
        (swap("\"allowed_token_mass\":null", "\"allowed_token_mass\":0.5"), "--mass"),
        (whole.replacen("\"precision\":\"exact\"", "\"precision\":\"fast\"", 1), "another precision"),
        (swap("{\"id\":null,", "{\"id\":\"n\","), "has the id \"n\", but this input has no id"),
    ];
    for (content, part) in cases {
        std::fs::write(&path, &content).unwrap();
        let mut fake = Fake::default();
        let failure = go(&path, true, &mut fake).expect_err(part);
        assert!(failure.message.contains(part), "{}\n  should say: {part}", failure.message);
        assert_eq!((failure.exit, fake.calls.len()), (Exit::Input, 0));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), content, "{part}");
    }
    // Refused then, in order now.
    std::fs::write(&path, &whole).unwrap();
    let (mut planned, facts) = (plan(), facts());
    if let Planned::Refused(_) = &planned[2] {
        planned[2] = ready(3);
        let Planned::Ready(row) = &mut planned[2] else { panic!() };
        row.id = "n".into();
    }
    std::fs::write(&path, whole.replace("{\"id\":null,", "{\"id\":\"n\",")).unwrap();
    let failure = resume(&path, expected(&planned, &facts)).unwrap_err();
    assert!(failure.message.contains("in order now"), "{}", failure.message);
}

#[test]
fn a_stop_between_rows_keeps_what_is_done() {
    let dir = folder();
    let path = dir.path().join("out.jsonl");
    let (planned, facts) = (plan(), facts());
    let mut output = Held::new(Output::create(&path).unwrap(), 0, None);
    let mut fake = Fake { stop_at: Some(1), ..Fake::default() };
    let stop = STOP.with(|s| *s);
    let tally = run(&planned, &facts, &mut fake, &mut output, stop, &mut || ()).unwrap();
    drop(output);
    assert_eq!((tally, fake.calls.len()), (Tally { decided: 2, refused: 0, interrupted: true }, 2));
    assert_eq!(untimed(&std::fs::read(&path).unwrap()).len(), 2);
    let mut fake = Fake::default();
    assert_eq!(go(&path, true, &mut fake).unwrap(), Tally { decided: 1, refused: 1, interrupted: false });
    assert_eq!(fake.calls, [4]);
}

#[test]
fn a_failing_gpu_keeps_what_is_done() {
    let dir = folder();
    let path = dir.path().join("out.jsonl");
    let lost = Failure { exit: Exit::Gpu, message: "lost".into() };
    let failure = go(&path, false, &mut Fake { fail_at: Some((2, lost.clone())), ..Fake::default() }).unwrap_err();
    assert_eq!((failure.exit, failure.message.as_str()), (Exit::Gpu, "line 4: lost"));
    assert_eq!(untimed(&std::fs::read(&path).unwrap()).len(), 3);
    // Interrupted inside a row: no failure, the row is dropped.
    std::fs::remove_file(&path).unwrap();
    let stop = Failure::interrupted("");
    let tally = go(&path, false, &mut Fake { fail_at: Some((1, stop)), ..Fake::default() }).unwrap();
    assert_eq!((tally.decided, tally.interrupted), (1, true));
    // Nothing written: the empty file is taken away, and a second try is not refused.
    std::fs::remove_file(&path).unwrap();
    go(&path, false, &mut Fake { fail_at: Some((0, lost)), ..Fake::default() }).unwrap_err();
    assert!(!path.exists());
    go(&path, false, &mut Fake::default()).unwrap();
}

#[test]
fn two_writers_exclude_each_other() {
    let dir = folder();
    let path = dir.path().join("out.jsonl");
    let first = Output::create(&path).unwrap();
    let failure = go(&path, true, &mut Fake::default()).unwrap_err();
    assert!(failure.message.contains("another process"), "{}", failure.message);
    drop(first);
}

/// Logits of one row that are no numbers cost that row alone: the others of its unit are written, or wait, and the run says which it was.
#[test]
fn nonsense_in_one_row_leaves_the_others_of_its_unit() {
    struct OneNan;
    impl Scorer for OneNan {
        fn read(&mut self, wanted: &Wanted<'_>) -> Result<Read, Failure> {
            let logit = |p: &&[u32]| if p[p.len() - 1] == 1 { f32::NAN } else { 0.5 };
            let prompts = wanted.parts.iter().flat_map(|part| &part.prompts);
            let readings = prompts.map(|p| Reading { logits: vec![0.0, logit(p)], ..Reading::default() }).collect();
            let kept = wanted.parts.iter().map(|part| Kept { tokens: part.prefix.unwrap_or(0), reused: 0 }).collect();
            Ok(Read { readings, kept, ..Read::default() })
        }
    }
    let row = |n: u32, orderings: Option<Orderings>| {
        let mut row = ready(n + 1);
        let Planned::Ready(ready) = &mut row else { panic!() };
        ready.state_key = "one".into();
        let orders = orderings.map_or_else(|| vec![vec![0, 1]], |o| o.orders(2).unwrap());
        let prompt = |order: Vec<usize>| Prompt { tokens: [7; 20].into_iter().chain([n]).collect(), sha256: format!("{order:?}"), order };
        ready.prompts = orders.into_iter().map(prompt).collect();
        row
    };
    for orderings in [None, Some(Orderings::Reverse), Some(Orderings::Adaptive { confidence: 1.0 })] {
        let planned: Vec<Planned> = (0..4).map(|n| row(n, orderings)).collect();
        let facts = Facts { orderings, ..facts() };
        let dir = folder();
        let (path, waiting) = (dir.path().join("out"), dir.path().join("waiting"));
        let mut out = Held::new(Output::create(&path).unwrap(), 0, Some(waiting.clone()));
        let failure = run(&planned, &facts, &mut OneNan, &mut out, &NEVER, &mut || ()).unwrap_err();
        assert!(failure.exit == Exit::Gpu && failure.message.contains("line 2"), "{}", failure.message);
        drop(out);
        let count = |path| untimed(&std::fs::read(path).unwrap()).len();
        assert_eq!((count(&path), count(&waiting)), (1, 2), "{orderings:?}");
    }
}

#[test]
fn nonsense_logits_stop_the_run() {
    struct Nan;
    impl Scorer for Nan {
        fn read(&mut self, _: &Wanted<'_>) -> Result<Read, Failure> {
            let reading = Reading { logits: vec![0.0, f32::NAN], ..Reading::default() };
            Ok(Read { readings: vec![reading], ..Read::default() })
        }
    }
    let disk = Disk::default();
    let failure = run(&plan(), &facts(), &mut Nan, &mut Held::new(Output::on(disk.clone()), 0, None), &NEVER, &mut || ()).unwrap_err();
    assert_eq!(failure.exit, Exit::Gpu);
    assert!(failure.message.contains("line 1") && failure.message.contains("option B"), "{}", failure.message);
    assert!(disk.0.borrow().bytes.is_empty());
}

#[test]
fn mass_is_written_and_checked() {
    let dir = folder();
    let path = dir.path().join("out.jsonl");
    go(&path, false, &mut Fake { mass: true, ..Fake::default() }).unwrap();
    let lines = untimed(&std::fs::read(&path).unwrap());
    assert_eq!(lines[0].get("full_vocab_argmax_id").unwrap().to_string(), "3");
    assert!(lines[0].get("allowed_token_mass").unwrap().as_f64().is_some());
    assert!(go(&path, true, &mut Fake::default()).unwrap_err().message.contains("--mass"));
}

#[derive(Default)]
struct DiskState {
    bytes: Vec<u8>,
    room: Option<usize>,
    cannot_cut: bool,
}

/// A disk with limited room, which writes as much as fits and then fails.
#[derive(Clone, Default)]
struct Disk(Rc<RefCell<DiskState>>);

impl Store for Disk {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.0.borrow_mut();
        let fits = disk.room.map_or(bytes.len(), |room| bytes.len().min(room.saturating_sub(disk.bytes.len())));
        disk.bytes.extend_from_slice(&bytes[..fits]);
        if fits < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn cut(&mut self, len: u64) -> io::Result<()> {
        let mut disk = self.0.borrow_mut();
        if disk.cannot_cut {
            return Err(io::ErrorKind::Other.into());
        }
        disk.bytes.truncate(len as usize);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_leaves_whole_lines() {
    let disk = Disk::default();
    run(&plan(), &facts(), &mut Fake::default(), &mut Held::new(Output::on(disk.clone()), 0, None), &NEVER, &mut || ()).unwrap();
    let size = disk.0.borrow().bytes.len();
    for room in (0..size - 40).step_by(7) {
        let disk = Disk::default();
        disk.0.borrow_mut().room = Some(room);
        let mut output = Held::new(Output::on(disk.clone()), 0, None);
        let failure = run(&plan(), &facts(), &mut Fake::default(), &mut output, &NEVER, &mut || ()).unwrap_err();
        assert_eq!(failure.exit, Exit::Other);
        untimed(&disk.0.borrow().bytes);
    }
    // A disk that cannot even be cut: the torn line goes before the next one is written.
    let disk = Disk::default();
    disk.0.borrow_mut().room = Some(5);
    disk.0.borrow_mut().cannot_cut = true;
    let mut output = Output::on(disk.clone());
    output.line("0123456789").unwrap_err();
    assert_eq!(disk.0.borrow().bytes, b"01234");
    *disk.0.borrow_mut() = DiskState { bytes: b"01234".to_vec(), ..DiskState::default() };
    output.line("next").unwrap();
    assert_eq!(disk.0.borrow().bytes, b"next\n");
}
