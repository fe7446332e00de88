//! Downloads into the store: ranges in parallel, hashed while they arrive, checkpointed, resumed with `Range` and `If-Range`.
//!
//! A file is fetched in pieces. Each lane takes the next missing piece, streams it through a window of its own to its place in the file,
//! and notes what is down. The hash follows the bytes that stand without a gap from the beginning, read back from the storage, so that it
//! also vouches for what the storage kept.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use futures_channel::oneshot;
use js_sys::{Reflect, Uint8Array};
use sha2::{Digest, Sha256};
use wasm_bindgen::JsCast;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{ReadableStreamDefaultReader, Response};

use super::http::{Range, fetch, header, other_part, refused, starts_at, total};
use super::job::{Job, cancelled, sleep};
use super::store::{self, Note, OpenFile};
use crate::gguf::{ByteSource, Gguf, SourceError};
use crate::web::js_message;
use crate::web::protocol::{Fault, FaultKind, Phase};

/// Connections at a time. More than four give little and strain hosts.
const LANES: usize = 4;
/// One request asks for so much.
const PIECE: f64 = 16.0 * 1024.0 * 1024.0;
/// Bytes that a lane collects before they are written.
const WINDOW: u32 = 4 << 20;
/// Bytes between checkpoints.
const CHECKPOINT: f64 = 16.0 * 1024.0 * 1024.0;
/// Tries without any progress before giving up.
const TRIES: u32 = 4;

/// Downloads into the store and returns the name under which the file is kept.
///
/// What an earlier try of the same address left is kept and continued. After a cancel or a fault the part stays. `on_header` hears once, as
/// soon as the header is down, if it is one that can be read alone.
pub async fn download(url: &str, promised: Option<String>, job: &Job, on_header: impl FnOnce(Gguf) + 'static) -> Result<String, Fault> {
    let (name, mut note) = place(url).await;
    if let Some(promised) = promised.filter(|promised| *promised != note.promised) {
        note.promised = promised;
        if !note.is_empty() {
            store::write_note(&name, &note).await?;
        }
    }
    let complete = note.bytes > 0.0 && note.stored == note.bytes;
    if complete && store::snapshot(&name).await.is_ok_and(|file| file.size() == note.bytes) {
        return Ok(name);
    }
    if note.bytes > 0.0 {
        store::check_room(note.bytes - note.stored - note.ahead.iter().map(|(start, end)| end - start).sum::<f64>()).await?;
    }
    let file = OpenFile::open(&name, true).await?;
    note.limit(file.size()?);
    let transfer = Rc::new(Transfer {
        url: url.into(),
        name: name.clone(),
        file,
        job: job.clone(),
        note: RefCell::new(note),
        queue: RefCell::default(),
        received: Cell::new(0.0),
        failures: Cell::new(0),
        fault: RefCell::default(),
        hash: RefCell::new((Sha256::new(), 0.0)),
        unsaved: Cell::new(0.0),
        saving: Cell::new(false),
        begun: Cell::new(false),
    });
    let (watched, named) = (Rc::downgrade(&transfer), name.clone());
    spawn_local(async move {
        // What is wrong with it is said when it is loaded.
        if let Some(arriving) = Arriving::open(watched, named).await
            && let Ok(header) = Gguf::read(&arriving).await
        {
            on_header(header);
        }
    });
    let result = transfer.clone().run().await;
    // Whatever happened, what is down stays usable.
    let saved = transfer.save().await;
    if let Err(fault) = result {
        if transfer.note.borrow().is_empty() {
            drop(transfer);
            store::delete(&name).await?;
        }
        return Err(fault);
    }
    saved.map(|()| name)
}

/// The name for an address, and what is known of it already. Other addresses with the same last part get a number.
async fn place(url: &str) -> (String, Note) {
    let mut name = store::file_name(url);
    let mut copy = 1;
    let (stem, ending) = match name.rsplit_once('.') {
        Some((stem, ending)) => (stem.to_string(), format!(".{ending}")),
        None => (name.clone(), String::new()),
    };
    loop {
        match store::read_note(&name).await {
            None => return (name, Note { url: url.into(), ..Note::default() }),
            Some(note) if note.url == url => return (name, note),
            Some(_) => {
                copy += 1;
                name = format!("{stem} ({copy}){ending}");
            }
        }
    }
}

