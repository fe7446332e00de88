//! Generation baselines: the same decision written out as JSON by the model, for measuring what decoding costs.
//!
//! Parsing is strict on purpose. What a model writes counts only if a program could have used it as it stands; every
//! reason why it could not is reported.

use std::sync::LazyLock;

use serde::Deserialize;

use super::{Json, Row, Wording, letter};

/// Most tokens that a distribution may take.
pub const DISTRIBUTION_MAX_TOKENS: usize = 512;
/// Most tokens that an array of answers may take.
pub const ARRAY_MAX_TOKENS: usize = 128;
/// How far the written probabilities may be from adding up to 1.
pub const SUM_TOLERANCE: f64 = 0.02;

/// Most tokens that a verbose answer may take.
pub const VERBOSE_MAX_TOKENS: usize = 1024;

#[derive(Deserialize)]
struct Text {
    version: String,
    system: String,
}

#[derive(Deserialize)]
struct Texts {
    distribution: Text,
    array: Text,
    verbose: Text,
}

static TEXTS: LazyLock<Texts> = LazyLock::new(|| {
    // A test keeps the shipped file valid.
    serde_json::from_str(include_str!("../../assets/baseline-wording.json")).expect("assets/baseline-wording.json is valid")
});

/// System and user turn of a generation baseline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaselinePrompt {
    pub version: String,
    pub system: String,
    pub user: String,
    /// The keys that the answer must have, in option order.
    pub keys: Vec<String>,
}

/// `"<letter>: <description>"` of each option.
pub fn distribution_keys(row: &Row) -> Vec<String> {
    row.options().iter().enumerate().map(|(i, o)| format!("{}: {}", letter(i), o.description)).collect()
}

/// The prompt that asks for the whole distribution as one JSON object. The user turn is the direct prompt's, so that
/// both paths read the same case.
pub fn distribution_prompt(row: &Row, wording: &Wording) -> BaselinePrompt {
    BaselinePrompt {
        version: TEXTS.distribution.version.clone(),
        system: TEXTS.distribution.system.clone(),
        user: wording.payload(row),
        keys: distribution_keys(row),
    }
}

/// The prompt that asks for a compact array of "yes" and "no", one for each criterion on one state.
pub fn array_prompt(state: &Json, criteria: &[String], wording: &Wording) -> BaselinePrompt {
    let list = Json::Array(criteria.iter().map(|text| Json::from(&text[..])).collect());
    criteria_prompt(&TEXTS.array, state, list, criteria.len(), wording)
}

/// The prompt that asks for an object with an answer and a confidence for each criterion, under the keys `c1`, `c2`, ...
pub fn verbose_prompt(state: &Json, criteria: &[String], wording: &Wording) -> BaselinePrompt {
    let members = criteria_keys(criteria.len()).into_iter().zip(criteria.iter().map(|text| Json::from(&text[..])));
    criteria_prompt(&TEXTS.verbose, state, Json::Object(members.collect()), criteria.len(), wording)
}

fn criteria_keys(count: usize) -> Vec<String> {
    (1..=count).map(|i| format!("c{i}")).collect()
}

/// Evidence first, as in a decision's own payload and under the same name, so that both paths read the state alike.
fn criteria_prompt(text: &Text, state: &Json, criteria: Json, count: usize, wording: &Wording) -> BaselinePrompt {
    let parts = vec![(wording.keys.evidence.clone(), state.clone()), ("criteria".to_owned(), criteria)];
    BaselinePrompt {
        version: text.version.clone(),
        system: text.system.clone(),
        user: Json::Object(parts).to_string(),
        keys: criteria_keys(count),
    }
}

