//! What chat templates expect of Python: string methods, `tojson`, `strftime_now`, `raise_exception`.

use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;
use web_time::{SystemTime, UNIX_EPOCH};

use crate::decision::json::{write_python_float, write_string};

/// Nesting of values that are written out.
const MAX_DEPTH: usize = 64;

/// The method that stands for the slice `[::-1]`.
pub(super) const REVERSED: &str = "__reversed__";

/// What a template said when it called `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub String);

/// Adds the functions, filters and methods, and takes away what can make a huge text out of one number.
pub(super) fn install(env: &mut Environment<'static>) {
    env.set_unknown_method_callback(method);
    env.add_filter("tojson", to_json);
    env.add_filter("trim", |text: &str, chars: Option<&str>| strip(text, chars, true, true).to_string());
    // minijinja's own divides by zero.
    env.add_test("divisibleby", |value: i64, by: i64| value.checked_rem(by) == Some(0));
    for filter in ["format", "batch", "slice", "indent", "pprint", "chain", "zip"] {
        env.remove_filter(filter);
    }
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    env.add_function("strftime_now", |format: &str| {
        // UTC: the time zone of the machine is no part of the question.
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        strftime(format, seconds)
    });
}

/// Python's idea of white space: Unicode's, and the four ASCII separators.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

fn strip<'t>(text: &'t str, chars: Option<&str>, left: bool, right: bool) -> &'t str {
    let drop = |c: char| chars.map_or(is_space(c), |chars| chars.contains(c));
    let text = if left { text.trim_start_matches(drop) } else { text };
    if right { text.trim_end_matches(drop) } else { text }
}

/// String methods that minijinja's collection lacks, has with Rust's white space, or has without bounds; all others go
/// there.
fn method(state: &State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if name == REVERSED {
        let () = from_args(args)?;
        return match value.as_str() {
            Some(text) => Ok(text.chars().rev().collect::<String>().into()),
            None => {
                let mut items: Vec<Value> = value.try_iter()?.collect();
                items.reverse();
                Ok(items.into())
            }
        };
    }
    let Some(text) = value.as_str() else { return pycompat::unknown_method_callback(state, value, name, args) };
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Ok(strip(text, chars, name != "rstrip", name != "lstrip").into())
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(text.strip_prefix(prefix).unwrap_or(text).into())
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(text.strip_suffix(suffix).unwrap_or(text).into())
        }
        "count" => {
            let (what,): (&str,) = from_args(args)?;
            Ok(if what.is_empty() { text.chars().count() + 1 } else { text.matches(what).count() }.into())
        }
        // Takes a width, and with it any amount of memory.
        "format" => Err(Error::from(ErrorKind::UnknownMethod)),
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// `json.dumps(value, ensure_ascii=False)` as Hugging Face's `tojson`, which escapes no HTML, with its options.
fn to_json(value: Value, rest: Rest<Value>, options: Kwargs) -> Result<Value, Error> {
    let bad = |what: &str| Error::new(ErrorKind::InvalidOperation, format!("tojson: {what}"));
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.or_else(|| rest.first().map(Value::is_true)).unwrap_or(false);
    let indent = options.get::<Option<Value>>("indent")?.or_else(|| rest.get(1).cloned()).filter(|v| !v.is_none());
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    options.assert_all_used()?;
    let indent = match indent.map(usize::try_from) {
        None => None,
        Some(Ok(width)) if width <= 16 => Some(width),
        Some(_) => return Err(bad("indent is a number up to 16")),
    };
    let mut layout = Layout { ascii, indent, sort_keys, item: if indent.is_some() { "," } else { ", " }.into(), key: ": ".into() };
    if let Some(separators) = separators {
        let [item, key] = <[String; 2]>::try_from(separators).map_err(|_| bad("separators are two texts"))?;
        (layout.item, layout.key) = (item, key);
    }
    let mut out = String::new();
    layout.write(&value, 0, &mut out)?;
    Ok(Value::from_safe_string(out))
}

struct Layout {
    ascii: bool,
    indent: Option<usize>,
    sort_keys: bool,
    item: String,
    key: String,
}

impl Layout {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let bad = |what: &str| Error::new(ErrorKind::InvalidOperation, format!("tojson: {what}"));
        if depth > MAX_DEPTH {
            return Err(bad("the value is nested too deep"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
            ValueKind::Number => float(f64::try_from(value.clone())?, out),
            ValueKind::String => self.text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let mut empty = true;
                out.push('[');
                for item in value.try_iter()? {
                    self.gap(&mut empty, depth + 1, out);
                    self.write(&item, depth + 1, out)?;
                }
                self.close(empty, depth, ']', out);
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                let mut empty = true;
                out.push('{');
                for key in keys {
                    self.gap(&mut empty, depth + 1, out);
                    match key.as_str() {
                        Some(name) => self.text(name, out),
                        None => self.text(&key.to_string(), out),
                    }
                    out.push_str(&self.key);
                    self.write(&value.get_item(&key)?, depth + 1, out)?;
                }
                self.close(empty, depth, '}', out);
            }
            kind => return Err(bad(&format!("a value of kind {kind} has no JSON form"))),
        }
        Ok(())
    }

    fn gap(&self, first: &mut bool, depth: usize, out: &mut String) {
        if !std::mem::take(first) {
            out.push_str(&self.item);
        }
        self.line(depth, out);
    }

