//! Requests for model files: whole ones, parts of them, and what servers say about them.

use wasm_bindgen::JsCast;
use wasm_bindgen_futures::JsFuture;
use web_sys::{Headers, Request, RequestInit, RequestMode, Response};

use super::job::{Job, cancelled, post, scope};
use crate::web::protocol::{Event, Fault, FaultKind};
use crate::web::{js_error_name, js_message};

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
    let (address, _) = url.split_once(['?', '#']).unwrap_or((url, ""));
    post(0, Event::Requested { address: address.into() });
    let request = Request::new_with_str_and_init(url, &init)
        .map_err(|error| Fault::new(FaultKind::Input, format!("{url} is not an address this page can fetch ({})", js_message(&error))))?;
    let response = JsFuture::from(scope().fetch_with_request(&request)).await.map_err(network)?;
    Ok(response.unchecked_into())
}

/// A header that the server lets pages see.
pub fn header(response: &Response, name: &str) -> Option<String> {
    response.headers().get(name).ok().flatten()
}

/// The complete length, from `Content-Range` of a part or `Content-Length` of the whole.
pub fn total(response: &Response) -> Option<f64> {
    match response.status() {
        206 => header(response, "content-range")?.rsplit('/').next()?.trim().parse().ok(),
        // A compressed transfer has the length of something else.
        _ if header(response, "content-encoding").is_some_and(|coding| coding != "identity") => None,
        _ => header(response, "content-length")?.trim().parse().ok(),
    }
}

/// Does a part begin where it was asked to? A server that does not say is believed.
pub fn starts_at(response: &Response, start: f64) -> bool {
    let said = header(response, "content-range")
        .and_then(|range| range.trim().strip_prefix("bytes ")?.split('-').next()?.trim().parse::<f64>().ok());
    said.is_none_or(|said| said == start)
}

/// The server answered with other bytes than were asked for.
pub fn other_part() -> Fault {
    Fault::new(FaultKind::ModelFile, "The server sent another part of the file than was asked for, so this host cannot be used.")
}

/// What a status that is no success means.
pub fn refused(url: &str, response: &Response) -> Fault {
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
