//! What can be wrong with a file, in words that say where and what would help.

use super::metadata::MetadataError;
use super::source::SourceError;
use super::types::TensorType;

/// Why a file could not be read as GGUF.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The bytes could not be had.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The bytes are there and wrong.
    #[error("{place}: {problem}")]
    Bad {
        /// The file, as [`super::ByteSource::describe`] calls it.
        place: String,
        /// What is wrong with it.
        problem: Problem,
    },
}

impl GgufError {
    /// What is wrong with the file; `None` when the bytes could not be had.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Bad { problem, .. } => Some(problem),
            Self::Source(_) => None,
        }
    }
}

/// What is wrong with a file. Offsets are bytes from its start (of the part, in a split model); names from the file are
/// quoted, with control characters escaped and long ones cut.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("not a GGUF file: it starts with {}, not with `GGUF`{}", bytes_shown(.found), magic_hint(.found))]
    Magic { found: Vec<u8> },
    #[error(
        "a big-endian GGUF file (version field {version:#010x}); only little-endian files are supported, convert it or take the usual one"
    )]
    BigEndian { version: u32 },
    #[error("GGUF version {version} is not supported, only 2 and 3 are{}", if *.version == 1 { "; convert the file again with a current tool" } else { "" })]
    Version { version: u32 },
    #[error(
        "the file ends inside {what}: {needed} bytes are needed at offset {offset}, {left} are left; it is truncated or corrupt, fetch it again"
    )]
    Truncated { what: String, offset: u64, needed: u64, left: u64 },
    #[error("{what} takes the header over its limit of {limit} bytes ({needed} more at offset {offset}); no real model is like that")]
    HeaderTooLarge { what: String, offset: u64, needed: u64, limit: u64 },
    #[error("the header declares {count} {what}, more than the limit of {most}; no real model is like that")]
    TooMany { what: &'static str, count: u64, most: u64 },
    #[error("{what} at offset {offset} has a name of {len} bytes, expected 1 to {most}")]
    NameLength { what: String, offset: u64, len: u64, most: u64 },
    #[error("{what} at offset {offset} is not valid UTF-8")]
    Text { what: String, offset: u64 },
    #[error("{what} at offset {offset} is {len} bytes long, more than the limit of {most}; no real model is like that")]
    TextLength { what: String, offset: u64, len: u64, most: u64 },
    #[error("{what}: all strings together are longer than 4 GiB")]
    TextTooLong { what: String },
    #[error("metadata key {key} has the unknown value type {id} (offset {offset})")]
    ValueType { key: String, id: u32, offset: u64 },
    #[error("metadata key {key} is an array of arrays (offset {offset}), which is not supported")]
    NestedArray { key: String, offset: u64 },
    #[error("metadata key {key} is a bool with the value {value} (offset {offset}), expected 0 or 1")]
    Bool { key: String, value: u8, offset: u64 },
    #[error("metadata: {0}")]
    Metadata(#[from] MetadataError),
    #[error("general.alignment is {found}, expected a power of two that is a multiple of 8 and at most {most}")]
    Alignment { found: String, most: u64 },
    #[error("tensor {tensor} has {count} dimensions, expected 1 to 4")]
    Dimensions { tensor: String, count: u32 },
    #[error("tensor {tensor} has the shape {dims:?}: a dimension is zero")]
    EmptyDimension { tensor: String, dims: Vec<u64> },
    #[error("tensor {tensor} has the shape {dims:?}: its size overflows")]
    Overflow { tensor: String, dims: Vec<u64> },
    #[error("tensor {tensor} has {}, which is not supported; take a file quantised with {}", type_shown(*.id), TensorType::supported())]
    TensorType { tensor: String, id: u32 },
    #[error("tensor {tensor}: rows of {cols} values are not whole {ty} blocks of {}", .ty.block_len())]
    RowLength { tensor: String, ty: TensorType, cols: u64 },
    #[error("tensor {tensor} starts at data offset {offset}, which is not a multiple of the alignment {alignment}")]
    Misaligned { tensor: String, offset: u64, alignment: u64 },
    #[error("tensor {tensor} needs bytes {start} to {end}, but the file has only {file_len}; it is truncated or corrupt, fetch it again")]
    TensorOutOfRange { tensor: String, start: u64, end: u64, file_len: u64 },
    #[error("tensors {first} and {second} overlap: the first ends at offset {first_end}, the second starts at {second_start}")]
    Overlap { first: String, second: String, first_end: u64, second_start: u64 },
    #[error("tensor {tensor} is there twice")]
    DuplicateTensor { tensor: String },
    #[error(
        "this is part {part} of a model that is split into {count} files; open it together with the other parts (-00001-of-{count:05} and so on)"
    )]
    SplitAlone { part: u64, count: u64 },
    #[error("{found} parts were opened, but part 1 says that the model is split into {count} files{}", split_hint(*.found, *.count))]
    SplitCount { found: u64, count: u64 },
    #[error(
        "part {place_no} says that it is part {says_no} of {says_count}, of a model split into {count} files; the files are in the wrong order or of different models"
    )]
    SplitOrder { place_no: u64, says_no: u64, says_count: u64, count: u64 },
    #[error("the parts hold {found} tensors together, but part 1 says {count}; a part is from another model or incomplete")]
    SplitTensors { found: u64, count: u64 },
    #[error("part {part}: {problem}")]
    InPart { part: u64, problem: Box<Problem> },
}

