//! `semif score` in all its modes writes the same numbers, digit for digit, whatever the state ends in, in which order rows stand, and
//! where a run was interrupted. Runs the program on a synthetic model with a byte vocabulary.

use pollster::block_on;
use semif::decision::{Choice, Json, Row, Wording};
use semif::engine::{Ask, Engine, Group, LoadOptions, SharedAsk, shared_prefix};
use semif::gguf::{Gguf, MemorySource};
use semif::gpu::{Gpu, GpuOptions};
use semif::hub::FileSource;
use semif::text::TextModel;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// `SEMIF_TEST_MODELS`, which `./test` sets.
fn model(name: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("SEMIF_TEST_MODELS") else {
        println!("SKIPPED: SEMIF_TEST_MODELS is not set; ./test sets it");
        return None;
    };
    let path = PathBuf::from(folder).join(format!("{name}.gguf"));
    assert!(path.is_file(), "{} is missing: ./test makes it", path.display());
    Some(path)
}

fn semif(folder: &Path, model: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semif"));
    let arguments = arguments.split_whitespace().map(|a| if a == "MODEL" { model.as_os_str() } else { a.as_ref() });
    command.current_dir(folder).args(arguments).stdin(Stdio::null()).output().expect("semif starts")
}

#[track_caller]
fn ok(output: Output) -> String {
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{err}");
    err
}

/// Short instructions: the vocabulary has little more than bytes, so every letter is a token.
const PROMPT: &str =
    r#"{"version":"test-v1","system":"Answer.","keys":{"evidence":"e","criterion":"c","options":"o","letter":"l","description":"d"}}"#;

fn row(id: &str, state: &Value, question: &str, options: usize) -> Value {
    let options: Vec<Value> = (0..options).map(|i| json!({"id": format!("o{i}"), "description": format!("{i}")})).collect();
    json!({"id": id, "state": state, "question": question, "options": options})
}

fn write_rows(folder: &Path, name: &str, rows: &[Value]) {
    let text: Vec<String> = rows.iter().map(Value::to_string).collect();
    std::fs::write(folder.join(name), text.join("\n")).unwrap();
}

fn place(rows: &[Value]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("prompt"), PROMPT).unwrap();
    write_rows(folder.path(), "rows", rows);
    folder
}

