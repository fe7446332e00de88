//! Control and user-defined tokens: their texts, and where they stand in a text.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use super::{Parse, TextError};

/// A vocabulary with more special tokens than this is refused (the largest known has about 7000).
const MAX_SPECIAL: usize = 1 << 15;

/// What a token is, by `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Text, made by merging bytes.
    Normal,
    /// Stands for what cannot be encoded; never made from text.
    Unknown,
    /// Steers the model (`<|im_start|>`); made from text only where control tokens are asked for.
    Control,
    /// Text that is always one token (`<think>`), outside of decisions.
    UserDefined,
    /// Fills up the vocabulary, and the two kinds that byte-level BPE does not use.
    Unused,
}

impl TokenKind {
    pub(super) fn from_id(id: i32) -> Option<Self> {
        Some(match id {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            0 | 5 | 6 => Self::Unused,
            _ => return None,
        })
    }

    /// Never made by merging, so that no text becomes such a token without being asked to.
    pub(super) fn is_special(self) -> bool {
        matches!(self, Self::Unknown | Self::Control | Self::UserDefined)
    }

    fn parsed_in(self, parse: Parse) -> bool {
        match parse {
            Parse::Plain => false,
            Parse::UserDefined => self == Self::UserDefined,
            Parse::Control => matches!(self, Self::Control | Self::UserDefined),
        }
    }
}

/// A special token in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Bytes of the text.
    pub range: Range<usize>,
    pub id: u32,
}

#[derive(Debug)]
struct Special {
    text: Box<str>,
    kind: TokenKind,
}

/// The special tokens of a vocabulary.
#[derive(Debug, Default)]
pub(super) struct SpecialTokens {
    by_id: BTreeMap<u32, Special>,
    matcher: Option<AhoCorasick>,
    /// Token id of each of the matcher's patterns, in order of id.
    patterns: Vec<u32>,
    /// Some text starts or ends in whitespace.
    pub edge_whitespace: bool,
}

