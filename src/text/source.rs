//! Small changes to a template's source before minijinja compiles it.
//!
//! They go by minijinja's own tokens, so that both see the same template. Two things change:
//! * Hugging Face's `{% generation %}` block, which marks the assistant's turns for training and renders as its content,
//!   becomes a condition that holds.
//! * `[::-1]` becomes a method call, since minijinja 2.24 panics where such a slice runs backwards over nothing. Any other
//!   slice whose step is not a plain number above zero is refused for the same reason.
//!
//! Multiplication is refused: a list times a large number overflows in minijinja, or fills the memory, and no chat template
//! that is known multiplies.

use std::ops::Range;

use minijinja::machinery::{Span, Token, WhitespaceConfig, tokenize};

use super::TextError;
use super::python::REVERSED;

/// An open bracket of any kind.
#[derive(Default)]
struct Open {
    /// Where a square bracket starts, and its index among the tokens; `None` for the other kinds.
    square: Option<(usize, usize)>,
    /// Indices of the colons directly inside.
    colons: Vec<usize>,
}

/// The source as it is compiled.
pub(super) fn adapted(source: &str) -> Result<String, TextError> {
    let whitespace = WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };
    // Where the tokens end in an error, so does compiling.
    let tokens: Vec<(Token<'_>, Span)> = tokenize(source, false, Default::default(), whitespace).map_while(Result::ok).collect();
    let mut changes: Vec<(Range<usize>, String)> = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    for (index, (token, span)) in tokens.iter().enumerate() {
        let range = span.start_offset as usize..span.end_offset as usize;
        match token {
            Token::Ident(word @ ("generation" | "endgeneration")) => {
                let before = index.checked_sub(1).and_then(|at| tokens.get(at));
                let after = tokens.get(index + 1);
                if let (Some((Token::BlockStart, _)), Some((Token::BlockEnd, _))) = (before, after) {
                    changes.push((range, if *word == "generation" { "if true" } else { "endif" }.into()));
                }
            }
            Token::Mul => {
                let line = span.start_line;
                return Err(TextError::TemplateSyntax(format!("line {line}: multiplication is not supported")));
            }
            Token::BracketOpen => open.push(Open { square: Some((range.start, index)), ..Open::default() }),
            Token::ParenOpen | Token::BraceOpen => open.push(Open::default()),
            Token::Colon => {
                if let Some(innermost) = open.last_mut() {
                    innermost.colons.push(index);
                }
            }
            Token::ParenClose | Token::BraceClose => drop(open.pop()),
            Token::BracketClose => {
                let Some(Open { square: Some((start, first)), colons }) = open.pop() else { continue };
                let [from, to] = colons[..] else { continue };
                match &tokens[to + 1..index] {
                    [] => {}
                    [(Token::Int(step), _)] if (1..1 << 20).contains(step) => {}
                    [(Token::Minus, _), (Token::Int(1), _)] if from == first + 1 && to == from + 1 => {
                        changes.push((start..range.end, format!(".{REVERSED}()")));
                    }
                    _ => {
                        let line = span.start_line;
                        let why = "only slices with a fixed step above 0, and [::-1], are supported";
                        return Err(TextError::TemplateSyntax(format!("line {line}: {why}")));
                    }
                }
            }
            _ => {}
        }
    }
    // From the end, so that the places in front stay right; inner brackets close before outer ones.
    changes.sort_unstable_by_key(|(range, _)| range.start);
    let mut out = source.to_string();
    for (range, text) in changes.into_iter().rev() {
        out.replace_range(range, &text);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn becomes(source: &str, expected: &str) {
        assert_eq!(adapted(source).as_deref(), Ok(expected));
    }

    #[test]
    fn generation_tags_become_blocks() {
        becomes("a{%- generation %}b{% endgeneration -%}c", "a{%- if true %}b{% endif -%}c");
        for unchanged in ["{% set generation = 1 %}{{ generation }}", "{% generation", "generation", "{# {% generation %} #}"] {
            becomes(unchanged, unchanged);
        }
        becomes("{% raw %}{% generation %}{% endraw %}", "{% raw %}{% generation %}{% endraw %}");
    }

    #[test]
    fn multiplication() {
        for refused in ["{{ range(3) * 9223372036854775807 }}", "{% set a = 'x' * 3 %}", "{{ f(*a) }}"] {
            assert!(matches!(adapted(refused), Err(TextError::TemplateSyntax(_))), "{refused}");
        }
        becomes("2 * 3 {{ '*' ~ 2 ** 2 }}", "2 * 3 {{ '*' ~ 2 ** 2 }}");
    }

    #[test]
    fn backward_slices() {
        becomes("{% for m in messages[::-1] %}é{{ a[ : : - 1 ][0] }}", "{% for m in messages.__reversed__() %}é{{ a.__reversed__()[0] }}");
        becomes("{{ a[b[::-1][0]:] }}", "{{ a[b.__reversed__()[0]:] }}");
        for unchanged in [
            "[::-1]",
            "{{ '[::-1]' }}",
            "{{ a[1:] }}",
            "{{ a[:-1] }}",
            "{{ a[1:2:] }}",
            "{{ a[::2] }}",
            "{{ [{'a': 1, 'b': 2}] }}",
            "{{ a[{1: 2}[1]] }}",
        ] {
            becomes(unchanged, unchanged);
        }
        for refused in [
            "{{ a[::-2] }}",
            "{{ a[::b] }}",
            "{{ a[1::-1] }}",
            "{{ a[:1:-1] }}",
            "{{ a[::0] }}",
            "{{ a[::(-1)] }}",
            "{{ a[::99999999999999999999] }}",
        ] {
            assert!(matches!(adapted(refused), Err(TextError::TemplateSyntax(_))), "{refused}");
        }
    }
}
