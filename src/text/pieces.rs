//! Pre-tokenizers: how a text is cut into the pieces inside which byte pairs merge.
//!
//! Each is a list of alternatives, tried in order at each position. The published lists end in `\s+(?!\S)|\s+`: spaces,
//! but leave the last one to the word that follows. That look-ahead is done here by hand, because without it the plain
//! `regex` engine does the rest in linear time, whatever the text.

use regex::Regex;

use super::TextError;

/// Names in `tokenizer.ggml.pre` and what they mean.
const KINDS: [(&str, Kind); 7] = [
    ("qwen2", Kind::Qwen2),
    ("qwen35", Kind::Qwen35),
    ("minicpm5", Kind::MiniCpm5),
    ("smollm", Kind::SmolLm),
    ("llama-bpe", Kind::Llama3),
    ("llama3", Kind::Llama3),
    ("llama-v3", Kind::Llama3),
];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Qwen2,
    Qwen35,
    MiniCpm5,
    SmolLm,
    Llama3,
}

/// Contractions in any case. Spelled out, since a case-insensitive match would also take U+017F for an s.
const CONTRACTIONS: &str = "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])";

/// Cuts texts into pieces. Never loses or reorders a byte.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    /// A first pass: what it matches stands alone, and the rest is cut by `pieces` as if it were texts of its own.
    isolate: Option<Regex>,
    pieces: Regex,
    /// The list has `\s*[\r\n]+` before the spaces with their look-ahead.
    line_breaks: bool,
    /// A piece that is itself in the vocabulary is taken whole, without looking at merges.
    pub ignore_merges: bool,
}

