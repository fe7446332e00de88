//! Buffers with an identity, and views (ranges) of them.

use std::sync::atomic::{AtomicU64, Ordering};

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A GPU buffer. `id` is unique in the process, so that bind groups can be cached by it.
#[derive(Debug)]
pub struct Buffer {
    /// The wgpu buffer.
    pub raw: wgpu::Buffer,
    /// Process-wide identity.
    pub id: u64,
    /// Size in bytes.
    pub size: u64,
}

impl Buffer {
    pub(super) fn new(raw: wgpu::Buffer, size: u64) -> Self {
        Self { raw, id: NEXT_ID.fetch_add(1, Ordering::Relaxed), size }
    }

    /// The whole buffer as a view.
    pub fn all(&self) -> View<'_> {
        View { buffer: self, offset: 0, size: self.size }
    }

    /// A byte range; `offset` must be a multiple of 256 to be bound.
    pub fn range(&self, offset: u64, size: u64) -> View<'_> {
        debug_assert!(offset + size <= self.size, "view outside its buffer");
        View { buffer: self, offset, size }
    }
}

/// A byte range of a buffer, ready to be bound to a kernel.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The buffer.
    pub buffer: &'a Buffer,
    /// Byte offset, a multiple of 256.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}