/// Reads a written distribution: one JSON object with exactly the wanted keys, values in [0, 1], sum within
/// [`SUM_TOLERANCE`] of 1. `finished` is false when the text was cut at the token limit.
///
/// # Errors
/// Every reason why the text is not such an object.
pub fn parse_distribution(text: &str, keys: &[String], finished: bool) -> Result<Vec<f64>, Vec<String>> {
    let members = parse_object(text, finished)?;
    let mut problems = check_keys(&members, keys);
    let mut values = vec![0.0; keys.len()];
    for (key, value) in &members {
        let Some(index) = keys.iter().position(|k| k == key) else { continue };
        match value.as_f64() {
            Some(p) if (0.0..=1.0).contains(&p) => values[index] = p,
            Some(p) => problems.push(format!("the value of {} is {p}, not between 0 and 1", quoted(key))),
            None => problems.push(format!("the value of {} is {}, not a number", quoted(key), value.kind())),
        }
    }
    if problems.is_empty() {
        let sum: f64 = values.iter().sum();
        // The last term forgives rounding of the sum itself, 0.98 written as 0.49 + 0.49.
        if (sum - 1.0).abs() > SUM_TOLERANCE + 1e-9 {
            problems.push(format!("the values add up to {}, not to 1", (sum * 1e6).round() / 1e6));
        }
    }
    if problems.is_empty() { Ok(values) } else { Err(problems) }
}

/// Reads a compact array of answers: exactly `count` strings, each `"yes"` or `"no"`.
///
/// # Errors
/// Every reason why the text is not such an array.
pub fn parse_answers(text: &str, count: usize, finished: bool) -> Result<Vec<bool>, Vec<String>> {
    let items = match parse_value(text, finished)? {
        Json::Array(items) => items,
        other => return Err(vec![format!("expected a JSON array, this is {}", other.kind())]),
    };
    let mut problems = Vec::new();
    if items.len() != count {
        problems.push(format!("expected {count} answers, there are {}", items.len()));
    }
    let mut answers = Vec::with_capacity(count);
    for (i, item) in items.iter().take(count).enumerate() {
        match item.as_str() {
            Some("yes") => answers.push(true),
            Some("no") => answers.push(false),
            _ => problems.push(format!("answer {} is {}, not \"yes\" or \"no\"", i + 1, shown(item))),
        }
    }
    if problems.is_empty() { Ok(answers) } else { Err(problems) }
}

/// One entry of a verbose answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    pub answer: bool,
    /// The model's own word for it, in [0, 1].
    pub confidence: f64,
}

/// Reads a verbose answer: one JSON object with exactly the wanted keys, each an object with `answer` (`"yes"` or
/// `"no"`) and `confidence` (a number in [0, 1]); further members are ignored.
///
/// # Errors
/// Every reason why the text is not such an object.
pub fn parse_verbose(text: &str, keys: &[String], finished: bool) -> Result<Vec<Verdict>, Vec<String>> {
    let members = parse_object(text, finished)?;
    let mut problems = check_keys(&members, keys);
    let mut verdicts = vec![Verdict { answer: false, confidence: 0.0 }; keys.len()];
    for (key, value) in &members {
        let Some(index) = keys.iter().position(|k| k == key) else { continue };
        match value.get("answer").and_then(Json::as_str) {
            Some("yes") => verdicts[index].answer = true,
            Some("no") => verdicts[index].answer = false,
            _ => problems.push(format!("{} has no `answer` of \"yes\" or \"no\"", quoted(key))),
        }
        match value.get("confidence").and_then(Json::as_f64) {
            Some(c) if (0.0..=1.0).contains(&c) => verdicts[index].confidence = c,
            _ => problems.push(format!("{} has no `confidence` between 0 and 1", quoted(key))),
        }
    }
    if problems.is_empty() { Ok(verdicts) } else { Err(problems) }
}

fn quoted(text: &str) -> String {
    Json::from(text).to_string()
}

/// A value in a message: short, whatever the model wrote.
fn shown(value: &Json) -> String {
    match value {
        Json::String(text) if text.chars().count() > 30 => format!("{}...", quoted(&text.chars().take(30).collect::<String>())),
        Json::Array(_) | Json::Object(_) => value.kind().to_owned(),
        other => other.to_string(),
    }
}

