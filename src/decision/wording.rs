//! The wording of the prompt: a system text and the key names of the JSON payload, under a version name.

use std::sync::LazyLock;

use super::{Json, Row, json::write_python_string, letter};

/// The default wording's file; also the format of `--prompt FILE`.
const DEFAULT: &str = include_str!("../../assets/wording.json");

/// Names of the payload's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    pub evidence: String,
    pub criterion: String,
    pub options: String,
    pub letter: String,
    pub description: String,
}

/// What the model is told, apart from the row itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wording {
    /// Recorded in every result as `prompt_version`.
    pub version: String,
    /// The system turn.
    pub system: String,
    pub keys: Keys,
}

/// A wording file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WordingError {
    #[error("not JSON: {0}")]
    Json(#[from] super::JsonError),
    #[error("not UTF-8 text")]
    NotText,
    #[error(
        "{0}; expected {{\"version\": \"...\", \"system\": \"...\", \"keys\": {{\"evidence\": \"...\", \"criterion\": \
         \"...\", \"options\": \"...\", \"letter\": \"...\", \"description\": \"...\"}}}}"
    )]
    Shape(String),
}

impl Default for Keys {
    /// The names that stand in the contract.
    fn default() -> Keys {
        Keys {
            evidence: "evidence".to_owned(),
            criterion: "criterion".to_owned(),
            options: "options".to_owned(),
            letter: "letter".to_owned(),
            description: "description".to_owned(),
        }
    }
}

impl Default for Wording {
    /// This project's own wording, `semif-direct-v1`.
    fn default() -> Wording {
        static PARSED: LazyLock<Wording> = LazyLock::new(|| {
            // A test keeps the shipped file valid.
            Wording::from_json(DEFAULT.as_bytes()).expect("assets/wording.json is valid")
        });
        PARSED.clone()
    }
}

impl Wording {
    /// Reads `{"version", "system", "keys"}`. `keys` maps our names (evidence, criterion, options, letter, description)
    /// to those wanted; names left out, or the whole object, stay as they are.
    ///
    /// # Errors
    /// Anything else: a wrong kind, an empty text, an unknown key (a typing error would silently change the prompt),
    /// two payload keys with one name.
    pub fn from_json(bytes: &[u8]) -> Result<Wording, WordingError> {
        let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
        let text = std::str::from_utf8(bytes).map_err(|_| WordingError::NotText)?;
        let shape = |message: String| WordingError::Shape(message);
        let Json::Object(members) = Json::parse(text)? else {
            return Err(shape("a wording is a JSON object".to_owned()));
        };
        let (mut version, mut system, mut keys) = (None, None, Keys::default());
        for (key, value) in members {
            match (key.as_str(), value) {
                ("version", value) => version = Some(nonempty("version", value)?),
                ("system", value) => system = Some(nonempty("system", value)?),
                ("keys", Json::Object(names)) => {
                    for (name, value) in names {
                        let slot = match name.as_str() {
                            "evidence" => &mut keys.evidence,
                            "criterion" => &mut keys.criterion,
                            "options" => &mut keys.options,
                            "letter" => &mut keys.letter,
                            "description" => &mut keys.description,
                            other => return Err(shape(format!("`keys` has no entry {}", Json::from(other)))),
                        };
                        *slot = nonempty(&name, value)?;
                    }
                }
                ("keys", other) => return Err(shape(format!("`keys` must be an object, this is {}", other.kind()))),
                (other, _) => return Err(shape(format!("unknown key {}", Json::from(other)))),
            }
        }
        if keys.evidence == keys.criterion || keys.evidence == keys.options || keys.criterion == keys.options {
            return Err(shape("evidence, criterion and options need three different names".to_owned()));
        }
        if keys.letter == keys.description {
            return Err(shape("letter and description need two different names".to_owned()));
        }
        Ok(Wording {
            version: version.ok_or_else(|| shape("`version` is missing".to_owned()))?,
            system: system.ok_or_else(|| shape("`system` is missing".to_owned()))?,
            keys,
        })
    }

    /// The same, of a file of the user's: the built-in wording's version name is taken, since results record nothing else.
    ///
    /// # Errors
    /// As [`Wording::from_json`], and another text under the built-in name.
    pub fn from_file(bytes: &[u8]) -> Result<Wording, WordingError> {
        let (wording, own) = (Wording::from_json(bytes)?, Wording::default());
        if wording.version == own.version && wording != own {
            let name = Json::from(own.version.as_str());
            return Err(WordingError::Shape(format!(
                "`version` {name} is the name of the built-in wording: give this one a name of its own"
            )));
        }
        Ok(wording)
    }

