//! Files on disk as a [`ByteSource`].

use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::gguf::{BlockingSource, ByteSource, SourceError, SplitName};

/// A file that cannot be opened, in words.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Nothing there.
    #[error("{}: there is no such file", .0.display())]
    Missing(PathBuf),
    /// A folder, a socket, a device.
    #[error("{} is {what}, not a file{hint}", path.display())]
    NotAFile {
        /// What was asked for.
        path: PathBuf,
        /// What it is.
        what: &'static str,
        /// What to do about it.
        hint: String,
    },
    /// No permission.
    #[error("{}: this user may not read it; change its permissions, or run as its owner", .0.display())]
    Forbidden(PathBuf),
    /// A part of a split model is missing.
    #[error("{}: part {number} of {count} of this split model is missing; put all parts into one folder", path.display())]
    MissingPart {
        /// The part that is not there.
        path: PathBuf,
        /// Its number, from 1.
        number: u32,
        /// How many there should be.
        count: u32,
    },
    /// Anything else the system reports.
    #[error("{}: {error}", path.display())]
    Io {
        /// What was asked for.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
}

/// Size and time of last change: enough to notice that a file is not the one it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub bytes: u64,
    pub modified: Option<SystemTime>,
}

impl Stamp {
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        Ok(Self { bytes: meta.len(), modified: meta.modified().ok() })
    }
}

/// One file of the source and where it begins in it.
struct Part {
    path: PathBuf,
    file: File,
    start: u64,
    stamp: Stamp,
}

/// A model on disk: one file, or all parts of a split one (`NAME-00001-of-00003.gguf`), one after the other.
///
/// Reads are positioned and share no cursor. A file that changes while it is open is noticed at the next read: a mixture of two
/// files is never handed out silently.
pub struct FileSource {
    parts: Vec<Part>,
}

impl FileSource {
    /// Opens the file, and the other parts where its name says that it is one of several.
    ///
    /// # Errors
    /// [`OpenError`]: missing, not a file, not readable, or a part is missing.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let mut parts = Vec::new();
        let mut start = 0;
        for path in part_paths(path.as_ref())? {
            let (file, stamp) = open(&path)?;
            parts.push(Part { path, file, start, stamp });
            start += stamp.bytes;
        }
        Ok(Self { parts })
    }

    /// The files this source is made of, in order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().map(|part| part.path.as_path())
    }

    fn fill(&self, mut offset: u64, mut buf: &mut [u8]) -> Result<(), SourceError> {
        let (wanted_at, wanted) = (offset, buf.len() as u64);
        self.check_range(offset, buf.len())?;
        while !buf.is_empty() {
            // The last part that begins at or before the offset; empty parts before it are passed over.
            let at = self.parts.partition_point(|part| part.start <= offset).saturating_sub(1);
            let part = &self.parts[at];
            let inside = offset - part.start;
            let here = usize::try_from(part.stamp.bytes - inside).unwrap_or(usize::MAX).min(buf.len());
            let (head, tail) = buf.split_at_mut(here);
            part.fill(inside, head).map_err(|reason| SourceError::Failed {
                place: part.path.display().to_string(),
                offset: wanted_at,
                wanted,
                reason,
            })?;
            buf = tail;
            offset += here as u64;
        }
        Ok(())
    }
}

impl Part {
    fn fill(&self, offset: u64, buf: &mut [u8]) -> Result<(), String> {
        let read = read_exact_at(&self.file, offset, buf);
        // After the read, so that a change during it is noticed too.
        let now = Stamp::of(&self.file).map_err(|error| error.to_string())?;
        if now.bytes < self.stamp.bytes {
            return Err(format!("the file was cut from {} to {} bytes while it was in use", self.stamp.bytes, now.bytes));
        }
        if now != self.stamp {
            return Err("the file was changed while it was in use; run again when nothing writes to it".to_owned());
        }
        read.map_err(|error| error.to_string())
    }
}

impl BlockingSource for FileSource {
    fn read_blocking(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.fill(offset, buf)
    }
}

impl ByteSource for FileSource {
    fn len(&self) -> u64 {
        self.parts.last().map_or(0, |part| part.start + part.stamp.bytes)
    }

    fn describe(&self) -> String {
        match self.parts.as_slice() {
            [] => String::new(),
            [part] => part.path.display().to_string(),
            [first, others @ ..] => format!("{} and {} more parts", first.path.display(), others.len()),
        }
    }

    async fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.fill(offset, buf)
    }

    fn blocking(&self) -> Option<&dyn BlockingSource> {
        Some(self)
    }

    fn parts(&self) -> Vec<Range<u64>> {
        self.parts.iter().map(|part| part.start..part.start + part.stamp.bytes).collect()
    }
}

/// Opens a regular file for reading.
fn open(path: &Path) -> Result<(File, Stamp), OpenError> {
    let explain = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => OpenError::Missing(path.to_owned()),
        ErrorKind::PermissionDenied => OpenError::Forbidden(path.to_owned()),
        _ => OpenError::Io { path: path.to_owned(), error },
    };
    // Asked before opening: opening a pipe would wait for its writer for ever.
    let kind = std::fs::metadata(path).map_err(explain)?.file_type();
    if kind.is_dir() {
        return Err(OpenError::NotAFile { path: path.to_owned(), what: "a folder", hint: ggufs_inside(path) });
    }
    if !kind.is_file() {
        let hint = "; a model is read in several places, which only a file allows".to_owned();
        return Err(OpenError::NotAFile { path: path.to_owned(), what: "a device or a pipe", hint });
    }
    let file = File::open(path).map_err(explain)?;
    let stamp = Stamp::of(&file).map_err(explain)?;
    Ok((file, stamp))
}

