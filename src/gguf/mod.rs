//! The GGUF container: header, metadata, tensor index, and the byte sources they are read from.
//!
//! A file is data from outside. [`Gguf::read`] checks every length and count against the bytes that are left before it
//! allocates anything, reads through one small window (a source may be a file, memory, an OPFS handle or HTTP ranges),
//! and answers a bad file with a [`GgufError`] that says what is wrong and where. It never reads tensor data.

mod error;
mod metadata;
mod parse;
mod reader;
mod source;
mod split;
#[doc(hidden)]
pub mod testing;
mod types;
mod value;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;

pub use error::{GgufError, Problem};
pub use metadata::{Metadata, MetadataError, Optional};
pub use parse::{Gguf, ListedTensor, Outline, TensorInfo};
pub use source::{BlockingSource, ByteSource, MemorySource, SourceError};
pub use split::{SplitName, SplitSource};
pub use types::TensorType;
pub use value::{Array, StringArray, Value, ValueType};
