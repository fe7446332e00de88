//! Input rows: one JSON object a line, checked completely before anything is run.

use std::collections::HashMap;
use std::fmt;

use super::Json;

/// Fewest options of a row.
pub const MIN_OPTIONS: usize = 2;
/// Most options of a row: letters `A` to `T`.
pub const MAX_OPTIONS: usize = 20;

/// One option of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Names the option in results; never shown to the model.
    pub id: String,
    /// What the model reads.
    pub description: String,
}

/// A valid row. Only [`Row::new`] and [`read_rows`] make one, so whoever holds it need not check it again.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    id: String,
    question: String,
    state: Json,
    options: Vec<Choice>,
    extra: Vec<(String, Json)>,
    line: usize,
}

impl Row {
    /// Checks the parts of a row that did not come from a file.
    ///
    /// # Errors
    /// Every rule that is broken, one message each.
    pub fn new(id: &str, state: Json, question: &str, options: Vec<Choice>) -> Result<Row, Vec<String>> {
        let row = Row { id: id.to_owned(), question: question.to_owned(), state, options, extra: Vec::new(), line: 0 };
        let mut problems = Vec::new();
        if blank(id) {
            problems.push("`id` is empty".to_owned());
        }
        if blank(question) {
            problems.push("`question` is empty".to_owned());
        }
        check_state(&row.state, &mut problems);
        check_options(&row.options, &mut problems);
        if problems.is_empty() { Ok(row) } else { Err(problems) }
    }

    /// Unique in its file.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The criterion.
    pub fn question(&self) -> &str {
        &self.question
    }

    /// The evidence: a string, an object or an array, never empty.
    pub fn state(&self) -> &Json {
        &self.state
    }

    /// 2 to 20 options with distinct ids.
    pub fn options(&self) -> &[Choice] {
        &self.options
    }

    /// The same row with its options in another order: `order[position]` is the index of the option that goes there.
    /// Indexes out of range are left out, so give a permutation.
    pub fn reordered(&self, order: &[usize]) -> Row {
        let options = order.iter().filter_map(|i| self.options.get(*i).cloned()).collect();
        Row { options, ..self.clone() }
    }

    /// Every other key of the row (`label`, `family`, ...) as it stood; never shown to the model.
    pub fn extra(&self) -> &[(String, Json)] {
        &self.extra
    }

    /// 1-based line in the file; 0 for a row that is not from a file.
    pub fn line(&self) -> usize {
        self.line
    }

    /// `line 3 (id "x")`: how messages name a row.
    pub fn place(&self) -> String {
        place(self.line, Some(&self.id))
    }
}

/// A row that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    /// 1-based line in the file.
    pub line: usize,
    /// The row's id where it could be read.
    pub id: Option<String>,
    /// Everything that is wrong with it, never empty.
    pub problems: Vec<String>,
}

impl fmt::Display for BadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", place(self.line, self.id.as_deref()), self.problems.join("; "))
    }
}

/// One non-blank line of a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    Row(Row),
    Bad(BadRow),
}

/// All rows of a file in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowFile {
    pub entries: Vec<Entry>,
}

impl RowFile {
    /// The valid rows.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Row(row) => Some(row),
            Entry::Bad(_) => None,
        })
    }

    /// The refused rows.
    pub fn bad(&self) -> impl Iterator<Item = &BadRow> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Row(_) => None,
            Entry::Bad(bad) => Some(bad),
        })
    }
}

/// Reads JSON Lines: UTF-8, a byte order mark allowed, lines end in `\n` or `\r\n` and nothing else, blank lines are
/// skipped. A row that breaks a rule, or repeats the id of an earlier one, becomes a [`BadRow`] in its place.
pub fn read_rows(bytes: &[u8]) -> RowFile {
    if bytes.starts_with(&[0xFF, 0xFE]) || bytes.starts_with(&[0xFE, 0xFF]) {
        let problems = vec!["the file is UTF-16: save it as UTF-8".to_owned()];
        return RowFile { entries: vec![Entry::Bad(BadRow { line: 1, id: None, problems })] };
    }
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    let mut entries = Vec::new();
    let mut first_line: HashMap<String, usize> = HashMap::new();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r')) {
            continue;
        }
        let entry = match read_row(line, index + 1) {
            Ok(row) => match first_line.get(&row.id) {
                // Results are joined, and resumed, by id.
                Some(first) => {
                    let problems = vec![format!("`id` is already used on line {first}")];
                    Entry::Bad(BadRow { line: row.line, id: Some(row.id), problems })
                }
                None => {
                    first_line.insert(row.id.clone(), row.line);
                    Entry::Row(row)
                }
            },
            Err(bad) => {
                if let Some(id) = &bad.id {
                    first_line.entry(id.clone()).or_insert(bad.line);
                }
                Entry::Bad(bad)
            }
        };
        entries.push(entry);
    }
    RowFile { entries }
}

