//! A small template step for WGSL: includes, conditions and unrolled loops, so that shaders stay readable files.
//!
//! Directives stand alone on a line:
//! `//#include FILE`, `//#if NAME` or `//#if NAME == VALUE` (also `!=`), `//#else`, `//#end`, `//#for I in A..B`, and
//! `{{EXPR}}` anywhere, where EXPR is an integer expression over `+ - * / % ( )`, numbers, loop variables and definitions,
//! or a single definition whose text is inserted as it stands.

use std::collections::HashMap;
use thiserror::Error;

/// A fault in a template; always a mistake of this program, found by the unit tests that render every variant.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("template {file}, line {line}: {reason}")]
pub struct TemplateError {
    file: String,
    line: usize,
    reason: String,
}

/// Definitions for one rendering: name to text.
#[derive(Debug, Clone, Default)]
pub struct Defs(HashMap<String, String>);

impl Defs {
    /// No definitions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a definition.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.0.insert(name.to_string(), value.to_string());
        self
    }
}

/// Renders `file`, whose text and includes `load` finds.
///
/// # Errors
/// Unknown files, names, directives, or unbalanced blocks.
pub fn render(file: &str, defs: &Defs, load: &dyn Fn(&str) -> Option<&'static str>) -> Result<String, TemplateError> {
    let mut out = String::new();
    render_file(file, &mut defs.clone(), load, &mut out, 0)?;
    Ok(out)
}

type Load<'a> = &'a dyn Fn(&str) -> Option<&'static str>;

fn render_file(file: &str, defs: &mut Defs, load: Load, out: &mut String, depth: usize) -> Result<(), TemplateError> {
    let fail = |line, reason: &str| TemplateError { file: file.to_string(), line, reason: reason.to_string() };
    if depth > 8 {
        return Err(fail(0, "includes nest too deeply"));
    }
    let text = load(file).ok_or_else(|| fail(0, "no such shader file"))?;
    let lines: Vec<&str> = text.lines().collect();
    render_lines(file, &lines, 0, lines.len(), defs, load, out, depth)
}

/// The index of the `//#end` (or `//#else` at the same level, as the second value) of the block opened just before `start`.
fn find_end(lines: &[&str], start: usize, end: usize) -> Option<(Option<usize>, usize)> {
    let (mut level, mut other) = (0, None);
    for (i, line) in lines[..end].iter().enumerate().skip(start) {
        let l = line.trim();
        if l.starts_with("//#if ") || l.starts_with("//#for ") {
            level += 1;
        } else if l == "//#end" {
            if level == 0 {
                return Some((other, i));
            }
            level -= 1;
        } else if l == "//#else" && level == 0 {
            other = Some(i);
        }
    }
    None
}

#[allow(clippy::too_many_arguments)]
fn render_lines(
    file: &str,
    lines: &[&str],
    start: usize,
    end: usize,
    defs: &mut Defs,
    load: Load,
    out: &mut String,
    depth: usize,
) -> Result<(), TemplateError> {
    let fail = |line: usize, reason: String| TemplateError { file: file.to_string(), line: line + 1, reason };
    let mut i = start;
    while i < end {
        let line = lines[i].trim();
        if let Some(name) = line.strip_prefix("//#include ") {
            let name = substitute(name.trim(), defs).map_err(|r| fail(i, r))?;
            render_file(&name, defs, load, out, depth + 1)?;
        } else if let Some(condition) = line.strip_prefix("//#if ") {
            let (other, stop) = find_end(lines, i + 1, end).ok_or_else(|| fail(i, "no //#end".into()))?;
            if holds(condition, defs).map_err(|r| fail(i, r))? {
                render_lines(file, lines, i + 1, other.unwrap_or(stop), defs, load, out, depth)?;
            } else if let Some(other) = other {
                render_lines(file, lines, other + 1, stop, defs, load, out, depth)?;
            }
            i = stop;
        } else if let Some(header) = line.strip_prefix("//#for ") {
            let (_, stop) = find_end(lines, i + 1, end).ok_or_else(|| fail(i, "no //#end".into()))?;
            let (name, range) = header.split_once(" in ").ok_or_else(|| fail(i, "expected `I in A..B`".into()))?;
            let (a, b) = range.split_once("..").ok_or_else(|| fail(i, "expected `A..B`".into()))?;
            let a = Expr::eval(a, defs).map_err(|r| fail(i, r))?;
            let b = Expr::eval(b, defs).map_err(|r| fail(i, r))?;
            let shadowed = defs.0.get(name.trim()).cloned();
            for v in a..b {
                defs.0.insert(name.trim().to_string(), v.to_string());
                render_lines(file, lines, i + 1, stop, defs, load, out, depth)?;
            }
            match shadowed {
                Some(v) => defs.0.insert(name.trim().to_string(), v),
                None => defs.0.remove(name.trim()),
            };
            i = stop;
        } else if line.starts_with("//#") {
            return Err(fail(i, format!("unknown or misplaced directive {line:?}")));
        } else {
            out.push_str(&substitute(lines[i], defs).map_err(|r| fail(i, r))?);
            out.push('\n');
        }
        i += 1;
    }
    Ok(())
}