/// The file of a download while it arrives: reads wait for their bytes, and end with the download.
struct Arriving {
    transfer: Weak<Transfer>,
    name: String,
    len: u64,
}

/// Milliseconds between two looks at what has arrived.
const LOOK_MS: i32 = 100;

impl Arriving {
    /// Waits until the server has said how long the file is; none where the download ends before that.
    async fn open(transfer: Weak<Transfer>, name: String) -> Option<Self> {
        loop {
            let strong = transfer.upgrade().filter(|transfer| !transfer.job.is_over())?;
            let bytes = strong.note.borrow().bytes;
            if strong.begun.get() && bytes > 0.0 {
                return Some(Self { transfer, name, len: bytes as u64 });
            }
            drop(strong);
            sleep(LOOK_MS).await;
        }
    }
}

impl ByteSource for Arriving {
    fn len(&self) -> u64 {
        self.len
    }

    fn describe(&self) -> String {
        self.name.clone()
    }

    async fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        let end = (offset + buf.len() as u64) as f64;
        loop {
            let Some(transfer) = self.transfer.upgrade().filter(|transfer| !transfer.job.is_over()) else {
                return Err(SourceError::Cancelled { place: self.name.clone() });
            };
            if transfer.note.borrow().stored >= end {
                let wanted = buf.len() as u64;
                let failed = |reason| SourceError::Failed { place: self.name.clone(), offset, wanted, reason };
                return match transfer.file.read_at(offset as f64, buf) {
                    Ok(read) if read == buf.len() => Ok(()),
                    Ok(read) => Err(failed(format!("only {read} bytes are there"))),
                    Err(fault) => Err(failed(fault.message)),
                };
            }
            drop(transfer);
            sleep(LOOK_MS).await;
        }
    }
}

/// One download in progress, shared by its lanes.
struct Transfer {
    url: String,
    name: String,
    file: OpenFile,
    job: Job,
    note: RefCell<Note>,
    /// Pieces that nobody has taken, in order.
    queue: RefCell<VecDeque<(f64, f64)>>,
    /// Bytes that have arrived, written or not.
    received: Cell<f64>,
    /// Failures in a row during which nothing came.
    failures: Cell<u32>,
    fault: RefCell<Option<Fault>>,
    /// The hash, and how far it is.
    hash: RefCell<(Sha256, f64)>,
    /// Bytes written since the last checkpoint.
    unsaved: Cell<f64>,
    saving: Cell<bool>,
    /// The first answer is there, so the note is that of the version that arrives.
    begun: Cell<bool>,
}

impl Transfer {
    async fn run(self: Rc<Self>) -> Result<(), Fault> {
        let (first, ranged) = self.open().await?;
        self.begun.set(true);
        store::check_room(self.missing()).await?;
        self.save().await?;
        self.progress();
        let mut lanes = Vec::new();
        if ranged {
            for _ in 1..LANES.min(self.queue.borrow().len() + 1) {
                let (done, end) = oneshot::channel();
                let lane = self.clone();
                spawn_local(async move {
                    lane.lane(None).await;
                    let _ = done.send(());
                });
                lanes.push(end);
            }
            self.lane(Some(first)).await;
        } else {
            self.whole(first.1).await;
        }
        for lane in lanes {
            let _ = lane.await;
        }
        if let Some(fault) = self.fault.borrow_mut().take() {
            return Err(fault);
        }
        self.finish().await
    }

