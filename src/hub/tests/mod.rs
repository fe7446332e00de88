//! Downloads from a server that misbehaves: whatever it does, no wrong file is ever used, and no finished part is
//! fetched twice.

mod faults;
mod resume;
mod server;
mod use_of_models;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::download::{Event, PullOptions};
use super::error::HubError;
use super::ladder::{Entry, Ladder};
use super::models::{Hub, LocalModel};
use super::{checksum, journal};
use server::{Ask, Server};

/// Size of a part in these tests.
const PART: usize = 64 << 10;
/// Size of the model: 15 parts and a bit.
const SIZE: usize = 15 * PART + 1234;
const PARTS: usize = 16;
const ID: &str = "test-model";
const ETAG: &str = "\"first\"";

/// Bytes without a pattern, so that a part in a wrong place is a wrong part.
fn noise(seed: u64) -> Arc<[u8]> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..SIZE).map(|_| next()).collect()
}

fn sha256(bytes: &[u8]) -> String {
    checksum::hex(&Sha256::digest(bytes))
}

/// A ladder of one model with these bytes.
fn ladder(file: &[u8]) -> Ladder {
    let json = serde_json::json!({"version": 1, "models": [{
        "id": ID, "title": "T", "label": "t", "repository": "someone/Test-GGUF",
        "revision": "0123456789012345678901234567890123456789", "file": "test.gguf",
        "bytes": file.len(), "token_bytes": 1, "sha256": sha256(file), "architecture": "llama", "skip_layers": [], "licence": "MIT",
        "quality": {"authored144": 0.5, "perturbed108": 0.5, "typesafe102": 0.5}, "audience": "Tests."}]});
    Ladder::parse(&json.to_string()).unwrap()
}

/// Options that fail fast.
fn quick() -> PullOptions {
    PullOptions {
        connections: 4,
        part_bytes: PART as u64,
        attempts: 4,
        backoff: Duration::from_millis(2),
        stall: Duration::from_secs(5),
        disk: u64::MAX,
    }
}

/// A model folder, a model and a hub at a server.
struct Setup {
    dir: tempfile::TempDir,
    file: Arc<[u8]>,
}

impl Setup {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), file: noise(1) }
    }

    fn hub_with(&self, host: &str, options: PullOptions) -> Hub {
        Hub::with(ladder(&self.file), self.dir.path().to_owned(), false, Some(host), options).unwrap()
    }

    fn hub(&self, host: &str) -> Hub {
        self.hub_with(host, quick())
    }

    fn entry(&self) -> Entry {
        ladder(&self.file).models()[0].clone()
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("someone--Test-GGUF/0123456789012345678901234567890123456789")
    }

    /// Where the finished file goes.
    fn path(&self) -> PathBuf {
        self.folder().join("test.gguf")
    }

    fn part(&self) -> PathBuf {
        self.folder().join("test.gguf.part")
    }

    fn journal(&self) -> PathBuf {
        self.folder().join("test.gguf.part.journal")
    }

    /// The parts that the journal calls finished.
    fn finished(&self) -> BTreeSet<usize> {
        let known = journal::read(&self.journal(), &sha256(&self.file), SIZE as u64);
        known.map_or_else(BTreeSet::new, |(_, finished)| finished.keys().map(|&part| part as usize).collect())
    }

    /// A pull that must succeed: the right file, and nothing left over.
    fn pull_right(&self, server: &Server) -> Vec<Event> {
        let (result, events) = pull(&self.hub(&server.host));
        let model = result.unwrap();
        assert_eq!(model.path, self.path());
        assert!(std::fs::read(self.path()).unwrap() == *self.file, "the file has other bytes");
        assert!(!self.part().exists() && !self.journal().exists(), "leftovers");
        events
    }

    /// A pull that must fail, and leave no file that could be taken for the model.
    fn pull_wrong(&self, server: &Server) -> HubError {
        self.pull_wrong_with(&server.host, quick())
    }

    fn pull_wrong_with(&self, host: &str, options: PullOptions) -> HubError {
        let error = pull(&self.hub_with(host, options)).0.unwrap_err();
        assert!(!self.path().exists(), "a file was published after: {error}");
        error
    }
}

fn pull(hub: &Hub) -> (Result<LocalModel, HubError>, Vec<Event>) {
    let mut events = Vec::new();
    let result = hub.pull(ID, &mut |event| {
        events.push(event);
        ControlFlow::Continue(())
    });
    (result, events)
}

/// The parts that any byte of a request's range lies in.
fn parts_asked(asks: &[Ask]) -> Vec<usize> {
    let part = |range: &std::ops::Range<usize>| range.start / PART..range.end.div_ceil(PART);
    asks.iter().filter_map(|ask| ask.range.as_ref()).flat_map(part).collect()
}

fn file_names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