fn read(folder: &Path, name: &str) -> Vec<Value> {
    std::fs::read_to_string(folder.join(name)).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Scores `rows` into `out` and gives the results back.
fn score(folder: &Path, model: &Path, more: &str, out: &str) -> Vec<Value> {
    ok(semif(folder, model, &format!("score --gguf MODEL --prompt prompt --input rows --output {out} {more}")));
    read(folder, out)
}

/// What no mode may change. Numbers keep their digits, so equal text is equal bits.
fn numbers(row: &Value) -> String {
    let keys =
        ["id", "option_logits", "probabilities", "allowed_token_mass", "full_vocab_argmax_id", "prompt_sha256", "orderings", "combined"];
    keys.map(|key| row[key].to_string()).join(" ")
}

fn all(rows: &[Value]) -> Vec<String> {
    rows.iter().map(numbers).collect()
}

/// Three states, scattered, with 2 to 4 options; one state is an object, one row is alone.
fn scattered() -> Vec<Value> {
    let states = [json!("I was charged twice for March (and for May);"), json!({"plan": "Pro", "paid": [1, 2.5, null]}), json!("alone }")];
    let order = [0, 1, 0, 0, 2, 1, 0, 1];
    let rows = (0..).zip(order);
    rows.map(|(i, state)| row(&format!("r{i}"), &states[state], &"why? ".repeat(1 + i % 3), 2 + i % 3)).collect()
}

fn every_mode(model_name: &str) {
    let Some(model) = model(model_name) else { return };
    let folder = place(&scattered());
    let folder = folder.path();
    let direct = score(folder, &model, "--mass --mode direct", "direct");
    let ids: Vec<&str> = direct.iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7"]);
    for mode in ["serial", "shared", "auto"] {
        let rows = score(folder, &model, &format!("--mass --mode {mode}"), mode);
        assert_eq!(all(&rows), all(&direct), "{model_name}: {mode}");
        assert!(!folder.join(format!("{mode}.waiting")).exists());
        let modes: Vec<&str> = rows.iter().map(|row| row["serving_config"]["mode"].as_str().unwrap()).collect();
        let name = if mode == "auto" { "shared" } else { mode };
        assert!((0..8).all(|i| modes[i] == if i == 4 { "direct" } else { name }), "{modes:?}");
    }
    let serial = read(folder, "serial");
    let hits: Vec<Option<bool>> = serial.iter().map(|row| row["cache_hit"].as_bool()).collect();
    let (hit, miss) = (Some(true), Some(false));
    assert_eq!(hits, [miss, miss, hit, hit, None, hit, hit, hit]);
    let shared = read(folder, "shared");
    let timing = &shared[0]["shared_timing"];
    assert_eq!((timing["rows"].as_u64(), &timing["prefix_sha256"]), (Some(4), &serial[0]["prefix_sha256"]));
    assert!(timing["prefix_tokens"].as_u64() > Some(40), "{timing}");
    // Without a cache nothing is found there, and nothing changes.
    let none = score(folder, &model, "--mass --mode serial --cache 0", "none");
    assert_eq!(all(&none), all(&direct), "{model_name}: no cache");
    assert!(none.iter().all(|row| row["cache_hit"].as_bool() != hit), "{none:?}");
    // Any order of the rows gives the same numbers by id.
    let mut turned = scattered();
    turned.reverse();
    turned.swap(1, 5);
    write_rows(folder, "rows", &turned);
    let mut again = all(&score(folder, &model, "--mass", "turned"));
    again.sort();
    assert_eq!(again, all(&direct), "{model_name}: another order of rows");
}

#[test]
fn qwen3() {
    every_mode("qwen3-tiny-Q8_0");
}

#[test]
fn qwen35() {
    every_mode("qwen35-tiny-real");
}

#[test]
fn llama() {
    every_mode("minicpm5-tiny-real");
}

#[test]
fn a_run_goes_on_in_another_mode() {
    let Some(model) = model("qwen3-tiny-Q8_0") else { return };
    let folder = place(&scattered());
    let folder = folder.path();
    let direct = score(folder, &model, "--mode direct", "direct");
    let lines: Vec<String> = std::fs::read_to_string(folder.join("direct")).unwrap().split_inclusive('\n').map(str::to_owned).collect();
    let modes = ["direct", "serial", "shared", "auto"];
    for kept in 0..8 {
        // The first rows are there, a later one waits, and a line is torn.
        std::fs::write(folder.join("out"), lines[..kept].concat() + &lines[kept][..25]).unwrap();
        std::fs::write(folder.join("out.waiting"), lines[7].as_str()).unwrap();
        let command = format!("score --gguf MODEL --prompt prompt --input rows --output out --mode {}", modes[kept % 4]);
        let refused = semif(folder, &model, &command);
        assert_eq!(refused.status.code(), Some(2), "never over an existing output");
        let said = ok(semif(folder, &model, &format!("{command} --resume")));
        assert!(said.contains(&format!("{} of 8 rows are in out already", kept + 1)), "{said}");
        assert_eq!(all(&read(folder, "out")), all(&direct), "after {kept} rows");
        assert!(!folder.join("out.waiting").exists());
    }
    let other = semif(folder, &model, "score --gguf MODEL --prompt prompt --input rows --output out --orderings reverse --resume");
    assert_eq!(other.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&other.stderr).contains("--orderings reverse"));
}

const ALL: (&str, [usize; 3]) = ("all", [2, 6, 24]);
const REVERSE: (&str, [usize; 3]) = ("reverse", [2, 2, 2]);
const ROTATIONS: (&str, [usize; 3]) = ("rotations", [2, 3, 4]);

/// Each ordering by itself and on the state: the same bits, in every row.
fn orderings(folder: &Path, model: &Path, which: &[(&str, [usize; 3])]) {
    let plain = score(folder, model, "--mode direct", "plain");
    for (which, counts) in which {
        let direct = score(folder, model, &format!("--orderings {which} --mode direct"), &format!("{which}-direct"));
        let shared = score(folder, model, &format!("--orderings {which}"), which);
        assert_eq!(all(&shared), all(&direct), "{which}");
        for (i, row) in shared.iter().enumerate() {
            let orders = row["orderings"].as_array().unwrap();
            assert_eq!(orders.len(), counts[i % 3], "{which}");
            // The given order is the decision itself.
            assert_eq!((&row["option_logits"], &orders[0]["option_logits"]), (&plain[i]["option_logits"], &plain[i]["option_logits"]));
            let combined = &row["combined"];
            let sum: f64 = combined["probabilities"].as_array().unwrap().iter().filter_map(Value::as_f64).sum();
            assert!((sum - 1.0).abs() < 1e-12 && combined["agreement"].as_f64() >= Some(0.0) && combined["top"].is_string());
            assert_eq!(row["serving_config"]["mode"], "shared", "also the row that is alone with its state");
        }
    }
}