/// `; did you mean FOLDER/a.gguf?`, where the folder holds some.
fn ggufs_inside(folder: &Path) -> String {
    let Ok(entries) = std::fs::read_dir(folder) else { return String::new() };
    let mut names: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|ext| ext.eq_ignore_ascii_case("gguf")))
        .collect();
    names.sort();
    match names.as_slice() {
        [] => "; give the path of a .gguf file".to_owned(),
        [one] => format!("; did you mean {}?", one.display()),
        [one, others @ ..] => format!("; it holds {} .gguf files, for example {}", others.len() + 1, one.display()),
    }
}

/// All parts of a split model, or the path itself.
pub(crate) fn part_paths(path: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let Some(name) = path.file_name().and_then(|name| name.to_str()).and_then(SplitName::parse) else {
        return Ok(vec![path.to_owned()]);
    };
    let mut paths = Vec::new();
    for number in 1..=name.count {
        let path = path.with_file_name(name.name_of(number));
        if !path.exists() {
            return Err(OpenError::MissingPart { path, number, count: name.count });
        }
        paths.push(path);
    }
    Ok(paths)
}

#[cfg(unix)]
pub(crate) fn read_exact_at(file: &File, offset: u64, buf: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buf, offset)
}

#[cfg(windows)]
pub(crate) fn read_exact_at(file: &File, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
    while !buf.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, buf, offset) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                buf = &mut buf[n..];
                offset += n as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn read(source: &FileSource, offset: u64, len: usize) -> Result<Vec<u8>, SourceError> {
        let mut buf = vec![0; len];
        pollster::block_on(source.read_at(offset, &mut buf)).map(|()| buf)
    }

    fn refusal(path: &Path) -> String {
        match FileSource::open(path) {
            Ok(_) => panic!("{} was opened", path.display()),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn reads_any_range_and_refuses_what_lies_outside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        std::fs::write(&path, b"0123456789").unwrap();
        let source = FileSource::open(&path).unwrap();
        assert_eq!((source.len(), source.parts()), (10, std::iter::once(0..10).collect()));
        assert_eq!(source.describe(), path.display().to_string());
        assert_eq!(read(&source, 7, 3).unwrap(), b"789");
        assert_eq!(read(&source, 0, 10).unwrap(), b"0123456789");
        assert_eq!(read(&source, 10, 0).unwrap(), b"");
        for (offset, len) in [(8, 3), (11, 0), (u64::MAX, 2)] {
            assert!(matches!(read(&source, offset, len), Err(SourceError::OutOfRange { len: 10, .. })), "{offset}");
        }
    }

    #[test]
    fn a_split_model_is_one_source() {
        let dir = tempfile::tempdir().unwrap();
        let part = |n: u32| dir.path().join(format!("m-{n:05}-of-00003.gguf"));
        for (n, bytes) in [(1, &b"abc"[..]), (2, b""), (3, b"defgh")] {
            std::fs::write(part(n), bytes).unwrap();
        }
        let source = FileSource::open(part(2)).unwrap();
        assert_eq!(source.parts(), [0..3, 3..3, 3..8]);
        assert_eq!(source.paths().count(), 3);
        assert_eq!(read(&source, 1, 6).unwrap(), b"bcdefg");
        assert_eq!(read(&source, 3, 5).unwrap(), b"defgh");
        std::fs::remove_file(part(3)).unwrap();
        let message = refusal(&part(1));
        assert!(message.contains("m-00003-of-00003.gguf: part 3 of 3"), "{message}");
    }

    #[test]
    fn a_file_that_changes_in_use_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        std::fs::write(&path, [1; 100]).unwrap();
        let source = FileSource::open(&path).unwrap();
        let writer = File::options().append(true).open(&path).unwrap();
        writer.set_len(50).unwrap();
        let message = read(&source, 0, 100).unwrap_err().to_string();
        assert!(message.contains("cut from 100 to 50 bytes"), "{message}");
        // Even where the bytes asked for are still there.
        assert!(read(&source, 0, 10).is_err());
        (&writer).write_all(&[2; 50]).unwrap();
        writer.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let message = read(&source, 0, 100).unwrap_err().to_string();
        assert!(message.contains("was changed"), "{message}");
        // A file renamed over the path is another file: the open one still reads.
        std::fs::write(&path, [3; 10]).unwrap();
        let source = FileSource::open(&path).unwrap();
        let new = dir.path().join("new");
        std::fs::write(&new, [4; 10]).unwrap();
        std::fs::rename(&new, &path).unwrap();
        assert_eq!(read(&source, 0, 10).unwrap(), [3; 10]);
    }

    #[test]
    fn what_is_not_a_readable_file_is_refused_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none.gguf");
        assert!(refusal(&missing).ends_with("there is no such file"));
        assert!(refusal(dir.path()).ends_with("is a folder, not a file; give the path of a .gguf file"));
        std::fs::write(dir.path().join("a.gguf"), b"x").unwrap();
        let message = refusal(dir.path());
        assert!(message.contains("did you mean") && message.contains("a.gguf"), "{message}");
    }

    #[cfg(unix)]
    #[test]
    fn devices_links_and_permissions() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        assert!(refusal(Path::new("/dev/null")).contains("a device or a pipe"));
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        std::fs::write(&real, b"abc").unwrap();
        symlink(&real, &link).unwrap();
        assert_eq!(read(&FileSource::open(&link).unwrap(), 0, 3).unwrap(), b"abc");
        std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o000)).unwrap();
        // Root may read anything.
        if File::open(&real).is_err() {
            assert!(refusal(&real).contains("may not read it"));
        }
        std::fs::remove_file(&real).unwrap();
        assert!(refusal(&link).contains("no such file"));
    }
}
