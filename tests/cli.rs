//! The program from the outside: arguments, exit codes, files, interruption. Model runs use a synthetic model of 4 MB.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The synthetic model; `./test` makes it.
fn model() -> PathBuf {
    let folder = std::env::var_os("SEMIF_TEST_MODELS").map(PathBuf::from).unwrap_or_else(|| {
        let cache = std::env::var_os("SEMIF_CACHE").map(PathBuf::from).unwrap_or_else(|| {
            let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
            std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("semif")
        });
        cache.join("models")
    });
    let path = folder.join("qwen3-tiny-Q8_0.gguf");
    assert!(path.is_file(), "{} is missing: ./test makes it, or set SEMIF_TEST_MODELS", path.display());
    path
}

/// A folder of its own for each test.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: &str) -> PathBuf {
        std::fs::write(self.path(name), content).expect("written");
        self.path(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("readable")
    }

    /// Runs `semif` here. Arguments are split at spaces; `MODEL` stands for the model's path.
    fn semif(&self, arguments: &str) -> Ended {
        self.command(arguments).output().expect("semif starts").into()
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semif"));
        command.current_dir(self.0.path()).stdin(Stdio::null());
        for argument in arguments.split_whitespace() {
            match argument {
                "MODEL" => command.arg(model()),
                other => command.arg(other),
            };
        }
        command
    }
}

struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Ended {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

impl Ended {
    #[track_caller]
    fn expect(self, code: i32, parts: &[&str]) -> Ended {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.out, self.err);
        for part in parts {
            assert!(self.err.contains(part), "stderr lacks {part:?}:\n{}", self.err);
        }
        self
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}", self.out))
    }
}

fn row(id: &str, state: &str) -> String {
    format!(
        r#"{{"id":"{id}","state":"{state}","question":"q","options":[{{"id":"y","description":"yes"}},{{"id":"n","description":"no"}}]}}"#
    )
}

/// Short instructions: the synthetic vocabulary has little more than bytes.
const PROMPT: &str = r#"{"version":"test-v1","system":"Answer."}"#;

#[test]
fn arguments_are_checked() {
    let place = Place::new();
    place.semif("").expect(2, &["Usage"]);
    place.semif("frobnicate").expect(2, &["frobnicate"]);
    place.semif("score --gguf m").expect(2, &["--input", "--output"]);
    place.semif("logits --gguf m --tokens 1,x").expect(2, &["--tokens"]);
    place.semif("generate --gguf m --text x --max-new 0").expect(2, &["--max-new"]);
    place.semif("generate --gguf m --text x --max-tokens 4294967295").expect(2, &["--max-tokens"]);
    place.semif("tokenize --gguf m --text x --plain --control").expect(2, &["--plain"]);
    let help = place.semif("--help").expect(0, &[]);
    assert!(help.out.contains("130  interrupted") && help.out.contains("score"), "{}", help.out);
    for command in ["score", "ask", "compare", "logits", "generate", "tokenize", "inspect", "doctor"] {
        let help = place.semif(&format!("{command} --help")).expect(0, &[]);
        assert!(help.out.contains("Example"), "{command} has no example");
    }
}

#[test]
fn tiers_that_the_adapter_lacks_are_refused_by_name() {
    let place = Place::new();
    place.write("rows", &row("a", "s"));
    // The software adapter has no such matrices.
    place.semif("score --gguf absent --input rows --output out --precision tensor").expect(2, &["tensor"]);
    place.semif("logits --gguf absent --tokens 1 --precision tensor").expect(2, &["tensor", "--precision exact"]);
    place.semif("ask --gguf absent --state s --question q --option a=b --option c=d --precision half").expect(2, &["half"]);
}

#[test]
fn bad_rows_are_all_listed_before_a_model_is_opened() {
    let place = Place::new();
    let text = [&row("good", "s"), "{", &row("bad", ""), "", &row("good", "t"), &row("late", "u").replace("\"q\"", "7")].join("\r\n");
    place.write("rows", &text);
    let ended = place.semif("score --gguf absent.gguf --input rows --output out").expect(
        2,
        &[
            "4 of 5 rows",
            "line 2: not JSON",
            "line 3 (id \"bad\"): `state` is empty",
            "line 5 (id \"good\"): `id` is already used on line 1",
            "line 6 (id \"late\"): `question` must be a string",
        ],
    );
    assert!(!ended.err.contains("absent.gguf"), "{}", ended.err);
    assert!(!place.path("out").exists());
    place.write("empty", "\n \r\n");
    place.semif("score --gguf absent.gguf --input empty --output out").expect(2, &["no rows"]);
    place.semif("score --gguf absent.gguf --input nowhere --output out").expect(2, &["nowhere"]);
    place.write("good", &row("a", "s"));
    place.semif("score --gguf absent.gguf --input good --output out").expect(3, &["absent.gguf", "no such file"]);
    assert!(!place.path("out").exists());
}

