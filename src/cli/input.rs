//! Reading what the user names: texts, files, rows, cases.

use std::io::Read as _;
use std::path::Path;

use crate::decision::{Choice, Json, Row, Wording};

use super::args::{CaseArgs, StateArgs};
use super::fail::Failure;

/// The bytes of a file, or of stdin for `-`.
pub fn read_bytes(path: &Path, what: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| ())
    } else {
        std::fs::read(path).map(|read| bytes = read)
    };
    read.map_err(|e| Failure::input(format!("{what} {} cannot be read: {e}", path.display())))?;
    Ok(bytes)
}

/// A text argument: itself, or the content of a file for `@FILE` (`@-` is stdin, `@@...` a text that starts with `@`).
/// A byte order mark is no part of the text.
pub fn text_argument(argument: &str, name: &str) -> Result<String, Failure> {
    let Some(rest) = argument.strip_prefix('@') else {
        return Ok(argument.to_owned());
    };
    if rest.starts_with('@') {
        return Ok(rest.to_owned());
    }
    if rest.is_empty() {
        return Err(Failure::input(format!("{name}: @ needs a file name behind it; a text that is just @ is written @@")));
    }
    let bytes = read_bytes(Path::new(rest), name)?;
    let bytes = without_mark(&bytes);
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(e) => Err(Failure::input(format!("{name}: the file {rest} is not UTF-8 (byte {})", e.valid_up_to() + 1))),
    }
}

/// As [`text_argument`], without the line end that closes a text file.
fn case_text(argument: &str, name: &str) -> Result<String, Failure> {
    let mut text = text_argument(argument, name)?;
    if argument.starts_with('@') && text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

/// The wording to use: `--prompt FILE`, or this project's own.
pub fn wording(path: Option<&Path>) -> Result<Wording, Failure> {
    match path {
        None => Ok(Wording::default()),
        Some(path) => {
            Wording::from_file(&read_bytes(path, "--prompt")?).map_err(|e| Failure::input(format!("--prompt {}: {e}", path.display())))
        }
    }
}

/// The state that arguments describe.
pub fn state(args: &StateArgs) -> Result<Json, Failure> {
    match (&args.state, &args.state_json) {
        (_, Some(json)) => {
            let text = case_text(json, "--state-json")?;
            Json::parse(&text).map_err(|e| Failure::input(format!("--state-json is not JSON: {e}")))
        }
        (Some(text), None) => Ok(Json::String(case_text(text, "--state")?)),
        (None, None) => Err(Failure::input("--state or --state-json is needed")),
    }
}

/// The row that `ask` describes by arguments.
pub fn case(args: &CaseArgs) -> Result<Row, Failure> {
    row(state(&args.state)?, &args.question, &args.options)
}

/// One yes-or-no row for each criterion.
pub fn criteria(state: &Json, texts: &[String]) -> Result<Vec<Row>, Failure> {
    let option = |id: &str, description: &str| Choice { id: id.to_owned(), description: description.to_owned() };
    let row = |(i, text): (usize, &String)| {
        let question = case_text(text, "--criterion")?;
        let options = vec![option("yes", "Yes"), option("no", "No")];
        let bad = |problems: Vec<String>| Failure::input(format!("--criterion number {}: {}", i + 1, problems.join("; ")));
        Row::new(&format!("c{}", i + 1), state.clone(), &question, options).map_err(bad)
    };
    texts.iter().enumerate().map(row).collect()
}

/// A row of arguments; its id is `ask`.
pub fn row(state: Json, question: &str, choices: &[String]) -> Result<Row, Failure> {
    let question = case_text(question, "--question")?;
    let mut problems = Vec::new();
    let mut options = Vec::with_capacity(choices.len());
    for (index, option) in choices.iter().enumerate() {
        match option.split_once('=') {
            Some((id, description)) => options.push(Choice { id: id.to_owned(), description: description.to_owned() }),
            None => problems.push(format!("--option number {} has no `=`: write ID=DESCRIPTION", index + 1)),
        }
    }
    if problems.is_empty() {
        match Row::new("ask", state, &question, options) {
            Ok(row) => return Ok(row),
            Err(broken) => problems = broken,
        }
    }
    Err(Failure::input(problems.join("\n")))
}

/// Without the byte order mark that some editors put first.
fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes)
}

