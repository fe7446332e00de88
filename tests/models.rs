//! `semif models`, `semif pull` and `--model` as a user meets them: words, exit codes, what Ctrl-C leaves. The downloader's
//! own tests are in `src/hub/tests`.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const ID: &str = "qwen3-0.6b";
const BYTES: u64 = 639_446_688;

fn semif(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semif"));
    command.args(arguments).env("SEMIF_MODELS", folder).stdin(Stdio::null());
    command
}

fn run(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = semif(folder, arguments).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// The first model of `semif models --json`.
fn first(folder: &Path) -> Value {
    let (code, out, error) = run(folder, &["models", "--json"]);
    assert_eq!(code, Some(0), "{error}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["models"].as_array().unwrap().len(), 3);
    assert_eq!(report["folder"].as_str(), folder.to_str());
    report["models"][0].clone()
}

/// A server on this machine; `answer` gets each request's range.
fn server(answer: impl Fn(&mut TcpStream, u64, u64) -> std::io::Result<()> + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || {
                let lines = BufReader::new(stream.try_clone()?).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
                let range = lines.filter_map(|line| Some(line.to_ascii_lowercase().strip_prefix("range: bytes=")?.to_owned())).last();
                let (from, to) = range.as_deref().and_then(|range| range.split_once('-')).unwrap_or(("0", "0"));
                answer(&mut stream, from.parse().unwrap_or(0), to.parse().unwrap_or(0))
            });
        }
    });
    host
}

#[test]
fn nothing_is_here_and_the_list_says_how_to_get_it() {
    let dir = tempfile::tempdir().unwrap();
    let model = first(dir.path());
    assert_eq!((model["id"].as_str(), model["bytes"].as_u64(), model["cached"]["state"].as_str()), (Some(ID), Some(BYTES), Some("absent")));
    let (code, out, _) = run(dir.path(), &["models"]);
    assert_eq!(code, Some(0));
    for id in [ID, "minicpm5-2b", "qwen3.5-4b"] {
        assert!(out.contains(&format!("semif pull {id}")), "{out}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "looking leaves nothing behind");
}

#[test]
fn other_files_of_the_folder_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["b.gguf", "a.GGUF", "notes.txt", "c.gguf.part"] {
        std::fs::write(dir.path().join(name), [0; 1500]).unwrap();
    }
    std::fs::create_dir(dir.path().join("folder.gguf")).unwrap();
    let (code, out, _) = run(dir.path(), &["models"]);
    assert_eq!(code, Some(0));
    let others: Vec<&str> =
        out.lines().skip_while(|line| !line.contains("--gguf PATH")).skip(1).take_while(|line| !line.is_empty()).collect();
    let line = |name: &str| format!("      1 kB  {}", dir.path().join(name).display());
    assert_eq!(others, [line("a.GGUF"), line("b.gguf")], "{out}");
}

#[test]
fn mistakes_are_told_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let missing = server(|stream, _, _| stream.write_all(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"));
    let cases: [(&[&str], i32, &str); 7] = [
        (&["pull", "qwen9"], 2, "the models are qwen3-0.6b, minicpm5-2b and qwen3.5-4b"),
        (&["tokenize", "--text", "x", "--model", "qwen9"], 2, "`semif models` shows them"),
        (&["tokenize", "--text", "x", "--model", "./none.gguf"], 3, "there is no such file"),
        (&["tokenize", "--text", "x", "--model", ID, "--offline"], 3, "run `semif pull qwen3-0.6b` once"),
        (&["inspect", ID, "--offline"], 3, "639446688 bytes"),
        (&["pull", ID, "--mirror", "mirror.example"], 2, "https://mirror.example"),
        (&["pull", ID, "--mirror", &missing], 3, "does not exist (status 404)"),
    ];
    for (arguments, exit, words) in cases {
        let (code, out, error) = run(dir.path(), arguments);
        assert_eq!((code, out.as_str()), (Some(exit), ""), "{arguments:?}: {error}");
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
    let path = first(dir.path())["path"].as_str().unwrap().to_owned();
    std::fs::create_dir_all(Path::new(&path).parent().unwrap()).unwrap();
    std::fs::write(&path, "another file").unwrap();
    assert_eq!(first(dir.path())["cached"]["state"], "wrong");
    let (code, _, error) = run(dir.path(), &["tokenize", "--text", "x", "--model", ID, "--offline"]);
    assert!(code == Some(3) && error.contains("12 bytes in place of 639446688"), "{error}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    // Zeros, slowly: far from done when the first parts are.
    let host = server(|stream, from, to| {
        write!(stream, "HTTP/1.1 206 Part\r\nContent-Range: bytes {from}-{to}/{BYTES}\r\nContent-Length: {}\r\n\r\n", to + 1 - from)?;
        let block = vec![0; 1 << 20];
        for _ in 0..(to + 1 - from) >> 20 {
            stream.write_all(&block)?;
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    });
    let child = semif(dir.path(), &["pull", ID, "--mirror", &host]).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let kept = || first(dir.path())["cached"]["bytes"].as_u64().unwrap_or(0);
    let start = Instant::now();
    while kept() < 8 << 20 {
        assert!(start.elapsed() < Duration::from_secs(60), "no part was finished");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    assert_eq!((status.code(), stdout.len()), (Some(130), 0), "{stderr}");
    assert!(stderr.contains("what was fetched is kept"), "{stderr}");
    let model = first(dir.path());
    assert_eq!(model["cached"]["state"], "partial");
    assert!(!Path::new(model["path"].as_str().unwrap()).exists());
    // A second run goes on, and says from where.
    let mut second = semif(dir.path(), &["pull", ID, "--mirror", &host]).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(second.stderr.take().unwrap()).lines().map_while(Result::ok);
    let started = lines.into_iter().find(|line| line.contains("of it are here"));
    second.kill().unwrap();
    second.wait().unwrap();
    assert!(started.is_some());
}
