//! Texts of the page in the browser's storage: what an evaluation has found so far, so that it survives a closed tab.
//!
//! Only a worker has files that can grow in place, so the page keeps its records here.

use js_sys::Uint8Array;

use web_sys::FileSystemDirectoryHandle;

use super::job::sleep;
use super::store::{OpenFile, folder_named};
use crate::web::protocol::{Fault, FaultKind, RecordAction};

const FOLDER: &str = "records";

/// Times that a record is tried for which another tab holds, and the milliseconds between two.
const TRIES: u32 = 15;
const PAUSE_MS: i32 = 100;

/// Opens a record. Another tab that reads it holds it for a moment only.
async fn open(folder: &FileSystemDirectoryHandle, name: &str, create: bool) -> Result<OpenFile, Fault> {
    let mut tries = 1;
    loop {
        match OpenFile::open_in(folder, name, create).await {
            Err(fault) if fault.kind == FaultKind::Storage && tries < TRIES => sleep(PAUSE_MS).await,
            other => return other,
        }
        tries += 1;
    }
}

/// Carries out one action and gives the text of a read.
pub async fn run(name: &str, action: RecordAction) -> Result<Option<String>, Fault> {
    let folder = folder_named(FOLDER).await?;
    match action {
        RecordAction::Read => match open(&folder, name, false).await {
            Ok(file) => {
                let mut bytes = vec![0; file.size()? as usize];
                let read = file.read_at(0.0, &mut bytes)?;
                bytes.truncate(read);
                // A text cut in the middle of a character lost only its end.
                Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
            }
            Err(fault) if fault.kind == FaultKind::Gone => Ok(None),
            Err(fault) => Err(fault),
        },
        RecordAction::Replace { text } => write(&open(&folder, name, true).await?, &text, true),
        RecordAction::Append { text } => write(&open(&folder, name, true).await?, &text, false),
        RecordAction::Delete => match wasm_bindgen_futures::JsFuture::from(folder.remove_entry(name)).await {
            Err(error) if crate::web::js_error_name(&error) != "NotFoundError" => Err(super::store::fault(error, name)),
            _ => Ok(None),
        },
    }
}

fn write(file: &OpenFile, text: &str, from_start: bool) -> Result<Option<String>, Fault> {
    if from_start {
        file.truncate(0.0)?;
    }
    file.write_at(file.size()?, &Uint8Array::from(text.as_bytes()))?;
    file.flush()?;
    Ok(None)
}