#[test]
fn orderings_of_other_architectures() {
    for (name, which) in [("qwen35-tiny-real", REVERSE), ("minicpm5-tiny-real", REVERSE)] {
        let Some(model) = model(name) else { return };
        let folder = place(&scattered());
        orderings(folder.path(), &model, &[which]);
    }
}

#[test]
fn orderings_are_suffixes_on_the_state() {
    let Some(model) = model("qwen3-tiny-Q8_0") else { return };
    let folder = place(&scattered());
    let folder = folder.path();
    orderings(folder, &model, &[ROTATIONS, ALL, REVERSE]);
    let sure = score(folder, &model, "--orderings adaptive --confidence 1", "sure");
    for (a, b) in sure.iter().zip(read(folder, "rotations")) {
        assert_eq!((&a["orderings"], &a["combined"]), (&b["orderings"], &b["combined"]));
    }
    let some = score(folder, &model, "--orderings adaptive --confidence 0.6", "some");
    for (a, b) in some.iter().zip(read(folder, "rotations")) {
        let (read, all) = (a["orderings"].as_array().unwrap(), b["orderings"].as_array().unwrap());
        assert!(read.len() >= 2 && read[..] == all[..read.len()]);
        assert_eq!(a["combined"]["of"], b["combined"]["of"]);
    }
    // One case by hand.
    let ask = "ask --gguf MODEL --prompt prompt --state s --question q --option a=1 --option b=2 --option c=3 --orderings rotations";
    let output = semif(folder, &model, &format!("{ask} --json"));
    let asked: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((asked["orderings"].as_array().map(Vec::len), asked["combined"]["of"].as_u64()), (Some(3), Some(3)));
    let shown = semif(folder, &model, ask);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("combined from 3 of 3 orders"));
}

#[test]
fn too_many_options_for_all_orderings_are_refused_by_row() {
    let Some(model) = model("qwen3-tiny-Q8_0") else { return };
    let folder = place(&[row("four", &json!("s"), "q", 4), row("five", &json!("s"), "q", 5)]);
    let command = "score --gguf MODEL --prompt prompt --input rows --output out --orderings all";
    let refused = semif(folder.path(), &model, command);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        refused.status.code() == Some(2) && said.contains("(id \"five\")") && said.contains("at most 4 options, this row has 5"),
        "{said}"
    );
    let skipped = semif(folder.path(), &model, &format!("{command} --skip-invalid"));
    assert_eq!(skipped.status.code(), Some(5));
    assert_eq!(read(folder.path(), "out")[0]["orderings"].as_array().map(Vec::len), Some(24));
    for bad in ["0.5", "1.5", "nan", "-1"] {
        let refused =
            semif(folder.path(), &model, &format!("score --gguf x --input rows --output y --orderings adaptive --confidence={bad}"));
        assert_eq!(refused.status.code(), Some(2), "{bad}");
    }
}

/// Endings that tempt a tokenizer to merge them with what follows the state in the payload, or a cache to cut in the wrong place.
fn endings() -> Vec<String> {
    let mut endings: Vec<String> = (' '..='~').map(String::from).collect();
    let more = [
        "\\",
        "\\\\",
        "\"",
        "\\\"",
        "\n",
        "\r\n",
        "\t",
        "\u{0}",
        "\u{7f}",
        "\u{85}",
        "\u{2028}",
        "\u{feff}",
        ");",
        "};",
        "]}",
        "\"}",
        "', '",
        "\", \"",
        "}}}",
        "]]",
        "))",
        "漢",
        "漢字",
        "。",
        "한글",
        "ไทย",
        "é",
        "e\u{301}",
        "🙂",
        "👩\u{200d}👩\u{200d}👧",
        "🇩🇪",
        "\u{fffd}",
        "  ",
        "<|im_end|>",
        "</think>",
    ];
    endings.extend(more.map(String::from));
    // 200 random characters out of all planes.
    let mut state = 0x2545_f491_4f6c_dd1du64;
    while endings.len() < 95 + more.len() + 200 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let limit = [0x250, 0x3000, 0xffff, 0x10ffff][(state >> 60) as usize % 4];
        endings.extend(char::from_u32((state >> 20) as u32 % limit).map(String::from));
    }
    endings
}