impl Problem {
    /// The file is sound as far as it was read, but has tensors of a type that is not supported: [`super::Outline::read`] may list it.
    pub fn is_unsupported_type(&self) -> bool {
        match self {
            Self::TensorType { .. } => true,
            Self::InPart { problem, .. } => problem.is_unsupported_type(),
            _ => false,
        }
    }
}

fn split_hint(found: u64, count: u64) -> &'static str {
    if found < count { "; a part is missing" } else { "" }
}

/// A name from a file as a message shows it: quoted, escaped, at most about 80 characters.
pub(super) fn shown(name: &str) -> String {
    match name.char_indices().nth(80) {
        Some((cut, _)) => format!("{:?}... ({} bytes)", &name[..cut], name.len()),
        None => format!("{name:?}"),
    }
}

fn bytes_shown(bytes: &[u8]) -> String {
    if bytes.is_empty() { "nothing (it is empty)".into() } else { format!("`{}`", bytes.escape_ascii()) }
}

fn type_shown(id: u32) -> String {
    match TensorType::name_of_id(id) {
        Some(name) => format!("the type {name}"),
        None => format!("a type with the unknown id {id}"),
    }
}

/// What a file with another beginning probably is.
fn magic_hint(found: &[u8]) -> &'static str {
    match found {
        b"GGJT" | b"tjgg" | b"lmgg" | b"fmgg" | b"algg" => "; it is an older ggml format, convert it or take a GGUF file",
        b"FUGG" => "; it looks like a big-endian GGUF file, only little-endian ones are supported",
        b"vers" => "; it looks like a Git LFS pointer, fetch the file itself",
        b"<!DO" | b"<!do" | b"<htm" | b"<HTM" => "; it is a web page, the address does not lead to the file itself",
        b"PK\x03\x04" => "; it is a zip archive or a PyTorch file, take the model's GGUF file",
        [0x1f, 0x8b, ..] => "; it is compressed with gzip, unpack it first",
        [_, _, _, _] => "",
        _ => "; it is shorter than any model",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_helps() {
        let magic = |found: &[u8]| Problem::Magic { found: found.into() }.to_string();
        assert_eq!(
            magic(b"<!DO"),
            "not a GGUF file: it starts with `<!DO`, not with `GGUF`; it is a web page, the address does not lead to the file itself"
        );
        assert_eq!(magic(b""), "not a GGUF file: it starts with nothing (it is empty), not with `GGUF`; it is shorter than any model");
        let ty = Problem::TensorType { tensor: shown("output.weight"), id: 20 }.to_string();
        assert_eq!(
            ty,
            "tensor \"output.weight\" has the type IQ4_NL, which is not supported; take a file quantised with F32, F16, BF16, Q4_0, \
             Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K"
        );
        assert!(Problem::TensorType { tensor: shown("x"), id: 99 }.to_string().contains("the unknown id 99"));
    }

    #[test]
    fn names_are_escaped_and_cut() {
        assert_eq!(shown("a\u{1b}[31m\n"), "\"a\\u{1b}[31m\\n\"");
        let long = shown(&"é".repeat(500));
        assert!(long.ends_with("... (1000 bytes)") && long.chars().count() < 110, "{long}");
    }
}
