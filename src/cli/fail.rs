//! How a command ends: exit codes, and failures in words.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

/// Exit codes. The help text lists them; scripts rely on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    /// Something outside the program, such as a full disk.
    Other = 1,
    /// Bad arguments or input.
    Input = 2,
    /// The model file, or what it contains.
    ModelFile = 3,
    /// The adapter, its driver, its memory.
    Gpu = 4,
    /// Done, but some rows were refused.
    SomeRefused = 5,
    /// Ctrl-C.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// A command that could not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub exit: Exit,
    /// For stderr; empty when there is nothing to say (the reader of a pipe has gone).
    pub message: String,
}

impl Failure {
    /// Bad arguments or input.
    pub fn input(message: impl Display) -> Failure {
        Failure { exit: Exit::Input, message: message.to_string() }
    }

    /// A model file that cannot be used.
    pub fn model_file(message: impl Display) -> Failure {
        Failure { exit: Exit::ModelFile, message: message.to_string() }
    }

    /// Everything else, such as a full disk.
    pub fn other(message: impl Display) -> Failure {
        Failure { exit: Exit::Other, message: message.to_string() }
    }

    /// Ctrl-C; what was kept is said by whoever kept it.
    pub fn interrupted(message: impl Display) -> Failure {
        Failure { exit: Exit::Interrupted, message: message.to_string() }
    }
}

/// Writes to stdout. A reader that has gone away (`| head`) is no error: the command just stops.
pub fn print(text: &str) -> Result<(), Failure> {
    use io::Write as _;
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure { exit: Exit::Done, message: String::new() },
        _ => Failure::other(format!("the output cannot be written: {error}")),
    })
}

/// A line to stderr, as `eprintln!`, but a reader that has gone away or a full disk is no reason to fail: the exit code says what became of
/// the command.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// The same without the end of the line.
macro_rules! say_on {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stderr(), $($text)*);
    }};
}

pub(super) use {say, say_on};

/// A value as one line of JSON on stdout.
pub fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string(value).map_err(|e| Failure::other(format!("the result cannot be written: {e}")))?;
    text.push('\n');
    print(&text)
}

/// Text for a terminal: control characters, which could move the cursor or change colours, are shown as escapes.
pub fn safe(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn control_characters_are_shown() {
        assert_eq!(super::safe("a\u{1b}[31mé\n"), "a\\u{1b}[31mé\\n");
    }
}