#[test]
fn outputs_are_never_overwritten() {
    let place = Place::new();
    place.write("rows", &row("a", "s"));
    place.write("precious", "precious");
    place.semif("score --gguf absent --input rows --output precious").expect(2, &["never overwritten"]);
    place.semif("score --gguf absent --input rows --output rows --resume").expect(2, &["same file"]);
    place.semif("score --gguf absent --input rows --output ./rows").expect(2, &["same file"]);
    place.semif("score --gguf absent --input rows --output no/such/out").expect(2, &["folder no/such does not exist"]);
    place.semif("score --gguf absent --input rows --output .").expect(2, &["is a folder"]);
    place.semif("score --gguf absent --input rows --output -").expect(2, &["name of a file"]);
    place.semif("score --gguf MODEL --input rows --output /dev/zero --resume").expect(2, &["not a plain file"]);
    place.semif("score --gguf MODEL --input rows --output precious --resume").expect(2, &["is not the beginning"]);
    assert_eq!((place.read("precious").as_str(), place.read("rows")), ("precious", row("a", "s")));
}

#[test]
fn model_files_are_checked() {
    let place = Place::new();
    place.write("text.gguf", "not a model at all");
    let whole = std::fs::read(model()).unwrap();
    std::fs::write(place.path("cut.gguf"), &whole[..whole.len() / 2]).unwrap();
    for command in ["inspect", "tokenize --text x --gguf", "logits --tokens 1 --gguf", "generate --text x --gguf"] {
        place.semif(&format!("{command} text.gguf")).expect(3, &["text.gguf", "not a GGUF file"]);
        // The vocabulary stands before the tensors, which is all that tokenize reads.
        if !command.starts_with("tokenize") {
            place.semif(&format!("{command} cut.gguf")).expect(3, &["cut.gguf"]);
        }
        place.semif(&format!("{command} .")).expect(3, &["not a file"]);
    }
}

#[test]
fn tokenize_and_inspect() {
    let place = Place::new();
    let ids = |arguments: &str| place.semif(&format!("tokenize --gguf MODEL {arguments}")).expect(0, &[]).json();
    place.write("dash", "--help");
    assert_eq!(ids("--text --help"), ids("--text @dash"));
    let control = ids("--text <|im_start|> --control");
    assert_eq!(control.as_array().map(Vec::len), Some(1), "{control}");
    assert!(ids("--text <|im_start|>").as_array().unwrap().len() > 1);
    assert_eq!(place.semif("tokenize --gguf MODEL --text=").expect(0, &[]).out, "[]\n");

    let shown = place.semif(&format!("inspect {}", model().display())).expect(0, &[]).out;
    for part in ["qwen3", "Q8_0", "GPU memory", "vocabulary", "block_count"] {
        assert!(shown.contains(part), "{shown}");
    }
    let info = place.semif(&format!("inspect --json {}", model().display())).expect(0, &[]).json();
    assert_eq!((info["architecture"].as_str(), info["runs"].as_bool()), (Some("qwen3"), Some(true)));
    assert!(info["gpu_bytes"].as_u64() > Some(4_000_000), "{}", info["gpu_bytes"]);
}

