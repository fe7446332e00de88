//! Downloads into the store: streamed in one window, checkpointed, resumed with `Range` and `If-Range`.

use js_sys::{Reflect, Uint8Array};
use wasm_bindgen::JsCast;
use wasm_bindgen_futures::JsFuture;
use web_sys::{Headers, ReadableStreamDefaultReader, Request, RequestInit, RequestMode, Response};

use super::job::{Job, cancelled, scope, sleep};
use super::store::{self, Note, OpenFile};
use crate::web::protocol::{Fault, FaultKind, Phase};
use crate::web::{js_error_name, js_message};

/// Bytes collected before they are written.
const WINDOW: usize = 4 << 20;
/// Bytes between checkpoints: what a crash costs at most.
const CHECKPOINT: f64 = 16.0 * 1024.0 * 1024.0;
/// Tries without any progress before giving up.
const TRIES: u32 = 4;

/// A part of a file.
pub struct Range<'a> {
    pub start: f64,
    /// One past the last byte; none for the rest of the file.
    pub end: Option<f64>,
    /// The version (etag) that the part must belong to.
    pub version: Option<&'a str>,
}

/// Sends a GET; the answer may be an error status.
pub async fn fetch(url: &str, range: Option<Range<'_>>, job: &Job) -> Result<Response, Fault> {
    let network = |error| {
        if job.is_cancelled() || js_error_name(&error) == "AbortError" {
            return cancelled();
        }
        Fault::new(
            FaultKind::Network,
            format!("{url} could not be reached, or its server does not allow other pages to read it ({})", js_message(&error)),
        )
    };
    let headers = Headers::new().map_err(network)?;
    if let Some(range) = &range {
        let end = range.end.map(|end| (end - 1.0).to_string()).unwrap_or_default();
        headers.set("Range", &format!("bytes={}-{end}", range.start)).map_err(network)?;
        if let Some(version) = range.version.filter(|version| !version.is_empty() && !version.starts_with("W/")) {
            headers.set("If-Range", version).map_err(network)?;
        }
    }
    let init = RequestInit::new();
    init.set_headers(&headers);
    init.set_mode(RequestMode::Cors);
    init.set_credentials(web_sys::RequestCredentials::SameOrigin);
    init.set_signal(job.signal().as_ref());
    let request = Request::new_with_str_and_init(url, &init)
        .map_err(|error| Fault::new(FaultKind::Input, format!("{url} is not an address this page can fetch ({})", js_message(&error))))?;
    let response = JsFuture::from(scope().fetch_with_request(&request)).await.map_err(network)?;
    Ok(response.unchecked_into())
}

fn header(response: &Response, name: &str) -> Option<String> {
    response.headers().get(name).ok().flatten()
}

/// The complete length, from `Content-Range` of a part or `Content-Length` of the whole.
fn total(response: &Response) -> Option<f64> {
    match response.status() {
        206 => header(response, "content-range")?.rsplit('/').next()?.trim().parse().ok(),
        // A compressed transfer has the length of something else.
        _ if header(response, "content-encoding").is_some_and(|coding| coding != "identity") => None,
        _ => header(response, "content-length")?.trim().parse().ok(),
    }
}

fn refused(url: &str, response: &Response) -> Fault {
    let why = match response.status() {
        401 | 403 => "The server wants a login, which this page cannot give",
        404 | 410 => "The server has no such file",
        429 => "The server asks to wait before the next try",
        _ => "The server refused",
    };
    Fault::new(FaultKind::Network, format!("{why} (status {} for {url}).", response.status()))
}

/// How long the file is, for a server that gives parts of it.
pub async fn length(url: &str, job: &Job) -> Result<f64, Fault> {
    let response = fetch(url, Some(Range { start: 0.0, end: Some(1.0), version: None }), job).await?;
    match (response.status(), total(&response)) {
        (206, Some(total)) => Ok(total),
        (200..300, _) => {
            Err(Fault::new(FaultKind::Network, "The server gives only whole files, so this one cannot be used without keeping it."))
        }
        _ => Err(refused(url, &response)),
    }
}

/// Downloads into the store and returns the name under which the file is kept.
///
/// What an earlier try of the same address left is kept and continued. After a cancel or a fault the part stays.
pub async fn download(url: &str, job: &Job) -> Result<String, Fault> {
    let mut name = store::file_name(url);
    let mut copy = 1;
    let (stem, ending) = match name.rsplit_once('.') {
        Some((stem, ending)) => (stem.to_string(), format!(".{ending}")),
        None => (name.clone(), String::new()),
    };
    let mut note = loop {
        match store::read_note(&name).await {
            None => break Note { url: url.into(), ..Note::default() },
            Some(note) if note.url == url => break note,
            Some(_) => {
                copy += 1;
                name = format!("{stem} ({copy}){ending}");
            }
        }
    };
    let complete = note.bytes > 0.0 && note.stored == note.bytes;
    if complete && store::snapshot(&name).await.is_ok_and(|file| file.size() == note.bytes) {
        return Ok(name);
    }
    if note.bytes > 0.0 {
        store::check_room(note.bytes - note.stored).await?;
    }
    let file = OpenFile::open(&name, true).await?;
    note.stored = note.stored.min(file.size()?);
    let mut failures = 0;
    loop {
        let before = note.stored;
        let result = attempt(url, &name, &file, &mut note, job).await;
        // Whatever happened, what is down stays usable.
        let saved = file.flush();
        store::write_note(&name, &note).await?;
        saved?;
        let fault = match result {
            Ok(()) => return Ok(name),
            Err(fault) => fault,
        };
        failures = if note.stored > before { 1 } else { failures + 1 };
        // A server that never answered will not do so in a second; a connection that broke may.
        if fault.kind != FaultKind::Network || failures >= TRIES || note.bytes == 0.0 {
            if note.stored == 0.0 {
                drop(file);
                store::delete(&name).await?;
            }
            return Err(fault);
        }
        sleep(250 << failures).await;
        job.check()?;
    }
}

