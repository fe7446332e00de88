//! Opening a model file: its index, its tokenizer, and what results say about it.

use std::path::Path;

use crate::decision::ModelRef;
use crate::gguf::{ByteSource as _, Gguf, Metadata};
use crate::hub::FileSource;
use crate::text::TextModel;

use super::fail::Failure;

/// A model file whose index has been read.
pub struct ModelFile {
    pub source: FileSource,
    pub gguf: Gguf,
}

impl ModelFile {
    /// Opens the file and reads its index.
    ///
    /// # Errors
    /// Exit code 3: no file, no GGUF, a damaged one.
    pub fn open(path: &Path) -> Result<ModelFile, Failure> {
        let source = FileSource::open(path).map_err(Failure::model_file)?;
        let gguf = pollster::block_on(Gguf::read(&source)).map_err(Failure::model_file)?;
        Ok(ModelFile { source, gguf })
    }

    /// The file's tokenizer and chat template.
    ///
    /// # Errors
    /// Exit code 3: none, or one that is not supported.
    pub fn text(&self) -> Result<TextModel, Failure> {
        text(&self.source, &self.gguf.metadata)
    }

    /// Tokens that the model was made for, where the file says it.
    pub fn context(&self) -> Option<u32> {
        let architecture = self.gguf.metadata.str("general.architecture").ok()?;
        self.gguf.metadata.u32(&format!("{architecture}.context_length")).ok()
    }

    /// What result rows say about the file; `sha256` is still to be filled in.
    pub fn reference(&self) -> ModelRef {
        reference(&self.source, &self.gguf.metadata)
    }
}

/// [`ModelFile::text`] of a file whose tensors may be of any type.
///
/// # Errors
/// Exit code 3: none, or one that is not supported.
pub fn text(source: &FileSource, metadata: &Metadata) -> Result<TextModel, Failure> {
    TextModel::from_gguf(metadata).map_err(|e| Failure::model_file(format!("{}: {e}", source.describe())))
}

/// [`ModelFile::reference`] of a file whose tensors may be of any type.
pub fn reference(source: &FileSource, metadata: &Metadata) -> ModelRef {
    let text = |key: &str| metadata.str(key).ok().map(str::to_owned);
    let file = source.paths().next().and_then(Path::file_name);
    ModelRef {
        source: "file".to_owned(),
        revision: None,
        file: file.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        bytes: source.len(),
        sha256: None,
        architecture: text("general.architecture").unwrap_or_default(),
        name: text("general.name"),
    }
}