fn place(line: usize, id: Option<&str>) -> String {
    match (line, id) {
        (0, Some(id)) => format!("row {}", Json::from(id)),
        (line, Some(id)) => format!("line {line} (id {})", Json::from(id)),
        (line, None) => format!("line {line}"),
    }
}

fn blank(text: &str) -> bool {
    text.trim().is_empty()
}

fn read_row(line: &[u8], number: usize) -> Result<Row, BadRow> {
    let refuse = |problem: String| {
        let id = std::str::from_utf8(line).ok().and_then(id_of_broken);
        BadRow { line: number, id, problems: vec![problem] }
    };
    let text = std::str::from_utf8(line).map_err(|e| refuse(format!("not UTF-8 (byte {} of the line)", e.valid_up_to() + 1)))?;
    let value = Json::parse(text).map_err(|e| refuse(format!("not JSON: {e}{}", array_file_hint(text))))?;
    let Json::Object(members) = value else {
        let hint = array_file_hint(text);
        return Err(refuse(format!("a row is a JSON object, this is {}{hint}", value.kind())));
    };

    let mut problems = Vec::new();
    let (mut id, mut question, mut state, mut options) = (None, None, None, None);
    let mut extra = Vec::new();
    for (key, value) in members {
        match key.as_str() {
            "id" => id = Some(value),
            "question" => question = Some(value),
            "state" => state = Some(value),
            "options" => options = Some(value),
            _ => extra.push((key, value)),
        }
    }
    let id = take_text("id", id, &mut problems);
    let question = take_text("question", question, &mut problems);
    match &state {
        Some(state) => check_state(state, &mut problems),
        None => problems.push("`state` is missing".to_owned()),
    }
    let options = take_options(options, &mut problems);
    match (id, question, state, options) {
        (Some(id), Some(question), Some(state), Some(options)) if problems.is_empty() => {
            Ok(Row { id, question, state, options, extra, line: number })
        }
        (id, ..) => Err(BadRow { line: number, id, problems }),
    }
}

/// The id of a line that is no JSON (a NaN in the state, say): the string after a key `"id"` of the outermost object.
fn id_of_broken(text: &str) -> Option<String> {
    let (mut depth, mut rest) = (0, text);
    while let Some(at) = rest.find(['{', '}', '[', ']', '"']) {
        let token = rest.as_bytes()[at];
        rest = &rest[at..];
        if token != b'"' {
            depth += if matches!(token, b'{' | b'[') { 1 } else { -1 };
            rest = &rest[1..];
            continue;
        }
        let key = string_at(rest)?;
        rest = &rest[key.len()..];
        if depth == 1 && key == "\"id\"" {
            let value = string_at(rest.trim_start().strip_prefix(':')?.trim_start())?;
            return match Json::parse(value) {
                Ok(Json::String(id)) if !blank(&id) => Some(id),
                _ => None,
            };
        }
    }
    None
}

