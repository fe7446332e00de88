//! Which parts of an unfinished download are on the disk for good.
//!
//! A text file beside the unfinished one: a line about the whole, then a line for each finished part, appended and synced
//! after the part's bytes were. The journal is never believed alone: each line carries the part's hash, and a part whose
//! bytes do not match is fetched again. So a torn line, a cut or damaged file, or a journal of another time costs a
//! download of what is missing and never a wrong file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::checksum::hex;

/// Names the format in the first line; another value is another format.
const FORMAT: &str = "semif-parts-1";

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Head {
    format: String,
    /// SHA-256 the whole file must have.
    pub sha256: String,
    /// Size of the whole file.
    pub bytes: u64,
    /// Size of each part but the last.
    pub part_bytes: u64,
    /// What the server called this state of the file.
    pub etag: Option<String>,
}

impl Head {
    pub(crate) fn new(sha256: &str, bytes: u64, part_bytes: u64, etag: Option<String>) -> Self {
        Self { format: FORMAT.to_owned(), sha256: sha256.to_owned(), bytes, part_bytes, etag }
    }

    pub(crate) fn parts(&self) -> u64 {
        self.bytes.div_ceil(self.part_bytes)
    }

    /// The bytes of a part.
    pub(crate) fn range(&self, part: u64) -> std::ops::Range<u64> {
        let start = part * self.part_bytes;
        start..(start + self.part_bytes).min(self.bytes)
    }
}

#[derive(Serialize, Deserialize)]
struct Line {
    part: u64,
    /// The first 128 bits of the part's SHA-256 in hex: this guards against damage; the whole file's hash decides.
    check: String,
}

/// The check of a part's hash.
pub(crate) fn check(sha256: &[u8; 32]) -> String {
    hex(&sha256[..16])
}

/// What a journal says was finished: part number and check.
pub(crate) type Finished = BTreeMap<u64, String>;

/// Reads a journal; `None` where there is none, or none that can be used for these bytes.
pub(crate) fn read(path: &Path, sha256: &str, bytes: u64) -> Option<(Head, Finished)> {
    let text = String::from_utf8_lossy(&std::fs::read(path).ok()?).into_owned();
    let mut lines = text.lines();
    let head: Head = serde_json::from_str(lines.next()?).ok()?;
    let usable = head.format == FORMAT && head.sha256 == sha256 && head.bytes == bytes && head.part_bytes > 0;
    // Parts of a few bytes would be a journal as long as the file: not one of ours.
    if !usable || head.parts() > 1 << 20 {
        return None;
    }
    let known = |line: Line| (line.part < head.parts()).then_some((line.part, line.check));
    let finished = lines.filter_map(|line| serde_json::from_str(line).ok().and_then(known)).collect();
    Some((head, finished))
}

/// A journal being written.
pub(crate) struct Journal {
    file: File,
}

impl Journal {
    /// Writes a journal with these parts in place of any older one, whole or not at all.
    pub(crate) fn create(path: &Path, head: &Head, finished: &Finished) -> io::Result<Self> {
        let mut text = line(head)?;
        for (&part, check) in finished {
            text += &line(&Line { part, check: check.clone() })?;
        }
        let aside = path.with_extension("new");
        let mut file = File::create(&aside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        drop(file);
        std::fs::rename(&aside, path)?;
        sync_folder(path);
        Ok(Self { file: File::options().append(true).open(path)? })
    }

    /// Adds a part whose bytes are already synced.
    pub(crate) fn add(&mut self, part: u64, check: &str) -> io::Result<()> {
        let text = line(&Line { part, check: check.to_owned() })?;
        self.file.write_all(text.as_bytes())?;
        self.file.sync_data()
    }
}

fn line(value: &impl Serialize) -> io::Result<String> {
    Ok(serde_json::to_string(value)? + "\n")
}

/// Makes a rename or a new file in this file's folder durable, where the system can.
pub(crate) fn sync_folder(path: &Path) {
    #[cfg(unix)]
    if let Some(folder) = path.parent()
        && let Ok(folder) = File::open(folder)
    {
        // A network file system may refuse; then the next start fetches again what it cannot see.
        let _ = folder.sync_all();
    }
    #[cfg(not(unix))]
    let _ = path;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_file() {
        let head = Head::new("s", 25, 10, None);
        assert_eq!((0..head.parts()).map(|p| head.range(p)).collect::<Vec<_>>(), [0..10, 10..20, 20..25]);
        assert_eq!(Head::new("s", 20, 10, None).parts(), 2);
    }

    #[test]
    fn a_journal_survives_torn_and_foreign_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf.part.journal");
        let head = Head::new("s", 100, 10, Some("\"e\"".to_owned()));
        let mut journal = Journal::create(&path, &head, &Finished::from([(3, "c3".to_owned())])).unwrap();
        journal.add(7, "c7").unwrap();
        let mut text = std::fs::read(&path).unwrap();
        text.extend(b"{\"part\":10,\"check\":\"outside\"}\n\xff\xfe\n\n{\"part\":-1,\"check\":\"\"}\n{\"part\":8,\"chec");
        std::fs::write(&path, &text).unwrap();
        let (read_head, finished) = read(&path, "s", 100).unwrap();
        assert_eq!(read_head, head);
        assert_eq!(finished, Finished::from([(3, "c3".to_owned()), (7, "c7".to_owned())]));
        // Rewritten, the torn end is gone and new lines stand alone.
        Journal::create(&path, &head, &finished).unwrap().add(9, "c9").unwrap();
        assert_eq!(read(&path, "s", 100).unwrap().1.len(), 3);
        assert!(read(&path, "other", 100).is_none(), "another file");
        assert!(read(&path, "s", 101).is_none(), "another size");
        for bad in ["", "\n", "[]\n", "{\"format\":\"semif-parts-1\"}\n", &text_with_part_bytes(0), &text_with_part_bytes(1)] {
            std::fs::write(&path, bad).unwrap();
            assert!(read(&path, "s", 1 << 40).is_none(), "{bad}");
        }
    }

    fn text_with_part_bytes(part_bytes: u64) -> String {
        line(&Head { part_bytes, ..Head::new("s", 1 << 40, 1, None) }).unwrap()
    }
}
