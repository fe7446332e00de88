//! SHA-256 of files, remembered by path, size and time of last change, so that three gigabytes are hashed once.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::file::{Stamp, read_exact_at};

/// Bytes read at once.
const WINDOW: usize = 1 << 20;

/// A file changed less than this before it was hashed could change again without its time showing it (file systems
/// count in steps of up to two seconds), so its hash is not remembered.
const SETTLED: Duration = Duration::from_secs(2);

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of `range` of the file; `None` when the callback stops it. The callback gets the bytes done of this range.
pub(crate) fn hash_range(
    file: &File,
    range: std::ops::Range<u64>,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> io::Result<Option<[u8; 32]>> {
    let mut hasher = Sha256::new();
    if feed(file, range, &mut hasher, progress)?.is_break() {
        return Ok(None);
    }
    Ok(Some(hasher.finalize().into()))
}

fn feed(
    file: &File,
    range: std::ops::Range<u64>,
    hasher: &mut Sha256,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
    let mut buf = vec![0; WINDOW];
    let mut at = range.start;
    while at < range.end {
        let here = usize::try_from(range.end - at).unwrap_or(WINDOW).min(WINDOW);
        read_exact_at(file, at, &mut buf[..here])?;
        hasher.update(&buf[..here]);
        at += here as u64;
        if progress(at - range.start).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// One remembered hash, as it is stored.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    /// All files of the model, in order: one, or the parts of a split model.
    files: Vec<Known>,
    /// SHA-256 of all bytes, one file after the other.
    sha256: String,
}

/// What a file looked like when it was hashed.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Known {
    path: PathBuf,
    bytes: u64,
    /// Seconds and nanoseconds since 1970.
    modified: (u64, u32),
}

impl Known {
    fn of(path: &Path) -> io::Result<Self> {
        // By the real path, so that a link that is pointed elsewhere is another file.
        let path = path.canonicalize()?;
        let stamp = Stamp::of(&File::open(&path)?)?;
        let since = stamp.modified.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok()).ok_or(io::ErrorKind::Unsupported)?;
        Ok(Self { path, bytes: stamp.bytes, modified: (since.as_secs(), since.subsec_nanos()) })
    }

    fn settled(&self) -> bool {
        let modified = SystemTime::UNIX_EPOCH + Duration::new(self.modified.0, self.modified.1);
        SystemTime::now().duration_since(modified).is_ok_and(|age| age >= SETTLED)
    }
}

/// The remembered hashes: one small file for each model.
///
/// Kept in the first folder that can be written: a model folder may be shared and read-only. Forgetting costs a second hash
/// and never more, so trouble with these folders is not an error.
pub(crate) struct Checksums {
    folders: Vec<PathBuf>,
}

impl Checksums {
    pub(crate) fn new(folders: Vec<PathBuf>) -> Self {
        Self { folders }
    }

    /// The record's file name: from the real path of the first file.
    fn name(files: &[Known]) -> Option<String> {
        let path = files.first()?.path.as_os_str().as_encoded_bytes();
        Some(format!("{}.json", &hex(&Sha256::digest(path))[..32]))
    }

    /// The hash of these files, where it is known and they have not changed since.
    pub(crate) fn recall(&self, paths: &[PathBuf]) -> Option<String> {
        let files: Vec<Known> = paths.iter().map(|path| Known::of(path)).collect::<io::Result<_>>().ok()?;
        let name = Self::name(&files)?;
        self.folders.iter().find_map(|folder| {
            let text = std::fs::read_to_string(folder.join(&name)).ok()?;
            let record: Record = serde_json::from_str(&text).ok()?;
            (record.files == files).then_some(record.sha256)
        })
    }

    /// Remembers the hash of a file that nobody else writes to.
    pub(crate) fn remember(&self, path: &Path, sha256: &str) {
        if let Ok(known) = Known::of(path) {
            self.store(vec![known], sha256);
        }
    }