/// The sequences of `--tokens` or `--tokens-file`.
pub fn sequences(tokens: &[u32], file: Option<&Path>) -> Result<Vec<Vec<u32>>, Failure> {
    let Some(path) = file else {
        return Ok(vec![tokens.to_vec()]);
    };
    let bytes = read_bytes(path, "--tokens-file")?;
    let wrong = |why: String| {
        Failure::input(format!("--tokens-file {}: expected a JSON list of lists of token ids like [[1, 2], [3]]; {why}", path.display()))
    };
    let sequences: Vec<Vec<u32>> = serde_json::from_slice(without_mark(&bytes)).map_err(|e| wrong(e.to_string()))?;
    if sequences.is_empty() {
        return Err(wrong("the list is empty".to_owned()));
    }
    if let Some(empty) = sequences.iter().position(Vec::is_empty) {
        return Err(wrong(format!("list {} is empty", empty + 1)));
    }
    Ok(sequences)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(state: &str, options: &[&str]) -> CaseArgs {
        CaseArgs {
            state: StateArgs { state: Some(state.to_owned()), state_json: None, prompt: None },
            question: "q".to_owned(),
            options: options.iter().map(|o| (*o).to_owned()).collect(),
        }
    }

    #[test]
    fn cases() {
        let row = case(&args("-s", &["a=b=c", "d=e"])).unwrap();
        assert_eq!(row.state().as_str(), Some("-s"));
        assert_eq!(row.options()[0], Choice { id: "a".into(), description: "b=c".into() });
        let json = |text: &str, options: &[&str]| {
            let state = StateArgs { state: None, state_json: Some(text.into()), prompt: None };
            CaseArgs { state, ..args("", options) }
        };
        assert_eq!(case(&json("{\"a\": 1e5}", &["a=b", "d=e"])).unwrap().state().to_string(), "{\"a\": 100000.0}");
        for (bad, part) in [
            (args("s", &["a=b"]), "at least 2"),
            (args("s", &["a=b", "x"]), "number 2 has no `=`"),
            (args("", &["a=b", "c=d"]), "`state` is empty"),
            (args("s", &["a=b", "a=d"]), "same id"),
            (args("@/nonexistent/file", &["a=b", "c=d"]), "--state /nonexistent/file cannot be read"),
            (args("@", &["a=b", "c=d"]), "@@"),
            (json("nope", &["a=b", "c=d"]), "--state-json is not JSON"),
            (json("3", &["a=b", "c=d"]), "`state` must be"),
        ] {
            let failure = case(&bad).unwrap_err();
            assert!(failure.message.contains(part), "{}", failure.message);
        }
    }

    #[test]
    fn texts_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let at = format!("@{}", path.display());
        std::fs::write(&path, "\u{feff}é\n\r\n").unwrap();
        assert_eq!(text_argument(&at, "--text").unwrap(), "é\n\r\n");
        assert_eq!(case_text(&at, "--state").unwrap(), "é\n");
        assert_eq!(case_text("é\n", "--state").unwrap(), "é\n");
        assert_eq!(text_argument("@@home", "--text").unwrap(), "@home");
        std::fs::write(&path, b"\xff").unwrap();
        assert!(text_argument(&at, "--text").unwrap_err().message.contains("not UTF-8"));
    }

    #[test]
    fn sequence_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.json");
        std::fs::write(&path, "[[1,2],[3]]").unwrap();
        assert_eq!(sequences(&[], Some(&path)).unwrap(), [vec![1, 2], vec![3]]);
        std::fs::write(&path, "\u{feff}[[1, 2], [3]]\n").unwrap();
        assert_eq!(sequences(&[], Some(&path)).unwrap(), [vec![1, 2], vec![3]]);
        assert_eq!(sequences(&[7], None).unwrap(), [vec![7]]);
        for bad in ["[1,2]", "[]", "[[]]", "[[1],[]]", "[[-1]]", "[[1.5]]", "[[4294967296]]", "{}", "", "\u{feff}"] {
            std::fs::write(&path, bad).unwrap();
            assert!(sequences(&[], Some(&path)).unwrap_err().message.contains("--tokens-file"), "{bad}");
        }
    }
}
