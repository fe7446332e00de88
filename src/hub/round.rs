//! The threads of a download: each takes a part, asks the server for it, writes it and notes it, until nothing is missing or
//! something ends the round for all of them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::download::{Event, Progress, PullOptions, Unfinished, length};
use super::error::HubError;
use super::http::{Remote, Reply, Trouble};
use super::journal::{self, Finished, Head, Journal};

/// Bytes taken from a connection at once.
const WINDOW: usize = 256 << 10;
/// How often the caller hears about progress, and may stop.
const TICK: Duration = Duration::from_millis(100);
/// How long threads may take to end once there is nothing more to gain from them.
const GRACE: Duration = Duration::from_secs(1);
/// Failures between which this much came in are not failures in a row.
const PROGRESS: u64 = 64 << 10;

/// How a round ended.
pub(super) enum Verdict {
    Complete,
    Changed,
    Failed(HubError),
}

/// How the server is asked.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    /// Nobody knows yet; one thread finds out.
    Unknown,
    Asking,
    /// Parts in parallel.
    Ranges,
    /// One connection gets everything.
    Whole,
}

struct State {
    mode: Mode,
    head: Head,
    todo: VecDeque<u64>,
    done: Vec<bool>,
    left: u64,
    journal: Option<Journal>,
    verdict: Option<Verdict>,
}

impl State {
    fn write_journal(&mut self, path: &Path, finished: &Finished) -> Result<(), HubError> {
        let journal = Journal::create(path, &self.head, finished);
        self.journal = Some(journal.map_err(|error| HubError::folder(path, "writing it", error, 0))?);
        Ok(())
    }
}

/// One attempt at getting what is missing, and what its threads share.
pub(super) struct Round {
    remote: Arc<Remote>,
    file: File,
    place: Unfinished,
    options: PullOptions,
    state: Mutex<State>,
    wake: Condvar,
    stop: AtomicBool,
    received: AtomicU64,
    _lock: Arc<File>,
}

/// A thread has nothing more to do; the verdict says why.
struct Stopped;

impl Round {
    pub(super) fn new(
        remote: &Arc<Remote>,
        file: File,
        place: &Unfinished,
        lock: &Arc<File>,
        options: &PullOptions,
        head: Head,
        finished: &Finished,
    ) -> Self {
        let todo: VecDeque<u64> = (0..head.parts()).filter(|part| !finished.contains_key(part)).collect();
        let done = (0..head.parts()).map(|part| finished.contains_key(&part)).collect();
        let left = todo.len() as u64;
        let received = finished.keys().map(|&part| length(&head, part)).sum();
        let verdict = (left == 0).then_some(Verdict::Complete);
        Self {
            remote: remote.clone(),
            file,
            place: place.clone(),
            options: options.clone(),
            state: Mutex::new(State { mode: Mode::Unknown, head, todo, done, left, journal: None, verdict }),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
            received: AtomicU64::new(received),
            _lock: lock.clone(),
        }
    }