impl SpecialTokens {
    /// From ids, texts and kinds, in order of id.
    pub fn new<'a>(tokens: impl IntoIterator<Item = (u32, &'a str, TokenKind)>) -> Result<Self, TextError> {
        let mut this = Self::default();
        for (id, text, kind) in tokens {
            this.by_id.insert(id, Special { text: text.into(), kind });
            // A token without text is in no text.
            if matches!(kind, TokenKind::Control | TokenKind::UserDefined) && !text.is_empty() {
                this.patterns.push(id);
                this.edge_whitespace |= text.starts_with(char::is_whitespace) || text.ends_with(char::is_whitespace);
            }
            if this.by_id.len() > MAX_SPECIAL {
                return Err(TextError::Vocabulary(format!("more than {MAX_SPECIAL} tokens are control or user-defined")));
            }
        }
        if !this.patterns.is_empty() {
            let texts = this.patterns.iter().filter_map(|id| this.by_id.get(id)).map(|special| special.text.as_bytes());
            let matcher = AhoCorasick::builder()
                .match_kind(MatchKind::Standard)
                .kind(Some(AhoCorasickKind::ContiguousNFA))
                .build(texts)
                .map_err(|error| TextError::Vocabulary(format!("its control and user-defined tokens: {error}")))?;
            this.matcher = Some(matcher);
        }
        Ok(this)
    }

    /// The text of a special token.
    pub fn text(&self, id: u32) -> Option<&str> {
        Some(&self.by_id.get(&id)?.text)
    }

    /// The kind of a special token.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        Some(self.by_id.get(&id)?.kind)
    }

    /// The special token with this text.
    pub fn id(&self, text: &str) -> Option<u32> {
        self.by_id.iter().find(|(_, special)| &*special.text == text).map(|(&id, _)| id)
    }

    /// All texts.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.by_id.values().map(|special| &*special.text)
    }

    /// Every place where a token of the parsed kinds stands, overlapping ones too.
    fn matches(&self, text: &str, parse: Parse) -> Result<Vec<Span>, TextError> {
        let mut spans = Vec::new();
        let Some(matcher) = &self.matcher else { return Ok(spans) };
        if parse == Parse::Plain {
            return Ok(spans);
        }
        for found in matcher.find_overlapping_iter(text) {
            let id = self.patterns[found.pattern().as_usize()];
            if !self.by_id.get(&id).is_some_and(|special| special.kind.parsed_in(parse)) {
                continue;
            }
            spans.push(Span { range: found.range(), id });
            // Only a vocabulary made for it has more than a few at one place: do not let it take the memory.
            if spans.len() > 4096 + 2 * text.len() {
                return Err(TextError::Vocabulary("its control and user-defined tokens are parts of each other".into()));
            }
        }
        Ok(spans)
    }

    /// The tokens of the parsed kinds in a text, in order. Where two overlap, the longer one counts, then the one with
    /// the lower id, then the earlier one: the order in which llama.cpp takes them out of a text.
    pub fn find(&self, text: &str, parse: Parse) -> Result<Vec<Span>, TextError> {
        let mut spans = self.matches(text, parse)?;
        spans.sort_unstable_by_key(|span| (Reverse(span.range.len()), span.id, span.range.start));
        let mut taken: BTreeMap<usize, Span> = BTreeMap::new();
        for span in spans {
            let Range { start, end } = span.range;
            let free_before = taken.range(..end).next_back().is_none_or(|(_, before)| before.range.end <= start);
            if free_before {
                taken.insert(start, span);
            }
        }
        Ok(taken.into_values().collect())
    }

    /// Inside every special token's text that stands in `text`, the place after its first character: cut there, the text
    /// has none left, save those of a single character. In order, each once.
    pub fn breaks(&self, text: &str) -> Result<Vec<usize>, TextError> {
        let mut places: Vec<usize> = self
            .matches(text, Parse::Control)?
            .into_iter()
            .filter_map(|Span { range, .. }| {
                let first = text[range.clone()].chars().next()?.len_utf8();
                (range.len() > first).then_some(range.start + first)
            })
            .collect();
        places.sort_unstable();
        places.dedup();
        Ok(places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(list: &[(&str, TokenKind)]) -> SpecialTokens {
        SpecialTokens::new(list.iter().enumerate().map(|(i, &(text, kind))| (i as u32, text, kind))).unwrap()
    }

    fn found(tokens: &SpecialTokens, text: &str, parse: Parse) -> Vec<(usize, u32)> {
        tokens.find(text, parse).unwrap().into_iter().map(|span| (span.range.start, span.id)).collect()
    }

    #[test]
    fn longest_first_wherever_it_stands() {
        let t = tokens(&[("ab", TokenKind::Control), ("bcd", TokenKind::UserDefined), ("a", TokenKind::Control), ("", TokenKind::Control)]);
        assert_eq!(found(&t, "abcd", Parse::Control), [(0, 2), (1, 1)]);
        assert_eq!(found(&t, "abab", Parse::Control), [(0, 0), (2, 0)]);
        assert_eq!(found(&t, "abcd", Parse::UserDefined), [(1, 1)]);
        assert_eq!(found(&t, "abcd", Parse::Plain), []);
    }

    #[test]
    fn an_unknown_token_is_never_in_a_text() {
        let t = tokens(&[("<unk>", TokenKind::Unknown)]);
        assert_eq!(found(&t, "<unk>", Parse::Control), []);
        assert_eq!(t.text(0), Some("<unk>"));
        assert_eq!(t.id("<unk>"), Some(0));
    }

    #[test]
    fn breaks_leave_no_special_text() {
        let t = tokens(&[("<think>", TokenKind::UserDefined), ("é<", TokenKind::Control), ("x", TokenKind::Control)]);
        assert_eq!(t.breaks("é<think>x").unwrap(), [2, 3]);
        assert!(t.breaks("thinking").unwrap().is_empty());
    }

    #[test]
    fn hostile_lists_end_in_an_error() {
        let nested: Vec<String> = (1..200).map(|n| "a".repeat(n)).collect();
        let list: Vec<(&str, TokenKind)> = nested.iter().map(|text| (text.as_str(), TokenKind::Control)).collect();
        assert!(tokens(&list).find(&"a".repeat(100_000), Parse::Control).is_err());
        let many = (0..=MAX_SPECIAL as u32).map(|id| (id, "x", TokenKind::Control));
        assert!(SpecialTokens::new(many).is_err());
    }
}
