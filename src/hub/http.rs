//! One request for some bytes of one file, and what the answer means.

use std::io::Read;
use std::ops::Range;
use std::time::Duration;

use ureq::http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_RANGE, RANGE, RETRY_AFTER,
};
use ureq::http::{HeaderMap, HeaderName, Uri};

use super::error::HubError;

/// No server may make us wait longer than this before the next try.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A usable answer.
pub(crate) struct Reply {
    /// The bytes it covers; a server may send fewer than were asked for.
    pub range: Range<u64>,
    /// Whether the server left the range out of account and sends the whole file.
    pub whole: bool,
    /// What the server calls this state of the file.
    pub etag: Option<String>,
    /// The bytes. May end early or be longer than `range`.
    pub body: Box<dyn Read + Send>,
}

/// An answer that is of no use.
pub(crate) enum Trouble {
    /// May pass: try again, not before `after` where the server says so.
    Passing {
        /// What happened.
        why: String,
        /// How long the server wants to be left alone.
        after: Option<Duration>,
    },
    /// The file on the server is no longer the one whose parts we have.
    Changed,
    /// Trying again would not help.
    Final(HubError),
}

impl Trouble {
    fn passing(why: impl Into<String>) -> Self {
        Self::Passing { why: why.into(), after: None }
    }
}

/// A file at an address, of a known size.
pub(crate) struct Remote {
    agent: ureq::Agent,
    url: String,
    bytes: u64,
}