fn holds(condition: &str, defs: &Defs) -> Result<bool, String> {
    for (op, wanted) in [("==", true), ("!=", false)] {
        if let Some((name, value)) = condition.split_once(op) {
            let have = defs.0.get(name.trim()).ok_or_else(|| format!("{} is not defined", name.trim()))?;
            return Ok((have == value.trim()) == wanted);
        }
    }
    let name = condition.trim();
    let have = defs.0.get(name).ok_or_else(|| format!("{name} is not defined"))?;
    Ok(have != "0" && have != "false" && !have.is_empty())
}

fn substitute(line: &str, defs: &Defs) -> Result<String, String> {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("{{") {
        out.push_str(&rest[..at]);
        let after = &rest[at + 2..];
        let stop = after.find("}}").ok_or("no }}")?;
        let expr = after[..stop].trim();
        match defs.0.get(expr) {
            Some(text) => out.push_str(text),
            None => out.push_str(&Expr::eval(expr, defs)?.to_string()),
        }
        rest = &after[stop + 2..];
    }
    out.push_str(rest);
    Ok(out)
}

/// Integer expressions by recursive descent.
struct Expr<'a> {
    text: &'a [u8],
    at: usize,
    defs: &'a Defs,
}

impl<'a> Expr<'a> {
    fn eval(text: &'a str, defs: &'a Defs) -> Result<i64, String> {
        let mut e = Expr { text: text.as_bytes(), at: 0, defs };
        let v = e.sum()?;
        e.skip();
        if e.at == e.text.len() { Ok(v) } else { Err(format!("cannot read {text:?}")) }
    }

    fn skip(&mut self) {
        while self.text.get(self.at) == Some(&b' ') {
            self.at += 1;
        }
    }

    fn take(&mut self, any: &[u8]) -> Option<u8> {
        self.skip();
        let c = *self.text.get(self.at)?;
        any.contains(&c).then(|| {
            self.at += 1;
            c
        })
    }

    fn sum(&mut self) -> Result<i64, String> {
        let mut v = self.product()?;
        while let Some(op) = self.take(b"+-") {
            let w = self.product()?;
            v = if op == b'+' { v + w } else { v - w };
        }
        Ok(v)
    }

    fn product(&mut self) -> Result<i64, String> {
        let mut v = self.atom()?;
        while let Some(op) = self.take(b"*/%") {
            let w = self.atom()?;
            v = match op {
                b'*' => v * w,
                _ if w == 0 => return Err("division by zero".into()),
                b'/' => v / w,
                _ => v % w,
            };
        }
        Ok(v)
    }

    fn atom(&mut self) -> Result<i64, String> {
        if self.take(b"(").is_some() {
            let v = self.sum()?;
            return self.take(b")").map(|_| v).ok_or_else(|| "no )".to_string());
        }
        self.skip();
        let start = self.at;
        while self.text.get(self.at).is_some_and(|c| c.is_ascii_alphanumeric() || *c == b'_') {
            self.at += 1;
        }
        let word = std::str::from_utf8(&self.text[start..self.at]).unwrap_or_default();
        let text = self.defs.0.get(word).map_or(word, String::as_str);
        text.parse().map_err(|_| format!("{word:?} is neither a number nor a definition"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(name: &str) -> Option<&'static str> {
        match name {
            "a" => Some("x {{N*2+1}}\n//#for i in 0..N\n//#if i == 1\none {{i}}\n//#else\nv{{i}} {{T}}\n//#end\n//#end\n//#include b"),
            "b" => Some("tail {{(N-1)/2}}"),
            "bad" => Some("//#if N\n"),
            "unknown" => Some("{{M}}"),
            _ => None,
        }
    }

    #[test]
    fn renders_loops_conditions_includes() {
        let defs = Defs::new().with("N", 3).with("T", "text");
        assert_eq!(render("a", &defs, &files).unwrap(), "x 7\nv0 text\none 1\nv2 text\ntail 1\n");
    }

    #[test]
    fn faults_name_file_and_line() {
        let defs = Defs::new().with("N", 3);
        assert_eq!(render("bad", &defs, &files).unwrap_err().to_string(), "template bad, line 1: no //#end");
        assert!(render("unknown", &defs, &files).unwrap_err().to_string().contains("\"M\""));
        assert!(render("none", &defs, &files).is_err());
    }
}
