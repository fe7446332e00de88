//! Byte-level BPE from the vocabulary and merges of a GGUF file; the merging itself is Hugging Face's `tokenizers`.

use std::collections::{HashMap, HashSet};

use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Merges, Vocab};

use super::bytes::{char_of, spell, unspell};
use super::pieces::PreTokenizer;
use super::special::{SpecialTokens, TokenKind};
use super::{Parse, TextError};
use crate::gguf::{Metadata, Optional};

/// What a file says about its tokenizer, borrowed from the metadata.
pub(super) struct VocabularyParts<'a> {
    /// `tokenizer.ggml.model`.
    pub model: &'a str,
    /// `tokenizer.ggml.pre`.
    pub pre: &'a str,
    /// Token texts by id: spelled in byte characters, or as they are for control and user-defined tokens.
    pub tokens: Vec<&'a str>,
    /// Token type of each token.
    pub types: Vec<i32>,
    /// Pairs as `left right`, best first.
    pub merges: Vec<&'a str>,
}

/// A model's tokenizer.
///
/// Text is cut at special tokens (as far as [`Parse`] lets them count), the rest by the model's pre-tokenizer, and the
/// bytes of each piece merge by the model's merge list. No normalisation, no added tokens at either end.
#[derive(Debug)]
pub struct Tokenizer {
    bpe: BPE,
    pre: PreTokenizer,
    pub(super) special: SpecialTokens,
    /// Whether the vocabulary has a token for the byte alone. SmolLM2's lacks 21, six of them ASCII control characters.
    bytes: [bool; 256],
    /// Ids that fill up the vocabulary, ascending.
    unused: Vec<u32>,
    len: u32,
}

