//! What can be wrong with a vocabulary, a template or a text.

use crate::gguf::MetadataError;

/// Everything that this room refuses, in words for the person who chose the file or wrote the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// A metadata key is missing or of the wrong kind.
    #[error("the model file's tokenizer: {0}")]
    Metadata(#[from] MetadataError),
    /// `tokenizer.ggml.model` is not byte-level BPE.
    #[error("tokenizer model \"{0}\" is not supported: only \"gpt2\" (byte-level BPE) is")]
    UnsupportedModel(String),
    /// `tokenizer.ggml.pre` names a pre-tokenizer that is not here.
    #[error("pre-tokenizer \"{found}\" is not supported: supported are {supported}")]
    UnsupportedPreTokenizer {
        /// The name in the file.
        found: String,
        /// All names that would do.
        supported: String,
    },
    /// The vocabulary contradicts itself.
    #[error("the model file's vocabulary is broken: {0}")]
    Vocabulary(String),
    /// The text has a byte that no token of the vocabulary covers.
    #[error("the vocabulary has no token for the byte 0x{byte:02x} of {place}, so the text cannot be encoded")]
    NoTokenForByte {
        /// The byte.
        byte: u8,
        /// The character that it is part of.
        place: String,
    },
    /// The text could not be split or encoded.
    #[error("the text cannot be encoded: {0}")]
    Encode(String),
    /// The file has no chat template.
    #[error(
        "the model file has no chat template (tokenizer.chat_template), so no prompt can be made for it: use an instruction-tuned model"
    )]
    NoTemplate,
    /// The template does not parse.
    #[error("the model's chat template cannot be read: {0}")]
    TemplateSyntax(String),
    /// The template called `raise_exception`.
    #[error("the model's chat template refuses these messages: {0}")]
    TemplateRefused(String),
    /// The template failed while rendering.
    #[error("the model's chat template fails: {0}")]
    TemplateFailed(String),
    /// The template was stopped because it does far more work than any honest one.
    #[error("the model's chat template was stopped: {0}")]
    TemplateLimit(String),
    /// The message texts do not come out of the template whole.
    #[error("the model's chat template does not keep the message texts whole: {0}")]
    MessageText(String),
    /// An answer letter is no usable slot of this vocabulary.
    #[error("answer letter {letter} cannot be an answer slot of this model: {reason}")]
    Slot {
        /// The letter.
        letter: char,
        /// Why.
        reason: String,
    },
    /// More or fewer slots than there are letters.
    #[error("{0} answer slots asked for: there are 1 to 20, A to T")]
    SlotCount(usize),
    /// Appending the letter to the prompt changes more than one token.
    #[error(
        "answer letter {letter} does not stay one token after this prompt: the prompt's last {tail} tokens become {found} \
         with the letter, expected {tail} and token {slot}"
    )]
    Boundary {
        /// The letter.
        letter: char,
        /// Tokens after the last special token of the prompt.
        tail: usize,
        /// Tokens that the same text and the letter give.
        found: usize,
        /// The letter's own token.
        slot: u32,
    },
}
