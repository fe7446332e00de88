//! Fetching one pinned file: parts in parallel, each written to its place, synced, then noted in the journal.
//!
//! Nothing here decides whether the file is the right one: it delivers an unfinished file with all parts present, whose hash
//! the caller checks before it gets its name.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fs4::FileExt as _;

use super::checksum::hash_range;
use super::error::HubError;
use super::http::Remote;
use super::journal::{self, Finished, Head};
use super::round::{Round, Verdict};

/// How often a file may change on the server during one download.
const RESTARTS: u32 = 2;

/// How to fetch. The defaults suit a hub on the internet.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// Connections at the same time.
    pub connections: usize,
    /// Bytes of a part: what a kill may cost on each connection.
    pub part_bytes: u64,
    /// Tries in a row without progress before giving up.
    pub attempts: u32,
    /// Wait before the second try; doubled for each further one.
    pub backoff: Duration,
    /// A connection that delivers nothing for this long is given up.
    pub stall: Duration,
    /// Tests: a disk that is full beyond this many bytes of the file.
    #[cfg(test)]
    pub(crate) disk: u64,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self {
            connections: 4,
            part_bytes: 8 << 20,
            attempts: 6,
            backoff: Duration::from_millis(500),
            stall: Duration::from_secs(30),
            #[cfg(test)]
            disk: u64::MAX,
        }
    }
}

/// What happens during a download, for whoever shows it.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Another process fetches the same file.
    Waiting,
    /// A file stands in the place that is not the model; it stays until the right one is complete.
    Replacing {
        /// What is wrong with it.
        why: String,
    },
    /// Parts of an earlier run are read again, to be sure of them.
    Checking {
        /// Bytes read.
        done: u64,
        /// Bytes to read.
        total: u64,
    },
    /// Fetching begins.
    Started {
        /// Bytes kept from an earlier run.
        kept: u64,
        /// Size of the file.
        total: u64,
    },
    /// Bytes are coming in.
    Fetching {
        /// Bytes here.
        done: u64,
        /// Size of the file.
        total: u64,
    },
    /// A connection failed and is tried again.
    Retrying {
        /// Why.
        why: String,
        /// How long it waits.
        wait: Duration,
    },
    /// The server cannot send ranges: one connection for the whole file.
    Whole,
    /// The file changed on the server: what was fetched is worthless, it begins anew.
    Restarted,
    /// The whole file is read to be sure of it.
    Hashing {
        /// Bytes read.
        done: u64,
        /// Size of the file.
        total: u64,
    },
}

/// Hears events, several times a second, and may stop what is going on.
pub type Progress<'a> = dyn FnMut(Event) -> ControlFlow<()> + 'a;

/// Where an unfinished file is kept.
#[derive(Clone, Debug)]
pub(crate) struct Unfinished {
    pub part: PathBuf,
    pub journal: PathBuf,
}