    fn close(&self, empty: bool, depth: usize, bracket: char, out: &mut String) {
        if !empty {
            self.line(depth, out);
        }
        out.push(bracket);
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(width) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * depth));
        }
    }

    fn text(&self, text: &str, out: &mut String) {
        write_string(text, self.ascii, out);
    }
}

/// Python's `repr` of a float.
fn float(value: f64, out: &mut String) {
    if value.is_nan() {
        out.push_str("NaN");
    } else if value.is_infinite() {
        out.push_str(if value > 0.0 { "Infinity" } else { "-Infinity" });
    } else {
        write_python_float(value, out);
    }
}

const MONTHS: [&str; 12] =
    ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// C's `strftime` for a time in UTC, as far as templates use it; a letter that is not known stays as it is.
fn strftime(format: &str, seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let month_name = MONTHS[(month - 1) as usize];
    let day_name = DAYS[(days % 7) as usize];
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut letter = chars.next();
        let unpadded = letter == Some('-');
        if unpadded {
            letter = chars.next();
        }
        let number = |value: u64, width: usize| if unpadded { value.to_string() } else { format!("{value:0width$}") };
        match letter {
            Some('Y') => out += &year.to_string(),
            Some('y') => out += &number(year % 100, 2),
            Some('m') => out += &number(month, 2),
            Some('d') => out += &number(day, 2),
            Some('e') => out += &format!("{day:2}"),
            Some('B') => out += month_name,
            Some('b' | 'h') => out += &month_name[..3],
            Some('A') => out += day_name,
            Some('a') => out += &day_name[..3],
            Some('j') => out += &number(days - days_to(year) + 1, 3),
            Some('H') => out += &number(hour, 2),
            Some('I') => out += &number(hour12, 2),
            Some('M') => out += &number(minute, 2),
            Some('S') => out += &number(second, 2),
            Some('p') => out += if hour < 12 { "AM" } else { "PM" },
            Some('F') => out += &format!("{year}-{month:02}-{day:02}"),
            Some('T') => out += &format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => out += "UTC",
            Some('z') => out += "+0000",
            Some('%') => out.push('%'),
            other => {
                out.push('%');
                out.extend(unpadded.then_some('-'));
                out.extend(other);
            }
        }
    }
    out
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// Days from 1970 to the start of a year.
fn days_to(year: u64) -> u64 {
    let before = year - 1;
    365 * (year - 1970) + (before / 4 - before / 100 + before / 400) - (1969 / 4 - 1969 / 100 + 1969 / 400)
}

/// Year, month and day of a day since 1970.
fn civil(days: u64) -> (u64, u64, u64) {
    // A year too late at most: go back to the one that has begun.
    let mut year = 1970 + days / 365;
    while days_to(year) > days {
        year -= 1;
    }
    let mut day = days - days_to(year);
    let lengths = [31, if is_leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    (year, month, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::context;

    fn eval(expression: &str) -> String {
        let mut env = Environment::new();
        install(&mut env);
        let list = vec![Value::from(1), Value::from(2.5), Value::from(()), Value::from(true)];
        let mixed = Value::from_iter([("b", Value::from(list)), ("a", Value::from("é<\"\u{1}\u{7f}"))]);
        let ctx = context! { float => 1e-7, big => 1e16, plain => 100.0, mixed };
        env.render_str(&format!("{{{{ {expression} }}}}"), ctx).unwrap_or_else(|error| format!("error: {error}"))
    }

    #[test]
    fn json_in_pythons_layout() {
        assert_eq!(eval("mixed | tojson"), "{\"b\": [1, 2.5, null, true], \"a\": \"é<\\\"\\u0001\u{7f}\"}");
        assert_eq!(
            eval("mixed | tojson(ensure_ascii=true, sort_keys=true)"),
            "{\"a\": \"\\u00e9<\\\"\\u0001\\u007f\", \"b\": [1, 2.5, null, true]}"
        );
        assert_eq!(eval("['\u{1f600}'] | tojson(ensure_ascii=true)"), "[\"\\ud83d\\ude00\"]");
        assert_eq!(eval("[float, big, plain] | tojson"), "[1e-07, 1e+16, 100.0]");
        assert_eq!(eval("{'a': [], 'b': [1]} | tojson(indent=2)"), "{\n  \"a\": [],\n  \"b\": [\n    1\n  ]\n}");
        assert_eq!(eval("[1, 2] | tojson(separators=[',', ':'])"), "[1,2]");
        assert!(eval("[1] | tojson(indent=99999999)").starts_with("error"));
        assert!(eval("[1] | tojson(nothing=1)").starts_with("error"));
        assert!(eval("no_such | tojson").starts_with("error"));
    }

    #[test]
    fn dates() {
        let is = |format: &str, seconds: u64, expected: &str| assert_eq!(strftime(format, seconds), expected);
        is("%d %b %Y", 0, "01 Jan 1970");
        is("%A %e %B %y %j", 951_782_400, "Tuesday 29 February 00 060");
        is("%Y-%m-%d %H:%M:%S %p %I", 1_785_585_599, "2026-08-01 11:59:59 AM 11");
        is("%F %T %a %-d %%", 4_102_444_800, "2100-01-01 00:00:00 Fri 1 %");
        is("%F", 4_107_542_399, "2100-02-28");
        is("%F", 4_107_542_400, "2100-03-01");
        is("%q %-q %", 0, "%q %-q %");
        assert!(eval("strftime_now('%Y')").parse::<u64>().unwrap() >= 2025);
    }
}