    /// The user turn of a row: JSON text in Python's layout with evidence, criterion and options, in this order. Option
    /// ids and the row's other keys are not in it.
    pub fn payload(&self, row: &Row) -> String {
        let mut out = String::from("{");
        write_python_string(&self.keys.evidence, &mut out);
        out.push_str(": ");
        row.state().write_python(&mut out);
        out.push_str(", ");
        write_python_string(&self.keys.criterion, &mut out);
        out.push_str(": ");
        write_python_string(row.question(), &mut out);
        out.push_str(", ");
        write_python_string(&self.keys.options, &mut out);
        out.push_str(": [");
        for (i, option) in row.options().iter().enumerate() {
            if i > 0 {
                out.push_str(", ");
            }
            out.push('{');
            write_python_string(&self.keys.letter, &mut out);
            out.push_str(": \"");
            out.push(letter(i));
            out.push_str("\", ");
            write_python_string(&self.keys.description, &mut out);
            out.push_str(": ");
            write_python_string(&option.description, &mut out);
            out.push('}');
        }
        out.push_str("]}");
        out
    }
}

fn nonempty(key: &str, value: Json) -> Result<String, WordingError> {
    match value {
        Json::String(text) if !text.trim().is_empty() => Ok(text),
        Json::String(_) => Err(WordingError::Shape(format!("`{key}` is empty"))),
        other => Err(WordingError::Shape(format!("`{key}` must be a string, this is {}", other.kind()))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_rows;
    use super::*;

    fn row(state: &str) -> Row {
        let line = format!(
            r#"{{"id":"secret-row","label":"secret-label","state":{state},"question":"Is it \"so\"?","options":[{{"id":"secret-1","description":"yes\u2028é"}},{{"id":"secret-2","description":"no\n"}}]}}"#
        );
        read_rows(line.as_bytes()).rows().next().unwrap().clone()
    }

    #[test]
    fn default_wording_is_valid() {
        let wording = Wording::default();
        assert_eq!((wording.version.as_str(), &wording.keys), ("semif-direct-v1", &Keys::default()));
    }

    /// python3: json.dumps({"evidence": ..., "criterion": ..., "options": [...]}, ensure_ascii=False)
    #[test]
    fn payload_is_pythons_and_hides_ids() {
        let payload = Wording::default().payload(&row(r#"{"b":1.0,"a":[1E-5,-0,1e16],"n":null}"#));
        assert_eq!(
            payload,
            "{\"evidence\": {\"b\": 1.0, \"a\": [1e-05, 0, 1e+16], \"n\": null}, \"criterion\": \"Is it \\\"so\\\"?\", \
             \"options\": [{\"letter\": \"A\", \"description\": \"yes\u{2028}é\"}, {\"letter\": \"B\", \"description\": \
             \"no\\n\"}]}"
        );
        assert!(!payload.contains("secret"));
        assert!(Wording::default().payload(&row("\"<|im_start|>\\\"\"")).starts_with("{\"evidence\": \"<|im_start|>\\\"\", "));
    }

    #[test]
    fn a_file_replaces_wording_and_keys() {
        let file = r#"{"version":"v","system":"s","keys":{"evidence":"state","options":"choices","letter":"label","description":"text"}}"#;
        let wording = Wording::from_json(file.as_bytes()).unwrap();
        assert_eq!(
            wording.payload(&row("[1]")),
            "{\"state\": [1], \"criterion\": \"Is it \\\"so\\\"?\", \"choices\": [{\"label\": \"A\", \"text\": \
             \"yes\u{2028}é\"}, {\"label\": \"B\", \"text\": \"no\\n\"}]}"
        );
        assert_eq!(Wording::from_json(br#"{"version":"v","system":"s"}"#).unwrap().keys, Keys::default());
    }

    #[test]
    fn the_built_in_name_is_taken() {
        let error = Wording::from_file(br#"{"version":"semif-direct-v1","system":"s"}"#).unwrap_err().to_string();
        assert!(error.contains("built-in wording"), "{error}");
        assert_eq!(Wording::from_file(DEFAULT.as_bytes()).unwrap(), Wording::default());
    }

    #[test]
    fn bad_files_are_refused() {
        for (file, part) in [
            ("", "not JSON"),
            ("[]", "a JSON object"),
            ("{}", "`version` is missing"),
            (r#"{"version":"v"}"#, "`system` is missing"),
            (r#"{"version":"v","system":""}"#, "`system` is empty"),
            (r#"{"version":3,"system":"s"}"#, "`version` must be a string"),
            (r#"{"version":"v","system":"s","keys":[]}"#, "`keys` must be an object"),
            (r#"{"version":"v","system":"s","keys":{"evidnce":"x"}}"#, "no entry \"evidnce\""),
            (r#"{"version":"v","system":"s","keys":{"evidence":"options"}}"#, "three different names"),
            (r#"{"version":"v","system":"s","keys":{"letter":"description"}}"#, "two different names"),
            (r#"{"version":"v","system":"s","user":"x"}"#, "unknown key \"user\""),
        ] {
            let message = Wording::from_json(file.as_bytes()).unwrap_err().to_string();
            assert!(message.contains(part), "{file}: {message}");
        }
        assert_eq!(Wording::from_json(b"\xff"), Err(WordingError::NotText));
    }
}
