//! Reads a header front to back through one window, so that a source sees few and large reads.

use std::ops::Range;

use super::error::Problem;
use super::source::{ByteSource, SourceError};

/// Bytes fetched at a time.
const WINDOW: usize = 1 << 20;

/// The longest name or string of an array: it fits the window. (A string of its own may be longer.)
pub(super) const MOST_TEXT: u64 = WINDOW as u64;

/// The first read is smaller: most wrong files show it in their first bytes, and small headers fit.
const FIRST_WINDOW: usize = 64 << 10;

/// The most bytes that a header may have. Real ones stay below 40 MB; the limit keeps a hostile file from filling memory
/// with one enormous string, which would be within the file's size.
pub(super) const HEADER_LIMIT: u64 = 256 << 20;

/// Why a read failed; [`Fault::within`] adds what was being read.
pub(super) enum Fault {
    Source(SourceError),
    Short { offset: u64, needed: u64, left: u64 },
    Limit { offset: u64, needed: u64 },
    Text { offset: u64 },
    Long { offset: u64, len: u64 },
}

/// A fault in its context.
pub(super) enum Failure {
    Source(SourceError),
    Problem(Problem),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl Fault {
    pub(super) fn within(self, what: impl FnOnce() -> String) -> Failure {
        Failure::Problem(match self {
            Self::Source(error) => return Failure::Source(error),
            Self::Short { offset, needed, left } => Problem::Truncated { what: what(), offset, needed, left },
            Self::Limit { offset, needed } => Problem::HeaderTooLarge { what: what(), offset, needed, limit: HEADER_LIMIT },
            Self::Text { offset } => Problem::Text { what: what(), offset },
            Self::Long { offset, len } => Problem::TextLength { what: what(), offset, len, most: MOST_TEXT },
        })
    }
}

/// Adds context to a result's fault.
pub(super) trait Within<T> {
    fn within(self, what: impl FnOnce() -> String) -> Result<T, Failure>;
}

impl<T> Within<T> for Result<T, Fault> {
    fn within(self, what: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|fault| fault.within(what))
    }
}

pub(super) struct Reader<'a, S> {
    source: &'a S,
    part: Range<u64>,
    window: Vec<u8>,
    /// Offset of the window's first byte from the start of the part.
    window_at: u64,
    /// Next unread byte in the window.
    cursor: usize,
}

impl<'a, S: ByteSource> Reader<'a, S> {
    /// Reads the file that lies in `part` of `source`.
    pub(super) fn new(source: &'a S, part: Range<u64>) -> Self {
        Self { source, part, window: Vec::new(), window_at: 0, cursor: 0 }
    }

    /// Offset of the next byte from the start of the part.
    pub(super) fn offset(&self) -> u64 {
        self.window_at + self.cursor as u64
    }

    /// Bytes of the part that were not read yet.
    pub(super) fn left(&self) -> u64 {
        (self.part.end - self.part.start).saturating_sub(self.offset())
    }

    /// Fails unless `needed` more bytes exist and keep the header within its limit. Everything that allocates asks first.
    pub(super) fn check(&self, needed: u64) -> Result<(), Fault> {
        if needed > self.left() {
            return Err(Fault::Short { offset: self.offset(), needed, left: self.left() });
        }
        if needed > HEADER_LIMIT.saturating_sub(self.offset()) {
            return Err(Fault::Limit { offset: self.offset(), needed });
        }
        Ok(())
    }

    /// Makes the next `needed` bytes (at most [`WINDOW`]) lie in the window.
    async fn fill(&mut self, needed: usize) -> Result<(), Fault> {
        debug_assert!(needed <= WINDOW);
        let have = self.window.len() - self.cursor;
        if have >= needed {
            return Ok(());
        }
        self.check(needed as u64)?;
        self.window.copy_within(self.cursor.., 0);
        self.window_at += self.cursor as u64;
        self.cursor = 0;
        let target = if self.window_at == 0 { FIRST_WINDOW.max(needed) } else { WINDOW };
        let in_part = self.part.end - self.part.start - self.window_at;
        let want = usize::try_from(in_part).unwrap_or(usize::MAX).min(target);
        self.window.resize(want, 0);
        let at = self.part.start + self.window_at + have as u64;
        self.source.read_at(at, &mut self.window[have..]).await.map_err(Fault::Source)
    }

    /// The next `N` bytes.
    pub(super) async fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        self.fill(N).await?;
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.window[self.cursor..self.cursor + N]);
        self.cursor += N;
        Ok(bytes)
    }

    pub(super) async fn u32(&mut self) -> Result<u32, Fault> {
        Ok(u32::from_le_bytes(self.bytes().await?))
    }

    pub(super) async fn u64(&mut self) -> Result<u64, Fault> {
        Ok(u64::from_le_bytes(self.bytes().await?))
    }

    /// `count` elements of `N` bytes each, decoded in bulk.
    pub(super) async fn array<T, const N: usize>(&mut self, count: u64, decode: impl Fn([u8; N]) -> T) -> Result<Vec<T>, Fault> {
        self.check(count.saturating_mul(N as u64))?;
        let mut left = count as usize; // fits: the header limit was checked
        let mut values = Vec::with_capacity(left);
        while left > 0 {
            let now = left.min(WINDOW / N);
            self.fill(now * N).await?;
            let (chunks, _) = self.window[self.cursor..self.cursor + now * N].as_chunks::<N>();
            values.extend(chunks.iter().map(|&bytes| decode(bytes)));
            self.cursor += now * N;
            left -= now;
        }
        Ok(values)
    }

    /// Reads `len` bytes of UTF-8, at most [`MOST_TEXT`], and hands them to `take` in one piece, with the number of bytes
    /// that are left after them.
    pub(super) async fn text<T>(&mut self, len: u64, take: impl FnOnce(&str, u64) -> T) -> Result<T, Fault> {
        self.check(len)?;
        let offset = self.offset();
        if len > MOST_TEXT {
            return Err(Fault::Long { offset, len });
        }
        let len = len as usize;
        self.fill(len).await?;
        let left = self.left() - len as u64;
        let text = std::str::from_utf8(&self.window[self.cursor..self.cursor + len]).map_err(|_| Fault::Text { offset })?;
        let taken = take(text, left);
        self.cursor += len;
        Ok(taken)
    }

    /// A string of any length, with its length before it.
    pub(super) async fn string(&mut self) -> Result<String, Fault> {
        let len = self.u64().await?;
        let offset = self.offset();
        let bytes = self.array(len, |[byte]| byte).await?;
        String::from_utf8(bytes).map_err(|_| Fault::Text { offset })
    }
}