/// The string literal that a text starts with, quotes included.
fn string_at(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let mut at = 1;
    (bytes.first() == Some(&b'"')).then_some(())?;
    loop {
        match bytes.get(at)? {
            b'"' => return text.get(..=at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn array_file_hint(text: &str) -> &'static str {
    if text.trim_start().starts_with('[') {
        " (rows are JSON Lines, one object a line, not one JSON array)"
    } else if text.trim() == "{" {
        " (rows are JSON Lines: each object on a single line)"
    } else {
        ""
    }
}

/// A nonempty string, or a problem.
fn take_text(key: &str, value: Option<Json>, problems: &mut Vec<String>) -> Option<String> {
    match value {
        Some(Json::String(text)) if !blank(&text) => return Some(text),
        Some(Json::String(_)) => problems.push(format!("`{key}` is empty")),
        Some(other) => problems.push(format!("`{key}` must be a string, this is {}", other.kind())),
        None => problems.push(format!("`{key}` is missing")),
    }
    None
}

fn check_state(state: &Json, problems: &mut Vec<String>) {
    let empty = match state {
        Json::String(text) => blank(text),
        Json::Array(items) => items.is_empty(),
        Json::Object(members) => members.is_empty(),
        other => {
            problems.push(format!("`state` must be a string, an object or an array, this is {}", other.kind()));
            return;
        }
    };
    if empty {
        problems.push(format!("`state` is empty ({} with nothing in it)", state.kind()));
    }
}

fn take_options(value: Option<Json>, problems: &mut Vec<String>) -> Option<Vec<Choice>> {
    let items = match value {
        Some(Json::Array(items)) => items,
        Some(other) => {
            problems.push(format!("`options` must be an array, this is {}", other.kind()));
            return None;
        }
        None => {
            problems.push("`options` is missing".to_owned());
            return None;
        }
    };
    let before = problems.len();
    let mut options = Vec::with_capacity(items.len().min(MAX_OPTIONS));
    let count = items.len();
    // A row with thousands of options gets one message, not thousands.
    for (index, item) in items.into_iter().take(MAX_OPTIONS).enumerate() {
        let place = format!("option {}", index + 1);
        let Json::Object(members) = item else {
            problems.push(format!("{place} must be an object with `id` and `description`, this is {}", item.kind()));
            continue;
        };
        let mut text = |key: &str| match members.iter().find(|(k, _)| k == key).map(|(_, v)| v) {
            Some(Json::String(text)) => Some(text.clone()),
            Some(other) => {
                problems.push(format!("{place}: `{key}` must be a string, this is {}", other.kind()));
                None
            }
            None => {
                problems.push(format!("{place}: `{key}` is missing"));
                None
            }
        };
        if let (Some(id), Some(description)) = (text("id"), text("description")) {
            options.push(Choice { id, description });
        }
    }
    check_count(count, problems);
    check_texts(&options, problems);
    (problems.len() == before).then_some(options)
}

fn check_options(options: &[Choice], problems: &mut Vec<String>) {
    check_count(options.len(), problems);
    check_texts(&options[..options.len().min(MAX_OPTIONS)], problems);
}

fn check_count(count: usize, problems: &mut Vec<String>) {
    if count < MIN_OPTIONS {
        problems.push(format!(
            "at least {MIN_OPTIONS} options are needed, there {}",
            match count {
                0 => "are none".to_owned(),
                _ => format!("is {count}"),
            }
        ));
    } else if count > MAX_OPTIONS {
        problems.push(format!("at most {MAX_OPTIONS} options are possible (letters A to T), there are {count}"));
    }
}

fn check_texts(options: &[Choice], problems: &mut Vec<String>) {
    let mut first: HashMap<&str, usize> = HashMap::new();
    for (index, option) in options.iter().enumerate() {
        let number = index + 1;
        if blank(&option.id) {
            problems.push(format!("option {number}: `id` is empty"));
        } else if let Some(earlier) = first.get(option.id.as_str()) {
            let id = Json::from(option.id.as_str());
            problems.push(format!("options {earlier} and {number} have the same id {id}"));
        } else {
            first.insert(&option.id, number);
        }
        if blank(&option.description) {
            problems.push(format!("option {number}: `description` is empty (it is all that the model sees)"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = r#"{"id":"r1","state":"s","question":"q","options":[{"id":"a","description":"A"},{"id":"b","description":"B"}]}"#;

    fn options(n: usize) -> String {
        let items: Vec<_> = (0..n).map(|i| format!(r#"{{"id":"o{i}","description":"d{i}"}}"#)).collect();
        format!("[{}]", items.join(","))
    }

    fn row_with(key: &str, value: &str) -> String {
        let mut members =
            vec![("id", r#""r""#.to_owned()), ("state", r#""s""#.to_owned()), ("question", r#""q""#.to_owned()), ("options", options(2))];
        for member in &mut members {
            if member.0 == key {
                member.1 = value.to_owned();
            }
        }
        let text: Vec<_> = members.iter().filter(|m| !m.1.is_empty()).map(|(k, v)| format!("\"{k}\":{v}")).collect();
        format!("{{{}}}", text.join(","))
    }

    fn problem(line: &str) -> String {
        let file = read_rows(line.as_bytes());
        let bad: Vec<_> = file.bad().map(|b| b.to_string()).collect();
        assert_eq!((bad.len(), file.rows().count()), (1, 0), "{line}");
        bad[0].clone()
    }

    #[test]
    fn a_row_keeps_everything() {
        let line = r#"{"label":"a","id":"r","family":{"x":[1]},"state":{"k":[1.0,null]},"question":" q ","options":[{"id":"a","description":"A","note":1},{"id":"b","description":"B"}],"label2":1e2}"#;
        let file = read_rows(line.as_bytes());
        let row = file.rows().next().unwrap();
        assert_eq!((row.id(), row.question(), row.line()), ("r", " q ", 1));
        assert_eq!(row.state().to_string(), r#"{"k": [1.0, null]}"#);
        assert_eq!(row.options()[1], Choice { id: "b".into(), description: "B".into() });
        let extra: Vec<_> = row.extra().iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(extra, ["label=\"a\"", "family={\"x\": [1]}", "label2=100.0"]);
    }

    #[test]
    fn a_broken_line_keeps_its_id() {
        let id = |line: &str| read_rows(line.as_bytes()).bad().next().unwrap().id.clone();
        assert_eq!(id(&row_with("state", r#"{"id":"inner","x":[NaN]}"#)).as_deref(), Some("r"));
        assert_eq!(id(r#"{"state":["\"id\":\"no\"",1e999], "id" : "a\"\u00e9"}"#).as_deref(), Some("a\"é"));
        for none in [
            r#"{"state":NaN}"#,
            r#"{"id":NaN}"#,
            r#"{"id":"open"#,
            r#"{"id":""#,
            "{",
            r#"{"id"#,
            r#"{"id":" ","x":NaN}"#,
            r#"}}{"id":"x",NaN"#,
        ] {
            assert_eq!(id(none), None, "{none}");
        }
    }

    #[test]
    fn every_rule_is_checked() {
        for (line, part) in [
            (row_with("id", ""), "line 1: `id` is missing"),
            (row_with("id", "7"), "`id` must be a string, this is a number"),
            (row_with("id", r#""""#), "`id` is empty"),
            (row_with("id", r#"" \t""#), "`id` is empty"),
            (row_with("question", ""), "(id \"r\"): `question` is missing"),
            (row_with("question", "null"), "`question` must be a string"),
            (row_with("question", r#""""#), "`question` is empty"),
            (row_with("state", ""), "`state` is missing"),
            (row_with("state", "3"), "`state` must be"),
            (row_with("state", "null"), "`state` must be"),
            (row_with("state", "true"), "`state` must be"),
            (row_with("state", r#""""#), "`state` is empty"),
            (row_with("state", "[]"), "`state` is empty"),
            (row_with("state", "{}"), "`state` is empty"),
            (row_with("state", r#"{"x":NaN}"#), "not a finite number"),
            (row_with("state", r#"[1e999]"#), "too large to be finite"),
            (row_with("state", r#"[-1e999]"#), "too large to be finite"),
            (row_with("options", ""), "`options` is missing"),
            (row_with("options", "{}"), "`options` must be an array"),
            (row_with("options", &options(0)), "there are none"),
            (row_with("options", &options(1)), "there is 1"),
            (row_with("options", &options(21)), "there are 21"),
            (row_with("options", r#"["a","b"]"#), "option 1 must be an object"),
            (
                row_with("options", r#"[{"id":"a","description":"x"},{"id":"a","description":"y"}]"#),
                "options 1 and 2 have the same id \"a\"",
            ),
            (row_with("options", r#"[{"id":1,"description":"x"},{"id":"a","description":"y"}]"#), "option 1: `id` must be a string"),
            (row_with("options", r#"[{"id":"b"},{"id":"a","description":"y"}]"#), "option 1: `description` is missing"),
            (
                row_with("options", r#"[{"id":"b","description":null},{"id":"a","description":"y"}]"#),
                "option 1: `description` must be a string",
            ),
            (row_with("options", r#"[{"id":"b","description":""},{"id":"a","description":"y"}]"#), "option 1: `description` is empty"),
            (row_with("options", r#"[{"id":"","description":"x"},{"id":"a","description":"y"}]"#), "option 1: `id` is empty"),
            ("[".to_owned(), "not one JSON array"),
            ("[{}]".to_owned(), "not one JSON array"),
            ("{".to_owned(), "each object on a single line"),
            ("\"x\"".to_owned(), "this is a string"),
            (GOOD.replace("}]}", "}],\"id\":\"r2\"}"), "the key \"id\" appears twice"),
            (format!("{GOOD} {GOOD}"), "after the end"),
        ] {
            let message = problem(&line);
            assert!(message.contains(part), "{line}\n  says: {message}\n  not: {part}");
        }
        assert_eq!(read_rows(row_with("options", &options(20)).as_bytes()).rows().count(), 1);
        assert_eq!(read_rows(row_with("options", &options(2)).as_bytes()).rows().count(), 1);
    }

    #[test]
    fn all_problems_of_a_row_are_listed() {
        let message = problem(r#"{"id":"r","state":[],"options":[{"id":"a"}]}"#);
        assert_eq!(
            message,
            "line 1 (id \"r\"): `question` is missing; `state` is empty (an array with nothing in it); option 1: \
             `description` is missing; at least 2 options are needed, there is 1"
        );
        assert!(problem(&row_with("options", &options(100_000))).len() < 200);
    }

    #[test]
    fn only_newlines_separate_lines() {
        let line = |id: &str| GOOD.replace("r1", id).replace("\"s\"", "\"a\u{2028}b\u{2029}c\u{85}d\u{b}\"").replace('\u{b}', "\\u000b");
        let text = format!("\u{feff}{}\r\n\n  \t\n\r\n{}\n{}", line("1"), line("2"), line("3"));
        let file = read_rows(text.as_bytes());
        assert_eq!(file.rows().map(Row::line).collect::<Vec<_>>(), [1, 5, 6]);
        assert!(file.rows().all(|r| r.state().as_str() == Some("a\u{2028}b\u{2029}c\u{85}d\u{b}")));
        assert_eq!(read_rows(b"").entries.len() + read_rows(b"\n\r\n \n").entries.len(), 0);
    }

    #[test]
    fn bad_rows_stand_in_their_place() {
        let text = format!("{GOOD}\n{{\n{GOOD}\n\n{}\n", GOOD.replace("r1", "r2"));
        let file = read_rows(text.as_bytes());
        let bad: Vec<_> = file.bad().map(|b| b.to_string()).collect();
        assert_eq!(bad.len(), 2);
        assert!(bad[0].starts_with("line 2: not JSON"), "{}", bad[0]);
        assert_eq!(bad[1], "line 3 (id \"r1\"): `id` is already used on line 1");
        assert!(matches!(file.entries[3], Entry::Row(_)));
    }

    #[test]
    fn encodings_that_are_not_utf8() {
        assert!(problem_bytes(b"\xff\xfe{\0}\0").contains("UTF-16"));
        assert!(problem_bytes(b"{\"id\":\"\xe9\"}").contains("not UTF-8 (byte 8"));
    }

    fn problem_bytes(bytes: &[u8]) -> String {
        read_rows(bytes).bad().next().unwrap().to_string()
    }

    #[test]
    fn rows_from_parts_obey_the_same_rules() {
        let two = || vec![Choice { id: "a".into(), description: "x".into() }, Choice { id: "b".into(), description: "y".into() }];
        assert!(Row::new("r", "s".into(), "q", two()).is_ok());
        let problems = Row::new("", Json::Null, " ", two()[..1].to_vec()).unwrap_err();
        assert_eq!(problems.len(), 4, "{problems:?}");
        assert!(Row::new("r", "s".into(), "q", vec![two()[0].clone(), two()[0].clone()]).is_err());
    }

    proptest! {
        #[test]
        fn damaged_files_never_panic(at in 0usize..120, byte in any::<u8>(), cut in 0usize..130) {
            let mut bytes = format!("{GOOD}\n{GOOD}").into_bytes();
            bytes[at] = byte;
            bytes.truncate(cut.max(1));
            let file = read_rows(&bytes);
            for bad in file.bad() {
                prop_assert!(!bad.problems.is_empty());
            }
        }
    }
}
