//! Tokenizer and chat template, both from the model file.
//!
//! [`TextModel`] is what the engine holds: it turns a system and a user text into token ids ([`TextModel::chat_prompt`]),
//! names the tokens of the answer letters ([`TextModel::letter_slots`]), and turns generated tokens back into text
//! ([`Tokenizer::decode`], [`StreamDecoder`]). Vocabularies and templates are data from outside: a bad one is a
//! [`TextError`], never a panic.

mod bytes;
mod error;
mod pieces;
mod prompt;
mod python;
mod slots;
mod source;
mod special;
mod stream;
mod template;
mod tokenizer;

#[cfg(test)]
mod tests;

pub use error::TextError;
pub use prompt::ChatPrompt;
pub use slots::MAX_SLOTS;
pub use special::TokenKind;
pub use stream::StreamDecoder;
pub use template::{ChatTemplate, Message};
pub use tokenizer::Tokenizer;

use crate::gguf::{Metadata, Optional};

/// Which special tokens are recognised in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Parse {
    /// None: the text stays text, as in decisions.
    #[default]
    Plain,
    /// User-defined ones such as `<think>` (what llama.cpp does with special tokens off).
    UserDefined,
    /// Control and user-defined ones.
    Control,
}

/// Control tokens that end an answer, whatever the file names as its end token. Models are told to stop at the turn's end
/// and at the text's end, and files name only one of the two.
const END_TEXTS: [&str; 5] = ["<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end_of_text|>", "</s>"];

/// A model's tokenizer and chat template.
#[derive(Debug)]
pub struct TextModel {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    template: Result<ChatTemplate, TextError>,
    eos: Vec<u32>,
}

impl TextModel {
    /// From the metadata of a GGUF file. A missing or broken chat template is no error here, since encoding works without
    /// one: see [`TextModel::template`].
    ///
    /// # Errors
    /// As for [`Tokenizer::from_gguf`], and for special token ids outside the vocabulary.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, TextError> {
        let tokenizer = Tokenizer::from_gguf(metadata)?;
        let id = |key: &str| match metadata.u32(key).optional()? {
            Some(id) if id as usize >= tokenizer.vocab_len() => {
                let len = tokenizer.vocab_len();
                Err(TextError::Vocabulary(format!("{key} is {id}, but there are only {len} tokens")))
            }
            found => Ok(found),
        };
        let bos = id("tokenizer.ggml.bos_token_id")?;
        let eos = id("tokenizer.ggml.eos_token_id")?;
        let turn_end = id("tokenizer.ggml.eot_token_id")?;
        let text = |id: Option<u32>| id.map(|id| tokenizer.decode(&[id]));
        let template = match metadata.str("tokenizer.chat_template").optional()? {
            Some(source) => ChatTemplate::new(source, text(bos), text(eos)),
            None => Err(TextError::NoTemplate),
        };
        let mut ends: Vec<u32> = [eos, turn_end].into_iter().flatten().collect();
        let named = END_TEXTS.iter().filter_map(|text| tokenizer.special.id(text));
        ends.extend(named.filter(|&id| tokenizer.special.kind(id) == Some(TokenKind::Control)));
        ends.sort_unstable();
        ends.dedup();
        Ok(Self { tokenizer, template, eos: ends })
    }

    /// The chat template.
    ///
    /// # Errors
    /// The file has none, or one that does not parse.
    pub fn template(&self) -> Result<&ChatTemplate, TextError> {
        self.template.as_ref().map_err(Clone::clone)
    }

    /// The prompt for a system and a user text, up to where the answer starts. Neither control nor user-defined tokens
    /// are recognised in the two texts. No token is added that the template does not write.
    ///
    /// # Errors
    /// No template, a template that fails, refuses the messages, is stopped, or does not keep their texts whole; text that
    /// the vocabulary cannot encode.
    pub fn chat_prompt(&self, system: &str, user: &str) -> Result<ChatPrompt, TextError> {
        prompt::chat_prompt(&self.tokenizer, self.template()?, system, user)
    }

    /// Tokens that end an answer: the file's end-of-text and end-of-turn tokens, and the control tokens that are known to
    /// be one. Ascending.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos
    }
}