impl PreTokenizer {
    /// The pre-tokenizer of this name.
    pub fn named(name: &str) -> Result<Self, TextError> {
        let Some(&(_, kind)) = KINDS.iter().find(|(known, _)| *known == name) else {
            let supported = KINDS.map(|(known, _)| known).join(", ");
            return Err(TextError::UnsupportedPreTokenizer { found: name.into(), supported });
        };
        let lists = |letters: &str, digits: &str| {
            format!(r"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}| ?[^\s{letters}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+")
        };
        let (isolate, pieces) = match kind {
            Kind::Qwen2 => (None, lists(r"\p{L}", r"\p{N}")),
            Kind::Qwen35 => (None, lists(r"\p{L}\p{M}", r"\p{N}")),
            Kind::MiniCpm5 => (Some(r"\p{N}{1,3}"), lists(r"\p{L}", r"\p{N}+")),
            Kind::SmolLm => (Some(r"\p{N}"), r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+".to_string()),
            Kind::Llama3 => (None, lists(r"\p{L}", r"\p{N}{1,3}")),
        };
        let compile = |pattern: &str| Regex::new(pattern).map_err(|error| TextError::Encode(error.to_string()));
        Ok(Self {
            isolate: isolate.map(compile).transpose()?,
            pieces: compile(&pieces)?,
            line_breaks: kind != Kind::SmolLm,
            ignore_merges: matches!(kind, Kind::MiniCpm5 | Kind::Llama3),
        })
    }

    /// Calls `each` with every piece of `text`, in order.
    pub fn cut<E>(&self, text: &str, each: &mut impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        let Some(isolate) = &self.isolate else { return self.cut_rest(text, each) };
        let mut done = 0;
        for found in isolate.find_iter(text) {
            self.cut_rest(&text[done..found.start()], each)?;
            each(found.as_str())?;
            done = found.end();
        }
        self.cut_rest(&text[done..], each)
    }

    fn cut_rest<E>(&self, text: &str, each: &mut impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        let mut at = 0;
        while at < text.len() {
            let found = self.pieces.find_at(text, at);
            // The lists cover every character. Should one not, what it leaves is a piece of its own, never lost.
            let Some(found) = found else { return each(&text[at..]) };
            if found.start() > at {
                each(&text[at..found.start()])?;
            }
            let end = found.end() - self.lent(found.as_str(), &text[found.end()..]);
            each(&text[found.start()..end])?;
            at = end;
        }
        Ok(())
    }

    /// Bytes at the end of `piece` that belong to what follows: the last of two or more spaces in front of a word. This
    /// is `\s+(?!\S)`: a run of spaces is matched whole, so what follows it is a word or the end.
    fn lent(&self, piece: &str, rest: &str) -> usize {
        let Some(last) = piece.chars().next_back() else { return 0 };
        let by_line_break = self.line_breaks && matches!(last, '\r' | '\n');
        if rest.is_empty() || by_line_break || piece.len() == last.len_utf8() || !piece.chars().all(char::is_whitespace) {
            return 0;
        }
        last.len_utf8()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};
    use tokenizers::utils::SysRegex;

    use super::*;

    fn cut(name: &str, text: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        let each = &mut |piece: &str| {
            pieces.push(piece.to_string());
            Ok::<(), ()>(())
        };
        PreTokenizer::named(name).unwrap().cut(text, each).unwrap();
        assert_eq!(pieces.concat(), text);
        pieces
    }

    #[test]
    fn qwen2_list() {
        assert_eq!(cut("qwen2", "I'm you'RE 'llama"), ["I", "'m", " you", "'RE", " '", "llama"]);
        assert_eq!(cut("qwen2", "a12  b\t\tc"), ["a", "1", "2", " ", " b", "\t", "\tc"]);
        assert_eq!(cut("qwen2", "x \n\n  y  "), ["x", " \n\n", " ", " y", "  "]);
        assert_eq!(cut("qwen2", "f(x);\n}"), ["f", "(x", ");\n", "}"]);
        assert_eq!(cut("qwen2", "\u{3000}\u{3000}1"), ["\u{3000}", "\u{3000}", "1"]);
        // U+017F is no s.
        assert_eq!(cut("qwen2", "'\u{17f}"), ["'\u{17f}"]);
        assert!(cut("qwen2", "").is_empty());
    }

    #[test]
    fn marks_are_letters_for_qwen35_alone() {
        assert_eq!(cut("qwen35", "e\u{301}a \u{301}"), ["e\u{301}a", " \u{301}"]);
        assert_eq!(cut("qwen2", "e\u{301}a !\u{301}"), ["e", "\u{301}a", " !\u{301}"]);
        assert_eq!(cut("qwen35", "!\u{301}"), ["!\u{301}"]);
        assert_eq!(cut("qwen35", "?!\u{301}"), ["?!", "\u{301}"]);
    }

    #[test]
    fn digits_in_threes() {
        assert_eq!(cut("llama-bpe", "12345 6"), ["123", "45", " ", "6"]);
        assert_eq!(cut("llama3", "12345"), ["123", "45"]);
        assert_eq!(cut("minicpm5", "x12345y  67"), ["x", "123", "45", "y", "  ", "67"]);
    }

    #[test]
    fn smollm_list() {
        assert_eq!(cut("smollm", "it's IT'S 12"), ["it", "'s", " IT", "'", "S", " ", "1", "2"]);
        assert_eq!(cut("smollm", "a\n\nb"), ["a", "\n", "\n", "b"]);
        assert_eq!(cut("smollm", " \n "), [" \n "]);
        // A digit ends the text for the second pass, so both spaces stay together.
        assert_eq!(cut("smollm", "x  7"), ["x", "  ", "7"]);
    }

    #[test]
    fn unknown_names_are_refused_with_the_known_ones() {
        let error = PreTokenizer::named("gpt-4o").unwrap_err().to_string();
        assert!(error.contains("gpt-4o") && error.contains("qwen35") && error.contains("llama-bpe"), "{error}");
    }

    /// The lists as they are defined, with their look-ahead, on the backtracking engine.
    struct Definition {
        name: &'static str,
        isolate: Option<SysRegex>,
        pieces: SysRegex,
        ours: PreTokenizer,
    }

    impl Definition {
        fn new(name: &'static str) -> Self {
            const CONTRACTIONS: &str = "'s|'t|'re|'ve|'m|'ll|'d|'S|'T|'RE|'Re|'rE|'VE|'Ve|'vE|'M|'LL|'Ll|'lL|'D";
            const END: &str = r"\s*[\r\n]+|\s+(?!\S)|\s+";
            const SMOLLM: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
            let list = |letters: &str, digits: &str| {
                format!(r"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}| ?[^\s{letters}\p{{N}}]+[\r\n]*|{END}")
            };
            let (isolate, pieces) = match name {
                "qwen2" => (None, list(r"\p{L}", r"\p{N}")),
                "qwen35" => (None, list(r"\p{L}\p{M}", r"\p{N}")),
                "minicpm5" => (Some(r"\p{N}{1,3}"), list(r"\p{L}", r"\p{N}+")),
                "smollm" => (Some(r"\p{N}"), SMOLLM.into()),
                _ => (None, list(r"\p{L}", r"\p{N}{1,3}")),
            };
            let regex = |pattern: &str| SysRegex::new(pattern).unwrap();
            Self { name, isolate: isolate.map(regex), pieces: regex(&pieces), ours: PreTokenizer::named(name).unwrap() }
        }

        /// What the expression matches (true), and what is between two matches (false).
        fn split<'t>(regex: &SysRegex, text: &'t str) -> Vec<(&'t str, bool)> {
            let (mut parts, mut done) = (Vec::new(), 0);
            for (start, end) in regex.find_iter(text).chain([(text.len(), text.len())]) {
                parts.extend([(&text[done..start], false), (&text[start..end], true)]);
                done = end;
            }
            parts.retain(|(part, _)| !part.is_empty());
            parts
        }

        fn cut<'t>(&self, text: &'t str) -> Vec<&'t str> {
            let texts = self.isolate.as_ref().map_or_else(|| vec![(text, false)], |isolate| Self::split(isolate, text));
            let cut = texts.into_iter().flat_map(|(text, alone)| if alone { vec![(text, true)] } else { Self::split(&self.pieces, text) });
            cut.map(|(piece, _)| piece).collect()
        }
    }

    #[test]
    fn the_look_ahead_by_hand_is_the_look_ahead() {
        let definitions = ["qwen2", "qwen35", "minicpm5", "smollm", "llama-bpe"].map(Definition::new);
        let texts = "([ \t\r\n\u{a0}\u{3000}\u{85}]{0,4}('[a-zA-Z]{0,2}|[a-zA-Z\u{17f}\u{e9}\u{4e00}\u{300}\u{301}]{0,3}|\
            [0-9\u{660}\u{bd}]{0,5}|[.,;{}!<>\u{1f600}]{0,2}|\\PC{0,2})){0,8}";
        let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(256);
        let config = Config { cases, failure_persistence: None, ..Config::default() };
        TestRunner::new(config)
            .run(&proptest::string::string_regex(texts).unwrap(), |text| {
                for definition in &definitions {
                    let mut pieces = Vec::new();
                    let each = &mut |piece: &str| {
                        pieces.push(piece.to_string());
                        Ok::<(), ()>(())
                    };
                    definition.ours.cut(&text, each).unwrap();
                    prop_assert_eq!(pieces, definition.cut(&text), "{}", definition.name);
                }
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn long_runs_take_linear_time() {
        for unit in [" ", "a", "1", "\n", "'", " \n", "\u{301}", "a "] {
            for (name, _) in KINDS {
                let text = unit.repeat(200_000);
                let mut bytes = 0;
                let each = &mut |piece: &str| {
                    bytes += piece.len();
                    Ok::<(), ()>(())
                };
                PreTokenizer::named(name).unwrap().cut(&text, each).unwrap();
                assert_eq!(bytes, text.len());
            }
        }
    }
}
