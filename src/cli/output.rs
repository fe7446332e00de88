//! The output file of `score`: created, never overwritten; whole lines only; able to go on after any interruption.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::fail::Failure;

/// Where lines go. A trait, so that tests can have a disk that fills up.
pub trait Store {
    /// Appends at the end, all of it or an error.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Cuts back to `len` bytes.
    fn cut(&mut self, len: u64) -> io::Result<()>;
    /// Makes everything durable.
    fn sync(&mut self) -> io::Result<()>;
}

impl Store for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.seek(SeekFrom::End(0))?;
        self.write_all(bytes)
    }

    fn cut(&mut self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// Looks at a whole line of an existing output (0-based number, text without the line end).
pub type LineCheck<'a> = dyn FnMut(usize, &str) -> Result<(), Failure> + 'a;

/// Looks at what stands after the last line end of an existing output.
pub type TornCheck<'a> = dyn FnMut(usize, &[u8]) -> Result<(), Failure> + 'a;

/// An open output of whole lines.
#[derive(Debug)]
pub struct Output<S: Store = File> {
    store: S,
    path: PathBuf,
    /// Length up to the last whole line; anything after it is cut before the next line is written.
    len: u64,
    torn: bool,
    /// The file did not exist before.
    created: bool,
}

impl Output<File> {
    /// Creates the file.
    ///
    /// # Errors
    /// It exists (results are never overwritten), or cannot be created.
    pub fn create(path: &Path) -> Result<Output, Failure> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => exists(path),
            _ => Failure::input(format!("the output {} cannot be created: {e}", path.display())),
        })?;
        lock(&file, path)?;
        Ok(Output { store: file, path: path.to_owned(), len: 0, torn: false, created: true })
    }

    /// Opens an existing file and hands each of its whole lines to `check`, then the torn rest, if there is one, to
    /// `check_torn`. Nothing is changed before the first line is written.
    ///
    /// # Errors
    /// What the checks say, or a file that cannot be read or that another process is writing.
    pub fn resume(path: &Path, check: &mut LineCheck<'_>, check_torn: &mut TornCheck<'_>) -> Result<Output, Failure> {
        let unreadable = |e: io::Error| Failure::input(format!("the output {} cannot be opened: {e}", path.display()));
        // A device would be read for ever, a pipe would wait for ever.
        if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
            return Err(Failure::input(format!("--resume: {} is not a plain file", path.display())));
        }
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(unreadable)?;
        lock(&file, path)?;
        let mut reader = BufReader::new(&file);
        let (mut len, mut lines, mut torn) = (0, 0, false);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = reader.read_until(b'\n', &mut line).map_err(unreadable)?;
            if read == 0 {
                break;
            }
            if line.last() != Some(&b'\n') {
                check_torn(lines, &line)?;
                torn = true;
                break;
            }
            line.pop();
            let text = std::str::from_utf8(&line)
                .map_err(|_| Failure::input(format!("line {} of the output {} is not UTF-8", lines + 1, path.display())))?;
            check(lines, text)?;
            len += read as u64;
            lines += 1;
        }
        Ok(Output { store: file, path: path.to_owned(), len, torn, created: false })
    }
}

impl<S: Store> Output<S> {
    /// An output on another store, for tests.
    #[cfg(test)]
    pub fn on(store: S) -> Output<S> {
        Output { store, path: PathBuf::from("test"), len: 0, torn: false, created: false }
    }

    /// Writes one line. When this returns, the operating system has it.
    ///
    /// # Errors
    /// The disk's; what was written of the line is taken back, so that the file ends in a whole line.
    pub fn line(&mut self, text: &str) -> Result<(), Failure> {
        let failed = |path: &Path, e: io::Error| Failure::other(format!("{} cannot be written: {e}", path.display()));
        if self.torn {
            self.store.cut(self.len).map_err(|e| failed(&self.path, e))?;
            self.torn = false;
        }
        let mut bytes = Vec::with_capacity(text.len() + 1);
        bytes.extend_from_slice(text.as_bytes());
        bytes.push(b'\n');
        if let Err(error) = self.store.append(&bytes) {
            // Where even this fails, --resume deals with the torn line.
            self.torn = self.store.cut(self.len).is_err();
            return Err(failed(&self.path, error));
        }
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Makes the lines durable (some file systems report a full disk only now).
    pub fn finish(&mut self) -> Result<(), Failure> {
        self.store.sync().map_err(|e| Failure::other(format!("{} cannot be written: {e}", self.path.display())))
    }
}

/// A file that was created but got no line is taken away again, so that the next try is not refused.
impl<S: Store> Drop for Output<S> {
    fn drop(&mut self) {
        if self.created && self.len == 0 {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The refusal of an existing output, also used before anything slow is begun.
pub fn exists(path: &Path) -> Failure {
    Failure::input(format!("the output {} exists and is never overwritten: choose another name, or go on with --resume", path.display()))
}

fn lock(file: &File, path: &Path) -> Result<(), Failure> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Failure::input(format!("another process is writing {}", path.display()))),
        // Not every file system has locks; the check is a courtesy.
        _ => Ok(()),
    }
}