/// What cannot run is shown all the same, with the reason at the end and in the exit code.
#[test]
fn inspect_shows_what_cannot_run() {
    use semif::gguf::{TensorType, Value as Meta, testing::Writer};
    let place = Place::new();
    let writer = |architecture: &str| {
        let vector = |w: Writer, name: &str| w.zeros(name, TensorType::F32, &[32]);
        let w = Writer::default().text("general.architecture", architecture).text("general.name", "Some model");
        vector(vector(w.entry(&format!("{architecture}.block_count"), Meta::U32(7)), "token_embd.weight"), "output_norm.weight")
    };
    let mut mixed = writer("qwen3").zeros("blk.0.ffn_up.weight", TensorType::Q4_K, &[256, 2]);
    // 136 bytes are a block of IQ4_XS, with which the rows need not agree here.
    for (name, id) in [("blk.0.attn_q.weight", 23), ("blk.0.attn_k.weight", 23), ("blk.0.attn_v.weight", 99)] {
        mixed = mixed.zeros(name, TensorType::F32, &[34]);
        mixed.tensors.last_mut().unwrap().type_id = id;
    }
    std::fs::write(place.path("mixed.gguf"), mixed.build()).unwrap();
    std::fs::write(place.path("gemma.gguf"), writer("gemma3").build()).unwrap();
    let mut both = writer("gemma3");
    both.tensors[0].type_id = 20;
    std::fs::write(place.path("both.gguf"), both.build()).unwrap();
    for (file, parts, why) in [
        (
            "mixed",
            &["qwen3", "Some model", "block_count", "6, ", "Q4_K", "IQ4_XS     2 tensors, ", ", not supported", "type 99"][..],
            "no kernels for IQ4_XS, type 99; take",
        ),
        ("gemma", &["gemma3", "Some model", "F32        2 tensors, 256 bytes\n"], "\"gemma3\" is not supported"),
        (
            "both",
            &["gemma3", "IQ4_NL     1 tensors, 128 bytes, not supported"],
            "\"gemma3\" is not supported; supported are qwen2, qwen3, llama and qwen35; there are no kernels for IQ4_NL",
        ),
    ] {
        let shown = place.semif(&format!("inspect {file}.gguf")).expect(3, &[]).out;
        for part in parts {
            assert!(shown.contains(part), "{file} lacks {part}:\n{shown}");
        }
        let last = shown.lines().last().unwrap();
        assert!(last.trim_start().starts_with("does not run") && last.contains(why), "{file}: {last}");
        let info = place.semif(&format!("inspect --json {file}.gguf")).expect(3, &[]).json();
        assert_eq!((info["runs"].as_bool(), info["problem"].as_str().unwrap().contains(why)), (Some(false), true), "{info}");
    }
    let info = place.semif("inspect --json mixed.gguf").expect(3, &[]).json();
    let types = serde_json::json!({"tensors": 2, "bytes": 320, "supported": false});
    assert_eq!(info["tensor_types"]["IQ4_XS"], types, "{info}");
    assert_eq!(info["tensors"][4]["type"], "IQ4_XS");
    // Nothing else takes such a file.
    place.semif("logits --tokens 1 --gguf mixed.gguf").expect(3, &["IQ4_XS", "not supported"]);
    let whole = std::fs::read(place.path("mixed.gguf")).unwrap();
    std::fs::write(place.path("cut.gguf"), &whole[..whole.len() - 700]).unwrap();
    place.semif("inspect cut.gguf").expect(3, &["truncated"]);
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A result without what a clock decides.
fn untimed(mut row: Value) -> Value {
    for key in ["forward_seconds", "total_seconds"] {
        row.as_object_mut().unwrap().remove(key);
    }
    row
}

#[test]
fn rows_are_decided_and_resumed() {
    let place = Place::new();
    place.write("prompt", PROMPT);
    place.write("rows", &[row("a", "one"), row("b", "two\u{2028}"), row("c", "three")].join("\n"));
    let score = "score --gguf MODEL --prompt prompt --mass --input rows --output";
    place.semif(&format!("{score} out")).expect(0, &["3 rows decided"]);
    let whole = place.read("out");
    let rows = lines(&whole);
    assert_eq!(rows.iter().map(|r| r["id"].as_str().unwrap()).collect::<Vec<_>>(), ["a", "b", "c"]);
    for row in &rows {
        let sum: f64 = row["probabilities"].as_array().unwrap().iter().map(|p| p.as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-12);
        let mass = row["allowed_token_mass"].as_f64().unwrap();
        assert!(mass > 0.0 && mass <= 1.0, "{mass}");
        assert_eq!(row["model"]["sha256"].as_str().map(str::len), Some(64));
        assert_eq!(row["serving_config"]["precision"], "exact");
        assert_eq!(row["prompt_version"], "test-v1");
    }
    // Killed in the middle of the second row.
    let first = whole.find('\n').unwrap() + 1;
    place.write("out2", &whole[..first + 100]);
    place.semif(&format!("{score} out2")).expect(2, &["never overwritten", "--resume"]);
    place.semif(&format!("{score} out2 --resume")).expect(0, &["1 of 3 rows are in out2 already", "2 rows decided"]);
    let again = lines(&place.read("out2"));
    assert_eq!(again.len(), 3);
    for (a, b) in again.into_iter().zip(rows.clone()) {
        assert_eq!(untimed(a), untimed(b));
    }
    place.semif(&format!("{score} out2 --resume")).expect(0, &["nothing was left"]);
    // Another method, another prompt, another input.
    place.semif("score --gguf MODEL --prompt prompt --input rows --output out2 --resume").expect(2, &["--mass"]);
    place.write("prompt", &PROMPT.replace("Answer", "Reply"));
    place.semif(&format!("{score} out2 --resume")).expect(2, &["line 1", "another prompt text"]);
    place.write("prompt", PROMPT);
    place.write("rows", &[row("a", "one"), row("x", "two")].join("\n"));
    place.semif(&format!("{score} out2 --resume")).expect(2, &["line 2", "\"b\""]);

    // The same case by hand gives the same bits.
    let asked = place.semif("ask --gguf MODEL --prompt prompt --mass --state one --question q --option y=yes --option n=no --json");
    let asked = asked.expect(0, &[]).json();
    for key in ["option_logits", "probabilities", "prompt_sha256", "allowed_token_mass", "full_vocab_argmax_id", "input_tokens"] {
        assert_eq!(asked[key], rows[0][key], "{key}");
    }
    // And standing input too.
    let mut child = place
        .command("score --gguf MODEL --prompt prompt --input - --output out3")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), row("a", "one").as_bytes()).unwrap();
    Ended::from(child.wait_with_output().unwrap()).expect(0, &["1 row decided"]);
    assert_eq!(lines(&place.read("out3"))[0]["option_logits"], rows[0]["option_logits"]);
}

