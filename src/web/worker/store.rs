//! Models in the browser's storage (OPFS): found again after a reload, listed with sizes, deleted on request.
//!
//! Each model lies in the folder `models` under its own name. Beside it `NAME.json` says how long the complete file is and
//! where it came from. It is written before the first byte and again at each checkpoint, with the number of bytes that are
//! safely down; a model counts as complete only when that number and the file's real length both equal the expected size.

use js_sys::{AsyncIterator, Reflect, Uint8Array};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{
    Blob, File, FileSystemDirectoryHandle, FileSystemFileHandle, FileSystemGetDirectoryOptions, FileSystemGetFileOptions,
    FileSystemReadWriteOptions, FileSystemRemoveOptions, FileSystemSyncAccessHandle, StorageEstimate, StorageManager,
};

use super::job::{Job, scope};
use crate::web::protocol::{Fault, FaultKind, Kept, KeptFile, Phase};
use crate::web::{js_error_name, js_message, part_names};

const FOLDER: &str = "models";
const NOTE: &str = ".json";
/// One piece of a copy.
const WINDOW: f64 = 4.0 * 1024.0 * 1024.0;

/// What `NAME.json` says.
#[derive(Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
pub struct Note {
    /// Bytes of the complete file; 0 while the server has not said.
    pub bytes: f64,
    /// Bytes written and flushed, without a gap from the beginning.
    pub stored: f64,
    /// Further parts that are written and flushed: start and end, in order, none touching another or `stored`.
    #[serde(default)]
    pub ahead: Vec<(f64, f64)>,
    /// Where it was downloaded from; empty for a picked file.
    #[serde(default)]
    pub url: String,
    /// The server's name for this version of the file.
    #[serde(default)]
    pub etag: String,
    /// Hex digest of the complete file; empty while unknown.
    #[serde(default)]
    pub sha256: String,
    /// The digest that the file must have; empty where nobody has promised one.
    #[serde(default)]
    pub promised: String,
    /// When the complete file was last changed in the storage, in milliseconds; 0 while unknown.
    #[serde(default)]
    pub written: f64,
    /// A picked file's time of change, in milliseconds.
    #[serde(default)]
    pub modified: f64,
}

impl Note {
    /// Of the same download, with nothing of the file here.
    pub fn anew(&self) -> Self {
        Self { url: self.url.clone(), promised: self.promised.clone(), ..Self::default() }
    }

    /// Nothing of the file is here.
    pub fn is_empty(&self) -> bool {
        self.stored == 0.0 && self.ahead.is_empty()
    }

    /// Notes that `start..end` is written.
    pub fn add(&mut self, start: f64, end: f64) {
        self.ahead.push((start, end));
        self.ahead.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut joined: Vec<(f64, f64)> = Vec::with_capacity(self.ahead.len());
        for &(start, end) in &self.ahead {
            if start <= self.stored {
                self.stored = self.stored.max(end);
                continue;
            }
            match joined.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => joined.push((start, end)),
            }
        }
        self.ahead = joined;
    }

    /// Forgets what the file is too short for.
    pub fn limit(&mut self, size: f64) {
        self.stored = self.stored.min(size);
        self.ahead.retain(|(start, end)| *start > self.stored && *end <= size);
    }

    /// What is missing of the first `bytes` bytes.
    pub fn gaps(&self, bytes: f64) -> Vec<(f64, f64)> {
        let (mut gaps, mut at) = (Vec::new(), self.stored);
        for &(start, end) in self.ahead.iter().chain([&(bytes, bytes)]) {
            if at < start {
                gaps.push((at, start));
            }
            at = end;
        }
        gaps
    }

    /// Bytes that are here.
    pub fn here(&self) -> f64 {
        self.stored + self.ahead.iter().map(|(start, end)| end - start).sum::<f64>()
    }
}