impl Remote {
    /// `stall`: a connection that delivers nothing for this long is given up.
    pub(crate) fn new(url: String, bytes: u64, stall: Duration) -> Self {
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .user_agent(concat!("semif/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(stall))
            .timeout_connect(Some(stall))
            .timeout_recv_response(Some(stall))
            .timeout_per_read(Some(stall));
        if is_this_machine(&url) {
            // A proxy of the company has no way to a mirror on this machine.
            config = config.proxy(None);
        }
        Self { agent: config.build().new_agent(), url, bytes }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Asks for a range. `etag` names the state of the file that earlier parts came from.
    pub(crate) fn get(&self, range: Range<u64>, etag: Option<&str>) -> Result<Reply, Trouble> {
        let mut request = self.agent.get(&self.url).header(RANGE, format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
        // Compressed bytes would be other bytes at other places.
        request = request.header(ACCEPT_ENCODING, "identity");
        if let Some(etag) = etag.filter(|etag| !etag.starts_with("W/")) {
            request = request.header(IF_RANGE, etag);
        }
        let response = request.call().map_err(|error| self.explain(error))?;
        let status = response.status().as_u16();
        let headers = response.headers();
        match status {
            200 | 206 => {}
            404 | 410 => return Err(Trouble::Final(HubError::NotThere { url: self.url.clone(), status })),
            401 | 403 | 407 => return Err(Trouble::Final(HubError::Refused { url: self.url.clone(), status })),
            416 => return Err(self.outside(headers)),
            408 | 425 | 429 | 500..=599 => {
                let after = number(headers, &RETRY_AFTER).map(|s| Duration::from_secs(s).min(LONGEST_WAIT));
                return Err(Trouble::Passing { why: format!("the server answered with status {status}"), after });
            }
            _ => return Err(Trouble::Final(HubError::Status { url: self.url.clone(), status })),
        }
        if text(headers, &CONTENT_ENCODING).is_some_and(|how| !how.eq_ignore_ascii_case("identity")) {
            return Err(Trouble::passing("the server sent the file compressed, unasked"));
        }
        let (covered, whole) = if status == 206 {
            (self.covered(headers, &range)?, false)
        } else {
            self.check_size(headers)?;
            (0..self.bytes, true)
        };
        let new = text(headers, &ETAG);
        if let (Some(old), Some(new)) = (etag, new)
            && !same_state(old, new)
        {
            return Err(Trouble::Changed);
        }
        let etag = new.map(str::to_owned);
        Ok(Reply { range: covered, whole, etag, body: Box::new(response.into_body().into_reader()) })
    }

    /// What a 206 answer covers.
    fn covered(&self, headers: &HeaderMap, asked: &Range<u64>) -> Result<Range<u64>, Trouble> {
        let Some((range, total)) = text(headers, &CONTENT_RANGE).and_then(content_range) else {
            return Err(Trouble::passing("the server sent a part without saying which"));
        };
        if let Some(found) = total.filter(|&total| total != self.bytes) {
            return Err(Trouble::Final(HubError::WrongSize { url: self.url.clone(), expected: self.bytes, found }));
        }
        if range.start != asked.start {
            return Err(Trouble::passing(format!("the server sent bytes from {} where {} were asked for", range.start, asked.start)));
        }
        Ok(range.start..range.end.min(asked.end))
    }

    /// A 200 answer must be as long as the file.
    fn check_size(&self, headers: &HeaderMap) -> Result<(), Trouble> {
        let found = number(headers, &CONTENT_LENGTH);
        if found == Some(self.bytes) {
            return Ok(());
        }
        let url = self.url.clone();
        if text(headers, &CONTENT_TYPE).is_some_and(|kind| kind.starts_with("text/html")) {
            return Err(Trouble::Final(HubError::WebPage { url }));
        }
        // Without a length the bytes decide.
        match found {
            Some(found) => Err(Trouble::Final(HubError::WrongSize { url, expected: self.bytes, found })),
            None => Ok(()),
        }
    }

    /// Status 416: the range lies outside of the server's file.
    fn outside(&self, headers: &HeaderMap) -> Trouble {
        let total = text(headers, &CONTENT_RANGE).and_then(|range| range.strip_prefix("bytes */")?.trim().parse().ok());
        match total {
            Some(found) if found != self.bytes => {
                Trouble::Final(HubError::WrongSize { url: self.url.clone(), expected: self.bytes, found })
            }
            _ => Trouble::passing("the server refused the range (status 416)"),
        }
    }

    fn explain(&self, error: ureq::Error) -> Trouble {
        let fatal = |why: String| Trouble::Final(HubError::Unreachable { url: self.url.clone(), why });
        match error {
            ureq::Error::HostNotFound => Trouble::passing("the host's name is not known here (no network?)"),
            ureq::Error::Timeout(_) => Trouble::passing("no answer in time"),
            ureq::Error::TooManyRedirects => fatal("the server redirects in circles".to_owned()),
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => fatal("the server redirects to something that is no address".to_owned()),
            ureq::Error::InvalidProxyUrl => fatal("the proxy set in the environment is not an address".to_owned()),
            ureq::Error::Tls(_) | ureq::Error::Rustls(_) => {
                fatal(format!("no secure connection ({error}); is this computer's clock right, does a proxy replace certificates?"))
            }
            // Without the library's own prefix.
            ureq::Error::Io(error) => Trouble::passing(error.to_string()),
            other => Trouble::passing(other.to_string()),
        }
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    text(headers, name)?.parse().ok()
}

/// `bytes 0-9/100` or `bytes 0-9/*`.
fn content_range(text: &str) -> Option<(Range<u64>, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    (first <= last).then_some((first..last.checked_add(1)?, total))
}

/// Whether two ETags name the same bytes; a weak one may be the same file behind another compression.
fn same_state(old: &str, new: &str) -> bool {
    let bare = |etag: &str| etag.trim_start_matches("W/").to_owned();
    bare(old) == bare(new)
}

/// Whether the address is on this machine.
fn is_this_machine(url: &str) -> bool {
    let host = url.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_owned)).unwrap_or_default();
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Checks the host given by `--mirror`, and drops final slashes.
///
/// # Errors
/// [`HubError::BadMirror`] says what is wrong with it.
pub(crate) fn check_mirror(text: &str) -> Result<String, HubError> {
    let bad = |why| HubError::BadMirror { text: text.to_owned(), why };
    let uri: Uri = text.parse().map_err(|_| bad("it is not an address"))?;
    match uri.scheme_str() {
        Some("https" | "http") => {}
        Some(_) => return Err(bad("only https and http are spoken")),
        None => return Err(bad("it does not begin with https://")),
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err(bad("it names no host"));
    }
    if uri.authority().is_some_and(|a| a.as_str().contains('@')) {
        return Err(bad("it contains a password, which would end up in messages"));
    }
    if uri.query().is_some() || text.contains('#') {
        return Err(bad("it has a query or a fragment"));
    }
    Ok(text.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        assert_eq!(content_range("bytes 0-9/100"), Some((0..10, Some(100))));
        assert_eq!(content_range("bytes 5-5/*"), Some((5..6, None)));
        for bad in
            ["", "bytes", "bytes */100", "bytes 9-0/100", "bytes 0-18446744073709551615/1", "items 0-9/10", "bytes 0-9", "bytes a-b/c"]
        {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }

    #[test]
    fn states() {
        assert!(same_state("\"a\"", "W/\"a\""));
        assert!(!same_state("\"a\"", "\"b\""));
    }

    #[test]
    fn mirrors() {
        assert_eq!(check_mirror("https://mirror.example/hub//").unwrap(), "https://mirror.example/hub");
        assert_eq!(check_mirror("http://127.0.0.1:8000").unwrap(), "http://127.0.0.1:8000");
        for bad in [
            "",
            "mirror.example",
            "/folder",
            "ftp://mirror.example",
            "https://",
            "https://u:p@mirror.example",
            "https://m.example?x=1",
            "https://m.example/#x",
            "https://m .example",
        ] {
            assert!(matches!(check_mirror(bad), Err(HubError::BadMirror { .. })), "{bad}");
        }
    }

    #[test]
    fn no_proxy_for_this_machine() {
        for url in ["http://127.0.0.1:80/x", "http://[::1]:80/x", "http://localhost/x"] {
            assert!(is_this_machine(url), "{url}");
        }
        assert!(!is_this_machine("https://127.0.0.1.example/x"));
    }
}
