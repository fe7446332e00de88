//! Models and where their files come from: the ladder (also used by the page), and natively files on disk, downloads
//! and the cache.

pub mod ladder;

pub use ladder::{Entry, Ladder, LadderError, Quality};