    /// Notes the parts of an earlier run in a journal written anew, so that lines are appended to a sound one.
    pub(super) fn keep(&self, finished: &Finished) -> Result<(), HubError> {
        self.state().write_journal(&self.place.journal, finished)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Runs the threads until there is a verdict or the caller stops.
    pub(super) fn run(self: &Arc<Self>, progress: &mut Progress) -> Result<Verdict, HubError> {
        let total = self.state().head.bytes;
        if !matches!(self.state().verdict, Some(Verdict::Complete)) {
            let (sender, events) = mpsc::channel();
            for number in 0..self.options.connections.max(1) {
                let (round, sender) = (self.clone(), sender.clone());
                let thread = std::thread::Builder::new().name(format!("fetch {number}")).spawn(move || round.work(&sender));
                // Fewer threads than wanted are slower, none is an error.
                if let Err(error) = thread {
                    if number == 0 {
                        let url = self.remote.url().to_owned();
                        return Err(HubError::Unreachable { url, why: format!("no thread can be started: {error}") });
                    }
                    break;
                }
            }
            drop(sender);
            let mut deadline = None;
            let mut interrupted = false;
            loop {
                let event = match events.recv_timeout(TICK) {
                    Ok(event) => event,
                    Err(RecvTimeoutError::Timeout) => {
                        let done = self.received.load(Ordering::Relaxed).min(total);
                        Event::Fetching { done, total }
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                if !interrupted && progress(event).is_break() {
                    interrupted = true;
                    self.halt(None);
                }
                // A complete file is waited for without limit: nothing may write to it once it is hashed. Otherwise a
                // connection that hangs is left behind; what it still writes is never noted in the journal.
                let wanted = matches!(self.state().verdict, Some(Verdict::Complete)) && !interrupted;
                if self.stopped() && !wanted {
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + GRACE);
                    if Instant::now() >= deadline {
                        break;
                    }
                }
            }
            if interrupted {
                return Err(HubError::Interrupted);
            }
        }
        let verdict = self.state().verdict.take();
        if matches!(verdict, Some(Verdict::Complete)) {
            let _ = progress(Event::Fetching { done: total, total });
        }
        let silent =
            || HubError::Unreachable { url: self.remote.url().to_owned(), why: "a download thread ended without a result".to_owned() };
        verdict.ok_or_else(silent)
    }

    /// Ends the round; the first verdict counts.
    fn halt(&self, verdict: Option<Verdict>) -> Stopped {
        let mut state = self.state();
        if state.verdict.is_none() {
            state.verdict = verdict;
        }
        self.stop.store(true, Ordering::SeqCst);
        self.wake.notify_all();
        Stopped
    }

    fn fail(&self, error: HubError) -> Stopped {
        self.halt(Some(Verdict::Failed(error)))
    }

    /// One connection's life.
    fn work(&self, events: &Sender<Event>) {
        while let Some(part) = self.next_part() {
            if self.fetch_part(part, events).is_err() {
                return;
            }
        }
    }

    fn next_part(&self) -> Option<u64> {
        let mut state = self.state();
        loop {
            if self.stopped() {
                return None;
            }
            match state.mode {
                Mode::Unknown => {
                    state.mode = Mode::Asking;
                    return state.todo.pop_front();
                }
                Mode::Asking => state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Mode::Ranges => return state.todo.pop_front(),
                Mode::Whole => return None,
            }
        }
    }

    /// Fetches one part, over as many connections as it takes.
    fn fetch_part(&self, part: u64, events: &Sender<Event>) -> Result<(), Stopped> {
        let range = self.state().head.range(part);
        let mut writer = PartWriter::new(self, range.start);
        let mut tries = self.tries();
        while writer.at < range.end {
            let started = writer.at;
            let why = match self.ask(writer.at..range.end)? {
                Ok(reply) if reply.whole => {
                    // The whole file comes anew: what this part had is written again.
                    writer.forget();
                    return self.fetch_whole(Some(reply), events);
                }
                Ok(mut reply) => {
                    self.settle(Mode::Ranges);
                    let outcome = self.copy(&mut reply.body, &mut writer, reply.range.end)?;
                    if outcome.is_none() && writer.at > started {
                        // A shorter range than was asked for, in full.
                        continue;
                    }
                    (outcome.unwrap_or_else(|| "the server sent nothing".to_owned()), None)
                }
                Err(trouble) => trouble,
            };
            self.pause(&mut tries, why, events)?;
        }
        let check = writer.finish();
        self.note(part, &check)
    }

    /// Gets everything that is missing through one connection, from a server that leaves ranges out of account. On a
    /// reconnection such a server sends finished parts again; they are passed over, not written.
    fn fetch_whole(&self, mut reply: Option<Reply>, events: &Sender<Event>) -> Result<(), Stopped> {
        if !self.settle(Mode::Whole) {
            // Another thread already does this.
            return Err(Stopped);
        }
        let _ = events.send(Event::Whole);
        let bytes = self.state().head.bytes;
        let mut tries = self.tries();
        loop {
            let Some(missing) = self.first_missing() else { return Ok(()) };
            let answer = match reply.take() {
                Some(reply) => Ok(reply),
                None => self.ask(missing..bytes)?,
            };
            let why = match answer {
                Ok(reply) => self.take_whole(reply)?,
                Err(trouble) => trouble,
            };
            if self.first_missing().is_some() {
                self.pause(&mut tries, why, events)?;
            }
        }
    }

    /// Writes what one answer brings to the missing parts. Returns how it ended.
    fn take_whole(&self, mut reply: Reply) -> Result<Reason, Stopped> {
        let mut at = reply.range.start;
        let ended = |why: Option<String>| (why.unwrap_or_else(|| "the file ended early".to_owned()), None);
        loop {
            let (part, range, done) = {
                let state = self.state();
                let part = at / state.head.part_bytes;
                if part >= state.head.parts() {
                    return Ok(ended(None));
                }
                (part, state.head.range(part), state.done[part as usize])
            };
            let wanted = !done && at == range.start;
            let mut writer = PartWriter::new(self, at);
            writer.discard = !wanted;
            let outcome = self.copy(&mut reply.body, &mut writer, range.end);
            let short = outcome?;
            at = writer.at;
            if at < range.end {
                // A part is kept whole or not at all here: the next answer may begin anywhere.
                writer.forget();
                return Ok(ended(short));
            }
            if wanted {
                let check = writer.finish();
                self.note(part, &check)?;
                if self.stopped() {
                    return Err(Stopped);
                }
            }
        }
    }

    fn first_missing(&self) -> Option<u64> {
        let state = self.state();
        let part = state.done.iter().position(|done| !done)?;
        Some(state.head.range(part as u64).start)
    }

    /// Sends one request. The outer error ends the thread, the inner one may pass.
    fn ask(&self, range: std::ops::Range<u64>) -> Result<Result<Reply, Reason>, Stopped> {
        if self.stopped() {
            return Err(Stopped);
        }
        let etag = self.state().head.etag.clone();
        match self.remote.get(range, etag.as_deref()) {
            Ok(reply) => {
                self.name_state(reply.etag.clone())?;
                Ok(Ok(reply))
            }
            Err(Trouble::Passing { why, after }) => Ok(Err((why, after))),
            Err(Trouble::Changed) => Err(self.halt(Some(Verdict::Changed))),
            Err(Trouble::Final(error)) => Err(self.fail(error)),
        }
    }

    /// The first answer names the state of the file that all others must have, and begins the journal.
    fn name_state(&self, etag: Option<String>) -> Result<(), Stopped> {
        let mut state = self.state();
        if state.journal.is_some() {
            return Ok(());
        }
        state.head.etag = etag;
        let written = state.write_journal(&self.place.journal, &Finished::new());
        drop(state);
        written.map_err(|error| self.fail(error))
    }

    /// Decides how the server is asked from now on; false where that was decided before.
    fn settle(&self, mode: Mode) -> bool {
        let mut state = self.state();
        let open = state.mode != Mode::Whole && state.mode != mode;
        if open {
            state.mode = mode;
            self.wake.notify_all();
        }
        open
    }

    /// Copies until `end`, the body's end or trouble; the reason where it ended early.
    fn copy(&self, body: &mut dyn Read, writer: &mut PartWriter, end: u64) -> Result<Option<String>, Stopped> {
        let mut buf = vec![0; WINDOW];
        while writer.at < end {
            let here = usize::try_from(end - writer.at).unwrap_or(WINDOW).min(WINDOW);
            let got = match body.read(&mut buf[..here]) {
                Ok(0) => return Ok(Some("the connection ended early".to_owned())),
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Ok(Some(error.to_string())),
            };
            if self.stopped() {
                return Err(Stopped);
            }
            writer.write(&buf[..got]).map_err(|error| self.disk_trouble(&self.place.part, error))?;
        }
        Ok(None)
    }

    /// The part is complete: sync its bytes, then the journal's line.
    fn note(&self, part: u64, check: &str) -> Result<(), Stopped> {
        self.file.sync_data().map_err(|error| self.disk_trouble(&self.place.part, error))?;
        let mut state = self.state();
        // A round that is over has nothing to add: its file may be gone, or be hashed right now.
        if self.stopped() {
            return Err(Stopped);
        }
        let index = part as usize;
        if state.done[index] {
            return Ok(());
        }
        let added = state.journal.as_mut().map_or(Ok(()), |journal| journal.add(part, check));
        if let Err(error) = added {
            drop(state);
            return Err(self.disk_trouble(&self.place.journal, error));
        }
        state.done[index] = true;
        state.left -= 1;
        if state.left == 0 {
            drop(state);
            return Err(self.halt(Some(Verdict::Complete)));
        }
        Ok(())
    }

    fn disk_trouble(&self, path: &Path, error: io::Error) -> Stopped {
        let state = self.state();
        let missing = (0..state.head.parts()).filter(|&part| !state.done[part as usize]);
        let needed = missing.map(|part| length(&state.head, part)).sum();
        drop(state);
        self.fail(HubError::folder(path, "writing it", error, needed))
    }

    /// A new row of failures.
    fn tries(&self) -> Tries {
        Tries { failed: 0, received: self.received.load(Ordering::Relaxed) }
    }

    /// Waits before the next try, or gives up: after several failures during which no connection got anywhere.
    fn pause(&self, tries: &mut Tries, (why, after): Reason, events: &Sender<Event>) -> Result<(), Stopped> {
        let received = self.received.load(Ordering::Relaxed);
        if received.saturating_sub(tries.received) >= PROGRESS {
            *tries = Tries { received, failed: 0 };
        }
        tries.failed += 1;
        if tries.failed >= self.options.attempts.max(1) {
            let url = self.remote.url().to_owned();
            return Err(self.fail(HubError::GaveUp { url, attempts: tries.failed, why }));
        }
        let backoff = self.options.backoff.saturating_mul(1 << (tries.failed - 1).min(6));
        let wait = backoff.max(after.unwrap_or_default());
        let _ = events.send(Event::Retrying { why, wait });
        let until = Instant::now() + wait;
        let mut state = self.state();
        while !self.stopped() {
            let Some(rest) = until.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) else { return Ok(()) };
            state = self.wake.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
        Err(Stopped)
    }
}

/// Failures in a row.
struct Tries {
    failed: u32,
    /// Bytes that all connections together had when the row began.
    received: u64,
}

/// Why a try failed, and how long the server wants to be left alone.
type Reason = (String, Option<Duration>);

/// Writes and hashes the bytes of one part as they come.
struct PartWriter<'a> {
    round: &'a Round,
    /// Where the next byte belongs.
    at: u64,
    hasher: Sha256,
    written: u64,
    /// Reads on without writing.
    discard: bool,
}

impl<'a> PartWriter<'a> {
    fn new(round: &'a Round, at: u64) -> Self {
        Self { round, at, hasher: Sha256::new(), written: 0, discard: false }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.discard {
            #[cfg(test)]
            if self.at + bytes.len() as u64 > self.round.options.disk {
                return Err(io::ErrorKind::StorageFull.into());
            }
            write_all_at(&self.round.file, self.at, bytes)?;
            self.hasher.update(bytes);
            self.written += bytes.len() as u64;
            self.round.received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// What was written will come again.
    fn forget(self) {
        self.round.received.fetch_sub(self.written, Ordering::Relaxed);
    }

    fn finish(self) -> String {
        journal::check(&self.hasher.finalize().into())
    }
}

#[cfg(unix)]
fn write_all_at(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
fn write_all_at(file: &File, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_write(file, bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                bytes = &bytes[n..];
                offset += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
