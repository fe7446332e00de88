//! Text out of a token stream.

use super::Tokenizer;

/// Turns tokens into text as they come, holding back the bytes of a character until it is whole.
///
/// All texts together equal [`Tokenizer::decode`] of all tokens.
#[derive(Clone, Debug, Default)]
pub struct StreamDecoder {
    /// The start of a character: at most three bytes.
    held: Vec<u8>,
}

impl StreamDecoder {
    /// A decoder at the start of a text.
    pub fn new() -> Self {
        Self::default()
    }

    /// The text that the next token completes; empty while a character is unfinished.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        let bytes = tokenizer.token_bytes(id);
        self.push_bytes(bytes.as_deref().unwrap_or("\u{fffd}".as_bytes()))
    }

    fn push_bytes(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let whole = self.held.len() - unfinished(&self.held);
        let text = String::from_utf8_lossy(&self.held[..whole]).into_owned();
        self.held.drain(..whole);
        text
    }

    /// What is left when no more tokens come: U+FFFD for an unfinished character.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

/// How many bytes at the end are the start of a character that more bytes could complete.
fn unfinished(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    loop {
        match std::str::from_utf8(rest) {
            Ok(_) => return 0,
            Err(error) => match error.error_len() {
                Some(bad) => rest = &rest[error.valid_up_to() + bad..],
                None => return rest.len() - error.valid_up_to(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_character_comes_when_it_is_whole() {
        let mut decoder = StreamDecoder::new();
        assert_eq!(decoder.push_bytes(b"a\xf0\x9f"), "a");
        assert_eq!(decoder.push_bytes(b"\x98"), "");
        assert_eq!(decoder.push_bytes(b"\x80b"), "\u{1f600}b");
        assert_eq!(decoder.push_bytes(b"\xe2\x82"), "");
        assert_eq!(decoder.push_bytes(b"x"), "\u{fffd}x");
        assert_eq!(decoder.push_bytes(b"\xe2"), "");
        assert_eq!(decoder.finish(), "\u{fffd}");
        assert_eq!(decoder.finish(), "");
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_text(bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0x80..0xf8u8], 0..40), step in 1..5usize) {
            let mut decoder = StreamDecoder::new();
            let mut text: String = bytes.chunks(step).map(|chunk| decoder.push_bytes(chunk)).collect();
            prop_assert!(decoder.held.len() < 4);
            text += &decoder.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
