//! Models and where their files come from: the ladder (also used by the page), and natively files on disk, downloads
//! and the cache.

pub mod ladder;

#[cfg(not(target_arch = "wasm32"))]
mod cache;
#[cfg(not(target_arch = "wasm32"))]
mod checksum;
#[cfg(not(target_arch = "wasm32"))]
mod download;
#[cfg(not(target_arch = "wasm32"))]
mod error;
#[cfg(not(target_arch = "wasm32"))]
mod file;
#[cfg(not(target_arch = "wasm32"))]
mod http;
#[cfg(not(target_arch = "wasm32"))]
mod journal;
#[cfg(not(target_arch = "wasm32"))]
mod models;
#[cfg(not(target_arch = "wasm32"))]
mod round;
#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests;

#[cfg(not(target_arch = "wasm32"))]
pub use cache::Cached;
#[cfg(not(target_arch = "wasm32"))]
pub use download::{Event, Progress, PullOptions};
#[cfg(not(target_arch = "wasm32"))]
pub use error::HubError;
#[cfg(not(target_arch = "wasm32"))]
pub use file::{FileSource, OpenError};
pub use ladder::{Entry, Ladder, LadderError, Quality};
#[cfg(not(target_arch = "wasm32"))]
pub use models::{FOLDER_VARIABLE, Hub, Listed, LocalModel, Other, Provenance};