    /// The first request: tells the length, the version, and whether the host gives parts. Returns the piece it is for.
    async fn open(&self) -> Result<(((f64, f64), Response), bool), Fault> {
        let known = self.note.borrow().clone();
        let start = known.gaps(f64::INFINITY).first().map_or(0.0, |gap| gap.0);
        let mut piece = (start, start + PIECE);
        if known.bytes > 0.0 {
            piece.1 = known.gaps(known.bytes).first().map_or(known.bytes, |gap| gap.1).min(piece.1);
        }
        let mut response = self.ask(piece).await?;
        let (mut length, mut etag) = (total(&response), header(&response, "etag").unwrap_or_default());
        let same = length.is_none_or(|length| known.bytes == 0.0 || length == known.bytes)
            && (etag.is_empty() || known.etag.is_empty() || etag == known.etag);
        if !known.is_empty() && (response.status() == 416 || response.status() == 206 && !same) {
            // Another version of the file: what is here belongs to none that can be had, so from the beginning.
            *self.note.borrow_mut() = known.anew();
            piece = (0.0, PIECE);
            response = self.ask(piece).await?;
            (length, etag) = (total(&response), header(&response, "etag").unwrap_or_default());
        }
        let ranged = match (response.status(), length) {
            (206, Some(_)) => true,
            // A part of unknown whole: ask for the whole instead.
            (206, None) => {
                response = fetch(&self.url, None, &self.job).await?;
                (length, etag) = (total(&response), header(&response, "etag").unwrap_or_default());
                false
            }
            _ => false,
        };
        if !ranged {
            if response.status() != 200 {
                return Err(refused(&self.url, &response));
            }
            *self.note.borrow_mut() = known.anew();
        } else if !starts_at(&response, piece.0) {
            return Err(other_part());
        }
        let mut note = self.note.borrow_mut();
        if let Some(length) = length {
            note.bytes = length;
        }
        if !etag.is_empty() {
            note.etag = etag;
        }
        let whole = note.bytes;
        self.received.set(note.stored + note.ahead.iter().map(|(start, end)| end - start).sum::<f64>());
        if ranged {
            // What an earlier version left behind the end of this one.
            if self.file.size()? > whole {
                self.file.truncate(whole)?;
            }
            // What the first request did not ask for.
            piece.1 = piece.1.min(whole);
            let mut queue = self.queue.borrow_mut();
            for (mut start, end) in note.gaps(whole) {
                while start < end {
                    let stop = (start + PIECE).min(end);
                    if start >= piece.1 {
                        queue.push_back((start, stop));
                    }
                    start = if start == piece.0 { piece.1 } else { stop };
                }
            }
        } else {
            self.file.truncate(0.0)?;
        }
        Ok(((piece, response), ranged))
    }

    /// Asks for a piece; going on, for one of the version that is here.
    async fn ask(&self, (start, end): (f64, f64)) -> Result<Response, Fault> {
        let (etag, fresh) = {
            let note = self.note.borrow();
            (note.etag.clone(), note.is_empty())
        };
        let range = |version| Range { start, end: Some(end), version };
        let version = (!fresh && !etag.is_empty()).then_some(etag.as_str());
        match fetch(&self.url, Some(range(version)), &self.job).await {
            // Some hosts do not let other pages send If-Range; the version is compared as well.
            Err(fault) if fault.kind == FaultKind::Network && version.is_some() => fetch(&self.url, Some(range(None)), &self.job).await,
            other => other,
        }
    }

    /// Takes pieces until there are none, beginning with one whose answer is there already.
    async fn lane(&self, first: Option<((f64, f64), Response)>) {
        let (mut next, mut answer) = match first {
            Some((piece, response)) => (Some(piece), Some(response)),
            None => (None, None),
        };
        let mut window = Window::default();
        while self.fault.borrow().is_none() {
            let Some((mut start, end)) = next.take().or_else(|| self.queue.borrow_mut().pop_front()) else { return };
            while start < end {
                let before = start;
                let result = match answer.take() {
                    Some(response) => self.stream(response, &mut start, Some(end), &mut window).await,
                    None => self.piece(&mut start, end, &mut window).await,
                };
                let Err(fault) = result else { break };
                if start > before {
                    self.failures.set(0);
                }
                self.failures.set(self.failures.get() + 1);
                // A server that never answered will not do so in a second; a connection that broke may.
                if fault.kind != FaultKind::Network || self.failures.get() >= TRIES {
                    self.fault.borrow_mut().get_or_insert(fault);
                    return;
                }
                sleep(250 << self.failures.get()).await;
                if self.job.is_cancelled() {
                    self.fault.borrow_mut().get_or_insert_with(cancelled);
                    return;
                }
            }
            self.failures.set(0);
        }
    }

