//! Answer slots: the tokens of the letters that stand for the options.

use super::{ChatPrompt, TextError, TextModel};

/// Most options of a decision: letters A to T.
pub const MAX_SLOTS: usize = 20;

/// The letter of an option by position.
fn letter(index: usize) -> char {
    char::from(b'A' + index as u8)
}

impl TextModel {
    /// The token ids of the first `n` answer letters, A to T.
    ///
    /// # Errors
    /// [`TextError::SlotCount`] for `n` outside 1 to 20; [`TextError::Slot`] for a letter that is not exactly one token
    /// which decodes back to it, or shares its token with another.
    pub fn letter_slots(&self, n: usize) -> Result<Vec<u32>, TextError> {
        if !(1..=MAX_SLOTS).contains(&n) {
            return Err(TextError::SlotCount(n));
        }
        let mut slots = Vec::with_capacity(n);
        for letter in (0..n).map(letter) {
            let bad = |reason: String| TextError::Slot { letter, reason };
            let mut ids = Vec::new();
            self.tokenizer.encode_plain(letter.encode_utf8(&mut [0; 4]), &mut ids).map_err(|error| bad(error.to_string()))?;
            let [id] = ids[..] else { return Err(bad(format!("it is {} tokens", ids.len()))) };
            let back = self.tokenizer.decode(&[id]);
            if !back.chars().eq([letter]) {
                return Err(bad(format!("its token {id} decodes to {back:?}")));
            }
            if slots.contains(&id) {
                return Err(bad(format!("its token {id} is another letter's too")));
            }
            slots.push(id);
        }
        Ok(slots)
    }

    /// Checks that appending a letter to the prompt adds exactly that letter's token and changes none before it, for every
    /// slot (`slots[i]` being the token of letter `i`).
    ///
    /// # Errors
    /// [`TextError::Boundary`] for the first letter that fails.
    pub fn check_boundary(&self, prompt: &ChatPrompt, slots: &[u32]) -> Result<(), TextError> {
        if slots.len() > MAX_SLOTS {
            return Err(TextError::SlotCount(slots.len()));
        }
        // Encoding the text after the last special token is enough: special tokens cut the text before it is encoded, so
        // what follows the last one has no influence on what is before it, nor the other way round. In a chat prompt that
        // is a line break or two, so that a long state is not encoded again for each letter.
        let tail = &prompt.text[prompt.tail.clone()];
        let mut before = Vec::new();
        self.tokenizer.encode_plain(tail, &mut before)?;
        for (letter, &slot) in (0..).map(letter).zip(slots) {
            let mut with = Vec::new();
            self.tokenizer.encode_plain(&format!("{tail}{letter}"), &mut with)?;
            if with.split_last() != Some((&slot, &before)) {
                return Err(TextError::Boundary { letter, tail: before.len(), found: with.len(), slot });
            }
        }
        Ok(())
    }
}