#[test]
fn refused_rows_are_listed_or_skipped() {
    let place = Place::new();
    place.write("prompt", PROMPT);
    let long = "x y z ".repeat(200);
    place.write("rows", &[row("long", &long), "nonsense".into(), row("b", "s"), row("longer", &long)].join("\n"));
    let score = "score --gguf MODEL --prompt prompt --max-tokens 300 --input rows --output out";
    place.semif(score).expect(2, &["3 of 4 rows", "line 1 (id \"long\")", "line 2: not JSON", "line 4 (id \"longer\")"]);
    place.write("rows2", &[row("long", &long), row("b", "s"), row("longer", &long)].join("\n"));
    let over = score.replace("--input rows", "--input rows2");
    place.semif(&over).expect(2, &["2 of 3 rows", "line 1 (id \"long\")", "line 3 (id \"longer\")", "budget of 300"]);
    assert!(!place.path("out").exists());
    place.semif(&format!("{score} --skip-invalid")).expect(5, &["line 2", "(id \"longer\")", "1 row decided", "3 refused"]);
    let rows = lines(&place.read("out"));
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[0]["id"], "long");
    assert!(rows[0]["error"].as_str().unwrap().contains("budget of 300"));
    assert!(rows[1]["id"].is_null() && rows[1]["error"].as_str().unwrap().contains("not JSON"));
    assert_eq!(rows[1].as_object().unwrap().len(), 2);
    assert!(rows[2]["probabilities"].is_array());
    place.semif(&format!("{score} --skip-invalid --resume")).expect(5, &["nothing was left"]);
}

