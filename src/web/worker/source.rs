//! The browser's places for bytes, as [`ByteSource`]s: the store, a picked file, HTTP ranges.
//!
//! None of them holds more than the piece asked for: the model never sits in the WASM heap.

use wasm_bindgen::JsCast;
use wasm_bindgen_futures::JsFuture;
use web_sys::{Blob, Response};

use super::http::{self, Range};
use super::job::Job;
use super::store::{self, OpenFile, blob_piece};
use crate::gguf::{ByteSource, SourceError, SplitSource};
use crate::web::js_message;
use crate::web::protocol::{Fault, FaultKind, ModelSource};
use crate::web::{part_addresses, part_names};

/// Any of the three: one file, which may be a part of a split model.
pub struct WebSource {
    place: Place,
    name: String,
    len: u64,
    job: Job,
}

enum Place {
    Store(OpenFile),
    Blob(Blob),
    Http(String),
}

impl WebSource {
    /// Opens what the page named, with all parts of a split model (`NAME-00001-of-00003.gguf`) where its name or address is that of one. Kept
    /// files that are not complete are refused.
    pub async fn open(source: &ModelSource, job: &Job) -> Result<SplitSource<Self>, Fault> {
        let parts: Vec<ModelSource> = match source {
            ModelSource::Kept { name } => part_names(name).into_iter().map(|name| ModelSource::Kept { name }).collect(),
            ModelSource::Url { url } => part_addresses(url).into_iter().map(|url| ModelSource::Url { url }).collect(),
            // A page is given the picked files and no others.
            ModelSource::File { .. } => vec![source.clone()],
        };
        let mut opened = Vec::with_capacity(parts.len());
        for part in &parts {
            opened.push(Self::open_one(part, job).await?);
        }
        Ok(SplitSource::new(opened))
    }

    async fn open_one(source: &ModelSource, job: &Job) -> Result<Self, Fault> {
        let (place, name, len) = match source {
            ModelSource::Kept { name } => {
                store::check_unchanged(name, job).await?;
                let (place, len) = open_kept(name).await?;
                (place, name.clone(), len)
            }
            ModelSource::File { file } => {
                let blob: &Blob = file;
                (Place::Blob(blob.clone()), file.name(), blob.size())
            }
            ModelSource::Url { url } => {
                let len = http::length(url, job).await?;
                (Place::Http(url.clone()), store::file_name(url), len)
            }
        };
        if len < 1.0 {
            return Err(Fault::new(FaultKind::ModelFile, format!("{name} is empty.")));
        }
        Ok(Self { place, name, len: len as u64, job: job.clone() })
    }

    async fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), String> {
        let (start, end) = (offset as f64, offset as f64 + buf.len() as f64);
        match &self.place {
            Place::Store(file) => {
                let mut done = 0;
                while done < buf.len() {
                    match file.read_at(start + done as f64, &mut buf[done..]).map_err(|fault| fault.message)? {
                        0 => return Err("the stored file ended early".into()),
                        read => done += read,
                    }
                }
            }
            Place::Blob(blob) => blob_piece(blob, start, end).await.map_err(|fault| fault.message)?.copy_to(buf),
            Place::Http(url) => {
                let response = http::fetch(url, Some(Range { start, end: Some(end), version: None }), &self.job)
                    .await
                    .map_err(|fault| fault.message)?;
                if response.status() != 206 {
                    return Err(format!("the server answered {} where a part was asked for", response.status()));
                }
                if !http::starts_at(&response, start) {
                    return Err(http::other_part().message);
                }
                let bytes = body(&response).await?;
                if bytes.length() as usize != buf.len() {
                    return Err(format!("the server sent {} bytes instead of {}", bytes.length(), buf.len()));
                }
                bytes.copy_to(buf);
            }
        }
        Ok(())
    }
}

async fn open_kept(name: &str) -> Result<(Place, f64), Fault> {
    let note = store::read_note(name).await.unwrap_or_default();
    // Another tab may hold the file: then it is read through a snapshot, which needs no lock.
    let (place, size) = match OpenFile::open(name, false).await {
        Ok(file) => {
            let size = file.size()?;
            (Place::Store(file), size)
        }
        Err(fault) if fault.kind == FaultKind::Storage => {
            let file = store::snapshot(name).await?;
            let size = file.size();
            (Place::Blob(file.unchecked_into()), size)
        }
        Err(fault) => return Err(fault),
    };
    if note.bytes < 1.0 || note.stored != note.bytes || size != note.bytes {
        return Err(Fault::new(
            FaultKind::ModelFile,
            format!("{name} is not complete: {:.1} of {:.1} MB are here.", note.stored.min(size) / 1e6, note.bytes / 1e6),
        ));
    }
    Ok((place, size))
}

async fn body(response: &Response) -> Result<js_sys::Uint8Array, String> {
    let promise = response.array_buffer().map_err(|e| js_message(&e))?;
    let buffer = JsFuture::from(promise).await.map_err(|e| js_message(&e))?;
    Ok(js_sys::Uint8Array::new(&buffer))
}

impl ByteSource for WebSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn describe(&self) -> String {
        self.name.clone()
    }

    async fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.check_range(offset, buf.len())?;
        self.job.breathe().await;
        let wanted = buf.len() as u64;
        let result = if self.job.is_cancelled() { Ok(()) } else { self.read(offset, buf).await };
        if self.job.is_cancelled() {
            return Err(SourceError::Cancelled { place: self.name.clone() });
        }
        result.map_err(|reason| SourceError::Failed { place: self.name.clone(), offset, wanted, reason })
    }
}
