//! Chat templates: Jinja from the model file, rendered as Hugging Face's `apply_chat_template` does.
//!
//! A template is a program from outside. Its steps, its nesting and its output are bounded; it can reach nothing but the
//! messages. (What it can still do is build a large text in memory before it is stopped, by doubling.)

use std::io;

use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::Serialize;

use super::TextError;
use super::python;

/// Instructions of one rendering. The templates of the ladder take about 300 for two turns.
const FUEL: u64 = 10_000;
/// Nested macro calls; a thread of a browser has 1 MiB of stack.
const RECURSION: usize = 32;
/// Bytes of template source; the largest known are about 20 kB.
const MAX_SOURCE: usize = 512 << 10;
/// Bytes of output beyond a few times the messages' own.
const OUTPUT_SLACK: usize = 1 << 20;

/// One turn of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    /// The text of the turn.
    pub content: String,
}

impl Message {
    /// What the model is told about its task.
    pub fn system(content: impl Into<String>) -> Self {
        Self { role: "system", content: content.into() }
    }

    /// What is asked.
    pub fn user(content: impl Into<String>) -> Self {
        Self { role: "user", content: content.into() }
    }
}

/// A model's chat template, parsed.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    bos: Option<String>,
    eos: Option<String>,
    source: String,
}

/// The name of the only template; it has no ending, so nothing is escaped.
const NAME: &str = "chat_template";

impl ChatTemplate {
    /// Parses a template. `bos` and `eos` are the texts that it may write as `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// [`TextError::TemplateSyntax`].
    pub fn new(source: &str, bos: Option<String>, eos: Option<String>) -> Result<Self, TextError> {
        if source.len() > MAX_SOURCE {
            let found = source.len();
            return Err(TextError::TemplateSyntax(format!("it has {found} bytes, more than {MAX_SOURCE}")));
        }
        let mut env = Environment::new();
        // The options of Hugging Face's environment; a single line break at the end is dropped, as Jinja does by default.
        env.set_trim_blocks(true);
        env.set_lstrip_blocks(true);
        env.set_keep_trailing_newline(false);
        env.set_fuel(Some(FUEL));
        env.set_recursion_limit(RECURSION);
        python::install(&mut env);
        let adapted = python::without_generation_tags(source);
        env.add_template_owned(NAME, adapted).map_err(|error| TextError::TemplateSyntax(described(&error)))?;
        Ok(Self { env, bos, eos, source: source.into() })
    }

    /// The template as the file has it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The texts that a rendering may contain beside the messages.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        [Some(&self.source), self.bos.as_ref(), self.eos.as_ref()].into_iter().flatten().map(String::as_str)
    }

    /// Renders a chat up to where the answer starts, thinking off.
    ///
    /// # Errors
    /// [`TextError::TemplateRefused`] when the template raises an exception, [`TextError::TemplateLimit`] when it does
    /// far too much, [`TextError::TemplateFailed`] for everything else.
    pub fn render(&self, messages: &[Message]) -> Result<String, TextError> {
        let template = self.env.get_template(NAME).map_err(|error| failed(&error, false))?;
        let given: usize = messages.iter().map(|message| message.content.len()).sum();
        let mut output = Bounded { bytes: Vec::new(), left: 4 * given + OUTPUT_SLACK, full: false };
        let rendered = template.render_captured_to(
            context! {
                messages => Value::from_serialize(messages),
                add_generation_prompt => true,
                enable_thinking => false,
                // Hugging Face passes these two always, as none; and no token's text where the model has none.
                tools => (),
                documents => (),
                bos_token => self.bos.as_deref().map_or(Value::UNDEFINED, Value::from),
                eos_token => self.eos.as_deref().map_or(Value::UNDEFINED, Value::from),
            },
            &mut output,
        );
        match rendered {
            Ok(_) => String::from_utf8(output.bytes).map_err(|error| TextError::TemplateFailed(error.to_string())),
            Err(error) => Err(failed(&error, output.full)),
        }
    }

    /// Steps that a rendering of these messages takes, of [`FUEL`].
    #[cfg(test)]
    fn steps(&self, messages: &[Message]) -> u64 {
        let ctx = context! { messages => Value::from_serialize(messages), add_generation_prompt => true, enable_thinking => false };
        let captured = self.env.get_template(NAME).unwrap().render_captured(ctx).unwrap();
        captured.state().fuel_levels().unwrap().0
    }
}

/// A writer that takes so many bytes and no more.
struct Bounded {
    bytes: Vec<u8>,
    left: usize,
    full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.left {
            self.full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.left -= bytes.len();
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn failed(error: &Error, full: bool) -> TextError {
    if full {
        return TextError::TemplateLimit("its output is far longer than the messages".into());
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(this) = cause {
        if let Some(python::Raised(message)) = this.downcast_ref() {
            return TextError::TemplateRefused(message.clone());
        }
        if this.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return TextError::TemplateLimit(format!("it takes more than {FUEL} steps"));
        }
        cause = this.source();
    }
    TextError::TemplateFailed(described(error))
}

/// The error with the line it happened on, without the source text that the long form prints.
fn described(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(this) = cause {
        text += &format!(": {this}");
        cause = this.source();
    }
    text.truncate(text.char_indices().nth(400).map_or(text.len(), |(at, _)| at));
    text
}