    /// Fetches one piece.
    async fn piece(&self, start: &mut f64, end: f64, window: &mut Window) -> Result<(), Fault> {
        // Without If-Range, which many hosts do not allow without asking first; the version is compared below.
        let response = fetch(&self.url, Some(Range { start: *start, end: Some(end), version: None }), &self.job).await?;
        let (bytes, known) = {
            let note = self.note.borrow();
            (note.bytes, note.etag.clone())
        };
        let etag = header(&response, "etag").unwrap_or_default();
        let other = etag != known && !etag.is_empty() && !known.is_empty();
        match response.status() {
            206 if other || total(&response).is_some_and(|total| total != bytes) => {
                Err(Fault::new(FaultKind::ModelFile, "The file changed on its server while it was downloaded. Begin again."))
            }
            206 if !starts_at(&response, *start) => Err(other_part()),
            206 => self.stream(response, start, Some(end), window).await,
            200 => Err(Fault::new(FaultKind::ModelFile, "The file changed on its server while it was downloaded. Begin again.")),
            _ => Err(refused(&self.url, &response)),
        }
    }

    /// The whole file in one connection, for hosts that give no parts.
    async fn whole(&self, response: Response) {
        let mut start = 0.0;
        let end = Some(self.note.borrow().bytes).filter(|bytes| *bytes > 0.0);
        let mut result = self.stream(response, &mut start, end, &mut Window::default()).await;
        if result.is_ok() && end.is_none() {
            self.note.borrow_mut().bytes = start;
        }
        if let Err(fault) = &mut result
            && fault.kind == FaultKind::Network
        {
            fault.message += " The server gives only whole files, so it begins anew.";
        }
        *self.fault.borrow_mut() = result.err();
    }

    /// Writes an answer's bytes to their place, from `start` to `end` or to wherever the connection ends.
    async fn stream(&self, response: Response, start: &mut f64, end: Option<f64>, window: &mut Window) -> Result<(), Fault> {
        let body = response.body().ok_or_else(|| Fault::new(FaultKind::Network, "The server's answer has no content."))?;
        let reader: ReadableStreamDefaultReader = body.get_reader().unchecked_into();
        let result = loop {
            let step = match JsFuture::from(reader.read()).await {
                Ok(step) => step,
                Err(_) if self.job.is_cancelled() => break Err(cancelled()),
                Err(error) => break Err(Fault::new(FaultKind::Network, format!("The connection broke off ({}).", js_message(&error)))),
            };
            if Reflect::get(&step, &"done".into()).is_ok_and(|done| done.is_truthy()) {
                break Ok(());
            }
            let chunk: Uint8Array = Reflect::get(&step, &"value".into()).unwrap_or_default().unchecked_into();
            if *start == 0.0 && window.filled == 0 {
                store::check_magic(&chunk, &self.name)?;
            }
            if end.is_some_and(|end| *start + f64::from(window.filled) + f64::from(chunk.length()) > end) {
                break Err(Fault::new(FaultKind::ModelFile, "The server sent more than it had announced."));
            }
            self.received.set(self.received.get() + f64::from(chunk.length()));
            window.push(&chunk, start, self)?;
            self.progress();
            if self.fault.borrow().is_some() {
                break Ok(());
            }
            if self.unsaved.get() >= CHECKPOINT {
                self.save().await?;
            }
        };
        if !matches!(&result, Err(fault) if fault.kind == FaultKind::Network) {
            // Otherwise a connection that nobody reads would go on. Where it has ended there is nothing to cancel.
            let end = reader.cancel();
            spawn_local(async move {
                let _ = JsFuture::from(end).await;
            });
        }
        window.drain(start, self)?;
        result?;
        match end {
            Some(end) if *start < end && self.fault.borrow().is_none() => {
                Err(Fault::new(FaultKind::Network, format!("The connection ended after {:.1} of {:.1} MB.", *start / 1e6, end / 1e6)))
            }
            _ => Ok(()),
        }
    }

