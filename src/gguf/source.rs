//! Where a file's bytes come from.

use std::ops::Range;

/// A read that failed.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The range asked for is not inside the source.
    #[error("{place}: bytes {offset} to {end} were asked for, but there are only {len}; the file is shorter than expected, fetch it again")]
    OutOfRange {
        /// What [`ByteSource::describe`] says.
        place: String,
        /// First byte asked for.
        offset: u64,
        /// One past the last byte asked for (saturated).
        end: u64,
        /// Length of the source.
        len: u64,
    },
    /// The medium refused: disk, network, browser storage.
    #[error("{place}: reading {wanted} bytes at offset {offset} failed: {reason}")]
    Failed {
        /// What [`ByteSource::describe`] says.
        place: String,
        /// First byte asked for.
        offset: u64,
        /// Number of bytes asked for.
        wanted: u64,
        /// The medium's own words.
        reason: String,
    },
    /// Whoever waits for the bytes no longer wants them.
    #[error("{place}: reading was cancelled")]
    Cancelled {
        /// What [`ByteSource::describe`] says.
        place: String,
    },
}

/// Random access to the bytes of a model: a file, memory, an OPFS handle, HTTP ranges.
///
/// Futures are not `Send`: in a browser they hold JavaScript values, and natively `pollster` drives them.
#[allow(async_fn_in_trait)]
pub trait ByteSource {
    /// Length in bytes.
    fn len(&self) -> u64;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What a message calls this source: a path, a URL, a file name.
    fn describe(&self) -> String;

    /// Checks that `len` bytes from `offset` are there.
    ///
    /// # Errors
    /// [`SourceError::OutOfRange`].
    fn check_range(&self, offset: u64, len: usize) -> Result<(), SourceError> {
        let end = offset.saturating_add(len as u64);
        match end <= self.len() {
            true => Ok(()),
            false => Err(SourceError::OutOfRange { place: self.describe(), offset, end, len: self.len() }),
        }
    }

    /// Fills all of `buf` with the bytes from `offset`.
    ///
    /// # Errors
    /// [`SourceError::OutOfRange`] when the range leaves the source, the others when the medium fails. `buf` is then
    /// undefined.
    async fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError>;

    /// This source again, where reads simply block and several threads may read at once. Loading then uses all of them.
    fn blocking(&self) -> Option<&dyn BlockingSource> {
        None
    }

    /// The GGUF files that lie one after the other in this source: one, unless it joins the parts of a split model.
    /// [`crate::gguf::Gguf::read`] merges the index of all of them.
    fn parts(&self) -> Vec<Range<u64>> {
        std::iter::once(0..self.len()).collect()
    }
}

/// A source that any thread may read, as a file on disk is.
pub trait BlockingSource: Sync {
    /// As [`ByteSource::read_at`].
    ///
    /// # Errors
    /// The same.
    fn read_blocking(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError>;
}

impl<S: ByteSource> ByteSource for &S {
    fn len(&self) -> u64 {
        (**self).len()
    }

    fn describe(&self) -> String {
        (**self).describe()
    }

    async fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        (**self).read_at(offset, buf).await
    }

    fn blocking(&self) -> Option<&dyn BlockingSource> {
        (**self).blocking()
    }

    fn parts(&self) -> Vec<Range<u64>> {
        (**self).parts()
    }
}

/// Bytes in memory.
#[derive(Clone, Debug)]
pub struct MemorySource {
    name: String,
    bytes: Vec<u8>,
}

impl MemorySource {
    /// A source of these bytes; `name` is what messages call it.
    pub fn new(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { name: name.into(), bytes }
    }
}

impl BlockingSource for MemorySource {
    fn read_blocking(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.check_range(offset, buf.len())?;
        // Within the length of a vector, and so within `usize`.
        let start = offset as usize;
        buf.copy_from_slice(&self.bytes[start..start + buf.len()]);
        Ok(())
    }
}

impl ByteSource for MemorySource {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn describe(&self) -> String {
        self.name.clone()
    }

    async fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.read_blocking(offset, buf)
    }

    fn blocking(&self) -> Option<&dyn BlockingSource> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_reads_inside_and_refuses_outside() {
        let source = MemorySource::new("m", (0..10).collect());
        let mut buf = [0; 4];
        pollster::block_on(source.read_at(6, &mut buf)).unwrap();
        assert_eq!(buf, [6, 7, 8, 9]);
        assert_eq!(source.parts().first(), Some(&(0..10)));
        assert!(!source.is_empty());
        for offset in [7, 10, u64::MAX] {
            let error = pollster::block_on(source.read_at(offset, &mut buf)).unwrap_err();
            assert!(matches!(error, SourceError::OutOfRange { len: 10, .. }), "{error}");
        }
        pollster::block_on(source.read_at(10, &mut [])).unwrap();
    }
}
