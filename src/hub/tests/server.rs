//! A server on this machine that behaves as badly as a test tells it to, and remembers what it was asked.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One request as the server saw it.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    /// Its number, from 0, over all connections.
    pub index: usize,
    pub path: String,
    /// The range asked for, as first and one past the last byte.
    pub range: Option<Range<usize>>,
    pub if_range: Option<String>,
}

/// What to answer.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Closes the connection after this many bytes of the body.
    pub cut: Option<usize>,
    /// Waits this long after the cut before it closes.
    pub hang: Duration,
    /// Closes without any answer.
    pub silent: bool,
    /// Waits this long before each 16 KiB of the body.
    pub pace: Duration,
}

impl Answer {
    pub(super) fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), cut: None, hang: Duration::ZERO, silent: false, pace: Duration::ZERO }
    }

    pub(super) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    pub(super) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self
    }

    pub(super) fn cut(mut self, bytes: usize) -> Self {
        self.cut = Some(bytes);
        self
    }
}

/// What a good server answers: the range, or the whole file where none is asked for or `If-Range` does not hold.
pub(super) fn honest(ask: &Ask, file: &[u8], etag: &str) -> Answer {
    let fresh = ask.if_range.as_deref().is_none_or(|known| known == etag);
    match ask.range.clone().filter(|_| fresh) {
        None => whole(file, etag),
        Some(range) if range.start >= file.len() => Answer::status(416).with("Content-Range", format!("bytes */{}", file.len())),
        Some(range) => {
            let end = range.end.min(file.len());
            let mut answer = Answer::status(206).with("ETag", etag);
            answer.body = file[range.start..end].to_vec();
            answer.with("Content-Range", format!("bytes {}-{}/{}", range.start, end - 1, file.len()))
        }
    }
}

/// The whole file with status 200, whatever was asked for.
pub(super) fn whole(file: &[u8], etag: &str) -> Answer {
    let mut answer = Answer::status(200).with("ETag", etag);
    answer.body = file.to_vec();
    answer
}

type Script = dyn Fn(&Ask) -> Answer + Send + Sync;

/// The server; it ends with the test's process.
pub(super) struct Server {
    pub host: String,
    asks: Arc<Mutex<Vec<Ask>>>,
    sent: Arc<Mutex<u64>>,
    script: Arc<Mutex<Arc<Script>>>,
}

impl Server {
    pub(super) fn start(script: impl Fn(&Ask) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = format!("http://{}", listener.local_addr().unwrap());
        let server = Self { host, asks: Arc::default(), sent: Arc::default(), script: Arc::new(Mutex::new(Arc::new(script))) };
        let (asks, sent, script) = (server.asks.clone(), server.sent.clone(), server.script.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (asks, sent, script) = (asks.clone(), sent.clone(), script.clone());
                std::thread::spawn(move || serve(stream, &asks, &sent, &script));
            }
        });
        server
    }

    /// Behaves differently from now on, and forgets what it was asked.
    pub(super) fn then(&self, script: impl Fn(&Ask) -> Answer + Send + Sync + 'static) {
        *self.script.lock().unwrap() = Arc::new(script);
        self.asks.lock().unwrap().clear();
        *self.sent.lock().unwrap() = 0;
    }

    pub(super) fn asks(&self) -> Vec<Ask> {
        self.asks.lock().unwrap().clone()
    }

    /// Bytes of bodies sent.
    pub(super) fn sent(&self) -> u64 {
        *self.sent.lock().unwrap()
    }
}

/// One connection: requests one after the other until either side closes.
fn serve(stream: TcpStream, asks: &Mutex<Vec<Ask>>, sent: &Mutex<u64>, script: &Mutex<Arc<Script>>) {
    let Ok(mut writer) = stream.try_clone() else { return };
    let mut reader = BufReader::new(stream);
    while let Some(mut ask) = read_request(&mut reader) {
        {
            let mut asks = asks.lock().unwrap();
            ask.index = asks.len();
            asks.push(ask.clone());
        }
        let script = script.lock().unwrap().clone();
        let answer = script(&ask);
        if answer.silent {
            break;
        }
        let mut head = format!("HTTP/1.1 {} Test\r\n", answer.status);
        let says = |name: &str| answer.headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
        for (name, value) in &answer.headers {
            head += &format!("{name}: {value}\r\n");
        }
        let chunked = says("Transfer-Encoding");
        if !says("Content-Length") && !chunked {
            head += &format!("Content-Length: {}\r\n", answer.body.len());
        }
        head += "\r\n";
        if writer.write_all(head.as_bytes()).is_err() {
            break;
        }
        let body = &answer.body[..answer.cut.unwrap_or(answer.body.len()).min(answer.body.len())];
        for piece in body.chunks(16 << 10) {
            std::thread::sleep(answer.pace);
            let written = if chunked {
                let framed = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
                writer.write_all(&framed)
            } else {
                writer.write_all(piece)
            };
            if written.is_err() {
                return;
            }
            *sent.lock().unwrap() += piece.len() as u64;
        }
        if answer.cut.is_some() {
            std::thread::sleep(answer.hang);
            break;
        }
        if chunked && writer.write_all(b"0\r\n\r\n").is_err() {
            break;
        }
        let told = answer.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("Content-Length"));
        if told.is_some_and(|(_, value)| value.parse() != Ok(answer.body.len())) {
            // A lie about the length leaves the connection in no state for another answer.
            break;
        }
    }
    let _ = writer.shutdown(Shutdown::Both);
}

fn read_request(reader: &mut impl BufRead) -> Option<Ask> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|&n| n > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut ask = Ask { index: 0, path, range: None, if_range: None };
    loop {
        line.clear();
        reader.read_line(&mut line).ok().filter(|&n| n > 0)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { return Some(ask) };
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
                ask.range = Some(first.parse().ok()?..last.parse::<usize>().ok()? + 1);
            }
            "if-range" => ask.if_range = Some(value.to_owned()),
            _ => {}
        }
    }
}
