//! Buffers with an identity, and views (ranges) of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Bytes of all live buffers of a device, and the most there ever were.
#[derive(Debug, Default)]
pub(super) struct Usage {
    pub now: AtomicU64,
    pub most: AtomicU64,
}

/// A GPU buffer. `id` is unique in the process, so that bind groups can be cached by it.
#[derive(Debug)]
pub struct Buffer {
    /// The wgpu buffer.
    pub raw: wgpu::Buffer,
    /// Process-wide identity.
    pub id: u64,
    /// Size in bytes.
    pub size: u64,
    usage: Arc<Usage>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.usage.now.fetch_sub(self.size, Ordering::Relaxed);
    }
}

impl Buffer {
    pub(super) fn new(raw: wgpu::Buffer, size: u64, usage: Arc<Usage>) -> Self {
        let now = usage.now.fetch_add(size, Ordering::Relaxed) + size;
        usage.most.fetch_max(now, Ordering::Relaxed);
        Self { raw, id: NEXT_ID.fetch_add(1, Ordering::Relaxed), size, usage }
    }

    /// A stand-in of a size that it does not have: to find out what would be done with such a buffer, never to be bound or written.
    pub(super) fn outline(raw: wgpu::Buffer, size: u64) -> Self {
        Self::new(raw, size, Arc::default())
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
