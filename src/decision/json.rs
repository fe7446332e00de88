//! JSON as Python reads and writes it.
//!
//! Prompts are hashed and compared with those of other tools, so a state has to come out of this module in exactly the
//! layout of Python's `json.dumps(value, ensure_ascii=False)`: `", "` and `": "`, raw UTF-8, key order kept, integers
//! of any size as given, floats in Python's `repr` form. serde_json cannot promise that (its number model and its
//! private number keys get in the way), hence a small strict reader of our own: RFC 8259, bounded nesting, no
//! duplicate keys, no NaN or infinity under any spelling.

use std::collections::HashSet;
use std::fmt::{self, Write as _};

/// Deepest nesting of arrays and objects that [`Json::parse`] accepts.
pub const MAX_DEPTH: usize = 128;

/// A JSON value with finite numbers only.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    /// An integer of any size, as written (`-0` becomes `0`, as in Python).
    Int(String),
    /// A finite number that was written with a fraction or an exponent.
    Float(f64),
    String(String),
    Array(Vec<Json>),
    /// Members in file order; keys are unique.
    Object(Vec<(String, Json)>),
}

/// Why a text is not acceptable JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} (column {column})")]
pub struct JsonError {
    /// What is wrong, in words.
    pub message: String,
    /// 1-based, counted in characters from the start of the text.
    pub column: usize,
}

impl Json {
    /// Parses one value that fills the whole text.
    ///
    /// # Errors
    /// Anything outside RFC 8259, numbers that are not finite, nesting beyond [`MAX_DEPTH`], a key that appears twice
    /// in one object, escapes that are no Unicode text (lone surrogates).
    pub fn parse(text: &str) -> Result<Json, JsonError> {
        let mut reader = Reader { text, at: 0 };
        let value = reader.value(0)?;
        reader.space();
        if reader.at < text.len() {
            return Err(reader.error("text after the end of the JSON value"));
        }
        Ok(value)
    }

    /// The member of an object; `None` for other kinds and for absent keys.
    pub fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Object(members) => members.iter().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }

    /// The text of a string value.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::String(text) => Some(text),
            _ => None,
        }
    }

    /// A number as f64 (an integer beyond 2^53 is rounded).
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Json::Int(digits) => digits.parse().ok(),
            Json::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// "a string", "an object", ...: for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Json::Null => "null",
            Json::Bool(_) => "true or false",
            Json::Int(_) | Json::Float(_) => "a number",
            Json::String(_) => "a string",
            Json::Array(_) => "an array",
            Json::Object(_) => "an object",
        }
    }

    /// Appends the value in the layout of Python's `json.dumps(value, ensure_ascii=False)`.
    pub fn write_python(&self, out: &mut String) {
        match self {
            Json::Null => out.push_str("null"),
            Json::Bool(true) => out.push_str("true"),
            Json::Bool(false) => out.push_str("false"),
            Json::Int(digits) => out.push_str(digits),
            Json::Float(value) => write_python_float(*value, out),
            Json::String(text) => write_python_string(text, out),
            Json::Array(items) => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        out.push_str(", ");
                    }
                    item.write_python(out);
                }
                out.push(']');
            }
            Json::Object(members) => {
                out.push('{');
                for (i, (key, value)) in members.iter().enumerate() {
                    if i > 0 {
                        out.push_str(", ");
                    }
                    write_python_string(key, out);
                    out.push_str(": ");
                    value.write_python(out);
                }
                out.push('}');
            }
        }
    }
}

/// The Python layout, see [`Json::write_python`].
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        self.write_python(&mut out);
        f.write_str(&out)
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Json {
        Json::String(text.to_owned())
    }
}

/// Appends a JSON string: short escapes, `\u00xx` for the other control characters, everything else raw.
pub fn write_python_string(text: &str, out: &mut String) {
    write_string(text, false, out);
}

