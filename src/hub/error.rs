//! What can go wrong between an id and a verified file, each with what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use super::file::OpenError;

/// A model that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Neither an id of the ladder nor a file.
    #[error(
        "there is no model {name:?} and no file of that name; the models are {known} (`semif models` shows them), or give the path of a .gguf file"
    )]
    UnknownModel {
        /// What was asked for.
        name: String,
        /// All ids.
        known: String,
    },
    /// The network was forbidden and the file is not here.
    #[error("{id} is not on this machine and --offline forbids fetching it; run `semif pull {id}` once with a network ({bytes} bytes), or put the file at {}", path.display())]
    Offline {
        /// The model.
        id: String,
        /// Its size.
        bytes: u64,
        /// Where it would be found.
        path: PathBuf,
    },
    /// A file under the model's name that is not the model.
    #[error("{} is not {id}: {why}; `semif pull {id}` replaces it", path.display())]
    WrongCached {
        /// The model.
        id: String,
        /// The file.
        path: PathBuf,
        /// What differs.
        why: String,
    },
    /// `--mirror` is not an address.
    #[error("--mirror {text:?} cannot be used: {why}; give something like https://mirror.example")]
    BadMirror {
        /// What was given.
        text: String,
        /// What is wrong.
        why: &'static str,
    },
    /// No place to keep models.
    #[error("this system names no cache folder for this user; set SEMIF_MODELS to a folder for models")]
    NoFolder,
    /// A file of the user's that cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The model folder refuses.
    #[error("{}: {doing} failed: {error}; SEMIF_MODELS names another folder", path.display())]
    Folder {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// The system's reason.
        error: io::Error,
    },
    /// Something that is not a plain file stands where a part is kept.
    #[error("{} is not a plain file (a link or a folder?); remove it and try again", .0.display())]
    NotPlain(PathBuf),
    /// No room.
    #[error("the disk of {} is full: {needed} bytes are still needed{}; make room, or set SEMIF_MODELS to a folder on another disk. What was fetched is kept", path.display(), available.map_or(String::new(), |a| format!(", {a} are free")))]
    DiskFull {
        /// The model folder.
        path: PathBuf,
        /// Bytes not yet written.
        needed: u64,
        /// Bytes free, where the system says so.
        available: Option<u64>,
    },
    /// 404 and 410.
    #[error("{url} does not exist (status {status}); the ladder pins this file, so a mirror may lack it, or it was withdrawn")]
    NotThere {
        /// The address.
        url: String,
        /// The status.
        status: u16,
    },
    /// 401 and 403.
    #[error(
        "{url} may not be fetched (status {status}); the models of the ladder need no account, so the mirror, a proxy or a firewall refuses it"
    )]
    Refused {
        /// The address.
        url: String,
        /// The status.
        status: u16,
    },
    /// Any other answer that is neither the file nor a passing trouble.
    #[error("{url} was answered with status {status}, which is not a file")]
    Status {
        /// The address.
        url: String,
        /// The status.
        status: u16,
    },
    /// The server's file has another size than the pinned one.
    #[error("{url} is {found} bytes long, but the ladder's file has {expected}: this is not the pinned file; try another --mirror")]
    WrongSize {
        /// The address.
        url: String,
        /// Size in the ladder.
        expected: u64,
        /// Size the server names.
        found: u64,
    },
    /// A web page came in place of the file.
    #[error("{url} was answered with a web page, not with the file; does this network ask for a sign-in, or is the mirror no mirror?")]
    WebPage {
        /// The address.
        url: String,
    },
    /// The server cannot be reached at all, and trying again would not help.
    #[error("{url} cannot be fetched: {why}")]
    Unreachable {
        /// The address.
        url: String,
        /// The reason.
        why: String,
    },
    /// Given up after several tries.
    #[error(
        "gave up on {url} after {attempts} tries without progress, the last: {why}. Is there a network? --mirror names another host. What was fetched is kept: the same command goes on from there"
    )]
    GaveUp {
        /// The address.
        url: String,
        /// How many times in a row nothing came.
        attempts: u32,
        /// What the last one said.
        why: String,
    },
    /// The file on the server changed again and again.
    #[error(
        "{url} changes while it is fetched (its ETag differs from answer to answer); try again later, with --connections 1, or with another --mirror"
    )]
    Changing {
        /// The address.
        url: String,
    },
    /// The right number of bytes, but the wrong ones.
    #[error(
        "what {url} delivered has SHA-256 {found}, but the ladder's file has {expected}: it was thrown away. Try again; if it happens again, the server has another file"
    )]
    WrongBytes {
        /// The address.
        url: String,
        /// SHA-256 in the ladder.
        expected: String,
        /// SHA-256 of what came.
        found: String,
    },
    /// Stopped by the user.
    #[error("stopped; what was fetched is kept, the same command goes on from there")]
    Interrupted,
}

impl HubError {
    /// The exit code of the command line: 2 for what the user asked, 3 for the model file, 130 when interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::UnknownModel { .. } | Self::BadMirror { .. } | Self::NoFolder => 2,
            Self::Interrupted => 130,
            _ => 3,
        }
    }

    /// An error of the system in the model folder; a full disk gets its own words.
    pub(crate) fn folder(path: &Path, doing: &'static str, error: io::Error, needed: u64) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { path: path.to_owned(), needed, available: None },
            _ => Self::Folder { path: path.to_owned(), doing, error },
        }
    }
}