/// One connection, from where the file stands to its end or to a fault.
async fn attempt(url: &str, name: &str, file: &OpenFile, note: &mut Note, job: &Job) -> Result<(), Fault> {
    let mut response = if note.stored > 0.0 {
        let range = || Range { start: note.stored, end: None, version: None };
        match fetch(url, Some(Range { version: Some(&note.etag), ..range() }), job).await {
            // Some hosts do not let other pages send If-Range; the version is compared below as well.
            Err(fault) if fault.kind == FaultKind::Network && !note.etag.is_empty() => fetch(url, Some(range()), job).await?,
            other => other?,
        }
    } else {
        fetch(url, None, job).await?
    };
    let (mut length, mut etag) = (total(&response), header(&response, "etag").unwrap_or_default());
    let same = length.is_none_or(|length| note.bytes == 0.0 || length == note.bytes)
        && (etag.is_empty() || note.etag.is_empty() || etag == note.etag);
    let status = response.status();
    if note.stored > 0.0 && (status == 416 || status == 206 && !same) {
        // Another version of the file: what is here belongs to none that can be had, so from the beginning.
        note.stored = 0.0;
        response = fetch(url, None, job).await?;
        (length, etag) = (total(&response), header(&response, "etag").unwrap_or_default());
    }
    match response.status() {
        206 if note.stored > 0.0 => {}
        200 => *note = Note { url: note.url.clone(), ..Note::default() },
        _ => return Err(refused(url, &response)),
    }
    if let Some(length) = length {
        note.bytes = length;
    }
    if !etag.is_empty() {
        note.etag = etag;
    }
    file.truncate(note.stored)?;
    store::check_room((note.bytes - note.stored).max(0.0)).await?;
    store::write_note(name, note).await?;
    job.progress(Phase::Fetch, note.stored, note.bytes);

    let body = response.body().ok_or_else(|| Fault::new(FaultKind::Network, "The server's answer has no content."))?;
    let reader: ReadableStreamDefaultReader = body.get_reader().unchecked_into();
    let mut window = Window { bytes: Uint8Array::new_with_length(WINDOW as u32), filled: 0 };
    let mut checkpoint = note.stored + CHECKPOINT;
    let result = loop {
        let step = match JsFuture::from(reader.read()).await {
            Ok(step) => step,
            Err(_) if job.is_cancelled() => break Err(cancelled()),
            Err(error) => break Err(Fault::new(FaultKind::Network, format!("The connection broke off ({}).", js_message(&error)))),
        };
        if Reflect::get(&step, &"done".into()).is_ok_and(|done| done.is_truthy()) {
            break Ok(());
        }
        let chunk: Uint8Array = Reflect::get(&step, &"value".into()).unwrap_or_default().unchecked_into();
        if note.stored == 0.0 && window.filled == 0 {
            store::check_magic(&chunk, name)?;
        }
        window.push(&chunk, file, &mut note.stored)?;
        let here = note.stored + f64::from(window.filled);
        if note.bytes > 0.0 && here > note.bytes {
            return Err(Fault::new(FaultKind::ModelFile, "The server sent more than it had announced."));
        }
        job.progress(Phase::Fetch, here, note.bytes);
        if note.stored >= checkpoint {
            checkpoint = note.stored + CHECKPOINT;
            file.flush()?;
            store::write_note(name, note).await?;
        }
    };
    window.drain(file, &mut note.stored)?;
    result?;
    if note.bytes == 0.0 {
        note.bytes = note.stored;
    }
    if note.stored == note.bytes && note.bytes > 0.0 {
        job.progress(Phase::Fetch, note.bytes, note.bytes);
        return Ok(());
    }
    Err(Fault::new(FaultKind::Network, format!("The connection ended after {:.1} of {:.1} MB.", note.stored / 1e6, note.bytes / 1e6)))
}

/// Network chunks are small; storage likes large pieces.
struct Window {
    bytes: Uint8Array,
    filled: u32,
}

impl Window {
    fn push(&mut self, chunk: &Uint8Array, file: &OpenFile, stored: &mut f64) -> Result<(), Fault> {
        let mut from = 0;
        while from < chunk.length() {
            let take = (chunk.length() - from).min(self.bytes.length() - self.filled);
            self.bytes.set(&chunk.subarray(from, from + take), self.filled);
            self.filled += take;
            from += take;
            if self.filled == self.bytes.length() {
                self.drain(file, stored)?;
            }
        }
        Ok(())
    }

    fn drain(&mut self, file: &OpenFile, stored: &mut f64) -> Result<(), Fault> {
        file.write_at(*stored, &self.bytes.subarray(0, self.filled))?;
        *stored += f64::from(self.filled);
        self.filled = 0;
        Ok(())
    }
}