#[test]
fn no_ending_of_a_state_breaks_a_prefix() {
    let Some(model) = model("qwen3-tiny-Q8_0") else { return };
    let states: Vec<Value> = endings().iter().map(|end| json!(format!("ab{end}"))).collect();
    // Questions that start alike and differ at once.
    let rows: Vec<Value> = (0..2)
        .flat_map(|q| states.iter().map(move |s| (q, s)))
        .zip(0..)
        .map(|((q, s), i)| row(&format!("r{i}"), s, ["q", "\"q\""][q], 2))
        .collect();
    let folder = place(&rows);
    let shared = score(folder.path(), &model, "", "shared");
    let direct = score(folder.path(), &model, "--mode direct", "direct");
    for (a, b) in shared.iter().zip(&direct) {
        assert_eq!(numbers(a), numbers(b));
        assert_eq!(a["serving_config"]["mode"], "shared", "{a}");
    }
    assert_eq!(shared.len(), rows.len());
}

/// The same with a vocabulary that merges an ending with what follows it: the tokens of a real tokenizer, modulo those of a tiny model.
#[test]
fn no_ending_breaks_a_prefix_where_tokens_merge() {
    let (Some(real), Some(tiny)) = (model("smollm2"), model("qwen3-tiny-Q4_0")) else { return };
    let metadata = block_on(Gguf::read_metadata(&FileSource::open(&real).unwrap())).unwrap();
    let text = TextModel::from_gguf(&metadata).unwrap();
    let wording = Wording::from_json(PROMPT.as_bytes()).unwrap();
    let prompt = |end: &str, question: &str| -> Option<Vec<u32>> {
        let options = ["a", "b"].map(|id| Choice { id: id.into(), description: id.into() }).into();
        let row = Row::new("r", Json::String(format!("ab{end}")), question, options).unwrap();
        // This vocabulary lacks tokens for some bytes.
        Some(text.chat_prompt(&wording.system, &wording.payload(&row)).ok()?.tokens.iter().map(|id| id % 512).collect())
    };
    // Questions that start alike and differ at once, and one that goes on with the quote that ends the state.
    let questions = ["q", "\"q\"", "\", \""];
    // Half of the endings: forward passes take their time on a software adapter.
    let states: Vec<Vec<Vec<u32>>> =
        endings().iter().step_by(2).filter_map(|end| questions.iter().map(|question| prompt(end, question)).collect()).collect();
    assert!(states.len() > 120, "{}", states.len());
    let groups: Vec<Group<'_>> = states
        .iter()
        .map(|prompts| {
            let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
            Group { prefix: shared_prefix(&prompts), prompts }
        })
        .collect();
    // Endings merge in different ways: the kept prefixes are of several lengths beyond the state's own.
    let lengths: std::collections::BTreeSet<usize> = groups.iter().map(|g| g.prefix).collect();
    assert!(lengths.len() > 3, "{lengths:?}");
    let gpu = block_on(Gpu::open(&GpuOptions { default_limits: true, ..GpuOptions::default() })).unwrap();
    let file = MemorySource::new("tiny", std::fs::read(&tiny).unwrap());
    let mut go = || ControlFlow::Continue(());
    let mut engine = block_on(Engine::load(&gpu, &file, &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))).unwrap();
    let labels: Vec<u32> = (32..40).collect();
    let ask = SharedAsk { labels: labels.clone(), ..SharedAsk::default() };
    for some in groups.chunks(32) {
        let read = block_on(engine.read_groups(some, &ask, &mut go)).unwrap();
        for (g, (group, readings)) in some.iter().zip(&read.readings).enumerate() {
            // One of the questions by itself.
            let i = g % questions.len();
            let direct = block_on(engine.logits(group.prompts[i], &Ask { labels: labels.clone(), ..Ask::default() })).unwrap();
            let bits = |logits: &[f32]| logits.iter().map(|l| l.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&readings[i].labels), bits(&direct.labels), "{:?} after {}", group.prompts[i], group.prefix);
        }
    }
}