    /// A window of bytes goes to its place; the hash follows as far as it can without falling behind for long.
    fn write(&self, start: f64, bytes: &Uint8Array) -> Result<(), Fault> {
        self.file.write_at(start, bytes)?;
        self.note.borrow_mut().add(start, start + f64::from(bytes.length()));
        self.unsaved.set(self.unsaved.get() + f64::from(bytes.length()));
        self.hash_on(2.0 * f64::from(WINDOW)).map(|_| ())
    }

    /// Hashes up to so many bytes more; false when it has caught up.
    fn hash_on(&self, most: f64) -> Result<bool, Fault> {
        let stored = self.note.borrow().stored;
        let (sha, at) = &mut *self.hash.borrow_mut();
        let stop = stored.min(*at + most);
        let mut buf = vec![0; (stop - *at).min(f64::from(WINDOW)) as usize];
        while *at < stop {
            let wanted = (stop - *at).min(f64::from(WINDOW)) as usize;
            let read = self.file.read_at(*at, &mut buf[..wanted])?;
            if read == 0 {
                return Err(Fault::new(FaultKind::Storage, format!("{} became shorter while it was read back.", self.name)));
            }
            sha.update(&buf[..read]);
            *at += read as f64;
        }
        Ok(*at < stored)
    }

    /// Hashes what is left and notes the digest.
    async fn finish(&self) -> Result<(), Fault> {
        let bytes = self.note.borrow().bytes;
        self.job.progress(Phase::Fetch, bytes, bytes);
        loop {
            self.job.check()?;
            let more = self.hash_on(f64::from(WINDOW))?;
            self.job.progress(Phase::Verify, self.hash.borrow().1, bytes);
            if !more {
                break;
            }
            self.job.breathe().await;
        }
        let digest = self.hash.borrow().0.clone().finalize();
        self.note.borrow_mut().sha256 = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(())
    }

    fn missing(&self) -> f64 {
        (self.note.borrow().bytes - self.received.get()).max(0.0)
    }

    fn progress(&self) {
        self.job.progress(Phase::Fetch, self.received.get(), self.note.borrow().bytes);
    }

    /// Flushes the file, then says in its note what is down.
    async fn save(&self) -> Result<(), Fault> {
        if self.saving.replace(true) {
            return Ok(());
        }
        self.unsaved.set(0.0);
        let saved = match self.file.flush() {
            Ok(()) => {
                let note = self.note.borrow().clone();
                store::write_note(&self.name, &note).await
            }
            Err(fault) => Err(fault),
        };
        self.saving.set(false);
        saved
    }
}

/// Network chunks are small; storage likes large pieces.
#[derive(Default)]
struct Window {
    bytes: Option<Uint8Array>,
    filled: u32,
}

impl Window {
    fn push(&mut self, chunk: &Uint8Array, start: &mut f64, to: &Transfer) -> Result<(), Fault> {
        let mut from = 0;
        while from < chunk.length() {
            let bytes = self.bytes.get_or_insert_with(|| Uint8Array::new_with_length(WINDOW));
            let take = (chunk.length() - from).min(WINDOW - self.filled);
            bytes.set(&chunk.subarray(from, from + take), self.filled);
            self.filled += take;
            from += take;
            if self.filled == WINDOW {
                self.drain(start, to)?;
            }
        }
        Ok(())
    }

    fn drain(&mut self, start: &mut f64, to: &Transfer) -> Result<(), Fault> {
        let filled = std::mem::take(&mut self.filled);
        if let Some(bytes) = self.bytes.as_ref().filter(|_| filled > 0) {
            to.write(*start, &bytes.subarray(0, filled))?;
            *start += f64::from(filled);
        }
        Ok(())
    }
}