impl Unfinished {
    /// Forgets all of it. What is not there is fine.
    pub(crate) fn remove(&self) -> Result<(), HubError> {
        for path in [&self.journal, &self.part] {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(HubError::folder(path, "removing it", error, 0)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Opens the unfinished file at its full length, for which the disk must have room. What the file takes of it already counts: on a disk
    /// that knows no holes that is all, once it has its length.
    fn open(&self, bytes: u64) -> Result<File, HubError> {
        let fail = |doing, error| HubError::folder(&self.part, doing, error, bytes);
        match std::fs::symlink_metadata(&self.part) {
            Ok(meta) if !meta.is_file() => return Err(HubError::NotPlain(self.part.clone())),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail("looking at it", error)),
            _ => {}
        }
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&self.part);
        let file = file.map_err(|error| fail("opening it", error))?;
        room_for(&self.part, bytes.saturating_sub(file.allocated_size().unwrap_or(0)))?;
        file.set_len(bytes).map_err(|error| fail("giving it its length", error))?;
        Ok(file)
    }
}

/// Brings all parts of the file to the disk.
///
/// `lock` is held until the last thread that may write has ended.
///
/// # Errors
/// [`HubError`]. Finished parts are kept, except where they are known to be worthless.
pub(crate) fn fetch(
    remote: &Arc<Remote>,
    sha256: &str,
    bytes: u64,
    place: &Unfinished,
    lock: &Arc<File>,
    options: &PullOptions,
    progress: &mut Progress,
) -> Result<(), HubError> {
    let fresh = || Head::new(sha256, bytes, options.part_bytes.max(1), None);
    for _ in 0..=RESTARTS {
        let file = place.open(bytes)?;
        let known = journal::read(&place.journal, sha256, bytes);
        let (head, finished) = match known {
            Some((head, finished)) => {
                let finished = verify(&file, &place.part, &head, finished, progress)?;
                (head, finished)
            }
            None => (fresh(), Finished::new()),
        };
        // Where nothing is kept, nothing ties us to the server's old name for the file.
        let head = if finished.is_empty() { fresh() } else { head };
        let kept = finished.keys().map(|&part| length(&head, part)).sum();
        if progress(Event::Started { kept, total: bytes }).is_break() {
            return Err(HubError::Interrupted);
        }
        let round = Round::new(remote, file, place, lock, options, head, &finished);
        // Written anew, so that lines are appended to a sound journal. A fresh one waits for the server's ETag.
        if !finished.is_empty() {
            round.keep(&finished)?;
        }
        match Round::run(&Arc::new(round), progress)? {
            Verdict::Complete => return Ok(()),
            Verdict::Failed(error) => return Err(error),
            Verdict::Changed => {
                // A thread of this round that still writes has the removed file open, not the next one.
                place.remove()?;
                if progress(Event::Restarted).is_break() {
                    return Err(HubError::Interrupted);
                }
            }
        }
    }
    Err(HubError::Changing { url: remote.url().to_owned() })
}

/// Keeps the parts whose bytes are what the journal says.
fn verify(file: &File, path: &Path, head: &Head, finished: Finished, progress: &mut Progress) -> Result<Finished, HubError> {
    let total = finished.keys().map(|&part| length(head, part)).sum();
    let mut before = 0;
    let mut good = Finished::new();
    for (part, check) in finished {
        let range = head.range(part);
        let hash = hash_range(file, range, &mut |done| progress(Event::Checking { done: before + done, total }));
        let hash = hash.map_err(|error| HubError::folder(path, "reading it", error, 0))?.ok_or(HubError::Interrupted)?;
        if journal::check(&hash) == check {
            good.insert(part, check);
        }
        before += length(head, part);
    }
    Ok(good)
}

/// Bytes of a part.
pub(super) fn length(head: &Head, part: u64) -> u64 {
    let range = head.range(part);
    range.end - range.start
}

/// Refuses early where the disk cannot hold the rest. A system that does not tell is believed to have room.
fn room_for(path: &Path, needed: u64) -> Result<(), HubError> {
    let folder = path.parent().unwrap_or(path);
    match fs4::available_space(folder) {
        Ok(available) if available < needed => Err(HubError::DiskFull { path: folder.to_owned(), needed, available: Some(available) }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the disk has no room for the rest, the file does not even get its length; what is in it already is not asked for again.
    #[test]
    fn room_is_asked_for_once() {
        let dir = tempfile::tempdir().unwrap();
        let place = Unfinished { part: dir.path().join("m.part"), journal: dir.path().join("m.part.journal") };
        let available = fs4::available_space(dir.path()).unwrap();
        let held = vec![1; 8 << 20];
        std::fs::write(&place.part, &held).unwrap();
        File::open(&place.part).unwrap().sync_all().unwrap();
        match place.open(available + (1 << 40)) {
            Err(HubError::DiskFull { needed, .. }) => assert!(needed <= available + (1 << 40) - held.len() as u64, "{needed}"),
            other => panic!("{:?}", other.map(|_| ())),
        }
        assert_eq!(std::fs::metadata(&place.part).unwrap().len(), held.len() as u64, "as it was");
        assert_eq!(place.open(held.len() as u64 + 5).unwrap().metadata().unwrap().len(), held.len() as u64 + 5);
    }
}
