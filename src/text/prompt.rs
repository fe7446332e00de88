//! A system and a user text through the chat template into token ids, user text staying text.
//!
//! Only the template may contribute special tokens. So the rendered prompt must show what came from where: before
//! rendering, each message text is put between two marks, private-use characters that occur nowhere else, and the text of
//! every special token in it is broken by a third. The template then cannot mistake message text for its own markup
//! (some split at `</think>`), no special token's text can form across the border of template and message, and none
//! between the marks counts. With the marks taken out again, the rendering is the one that the plain texts give.

use std::collections::BTreeSet;
use std::ops::Range;

use super::python::is_space;
use super::special::Span;
use super::{ChatTemplate, Message, Parse, TextError, Tokenizer};

/// A prompt that ends where the model's answer starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatPrompt {
    /// The whole rendered text, special tokens as they are written; `prompt_sha256` is over its UTF-8.
    pub text: String,
    /// Its token ids. They decode to `text`.
    pub tokens: Vec<u32>,
    /// The template has no place for a system turn: the system text stands in front of the user text.
    pub system_folded: bool,
    /// Bytes of `text` after its last special token.
    pub(super) tail: Range<usize>,
}

/// Renders the two texts and encodes the prompt.
pub(super) fn chat_prompt(tokenizer: &Tokenizer, template: &ChatTemplate, system: &str, user: &str) -> Result<ChatPrompt, TextError> {
    let marks = Marks::free_in(tokenizer, template, [system, user])?;
    let system_marked = marks.put_around(system, marks.system, tokenizer)?;
    let user_marked = marks.put_around(user, marks.user, tokenizer)?;
    let two_turns = template.render(&[Message::system(&*system_marked), Message::user(&*user_marked)]);
    let refusal = match two_turns {
        Ok(rendered) => {
            let read = marks.read(&rendered)?;
            // A template may also pass over a system turn without a word.
            if read.system || is_blank(system) {
                return encode(tokenizer, read, user, false);
            }
            None
        }
        Err(TextError::TemplateRefused(message)) => Some(TextError::TemplateRefused(message)),
        Err(error) => return Err(error),
    };
    let separator = if is_blank(system) { "" } else { "\n\n" };
    let one_turn = template.render(&[Message::user(format!("{system_marked}{separator}{user_marked}"))]);
    let read = match one_turn {
        Ok(rendered) => marks.read(&rendered)?,
        // It was not the system turn that it refused: its first word counts.
        Err(error) => return Err(refusal.unwrap_or(error)),
    };
    if !read.system && !is_blank(system) {
        return Err(TextError::MessageText("the system text is left out, with and without a system turn".into()));
    }
    encode(tokenizer, read, user, true)
}

fn encode(tokenizer: &Tokenizer, read: Read, user: &str, system_folded: bool) -> Result<ChatPrompt, TextError> {
    if !read.user && !is_blank(user) {
        return Err(TextError::MessageText("the user text is left out".into()));
    }
    let Read { text, messages, .. } = read;
    let mut tokens = Vec::new();
    let mut done = 0;
    for Span { range, id } in template_specials(tokenizer, &text, &messages)? {
        // Template and message text between two special tokens are one text for the pre-tokenizer.
        tokenizer.encode_plain(&text[done..range.start], &mut tokens)?;
        tokens.push(id);
        done = range.end;
    }
    tokenizer.encode_plain(&text[done..], &mut tokens)?;
    let tail = done..text.len();
    Ok(ChatPrompt { text, tokens, system_folded, tail })
}

/// Special tokens in the parts of the text that the template wrote.
fn template_specials(tokenizer: &Tokenizer, text: &str, messages: &[Range<usize>]) -> Result<Vec<Span>, TextError> {
    let mut specials = Vec::new();
    let mut done = 0;
    for message in messages.iter().chain([&(text.len()..text.len())]) {
        let found = tokenizer.special.find(&text[done..message.start], Parse::Control)?;
        specials.extend(found.into_iter().map(|span| Span { range: span.range.start + done..span.range.end + done, ..span }));
        done = message.end;
    }
    Ok(specials)
}

fn is_blank(text: &str) -> bool {
    text.chars().all(is_space)
}

/// Four characters that occur in neither message, template nor special token.
struct Marks {
    system: char,
    user: char,
    end: char,
    within: char,
}

/// A rendering without its marks.
struct Read {
    text: String,
    /// Bytes of `text` that are message text, in order.
    messages: Vec<Range<usize>>,
    /// The system text is there.
    system: bool,
    /// The user text is there.
    user: bool,
}

impl Marks {
    fn free_in(tokenizer: &Tokenizer, template: &ChatTemplate, messages: [&str; 2]) -> Result<Self, TextError> {
        // From the end that nobody uses: icon fonts live in the other two ranges.
        let private = ['\u{100000}'..='\u{10fffd}', '\u{f0000}'..='\u{ffffd}', '\u{e000}'..='\u{f8ff}'];
        let texts = messages.into_iter().chain(template.texts()).chain(tokenizer.special.texts());
        let used: BTreeSet<char> = texts.flat_map(str::chars).filter(|c| private.iter().any(|range| range.contains(c))).collect();
        let mut free = private.into_iter().flatten().filter(|c| !used.contains(c));
        match (free.next(), free.next(), free.next(), free.next()) {
            (Some(system), Some(user), Some(end), Some(within)) => Ok(Self { system, user, end, within }),
            _ => Err(TextError::MessageText("they use all of Unicode's private-use characters".into())),
        }
    }

    /// A message text with its marks. White space at its ends stays outside, where a template may trim it, unless a
    /// special token could begin or end with it. Blank text has no marks: a template may ask whether it is empty.
    fn put_around(&self, text: &str, start: char, tokenizer: &Tokenizer) -> Result<String, TextError> {
        if is_blank(text) {
            return Ok(text.into());
        }
        let body = if tokenizer.special.edge_whitespace { text } else { text.trim_matches(is_space) };
        let (before, after) = text.split_once(body).unwrap_or(("", ""));
        let mut marked = String::with_capacity(text.len() + 16);
        marked.push_str(before);
        marked.push(start);
        let mut done = 0;
        for at in tokenizer.special.breaks(body)? {
            marked.push_str(&body[done..at]);
            marked.push(self.within);
            done = at;
        }
        marked.push_str(&body[done..]);
        marked.push(self.end);
        marked.push_str(after);
        Ok(marked)
    }

    /// Takes the marks out of a rendering and notes where the messages are.
    fn read(&self, rendered: &str) -> Result<Read, TextError> {
        let mut read = Read { text: String::with_capacity(rendered.len()), messages: Vec::new(), system: false, user: false };
        let mut open = None;
        for c in rendered.chars() {
            if c == self.system || c == self.user {
                if open.replace(read.text.len()).is_some() {
                    return Err(TextError::MessageText("the end of one is cut off".into()));
                }
                read.system |= c == self.system;
                read.user |= c == self.user;
            } else if c == self.end {
                let Some(start) = open.take() else {
                    return Err(TextError::MessageText("the start of one is cut off".into()));
                };
                read.messages.push(start..read.text.len());
            } else if c != self.within {
                read.text.push(c);
            }
        }
        if open.is_some() {
            return Err(TextError::MessageText("the end of one is cut off".into()));
        }
        Ok(read)
    }
}