fn parse_value(text: &str, finished: bool) -> Result<Json, Vec<String>> {
    let text = text.trim();
    if text.is_empty() {
        return Err(vec!["nothing was written".to_owned()]);
    }
    Json::parse(text).map_err(|error| {
        let mut problems = Vec::new();
        if !finished {
            problems.push("cut off before its end".to_owned());
        }
        problems.push(match text.starts_with("```") {
            true => "not bare JSON: it stands in a code fence".to_owned(),
            false => format!("not JSON: {error}"),
        });
        problems
    })
}

fn parse_object(text: &str, finished: bool) -> Result<Vec<(String, Json)>, Vec<String>> {
    match parse_value(text, finished)? {
        Json::Object(members) => Ok(members),
        other => Err(vec![format!("expected a JSON object, this is {}", other.kind())]),
    }
}

fn check_keys(members: &[(String, Json)], keys: &[String]) -> Vec<String> {
    let missing = keys.iter().filter(|key| !members.iter().any(|(k, _)| k == *key));
    let unknown = members.iter().filter(|(key, _)| !keys.contains(key));
    missing
        .map(|key| format!("{} is missing", quoted(key)))
        .chain(unknown.map(|(key, _)| format!("{} is not an option", shown(&Json::from(key.as_str())))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::Choice;
    use super::*;

    fn keys() -> Vec<String> {
        vec!["A: yes".to_owned(), "B: no \"really\"".to_owned()]
    }

    #[test]
    fn the_prompt_reads_the_same_case() {
        let options = ["yes", "no \"really\""].map(|d| Choice { id: format!("id-{d}"), description: d.to_owned() });
        let row = Row::new("r", "s".into(), "q", options.to_vec()).unwrap();
        let wording = Wording::default();
        let prompt = distribution_prompt(&row, &wording);
        assert_eq!((prompt.user, prompt.keys), (wording.payload(&row), keys()));
        assert!(!prompt.system.is_empty() && prompt.system != wording.system && !prompt.version.is_empty());
    }

    #[test]
    fn criteria_prompts() {
        let criteria = ["Is it \"so\"?", "é"].map(str::to_owned);
        let (state, wording) = (Json::parse(r#"{"a": 1}"#).unwrap(), Wording::default());
        let array = array_prompt(&state, &criteria, &wording);
        assert_eq!(array.user, r#"{"evidence": {"a": 1}, "criteria": ["Is it \"so\"?", "é"]}"#);
        let verbose = verbose_prompt(&state, &criteria, &wording);
        assert_eq!(verbose.user, r#"{"evidence": {"a": 1}, "criteria": {"c1": "Is it \"so\"?", "c2": "é"}}"#);
        assert_eq!(verbose.keys, ["c1", "c2"]);
        assert!(array.version != verbose.version && array.system != verbose.system);
        // The form that the prompts show is one that the parsers take.
        let shown = |system: &str, open: char, close: char| {
            system[system.rfind(&format!("like {open}")).unwrap() + 5..].rfind(close).map(|end| {
                let start = system.rfind(&format!("like {open}")).unwrap() + 5;
                system[start..=start + end].to_owned()
            })
        };
        assert_eq!(parse_answers(&shown(&array.system, '[', ']').unwrap(), 2, true), Ok(vec![true, false]));
        assert_eq!(parse_verbose(&shown(&verbose.system, '{', '}').unwrap(), &verbose.keys, true).map(|v| v.len()), Ok(2));
    }

    #[test]
    fn distributions() {
        let ok = |text: &str| parse_distribution(text, &keys(), true).unwrap();
        assert_eq!(ok(r#"{"A: yes": 0.25, "B: no \"really\"": 0.75}"#), [0.25, 0.75]);
        assert_eq!(ok("\n {\"B: no \\\"really\\\"\": 1, \"A: yes\": 0}\n"), [0.0, 1.0]);
        assert_eq!(ok(r#"{"A: yes": 0.49, "B: no \"really\"": 0.49}"#), [0.49, 0.49]);
        assert_eq!(ok(r#"{"A: yes": 0.51, "B: no \"really\"": 0.51}"#), [0.51, 0.51]);
        for (text, part) in [
            ("", "nothing was written"),
            ("A", "not JSON"),
            ("[0.5, 0.5]", "this is an array"),
            (r#"{"A: yes": 1}"#, "\"B: no \\\"really\\\"\" is missing"),
            (r#"{"A: yes": 0.5, "B: no \"really\"": 0.5, "C: x": 0}"#, "\"C: x\" is not an option"),
            (r#"{"A: yes": 0.5, "A: yes": 0.5}"#, "twice"),
            (r#"{"A: yes": 0.5, "B: no \"really\"": 0.47}"#, "add up to 0.97"),
            (r#"{"A: yes": 0.9, "B: no \"really\"": 0.9}"#, "add up to 1.8"),
            (r#"{"A: yes": 1.5, "B: no \"really\"": -0.5}"#, "is 1.5, not between"),
            (r#"{"A: yes": "0.5", "B: no \"really\"": 0.5}"#, "a string, not a number"),
            (r#"{"A: yes": NaN, "B: no \"really\"": 0.5}"#, "not a finite number"),
            ("```json\n{}\n```", "code fence"),
            (r#"{"A: yes": 0.5, "B: no \"really\"": 0.5} done"#, "after the end"),
        ] {
            let problems = parse_distribution(text, &keys(), true).expect_err(text).join("; ");
            assert!(problems.contains(part), "{text}: {problems}");
        }
        let problems = parse_distribution(r#"{"A: yes": 0.5, "B"#, &keys(), false).unwrap_err();
        assert_eq!((problems.len(), problems[0].as_str()), (2, "cut off before its end"));
    }

    #[test]
    fn answers() {
        assert_eq!(parse_answers(r#"["yes","no"]"#, 2, true), Ok(vec![true, false]));
        for (text, part) in [
            (r#"["yes"]"#, "expected 2 answers, there are 1"),
            (r#"["yes","no","no"]"#, "there are 3"),
            (r#"["yes","Yes"]"#, "answer 2 is \"Yes\""),
            (r#"["yes",true]"#, "answer 2 is true"),
            (r#"{"a":"yes"}"#, "expected a JSON array"),
        ] {
            let problems = parse_answers(text, 2, true).expect_err(text).join("; ");
            assert!(problems.contains(part), "{text}: {problems}");
        }
    }

    #[test]
    fn verbose() {
        let keys = ["a", "b"].map(str::to_owned);
        let text = r#"{"b":{"confidence":0.5,"answer":"no","why":"x"},"a":{"answer":"yes","confidence":1}}"#;
        let verdicts = parse_verbose(text, &keys, true).unwrap();
        assert_eq!(verdicts, [Verdict { answer: true, confidence: 1.0 }, Verdict { answer: false, confidence: 0.5 }]);
        for (text, part) in [
            (r#"{"a":{"answer":"yes","confidence":1}}"#, "\"b\" is missing"),
            (r#"{"a":{"answer":"maybe","confidence":1},"b":{"answer":"no","confidence":1}}"#, "\"a\" has no `answer`"),
            (r#"{"a":{"answer":"yes","confidence":2},"b":{"answer":"no","confidence":1}}"#, "\"a\" has no `confidence`"),
            (r#"{"a":"yes","b":{"answer":"no","confidence":1}}"#, "\"a\" has no `answer`"),
        ] {
            let problems = parse_verbose(text, &keys, true).expect_err(text).join("; ");
            assert!(problems.contains(part), "{text}: {problems}");
        }
    }
}