/// A storage fault in words.
pub fn fault(error: JsValue, doing: &str) -> Fault {
    let message = js_message(&error);
    match js_error_name(&error).as_str() {
        "QuotaExceededError" => Fault::new(FaultKind::Quota, format!("The browser's storage is full ({doing}).")),
        "NoModificationAllowedError" | "InvalidStateError" => {
            Fault::new(FaultKind::Storage, format!("The file is in use, probably by another tab of this page ({doing})."))
        }
        "SecurityError" | "NotAllowedError" => {
            Fault::new(FaultKind::Quota, format!("The browser gives this page no storage, as in some private windows ({doing})."))
        }
        "NotFoundError" => Fault::new(FaultKind::Gone, format!("The file is no longer in the browser's storage ({doing}).")),
        "NotReadableError" => {
            Fault::new(FaultKind::Storage, format!("The file cannot be read any more; it may have changed on disk ({doing})."))
        }
        _ => Fault::new(FaultKind::Storage, format!("The browser's storage failed ({doing}): {message}")),
    }
}

/// A name that is safe as a file name: the last part of a path or address, without separators and control characters.
pub fn file_name(path: &str) -> String {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let last = path.rsplit(['/', '\\']).find(|part| !part.is_empty()).unwrap_or_default();
    let name: String = last.chars().filter(|c| !c.is_control() && !r#":*"<>|"#.contains(*c)).take(120).collect();
    let name = name.trim_matches(['.', ' ']);
    if name.is_empty() { "model.gguf".into() } else { name.into() }
}

/// The browser's storage; none at insecure addresses.
fn manager() -> Option<StorageManager> {
    let storage = Reflect::get(&scope().navigator(), &"storage".into()).ok()?;
    storage.is_object().then(|| storage.unchecked_into())
}

async fn folder() -> Result<FileSystemDirectoryHandle, Fault> {
    folder_named(FOLDER).await
}

/// A folder of the browser's storage, made where it is missing.
pub async fn folder_named(name: &str) -> Result<FileSystemDirectoryHandle, Fault> {
    let doing = "opening it";
    let manager = manager().ok_or_else(|| Fault::new(FaultKind::Quota, "The browser gives pages at this address no storage."))?;
    let root: FileSystemDirectoryHandle = JsFuture::from(manager.get_directory()).await.map_err(|e| fault(e, doing))?.unchecked_into();
    let options = FileSystemGetDirectoryOptions::new();
    options.set_create(true);
    let folder = JsFuture::from(root.get_directory_handle_with_options(name, &options)).await.map_err(|e| fault(e, doing))?;
    Ok(folder.unchecked_into())
}

async fn handle(folder: &FileSystemDirectoryHandle, name: &str, create: bool) -> Result<FileSystemFileHandle, Fault> {
    let options = FileSystemGetFileOptions::new();
    options.set_create(create);
    let handle = JsFuture::from(folder.get_file_handle_with_options(name, &options)).await.map_err(|e| fault(e, name))?;
    Ok(handle.unchecked_into())
}

/// The file as the browser sees it now; reading it takes no lock.
pub async fn snapshot(name: &str) -> Result<File, Fault> {
    let handle = handle(&folder().await?, name, false).await?;
    Ok(JsFuture::from(handle.get_file()).await.map_err(|e| fault(e, name))?.unchecked_into())
}

/// A file open for reading and writing in place; closed when dropped.
pub struct OpenFile {
    handle: FileSystemSyncAccessHandle,
    name: String,
}

impl OpenFile {
    /// Opens a file of the store. A [`FaultKind::Storage`] fault where another tab holds it.
    pub async fn open(name: &str, create: bool) -> Result<Self, Fault> {
        Self::open_in(&folder().await?, name, create).await
    }

    /// The same in another folder than that of the models.
    pub async fn open_in(folder: &FileSystemDirectoryHandle, name: &str, create: bool) -> Result<Self, Fault> {
        let handle = handle(folder, name, create).await?;
        let access = JsFuture::from(handle.create_sync_access_handle()).await.map_err(|e| fault(e, name))?;
        Ok(Self { handle: access.unchecked_into(), name: name.into() })
    }

    pub fn size(&self) -> Result<f64, Fault> {
        self.handle.get_size().map_err(|e| fault(e, &self.name))
    }

    pub fn truncate(&self, bytes: f64) -> Result<(), Fault> {
        self.handle.truncate_with_f64(bytes).map_err(|e| fault(e, &self.name))
    }

    /// Reads exactly `buf`, or says how much was there.
    pub fn read_at(&self, offset: f64, buf: &mut [u8]) -> Result<usize, Fault> {
        let options = FileSystemReadWriteOptions::new();
        options.set_at(offset);
        let read = self.handle.read_with_u8_array_and_options(buf, &options).map_err(|e| fault(e, &self.name))?;
        Ok(read as usize)
    }

    /// Writes all of `bytes`; a short write is a full disk.
    pub fn write_at(&self, offset: f64, bytes: &Uint8Array) -> Result<(), Fault> {
        let options = FileSystemReadWriteOptions::new();
        options.set_at(offset);
        let written = self.handle.write_with_js_u8_array_and_options(bytes, &options).map_err(|e| fault(e, &self.name))?;
        if written < f64::from(bytes.length()) {
            return Err(Fault::new(FaultKind::Quota, "The browser's storage is full: the last piece was not written completely."));
        }
        Ok(())
    }

    pub fn flush(&self) -> Result<(), Fault> {
        self.handle.flush().map_err(|e| fault(e, &self.name))
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// Reads the note of a model; none where there is none or it is damaged.
pub async fn read_note(name: &str) -> Option<Note> {
    let file = snapshot(&format!("{name}{NOTE}")).await.ok()?;
    let text = JsFuture::from(file.text()).await.ok()?.as_string()?;
    serde_json::from_str(&text).ok()
}

/// Writes the note of a model.
pub async fn write_note(name: &str, note: &Note) -> Result<(), Fault> {
    let text = serde_json::to_string(note).map_err(|e| Fault::new(FaultKind::Storage, e.to_string()))?;
    let file = OpenFile::open(&format!("{name}{NOTE}"), true).await?;
    file.truncate(0.0)?;
    file.write_at(0.0, &Uint8Array::from(text.as_bytes()))?;
    file.flush()
}

/// Bytes used and bytes allowed; zeros where the browser does not say.
pub async fn estimate() -> (f64, f64) {
    let Some(Ok(promise)) = manager().map(|manager| manager.estimate()) else { return (0.0, 0.0) };
    let Ok(value) = JsFuture::from(promise).await else { return (0.0, 0.0) };
    let estimate: StorageEstimate = value.unchecked_into();
    (estimate.get_usage().unwrap_or(0.0), estimate.get_quota().unwrap_or(0.0))
}

/// Has the browser promised not to clear the storage by itself?
async fn persisted() -> bool {
    let Some(Ok(promise)) = manager().map(|manager| manager.persisted()) else { return false };
    JsFuture::from(promise).await.is_ok_and(|answer| answer.is_truthy())
}

/// Refuses what cannot fit, before the first byte.
pub async fn check_room(more: f64) -> Result<(), Fault> {
    let (usage, quota) = estimate().await;
    if quota > 0.0 && usage + more > quota {
        return Err(Fault::new(
            FaultKind::Quota,
            format!(
                "Not enough storage: {:.0} MB are needed and the browser has {:.0} MB left for this page.",
                more / 1e6,
                ((quota - usage) / 1e6).max(0.0)
            ),
        ));
    }
    Ok(())
}

/// All models, complete or not, by name.
pub async fn list() -> Kept {
    let (usage, quota) = estimate().await;
    let Ok(models) = folder().await else { return Kept { available: false, usage, quota, ..Kept::default() } };
    let mut files = Vec::new();
    for name in names(&models).await {
        // A file without a note is what a crash before the first checkpoint left; a person can only delete it.
        if name.ends_with(NOTE) {
            continue;
        }
        let Ok(file) = snapshot(&name).await else { continue };
        let note = read_note(&name).await.unwrap_or_default();
        let stored = if note.stored == note.bytes { note.stored.min(file.size()) } else { note.here() };
        files.push(KeptFile { name, bytes: note.bytes, stored, url: note.url, sha256: note.sha256 });
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Kept { available: true, files: join_parts(files), usage, quota, persisted: persisted().await }
}

/// Parts of a split model as one model, which goes by the name of its first part and is complete when all parts are.
fn join_parts(files: Vec<KeptFile>) -> Vec<KeptFile> {
    let mut joined: Vec<KeptFile> = Vec::with_capacity(files.len());
    for file in &files {
        let names = part_names(&file.name);
        if names.len() == 1 {
            joined.push(file.clone());
        } else if !joined.iter().any(|model| model.name == names[0]) {
            let parts: Vec<&KeptFile> = files.iter().filter(|part| names.contains(&part.name)).collect();
            let known = parts.len() == names.len() && parts.iter().all(|part| part.bytes > 0.0);
            joined.push(KeptFile {
                name: names[0].clone(),
                bytes: if known { parts.iter().map(|part| part.bytes).sum() } else { 0.0 },
                stored: parts.iter().map(|part| part.stored).sum(),
                url: file.url.clone(),
                sha256: String::new(),
            });
        }
    }
    joined
}

async fn names(folder: &FileSystemDirectoryHandle) -> Vec<String> {
    // `keys()` is asynchronous iteration; web-sys gives it as an iterator object.
    let iterator: AsyncIterator = folder.keys().unchecked_into();
    let mut names = Vec::new();
    while let Ok(next) = iterator.next() {
        let Ok(step) = JsFuture::from(next).await else { break };
        let done = Reflect::get(&step, &"done".into()).ok().and_then(|d| d.as_bool()).unwrap_or(true);
        if done {
            break;
        }
        if let Some(name) = Reflect::get(&step, &"value".into()).ok().and_then(|v| v.as_string()) {
            names.push(name);
        }
    }
    names
}

/// Deletes a model, all its parts where it is split. What is gone already is no error.
pub async fn delete_model(name: &str) -> Result<(), Fault> {
    for name in part_names(name) {
        delete(&name).await?;
    }
    Ok(())
}

/// Deletes a file and its note. A file that is gone already is no error.
pub async fn delete(name: &str) -> Result<(), Fault> {
    let models = folder().await?;
    // The note first: without it the rest can never pass for a complete model.
    for name in [format!("{name}{NOTE}"), name.to_string()] {
        let gone = JsFuture::from(models.remove_entry_with_options(&name, &FileSystemRemoveOptions::new())).await;
        if let Err(error) = gone
            && js_error_name(&error) != "NotFoundError"
        {
            return Err(fault(error, &name));
        }
    }
    Ok(())
}

/// Copies a picked file into the store and returns the name it got there.
pub async fn import(file: &File, job: &Job) -> Result<String, Fault> {
    let total = file.size();
    let mut name = file_name(&file.name());
    if name.ends_with(NOTE) {
        return Err(Fault::new(FaultKind::ModelFile, format!("{name} is a JSON file; this page reads GGUF model files.")));
    }
    let (stem, ending) = match name.rsplit_once('.') {
        Some((stem, ending)) => (stem.to_string(), format!(".{ending}")),
        None => (name.clone(), String::new()),
    };
    let mut copy = 1;
    while let Some(note) = read_note(&name).await {
        let same = note.bytes == total && note.modified == file.last_modified();
        if same && note.stored == total && snapshot(&name).await.is_ok_and(|kept| kept.size() == total) {
            return Ok(name);
        }
        if same {
            break;
        }
        copy += 1;
        name = format!("{stem} ({copy}){ending}");
    }
    check_room(total).await?;
    let note = Note { bytes: total, modified: file.last_modified(), ..Note::default() };
    write_note(&name, &note).await?;
    let result = copy_in(file, &name, total, job).await;
    match result {
        Ok(sha256) => {
            write_note(&name, &Note { stored: total, sha256, ..note }).await?;
            seal(&name).await?;
            Ok(name)
        }
        Err(fault) => {
            // A part of a local file is of no use: picking it again costs nothing.
            let _ = delete(&name).await;
            Err(fault)
        }
    }
}

/// Copies a file in, hashing it on the way, and gives the digest.
async fn copy_in(file: &File, name: &str, total: f64, job: &Job) -> Result<String, Fault> {
    let target = OpenFile::open(name, true).await?;
    target.truncate(0.0)?;
    let (mut sha, mut done) = (Sha256::new(), 0.0);
    job.progress(Phase::Fetch, 0.0, total);
    while done < total {
        job.check()?;
        let end = (done + WINDOW).min(total);
        let piece = blob_piece(file, done, end).await?;
        if done == 0.0 {
            check_magic(&piece, name)?;
        }
        target.write_at(done, &piece)?;
        sha.update(piece.to_vec());
        done = end;
        job.progress(Phase::Fetch, done, total);
        job.breathe().await;
    }
    target.flush()?;
    Ok(hex(sha))
}

/// Notes when a complete file was written, so that a later change shows.
pub async fn seal(name: &str) -> Result<(), Fault> {
    let Some(note) = read_note(name).await else { return Ok(()) };
    let written = snapshot(name).await?.last_modified();
    write_note(name, &Note { written, ..note }).await
}

/// Hashes a file again that was changed since it was stored. One that is not what it was is deleted: no part of it can be trusted.
pub async fn check_unchanged(name: &str, job: &Job) -> Result<(), Fault> {
    let Some(note) = read_note(name).await else { return Ok(()) };
    if note.written == 0.0 || note.sha256.is_empty() || snapshot(name).await?.last_modified() == note.written {
        return Ok(());
    }
    let known = note.sha256.clone();
    write_note(name, &Note { sha256: String::new(), ..note }).await?;
    match verify(name, Some(&known), job).await {
        Ok(()) => seal(name).await,
        Err(fault) if fault.kind == FaultKind::ModelFile => Err(Fault::new(
            FaultKind::Damaged,
            format!("{name} was changed in the browser's storage: its SHA-256 is no longer {}…, so it was deleted.", &known[..12]),
        )),
        Err(fault) => Err(fault),
    }
}

fn hex(sha: Sha256) -> String {
    sha.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares a complete download with the SHA-256 that was promised for it, if one was.
pub async fn verify_promised(name: &str, job: &Job) -> Result<(), Fault> {
    let promised = read_note(name).await.map(|note| note.promised).filter(|promised| !promised.is_empty());
    verify(name, promised.as_deref(), job).await
}

/// Reads a complete file back, notes its SHA-256, and compares it with the one that was promised. A file that differs is
/// deleted: no part of it can be trusted.
async fn verify(name: &str, promised: Option<&str>, job: &Job) -> Result<(), Fault> {
    let Some(mut note) = read_note(name).await else {
        return Err(Fault::new(FaultKind::Gone, format!("{name} is no longer in the browser's storage.")));
    };
    if note.sha256.is_empty() {
        let file = OpenFile::open(name, false).await?;
        let (mut sha, mut window) = (Sha256::new(), vec![0; WINDOW as usize]);
        let mut done = 0.0;
        while done < note.bytes {
            job.check()?;
            job.progress(Phase::Verify, done, note.bytes);
            let wanted = (note.bytes - done).min(WINDOW) as usize;
            let read = file.read_at(done, &mut window[..wanted])?;
            if read == 0 {
                return Err(Fault::new(FaultKind::Storage, format!("{name} became shorter while it was read back.")));
            }
            sha.update(&window[..read]);
            done += read as f64;
            job.breathe().await;
        }
        note.sha256 = hex(sha);
        job.progress(Phase::Verify, note.bytes, note.bytes);
        drop(file);
        write_note(name, &note).await?;
    }
    match promised {
        Some(promised) if promised != note.sha256 => {
            delete(name).await?;
            Err(Fault::new(
                FaultKind::ModelFile,
                format!(
                    "{name} is not the file that was published: its SHA-256 starts with {}, expected {}. It was deleted.",
                    &note.sha256[..12],
                    promised.get(..12).unwrap_or(promised)
                ),
            ))
        }
        _ => Ok(()),
    }
}

/// Refuses what is not a GGUF file at its first bytes, before hundreds of megabytes are copied.
pub fn check_magic(first: &Uint8Array, name: &str) -> Result<(), Fault> {
    let head = first.subarray(0, first.length().min(4)).to_vec();
    if b"GGUF".starts_with(&head) {
        return Ok(());
    }
    let what = if head.starts_with(b"<") { "; it looks like a web page, so the address may lead to a page about the model" } else { "" };
    Err(Fault::new(FaultKind::ModelFile, format!("{name} is not a GGUF model file{what}.")))
}

/// Bytes `start..end` of a blob.
pub async fn blob_piece(blob: &Blob, start: f64, end: f64) -> Result<Uint8Array, Fault> {
    let piece = blob.slice_with_f64_and_f64(start, end).map_err(|e| fault(e, "reading the file"))?;
    let buffer = JsFuture::from(piece.array_buffer()).await.map_err(|e| fault(e, "reading the file"))?;
    let bytes = Uint8Array::new(&buffer);
    if f64::from(bytes.length()) == end - start {
        Ok(bytes)
    } else {
        Err(Fault::new(FaultKind::Storage, "The file became shorter while it was read."))
    }
}
