//! `semif tokenize`: the ids of a text.

use crate::gguf::Gguf;
use crate::hub::FileSource;
use crate::text::{Parse, Tokenizer};

use super::args::TokenizeArgs;
use super::fail::{Exit, Failure, print_json};
use super::input::text_argument;

pub fn run(args: &TokenizeArgs) -> Result<Exit, Failure> {
    let text = text_argument(&args.text, "--text")?;
    let path = args.choice.path()?;
    // The metadata alone: the file may have tensors that this engine cannot compute with.
    let source = FileSource::open(&path).map_err(Failure::model_file)?;
    let metadata = pollster::block_on(Gguf::read_metadata(&source)).map_err(Failure::model_file)?;
    let tokenizer = Tokenizer::from_gguf(&metadata).map_err(|e| Failure::model_file(format!("{}: {e}", path.display())))?;
    let parse = match (args.control, args.plain) {
        (true, _) => Parse::Control,
        (_, true) => Parse::Plain,
        _ => Parse::UserDefined,
    };
    print_json(&tokenizer.encode(&text, parse).map_err(Failure::input)?)?;
    Ok(Exit::Done)
}
