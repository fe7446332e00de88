//! The model folder: who lies where in it, and who may write.

use std::fs::{File, TryLockError};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::checksum::Checksums;
use super::download::{Event, Progress, Unfinished};
use super::error::HubError;
use super::journal;
use super::ladder::Entry;

/// How often a process that waits for another one looks again.
const POLL: Duration = Duration::from_millis(200);

/// What is on this machine of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Cached {
    /// Nothing.
    Absent,
    /// An unfinished download.
    Partial {
        /// Bytes in finished parts.
        bytes: u64,
    },
    /// A file of the right size.
    Present {
        /// Whether its SHA-256 is known to be right. An unverified file is read once, when it is first used.
        verified: bool,
    },
    /// A file that is not the model.
    Wrong {
        /// Its size.
        bytes: u64,
    },
}

/// The folder in which models are kept.
pub(crate) struct Cache {
    root: PathBuf,
    pub checksums: Checksums,
}

impl Cache {
    /// `memory`: where hashes are remembered if not in the folder itself.
    pub(crate) fn new(root: PathBuf, memory: Option<PathBuf>) -> Self {
        let folders = std::iter::once(root.join("checksums")).chain(memory).collect();
        Self { root, checksums: Checksums::new(folders) }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where the model's file lies, or would lie. The revision is part of it: another revision is another file, and a
    /// file never changes under a path that may be open.
    pub(crate) fn path(&self, entry: &Entry) -> PathBuf {
        let repository = entry.repository.replace('/', "--");
        self.root.join(repository).join(&entry.revision).join(&entry.file)
    }

    pub(crate) fn unfinished(&self, entry: &Entry) -> Unfinished {
        let path = self.path(entry);
        Unfinished { part: beside(&path, ".part"), journal: beside(&path, ".part.journal") }
    }

    /// What is here, without reading the file.
    pub(crate) fn look(&self, entry: &Entry) -> Cached {
        let path = self.path(entry);
        if let Ok(meta) = std::fs::metadata(&path) {
            if !meta.is_file() || meta.len() != entry.bytes {
                return Cached::Wrong { bytes: meta.len() };
            }
            return match self.checksums.recall(std::slice::from_ref(&path)) {
                Some(sha256) if sha256 != entry.sha256 => Cached::Wrong { bytes: meta.len() },
                known => Cached::Present { verified: known.is_some() },
            };
        }
        let unfinished = self.unfinished(entry);
        let known = journal::read(&unfinished.journal, &entry.sha256, entry.bytes);
        match known {
            Some((head, finished)) if unfinished.part.exists() => {
                let bytes = finished.keys().map(|&part| head.range(part)).map(|range| range.end - range.start).sum();
                Cached::Partial { bytes }
            }
            _ => Cached::Absent,
        }
    }

    /// Makes the model's folder and waits until no other process writes in it. The lock ends with the returned file, however the
    /// process ends.
    pub(crate) fn lock(&self, entry: &Entry, progress: &mut Progress) -> Result<Arc<File>, HubError> {
        let path = beside(&self.path(entry), ".lock");
        let fail = |path: &Path, doing, error| HubError::folder(path, doing, error, entry.bytes);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| fail(folder, "making the folder", error))?;
        }
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(|error| fail(&path, "opening the lock", error))?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Arc::new(file)),
                Err(TryLockError::WouldBlock) => {
                    if progress(Event::Waiting).is_break() {
                        return Err(HubError::Interrupted);
                    }
                    std::thread::sleep(POLL);
                }
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                // Without locks two processes could write into one file.
                Err(TryLockError::Error(error)) => return Err(fail(&path, "locking (models need a disk that can lock files)", error)),
            }
        }
    }

    /// Whether the model's file is here and right: its hash is known, or it is read now. `Err(why)` where a file stands in
    /// its place that is not it.
    pub(crate) fn check(&self, entry: &Entry, progress: &mut Progress) -> Result<Check, HubError> {
        let path = self.path(entry);
        let meta = match std::fs::metadata(&path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Check::Absent),
            Err(error) => return Err(HubError::folder(&path, "looking at it", error, 0)),
        };
        if !meta.is_file() {
            return Err(HubError::NotPlain(path));
        }
        if meta.len() != entry.bytes {
            return Ok(Check::Wrong(format!("it has {} bytes in place of {}", meta.len(), entry.bytes)));
        }
        let total = entry.bytes;
        let sha256 = self.checksums.sha256(std::slice::from_ref(&path), &mut |done| progress(Event::Hashing { done, total }));
        match sha256.map_err(|error| HubError::folder(&path, "reading it", error, 0))? {
            None => Err(HubError::Interrupted),
            Some(sha256) if sha256 == entry.sha256 => Ok(Check::Good),
            Some(sha256) => Ok(Check::Wrong(format!("its SHA-256 is {sha256} in place of {}", entry.sha256))),
        }
    }

    /// Gives the complete unfinished file its name, if it is the pinned one. The lock is held.
    pub(crate) fn publish(&self, entry: &Entry, url: &str, progress: &mut Progress) -> Result<(), HubError> {
        let unfinished = self.unfinished(entry);
        let path = self.path(entry);
        let fail = |doing, error| HubError::folder(&unfinished.part, doing, error, 0);
        let file = File::open(&unfinished.part).map_err(|error| fail("opening it", error))?;
        let total = entry.bytes;
        let mut on_hash = |done| -> ControlFlow<()> { progress(Event::Hashing { done, total }) };
        let hash = super::checksum::hash_range(&file, 0..total, &mut on_hash).map_err(|error| fail("reading it", error))?;
        let found = super::checksum::hex(&hash.ok_or(HubError::Interrupted)?);
        if found != entry.sha256 {
            // Nobody can tell which part is wrong, so none of them is kept.
            unfinished.remove()?;
            return Err(HubError::WrongBytes { url: url.to_owned(), expected: entry.sha256.clone(), found });
        }
        file.sync_all().map_err(|error| fail("syncing it", error))?;
        std::fs::rename(&unfinished.part, &path).map_err(|error| fail("giving it its name", error))?;
        journal::sync_folder(&path);
        self.checksums.remember(&path, &entry.sha256);
        unfinished.remove()
    }
}

/// What [`Cache::check`] found.
pub(crate) enum Check {
    Absent,
    Good,
    Wrong(String),
}

/// `FILE` with something appended to its name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