    fn store(&self, files: Vec<Known>, sha256: &str) {
        let Some(name) = Self::name(&files) else { return };
        let record = Record { files, sha256: sha256.to_owned() };
        let Ok(text) = serde_json::to_string(&record) else { return };
        for folder in &self.folders {
            // Written aside and renamed: another process reads the old record or the new one.
            let (place, aside) = (folder.join(&name), folder.join(format!("{name}.{}", std::process::id())));
            let written =
                std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&aside, &text)).and_then(|()| std::fs::rename(&aside, &place));
            if written.is_ok() {
                return;
            }
            let _ = std::fs::remove_file(&aside);
        }
    }

    /// The hash of these files one after the other, from memory or by reading them; `None` when the callback stops it. The
    /// callback gets the bytes done.
    ///
    /// # Errors
    /// A file that cannot be read, or that changes while it is read.
    pub(crate) fn sha256(&self, paths: &[PathBuf], progress: &mut dyn FnMut(u64) -> ControlFlow<()>) -> io::Result<Option<String>> {
        if let Some(known) = self.recall(paths) {
            return Ok(Some(known));
        }
        let look = || paths.iter().map(|path| Known::of(path)).collect::<io::Result<Vec<_>>>();
        let before = look();
        let mut hasher = Sha256::new();
        let mut done = 0;
        for path in paths {
            let file = File::open(path)?;
            let stamp = Stamp::of(&file)?;
            if feed(&file, 0..stamp.bytes, &mut hasher, &mut |here| progress(done + here))?.is_break() {
                return Ok(None);
            }
            if Stamp::of(&file)? != stamp {
                return Err(io::Error::other("the file was changed while it was read; try again when nothing writes to it"));
            }
            done += stamp.bytes;
        }
        let sha256 = hex(&hasher.finalize());
        // A file system without times cannot be remembered, only hashed.
        if let (Ok(before), Ok(after)) = (before, look())
            && before == after
            && before.iter().all(Known::settled)
        {
            self.store(before, &sha256);
        }
        Ok(Some(sha256))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn age(path: &Path, seconds: u64) {
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    }

    /// The hash, and whether bytes were read for it.
    fn ask(sums: &Checksums, paths: &[PathBuf]) -> (String, bool) {
        let mut read = false;
        let sha256 = sums.sha256(paths, &mut |_| {
            read = true;
            ControlFlow::Continue(())
        });
        (sha256.unwrap().unwrap(), read)
    }

    #[test]
    fn a_hash_is_remembered_until_the_file_changes() {
        let dir = tempfile::tempdir().unwrap();
        let sums = Checksums::new(vec![dir.path().join("sums")]);
        let path = dir.path().join("m.gguf");
        let paths = [path.clone()];
        std::fs::write(&path, b"abc").unwrap();
        assert_eq!(ask(&sums, &paths), (ABC.to_owned(), true));
        assert_eq!(ask(&sums, &paths), (ABC.to_owned(), true), "too new to be trusted");
        age(&path, 100);
        assert_eq!(ask(&sums, &paths), (ABC.to_owned(), true));
        assert_eq!(ask(&sums, &paths), (ABC.to_owned(), false));
        age(&path, 50);
        assert!(ask(&sums, &paths).1, "another time");
        std::fs::write(&path, b"abcd").unwrap();
        age(&path, 50);
        let (sha256, read) = ask(&sums, &paths);
        assert!(read && sha256 != ABC, "another size");
        // Another file under the same name by way of a link.
        let link = dir.path().join("link");
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(&path, &link).unwrap();
            assert_eq!(ask(&sums, std::slice::from_ref(&link)), (sha256, false));
            std::fs::remove_file(&link).unwrap();
        }
        std::fs::write(&link, b"abc").unwrap();
        assert_eq!(ask(&sums, &[link]).0, ABC);
    }

    #[test]
    fn parts_are_hashed_as_one_and_a_damaged_memory_only_costs_time() {
        let dir = tempfile::tempdir().unwrap();
        let sums = Checksums::new(vec![dir.path().join("sums")]);
        let paths = [dir.path().join("1"), dir.path().join("2")];
        for (path, bytes) in paths.iter().zip([b"a".as_slice(), b"bc"]) {
            std::fs::write(path, bytes).unwrap();
            age(path, 100);
        }
        assert_eq!(ask(&sums, &paths), (ABC.to_owned(), true));
        assert_eq!(ask(&sums, &paths), (ABC.to_owned(), false));
        assert!(ask(&sums, &paths[..1]).1, "the first part alone is another model");
        ask(&sums, &paths);
        for record in std::fs::read_dir(dir.path().join("sums")).unwrap() {
            std::fs::write(record.unwrap().path(), b"{\"files\":[]").unwrap();
        }
        assert_eq!(ask(&sums, &paths), (ABC.to_owned(), true));
        // A folder that cannot be written costs the next one nothing.
        let blocked = paths[0].join("no folder");
        let nowhere = Checksums::new(vec![blocked.clone()]);
        let second = Checksums::new(vec![blocked, dir.path().join("other")]);
        for (sums, read_again) in [(nowhere, true), (second, false)] {
            assert_eq!(ask(&sums, &paths), (ABC.to_owned(), true));
            assert_eq!(ask(&sums, &paths), (ABC.to_owned(), read_again));
        }
    }

    #[test]
    fn a_stopped_hash_is_no_hash() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m");
        std::fs::write(&path, vec![0; 3 * WINDOW]).unwrap();
        let sums = Checksums::new(vec![dir.path().join("sums")]);
        let mut seen = Vec::new();
        let result = sums.sha256(&[path], &mut |done| {
            seen.push(done);
            if done >= 2 * WINDOW as u64 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(result.unwrap().is_none());
        assert_eq!(seen, [WINDOW as u64, 2 * WINDOW as u64]);
    }
}