/// The same; with `ascii` everything beyond ASCII (and DEL) is written as UTF-16 escapes, as Python's `ensure_ascii` does.
pub fn write_string(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Appends a finite float as Python's `repr` does: shortest digits that round-trip, plain notation for decimal
/// exponents from -4 to 15, otherwise an exponent of at least two digits.
pub fn write_python_float(value: f64, out: &mut String) {
    // Rust's `{:e}` gives the same shortest digits; only the layout differs.
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    let digits: String = mantissa.chars().filter(|c| *c != '.').collect();
    out.push_str(sign);
    if (-4..16).contains(&exponent) {
        if exponent < 0 {
            out.push_str("0.");
            for _ in 1..-exponent {
                out.push('0');
            }
            out.push_str(&digits);
        } else {
            let whole = exponent as usize + 1;
            if digits.len() <= whole {
                out.push_str(&digits);
                for _ in digits.len()..whole {
                    out.push('0');
                }
                out.push_str(".0");
            } else {
                out.push_str(&digits[..whole]);
                out.push('.');
                out.push_str(&digits[whole..]);
            }
        }
    } else {
        out.push_str(&digits[..1]);
        if digits.len() > 1 {
            out.push('.');
            out.push_str(&digits[1..]);
        }
        let _ = write!(out, "e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs());
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn error(&self, message: impl Into<String>) -> JsonError {
        self.error_at(self.at, message)
    }

    fn error_at(&self, at: usize, message: impl Into<String>) -> JsonError {
        let before = self.text.get(..at).unwrap_or(self.text);
        JsonError { message: message.into(), column: before.chars().count() + 1 }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// What stands here, short, for messages.
    fn here(&self) -> String {
        match self.text[self.at..].chars().next() {
            None => "the end of the text".to_owned(),
            Some(c) if c.is_control() => format!("the control character U+{:04X}", c as u32),
            Some(c) => format!("`{c}`"),
        }
    }

    fn value(&mut self, depth: usize) -> Result<Json, JsonError> {
        self.space();
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => Ok(Json::String(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b'a'..=b'z' | b'A'..=b'Z') => self.word(),
            _ => Err(self.error(format!("expected a JSON value, found {}", self.here()))),
        }
    }

    fn word(&mut self) -> Result<Json, JsonError> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let value = match &rest[..end] {
            "null" => Json::Null,
            "true" => Json::Bool(true),
            "false" => Json::Bool(false),
            "NaN" | "Infinity" | "nan" | "inf" | "Inf" => {
                return Err(self.error(format!("`{}` is not a finite number", &rest[..end])));
            }
            other => {
                let shown: String = other.chars().take(20).collect();
                return Err(self.error(format!("`{shown}` is not a JSON value (strings need double quotes)")));
            }
        };
        self.at += end;
        Ok(value)
    }

    fn deeper(&self, depth: usize) -> Result<usize, JsonError> {
        if depth >= MAX_DEPTH {
            return Err(self.error(format!("nested deeper than {MAX_DEPTH} levels")));
        }
        Ok(depth + 1)
    }

    fn array(&mut self, depth: usize) -> Result<Json, JsonError> {
        let depth = self.deeper(depth)?;
        self.at += 1;
        let mut items = Vec::new();
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Json::Array(items));
        }
        loop {
            items.push(self.value(depth)?);
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Json::Array(items));
                }
                _ => return Err(self.error(format!("expected `,` or `]` in an array, found {}", self.here()))),
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, JsonError> {
        let depth = self.deeper(depth)?;
        self.at += 1;
        let mut members: Vec<(String, Json)> = Vec::new();
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Json::Object(members));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return Err(self.error(format!("expected a key in double quotes, found {}", self.here())));
            }
            let key = self.string()?;
            self.space();
            if self.peek() != Some(b':') {
                return Err(self.error(format!("expected `:` after a key, found {}", self.here())));
            }
            self.at += 1;
            let value = self.value(depth)?;
            members.push((key, value));
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    break;
                }
                _ => return Err(self.error(format!("expected `,` or `}}` in an object, found {}", self.here()))),
            }
        }
        // Python would keep the last one in silence: evidence would vanish unseen.
        let mut seen = HashSet::with_capacity(members.len());
        for (key, _) in &members {
            if !seen.insert(key.as_str()) {
                let mut shown = String::new();
                write_python_string(key, &mut shown);
                return Err(self.error_at(self.at - 1, format!("the key {shown} appears twice in one object")));
            }
        }
        Ok(Json::Object(members))
    }

    fn number(&mut self) -> Result<Json, JsonError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
            if self.text[self.at..].starts_with("Infinity") {
                return Err(self.error_at(start, "`-Infinity` is not a finite number"));
            }
        }
        match self.peek() {
            Some(b'0') => {
                self.at += 1;
                if matches!(self.peek(), Some(b'0'..=b'9')) {
                    return Err(self.error_at(start, "a number must not start with 0"));
                }
            }
            Some(b'1'..=b'9') => self.digits()?,
            _ => return Err(self.error(format!("expected a digit, found {}", self.here()))),
        }
        let mut float = false;
        if self.peek() == Some(b'.') {
            float = true;
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            float = true;
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        let text = &self.text[start..self.at];
        if !float {
            return Ok(Json::Int(if text == "-0" { "0".to_owned() } else { text.to_owned() }));
        }
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Json::Float(value)),
            _ => {
                let shown: String = text.chars().take(24).collect();
                Err(self.error_at(start, format!("the number `{shown}` is too large to be finite")))
            }
        }
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.error(format!("expected a digit, found {}", self.here())));
        }
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        Ok(())
    }

    fn string(&mut self) -> Result<String, JsonError> {
        let start = self.at;
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.find(|c: char| c == '"' || c == '\\' || c < ' ').unwrap_or(rest.len());
            out.push_str(&rest[..plain]);
            self.at += plain;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => self.escape(&mut out)?,
                Some(_) => {
                    return Err(self.error(format!("{} inside a string must be written as an escape", self.here())));
                }
                None => return Err(self.error_at(start, "a string that is never closed")),
            }
        }
    }

    fn escape(&mut self, out: &mut String) -> Result<(), JsonError> {
        let start = self.at;
        self.at += 1;
        let plain = match self.peek() {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                let first = self.hex4()?;
                let code = match first {
                    0xD800..=0xDBFF => {
                        let low = if self.text[self.at..].starts_with("\\u") {
                            self.at += 2;
                            self.hex4()?
                        } else {
                            0
                        };
                        if !(0xDC00..=0xDFFF).contains(&low) {
                            return Err(self.error_at(start, "half of a surrogate pair is not text"));
                        }
                        0x10000 + ((first - 0xD800) << 10) + (low - 0xDC00)
                    }
                    other => other,
                };
                // Only a lone low surrogate can still fail here.
                let c = char::from_u32(code).ok_or_else(|| self.error_at(start, "half of a surrogate pair is not text"))?;
                out.push(c);
                return Ok(());
            }
            _ => return Err(self.error(format!("{} after a backslash is not a JSON escape", self.here()))),
        };
        self.at += 1;
        out.push(plain);
        Ok(())
    }

    fn hex4(&mut self) -> Result<u32, JsonError> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        let digits = digits.filter(|d| d.iter().all(u8::is_ascii_hexdigit));
        let code = digits.and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| u32::from_str_radix(d, 16).ok());
        match code {
            Some(code) => {
                self.at += 4;
                Ok(code)
            }
            None => Err(self.error("`\\u` needs four hexadecimal digits")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// tests/fixtures/python_json.json, written by scripts/make_python_json.py: each case is a JSON text and what
    /// Python's `json.dumps(json.loads(text), ensure_ascii=False)` makes of it.
    #[test]
    fn layout_is_pythons() {
        let fixture: Vec<(String, String)> = serde_json::from_str(include_str!("../../tests/fixtures/python_json.json")).unwrap();
        assert!(fixture.len() >= 200, "only {} cases", fixture.len());
        for (text, python) in fixture {
            let ours = Json::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(ours.to_string(), python, "from {text}");
        }
    }

    #[test]
    fn refusals_say_what_and_where() {
        for (text, part, column) in [
            ("", "end of the text", 1),
            ("{", "expected a key", 2),
            ("{\"a\":1,}", "expected a key", 8),
            ("[1,]", "expected a JSON value", 4),
            ("[1 2]", "`,` or `]`", 4),
            ("{'a':1}", "double quotes", 2),
            ("NaN", "finite", 1),
            ("[-Infinity]", "finite", 2),
            ("[\"é\", 1e999]", "finite", 7),
            ("-1e999", "finite", 1),
            ("01", "start with 0", 1),
            ("1.", "digit", 3),
            ("+1", "expected a JSON value", 1),
            (".5", "expected a JSON value", 1),
            ("0x10", "after the end", 2),
            ("\"a", "never closed", 1),
            ("\"a\tb\"", "escape", 3),
            ("\"\\x\"", "not a JSON escape", 3),
            ("\"\\ud800\"", "surrogate", 2),
            ("\"\\udc00\"", "surrogate", 2),
            ("\"\\ud800\\u0041\"", "surrogate", 2),
            ("\"\\u00é0\"", "hexadecimal", 4),
            ("{\"a\":1,\"b\":2,\"a\":3}", "twice", 19),
            ("{} {}", "after the end", 4),
            ("True", "not a JSON value", 1),
            ("\u{feff}1", "expected a JSON value", 1),
        ] {
            let error = Json::parse(text).expect_err(text);
            assert!(error.message.contains(part), "{text:?}: {error}");
            assert_eq!(error.column, column, "{text:?}: {error}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(Json::parse(&nested(MAX_DEPTH)).is_ok());
        assert!(Json::parse(&nested(MAX_DEPTH + 1)).unwrap_err().message.contains("128"));
        assert!(Json::parse(&"[".repeat(1_000_000)).is_err());
        assert!(Json::parse(&"{\"a\":".repeat(1_000_000)).is_err());
    }

    /// serde_json's arbitrary_precision turns this object into a number; ours must not.
    #[test]
    fn private_number_keys_are_data() {
        let text = r#"{"$serde_json::private::Number": "5"}"#;
        assert_eq!(Json::parse(text).unwrap().to_string(), text);
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused(text in "[\\[\\]{}\",:\\\\a-fu0-9.eE+ -]{0,60}") {
            let _ = Json::parse(&text);
        }

        #[test]
        fn floats_round_trip(bits in any::<u64>()) {
            let value = f64::from_bits(bits);
            if value.is_finite() {
                let mut text = String::new();
                write_python_float(value, &mut text);
                prop_assert_eq!(Json::parse(&text).unwrap(), Json::Float(value));
            }
        }

        #[test]
        fn strings_round_trip(text in any::<String>()) {
            let mut written = String::new();
            write_python_string(&text, &mut written);
            prop_assert_eq!(Json::parse(&written).unwrap(), Json::String(text));
        }
    }
}
