//! Models and where their files come from: the ladder (also used by the page), and natively files on disk, downloads
//! and the cache.

pub mod ladder;

#[cfg(not(target_arch = "wasm32"))]
mod file;

#[cfg(not(target_arch = "wasm32"))]
pub use file::{FileSource, OpenError};
pub use ladder::{Entry, Ladder, LadderError, Quality};