impl Tokenizer {
    /// The tokenizer that a GGUF file describes (`tokenizer.ggml.*`).
    ///
    /// # Errors
    /// Missing keys, an unsupported model or pre-tokenizer, a vocabulary that contradicts itself: all named.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, TextError> {
        let model = metadata.str("tokenizer.ggml.model")?;
        // Before the arrays: other kinds of vocabulary lack some of them, and the kind is the better reason.
        check_model(model)?;
        let tokens = metadata.str_array("tokenizer.ggml.tokens")?;
        let merges = metadata.str_array("tokenizer.ggml.merges")?;
        Self::from_parts(&VocabularyParts {
            model,
            pre: metadata.str("tokenizer.ggml.pre").optional()?.unwrap_or("default"),
            tokens: tokens.iter().collect(),
            types: metadata.i32_array("tokenizer.ggml.token_type")?,
            merges: merges.iter().collect(),
        })
    }

    pub(super) fn from_parts(parts: &VocabularyParts<'_>) -> Result<Self, TextError> {
        check_model(parts.model)?;
        let pre = PreTokenizer::named(parts.pre)?;
        let broken = |what: String| Err(TextError::Vocabulary(what));
        if parts.tokens.is_empty() {
            return broken("it has no tokens".into());
        }
        let Ok(len) = u32::try_from(parts.tokens.len()) else { return broken("it has more than 2^32 tokens".into()) };
        if parts.types.len() != parts.tokens.len() {
            return broken(format!("{} tokens, but {} token types", parts.tokens.len(), parts.types.len()));
        }

        let mut vocab = Vocab::with_capacity(parts.tokens.len());
        let (mut special, mut unused) = (Vec::new(), Vec::new());
        let mut special_ids = HashMap::new();
        for ((id, &text), &kind) in (0..).zip(&parts.tokens).zip(&parts.types) {
            let Some(kind) = TokenKind::from_id(kind) else {
                return broken(format!("token {id} {} has the unknown type {kind}", shown(text)));
            };
            if kind == TokenKind::Unused {
                unused.push(id);
            }
            let first = if kind.is_special() {
                special.push((id, text, kind));
                if text.is_empty() { None } else { special_ids.insert(text, id) }
            } else if text.is_empty() {
                // Fills a hole: no text becomes this token.
                None
            } else {
                vocab.insert(text.to_string(), id)
            };
            if let Some(first) = first {
                return broken(format!("tokens {first} and {id} are both {}", shown(text)));
            }
        }
        if let Some((text, id)) = special_ids.iter().find(|(text, _)| vocab.contains_key(**text)) {
            return broken(format!("tokens {} and {id} are both {}", vocab[*text], shown(text)));
        }
        let bytes: [bool; 256] = std::array::from_fn(|b| vocab.contains_key(char_of(b as u8).encode_utf8(&mut [0; 4])));
        if !bytes.contains(&true) {
            return broken("it has a token for no byte at all".into());
        }

        let merges = checked_merges(&parts.merges, &vocab, &special_ids)?;
        drop(special_ids);
        // No cache: `tokenizers` keeps one for each thread and never drops it, not even with the tokenizer, and without it
        // a million tokens take a tenth of a second or so.
        let bpe = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .cache_capacity(0)
            .ignore_merges(pre.ignore_merges)
            .build()
            .map_err(|error| TextError::Vocabulary(error.to_string()))?;
        Ok(Self { bpe, pre, special: SpecialTokens::new(special)?, bytes, unused, len })
    }

    /// Number of tokens.
    pub fn vocab_len(&self) -> usize {
        self.len as usize
    }

    /// The token whose whole text this is: a special token as it is written, or an ordinary one.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        let mut spelled = String::new();
        spell(text, &mut spelled);
        self.special.id(text).or_else(|| self.bpe.token_to_id(&spelled))
    }

    /// What kind of token this is; `None` for an id outside the vocabulary.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        if id >= self.len {
            return None;
        }
        let unused = || if self.unused.binary_search(&id).is_ok() { TokenKind::Unused } else { TokenKind::Normal };
        Some(self.special.kind(id).unwrap_or_else(unused))
    }

    /// The token ids of a text.
    ///
    /// # Errors
    /// A byte that the vocabulary has no token for.
    pub fn encode(&self, text: &str, parse: Parse) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::new();
        let mut done = 0;
        for span in self.special.find(text, parse)? {
            self.encode_plain(&text[done..span.range.start], &mut ids)?;
            ids.push(span.id);
            done = span.range.end;
        }
        self.encode_plain(&text[done..], &mut ids)?;
        Ok(ids)
    }

    /// Appends the ids of a text in which nothing is special.
    pub(super) fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TextError> {
        // The merging leaves out what it does not know, silently: ask first.
        if let Some(at) = text.bytes().position(|byte| !self.bytes[usize::from(byte)]) {
            let start = (0..=at).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
            let place = text[start..].chars().next().map_or(String::new(), |c| format!("{c:?} (U+{:04X})", u32::from(c)));
            return Err(TextError::NoTokenForByte { byte: text.as_bytes()[at], place });
        }
        let mut spelled = String::new();
        self.pre.cut(text, &mut |piece| {
            spell(piece, &mut spelled);
            let tokens = self.bpe.tokenize(&spelled).map_err(|error| TextError::Encode(error.to_string()))?;
            ids.extend(tokens.iter().map(|token| token.id));
            Ok(())
        })
    }

    /// The bytes that a token stands for, special tokens as they are written; `None` for an id outside the vocabulary.
    /// A character may be spread over several tokens.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        if id >= self.len {
            return None;
        }
        if let Some(text) = self.special.text(id) {
            return Some(text.into());
        }
        let mut bytes = Vec::new();
        // A token without text stands for nothing.
        unspell(&self.bpe.id_to_token(id).unwrap_or_default(), &mut bytes);
        Some(bytes)
    }

    /// The text of tokens. Bytes that are not UTF-8, and ids outside the vocabulary, become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::new();
        for &id in ids {
            match self.token_bytes(id) {
                Some(token) => bytes.extend(token),
                None => bytes.extend("\u{fffd}".bytes()),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn check_model(model: &str) -> Result<(), TextError> {
    if model == "gpt2" { Ok(()) } else { Err(TextError::UnsupportedModel(model.into())) }
}

/// The merges as pairs of tokens, each pair once (its first place counts). Merges with a special token are left out: its
/// text becomes that token by being recognised, never by merging.
fn checked_merges(merges: &[&str], vocab: &Vocab, special: &HashMap<&str, u32>) -> Result<Merges, TextError> {
    let mut pairs = Merges::with_capacity(merges.len());
    let mut seen = HashSet::with_capacity(merges.len());
    let mut whole = String::new();
    for (rank, merge) in merges.iter().enumerate() {
        let broken = |why: String| TextError::Vocabulary(format!("merge {rank} {} {why}", shown(merge)));
        // From the second character on, as a token may itself start with a space in a vocabulary that is not spelled.
        let space = merge.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(at, _)| at);
        let Some((left, right)) = space.map(|at| (&merge[..at], &merge[at + 1..])).filter(|(_, right)| !right.is_empty()) else {
            return Err(broken("is no pair".into()));
        };
        whole.clear();
        whole.push_str(left);
        whole.push_str(right);
        let texts = [left, right, &whole];
        if texts.iter().any(|&text| special.contains_key(text)) {
            continue;
        }
        let mut ids = [0; 3];
        for (text, id) in texts.into_iter().zip(&mut ids) {
            *id = *vocab.get(text).ok_or_else(|| broken(format!("needs the token {}, which is not there", shown(text))))?;
        }
        if seen.insert((ids[0], ids[1])) {
            pairs.push((left.to_string(), right.to_string()));
        }
    }
    Ok(pairs)
}

/// A text from the file for a message: quoted, and not longer than a line.
fn shown(text: &str) -> String {
    match text.char_indices().nth(48) {
        Some((at, _)) => format!("{:?}...", &text[..at]),
        None => format!("{text:?}"),
    }
}
