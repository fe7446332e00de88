//! Results that are ready before their turn: they wait in a second file beside the output, so that nothing computed is lost, and move to
//! the output when all rows before them are there.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::fail::Failure;
use super::output::{Output, Store};

/// Where results of this output wait.
pub fn waiting_path(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".waiting");
    name.into()
}

/// An output whose lines may come in any order.
#[derive(Debug)]
pub struct Held<S: Store = File> {
    out: Output<S>,
    /// The row whose line the output gets next.
    next: usize,
    waiting: BTreeMap<usize, String>,
    /// Where waiting lines are kept, if anywhere.
    path: Option<PathBuf>,
    file: Option<Output>,
}

impl<S: Store> Held<S> {
    /// An output that has the lines of the first `done` rows.
    pub fn new(out: Output<S>, done: usize, path: Option<PathBuf>) -> Held<S> {
        Held { out, next: done, waiting: BTreeMap::new(), path, file: None }
    }

    /// Takes over lines that an earlier run left waiting, and the file they are in.
    ///
    /// # Errors
    /// The disk's.
    pub fn take_over(&mut self, lines: BTreeMap<usize, String>, file: Output) -> Result<(), Failure> {
        self.file = Some(file);
        self.waiting.extend(lines.into_iter().filter(|(row, _)| *row >= self.next));
        self.drain()
    }

    /// The row's line is in the output, or waits.
    pub fn has(&self, row: usize) -> bool {
        row < self.next || self.waiting.contains_key(&row)
    }

    /// Rows whose lines are in the output.
    pub fn written(&self) -> usize {
        self.next
    }

    /// Rows whose lines wait.
    pub fn waits(&self) -> usize {
        self.waiting.len()
    }

    /// Writes a line, or keeps it until its turn.
    ///
    /// # Errors
    /// The disk's; what was written of the line is taken back.
    pub fn put(&mut self, row: usize, line: String) -> Result<(), Failure> {
        if row > self.next {
            if let (None, Some(path)) = (&self.file, &self.path) {
                self.file = Some(Output::create(path)?);
            }
            if let Some(file) = &mut self.file {
                file.line(&line)?;
            }
        }
        self.waiting.insert(row, line);
        self.drain()
    }

    fn drain(&mut self) -> Result<(), Failure> {
        while let Some(line) = self.waiting.get(&self.next) {
            self.out.line(line)?;
            self.waiting.remove(&self.next);
            self.next += 1;
        }
        Ok(())
    }

    /// Makes everything durable. The second file goes when nothing waits in it.
    ///
    /// # Errors
    /// The disk's.
    pub fn finish(&mut self) -> Result<(), Failure> {
        self.out.finish()?;
        match (self.waiting.is_empty(), &mut self.file) {
            (false, Some(file)) => file.finish()?,
            (true, Some(_)) => {
                self.file = None;
                if let Some(path) = &self.path {
                    // Its lines are all in the output: a file that cannot be removed does no harm, the next run says that it is there.
                    let _ = std::fs::remove_file(path);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