#[test]
fn ctrl_c_keeps_what_is_done() {
    let place = Place::new();
    place.write("prompt", PROMPT);
    let rows: Vec<String> = (0..400).map(|i| row(&format!("r{i}"), "state")).collect();
    place.write("rows", &rows.join("\n"));
    let score = "score --gguf MODEL --prompt prompt --input rows --output out";
    let child = place.command(score).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    let written = |place: &Place| std::fs::read_to_string(place.path("out")).map_or(0, |text| text.lines().count());
    while written(&place) < 2 {
        assert!(begun.elapsed() < Duration::from_secs(300), "no rows after five minutes");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    Ended::from(child.wait_with_output().unwrap()).expect(130, &["interrupted", "of 400 rows are in out", "--resume"]);
    let text = place.read("out");
    let kept = text.lines().count();
    assert!((2..400).contains(&kept) && text.ends_with('\n'));
    for (i, line) in lines(&text).iter().enumerate() {
        assert_eq!(line["id"], format!("r{i}"));
    }
    // Going on with a shorter input would be another file's result; with the same one it goes on.
    place.write("rows", &rows[..kept + 1].join("\n"));
    place.semif(&format!("{score} --resume")).expect(0, &["1 row decided"]);
    assert_eq!(place.read("out").lines().count(), kept + 1);
}

#[test]
fn logits_and_generation() {
    let place = Place::new();
    place.write("lists", "[[1, 2, 3], [4]]");
    let out = place.semif("logits --gguf MODEL --tokens-file lists --labels 7,5 --top 3 --full").expect(0, &[]).out;
    let rows = lines(&out);
    assert_eq!((rows[0]["n"].as_u64(), rows[1]["n"].as_u64(), rows.len()), (Some(3), Some(1), 2));
    for row in &rows {
        let all = row["logits"].as_array().unwrap();
        // Labels and the vocabulary are summed by different kernels, so the last bits may differ.
        for (i, id) in [7, 5].into_iter().enumerate() {
            assert!((row["labels"][i].as_f64().unwrap() - all[id].as_f64().unwrap()).abs() < 1e-5, "{}", row["labels"]);
        }
        assert_eq!(row["top"][0][0], row["argmax"]);
        assert_eq!(row["top"][0][1], all[row["argmax"].as_u64().unwrap() as usize]);
        assert_eq!(row["top"].as_array().unwrap().len(), 3);
        let lse = all.iter().map(|l| l.as_f64().unwrap().exp()).sum::<f64>().ln();
        assert!((lse - row["lse"].as_f64().unwrap()).abs() < 1e-4);
    }
    assert!(lines(&place.semif("logits --gguf MODEL --tokens 1").expect(0, &[]).out)[0].get("logits").is_none());
    place.semif("logits --gguf MODEL --tokens 1,999999").expect(2, &["999999"]);
    place.semif("logits --gguf MODEL --tokens 1 --labels 512").expect(2, &["--labels", "512"]);
    place.semif("logits --gguf MODEL --tokens 1,2,3 --max-tokens 2").expect(2, &["budget of 2"]);
    place.semif("logits --gguf MODEL --tokens 1 --adapter no-such-gpu").expect(2, &["no-such-gpu"]);

    let reply = place.semif("generate --gguf MODEL --text Hello --max-new 5 --ignore-eos --json").expect(0, &[]).json();
    let tokens = reply["tokens"].as_array().unwrap();
    assert_eq!((tokens.len(), reply["stopped"].is_null()), (5, true));
    // The first token is the prompt's most probable one.
    let prompt = place.semif("tokenize --gguf MODEL --text Hello --plain").expect(0, &[]).json();
    let ids: Vec<String> = prompt.as_array().unwrap().iter().map(Value::to_string).collect();
    let first = place.semif(&format!("logits --gguf MODEL --tokens {}", ids.join(","))).expect(0, &[]).json();
    assert_eq!(tokens[0], first["argmax"]);
    place.semif("generate --gguf MODEL --text Hello --max-new 5000").expect(2, &["budget of 4096"]);
    place.semif("generate --gguf MODEL --text= --max-new 5").expect(2, &["nothing to continue"]);
}

#[test]
fn cases_by_hand() {
    let place = Place::new();
    place.write("prompt", PROMPT);
    place.write("state", "from a file\n");
    let ask = |more: &str| place.semif(&format!("ask --gguf MODEL --prompt prompt --question q --option y=yes {more}"));
    ask("--state s --option n").expect(2, &["number 2 has no `=`"]);
    ask("--state s").expect(2, &["at least 2 options"]);
    ask("--option n=no --state @nowhere").expect(2, &["nowhere"]);
    ask("--option n=no --state-json {").expect(2, &["--state-json is not JSON"]);
    ask("--option n=no --state s --max-tokens 20").expect(2, &["budget of 20"]);
    let shown = ask("--option n=no --state @state").expect(0, &[]).out;
    assert!(shown.contains("> ") && shown.contains('%') && shown.contains("not calibrated") && !shown.contains('\u{1b}'), "{shown}");
    let by_file = ask("--option n=no --state @state --json").expect(0, &[]).json();
    place.write("state", "from a file");
    assert_eq!(by_file["prompt_sha256"], ask("--option n=no --state @state --json").expect(0, &[]).json()["prompt_sha256"]);
    place.write("prompt", "{\"version\": \"v\"}");
    ask("--option n=no --state s").expect(2, &["--prompt", "`system` is missing"]);
}

#[test]
fn both_ways_are_compared() {
    let place = Place::new();
    place.write("prompt", PROMPT);
    let compare = "compare --gguf MODEL --prompt prompt --state s --question q --option y=yes --option n=no";
    // The refusal says how long the prompt is; a little more leaves room for a few tokens of nonsense.
    let refused = place.semif(&format!("{compare} --max-tokens 300")).expect(2, &["generation prompt", "budget of 300"]);
    let needed = refused.err.split("has ").nth(1).and_then(|rest| rest.split(' ').next()).and_then(|n| n.parse::<u32>().ok());
    let budget = needed.expect("the prompt's length") + 20;
    let report = place.semif(&format!("{compare} --max-tokens {budget} --json")).expect(0, &[]).json();
    // A synthetic model writes nonsense: the point is that it is timed and reported as such.
    assert_eq!((report["generated"]["valid"].as_bool(), report["same_top"].is_null()), (Some(false), true));
    assert!(!report["generated"]["problems"].as_array().unwrap().is_empty());
    assert!(report["ratio"].as_f64() > Some(0.0) && report["direct"]["probabilities"].is_array());
}

#[test]
fn a_closed_pipe_is_no_panic() {
    let place = Place::new();
    let mut child = place.command("logits --gguf MODEL --tokens 1 --full").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let ended = Ended::from(child.wait_with_output().unwrap());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(!ended.err.contains("panicked"), "{}", ended.err);
}

/// Messages that nobody can read are no reason for another exit code.
#[test]
#[cfg(target_os = "linux")]
fn a_full_stderr_is_no_panic() {
    let place = Place::new();
    place.write("nope.gguf", "this is no model");
    let full = || Stdio::from(std::fs::File::create("/dev/full").expect("/dev/full"));
    let ended: Ended = place.command("inspect nope.gguf").stderr(full()).output().expect("semif starts").into();
    assert_eq!(ended.code, Some(3), "{}", ended.out);
}

/// `./run ...` of this checkout, as far as it goes without building anything.
#[cfg(unix)]
fn script(arguments: &[&str]) -> Ended {
    let run = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("run");
    Command::new(run).args(arguments).stdin(Stdio::null()).output().expect("./run starts").into()
}

#[test]
#[cfg(unix)]
fn run_web_checks_its_port_before_it_builds() {
    script(&["web", "--prot"]).expect(2, &["does not know \"--prot\""]);
    script(&["web", "--port"]).expect(2, &["needs a number from 1 to 65535"]);
    for port in ["abc", "0", "65536", "99999999999", "-1", ""] {
        script(&["web", "--port", port]).expect(2, &["--port takes a number from 1 to 65535"]);
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("bound").port().to_string();
    script(&["web", "--port", &port]).expect(2, &[&port, "cannot be used"]);
}

/// What lib.sh makes of the two variables: the model folder of the program, and that of the scripts.
#[test]
#[cfg(unix)]
fn scripts_and_program_agree_on_the_model_folder() {
    let folders = |cache: Option<&str>, models: Option<&str>| {
        let mut bash = Command::new("bash");
        bash.args(["-c", ". scripts/lib.sh; echo \"${SEMIF_MODELS:-} $SEMIF_FILES\""]).current_dir(env!("CARGO_MANIFEST_DIR"));
        bash.env("HOME", "/h").env_remove("XDG_CACHE_HOME").env_remove("SEMIF_CACHE").env_remove("SEMIF_MODELS").stdin(Stdio::null());
        bash.envs(cache.map(|path| ("SEMIF_CACHE", path))).envs(models.map(|path| ("SEMIF_MODELS", path)));
        let ended = Ended::from(bash.output().expect("bash starts"));
        ended.out.trim_end().to_owned()
    };
    assert_eq!(folders(None, None), " /h/.cache/semif/models");
    assert_eq!(folders(Some("/c"), None), "/c/models /c/models");
    assert_eq!(folders(Some("/c"), Some("/m")), "/m /m");
    assert_eq!(folders(None, Some("/m")), "/m /m");
}

#[test]
#[cfg(target_os = "linux")]
fn a_shell_without_a_desktop_hears_no_complaint() {
    let place = Place::new();
    let ended = place.command("logits --gguf MODEL --tokens 1,2").env_remove("XDG_RUNTIME_DIR").env_remove("NODEVICE_SELECT").output();
    let ended = Ended::from(ended.expect("semif starts")).expect(0, &[]);
    assert_eq!(ended.err, "");
}
