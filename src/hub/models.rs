//! From what a user wrote after `--model` to a file that is what it claims to be.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::cache::{Cache, Cached, Check};
use super::download::{self, Event, Progress, PullOptions};
use super::error::HubError;
use super::file::part_paths;
use super::http::{Remote, check_mirror};
use super::ladder::{DEFAULT_HOST, Entry, Ladder};

/// The environment variable that names the model folder.
pub const FOLDER_VARIABLE: &str = "SEMIF_MODELS";

/// The source of a file that is not of the ladder.
pub const LOCAL: &str = "local file";

/// Which file answered: part of every result row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Provenance {
    /// The repository on the hub, or [`LOCAL`] for a file that is not of the ladder.
    pub source: String,
    /// The repository's commit, for a file of the ladder.
    pub revision: Option<String>,
    /// The file's name.
    pub file: String,
    /// Its size (of all parts together where the model is split).
    pub bytes: u64,
    /// Its SHA-256 in hex (of all parts one after the other).
    pub sha256: String,
}

/// A model on this machine, checked.
#[derive(Clone, Debug)]
pub struct LocalModel {
    /// Where it lies; [`super::FileSource::open`] reads it.
    pub path: PathBuf,
    /// What it is.
    pub provenance: Provenance,
    /// Its ladder entry, where its bytes are those of one.
    pub entry: Option<Entry>,
}

/// A line of `semif models`.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// The ladder entry.
    #[serde(flatten)]
    pub entry: Entry,
    /// What is on this machine.
    pub cached: Cached,
    /// Where its file lies, or would lie.
    pub path: PathBuf,
}

/// A model file in the model folder that is none of the ladder's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Other {
    /// Where it lies.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// Where models come from and where they are kept.
pub struct Hub {
    ladder: Ladder,
    cache: Cache,
    host: String,
    offline: bool,
    options: PullOptions,
}

impl Hub {
    /// The hub of the command line: the built-in ladder, the folder of the environment.
    ///
    /// # Errors
    /// No folder for models, or a mirror that is no address.
    pub fn new(offline: bool, mirror: Option<&str>, options: PullOptions) -> Result<Self, HubError> {
        let hub = Self::with(Ladder::built_in().clone(), default_folder()?, offline, mirror, options)?;
        let memory = dirs::cache_dir().map(|cache| cache.join("semif").join("checksums"));
        Ok(Self { cache: Cache::new(hub.cache.root().to_owned(), memory), ..hub })
    }

    /// A hub with everything given.
    ///
    /// # Errors
    /// A mirror that is no address.
    pub fn with(ladder: Ladder, folder: PathBuf, offline: bool, mirror: Option<&str>, options: PullOptions) -> Result<Self, HubError> {
        let host = mirror.map_or_else(|| Ok(DEFAULT_HOST.to_owned()), check_mirror)?;
        Ok(Self { ladder, cache: Cache::new(folder, None), host, offline, options })
    }

    /// The models by name.
    pub fn ladder(&self) -> &Ladder {
        &self.ladder
    }

    /// The model folder.
    pub fn folder(&self) -> &Path {
        self.cache.root()
    }

    /// All models of the ladder and what of them is here. Reads no model file.
    pub fn list(&self) -> Vec<Listed> {
        let listed = |entry: &Entry| Listed { entry: entry.clone(), cached: self.cache.look(entry), path: self.cache.path(entry) };
        self.ladder.models().iter().map(listed).collect()
    }

    /// Other model files that lie in the model folder itself, by name. Reads none of them; a folder that cannot be read has none.
    pub fn others(&self) -> Vec<Other> {
        let mut found: Vec<Other> = std::fs::read_dir(self.folder())
            .into_iter()
            .flatten()
            .filter_map(|entry| {
                let path = entry.ok()?.path();
                let meta = std::fs::metadata(&path).ok()?;
                let gguf = path.extension().is_some_and(|ext| ext.eq_ignore_ascii_case("gguf"));
                (gguf && meta.is_file()).then_some(Other { path, bytes: meta.len() })
            })
            .collect();
        found.sort_by(|a, b| a.path.cmp(&b.path));
        found
    }

    /// The ladder's model of that name.
    ///
    /// # Errors
    /// [`HubError::UnknownModel`] names those that exist.
    pub fn entry(&self, id: &str) -> Result<&Entry, HubError> {
        self.ladder.get(id).ok_or_else(|| HubError::UnknownModel { name: id.to_owned(), known: self.ladder.ids() })
    }

    /// Where a model named by id or by path lies: what stands after `--model`. An id is fetched as in [`Hub::resolve`]; a file of the
    /// user's is not read, so that commands that do not name their model in results start at once.
    ///
    /// # Errors
    /// [`HubError`] says what is missing and what to do about it. Whether a path can be opened is not asked.
    pub fn locate(&self, name: &str, progress: &mut Progress) -> Result<PathBuf, HubError> {
        if self.ladder.get(name).is_some() {
            return Ok(self.pull(name, progress)?.path);
        }
        let path = Path::new(name);
        let like_a_path = name.contains(['/', '\\']) || path.extension().is_some_and(|ext| ext.eq_ignore_ascii_case("gguf"));
        if !like_a_path && !path.exists() {
            return Err(HubError::UnknownModel { name: name.to_owned(), known: self.ladder.ids() });
        }
        Ok(path.to_owned())
    }

    /// A model by id or by path, and what it is. An id that is not here yet is fetched, unless the hub is offline. A
    /// file in the current folder that is called like an id is reached as `./ID`.
    ///
    /// # Errors
    /// [`HubError`] says what is missing and what to do about it.
    pub fn resolve(&self, name: &str, progress: &mut Progress) -> Result<LocalModel, HubError> {
        if self.ladder.get(name).is_some() {
            return self.pull(name, progress);
        }
        self.file(&self.locate(name, progress)?, progress)
    }

    /// A model by path: what stands after `--gguf`. Its SHA-256 is computed once and remembered.
    ///
    /// # Errors
    /// The file cannot be read, or a part of a split model is missing.
    pub fn file(&self, path: &Path, progress: &mut Progress) -> Result<LocalModel, HubError> {
        // Opened first: its errors are the ones that say what is wrong with a path.
        let bytes = crate::gguf::ByteSource::len(&super::FileSource::open(path)?);
        let parts = part_paths(path)?;
        let sha256 = self.cache.checksums.sha256(&parts, &mut |done| progress(Event::Hashing { done, total: bytes }));
        let sha256 = sha256.map_err(|error| HubError::folder(path, "reading it", error, 0))?.ok_or(HubError::Interrupted)?;
        let entry = self.ladder.by_sha256(&sha256).cloned();
        let (source, revision) = match &entry {
            Some(entry) => (entry.repository.clone(), Some(entry.revision.clone())),
            None => (LOCAL.to_owned(), None),
        };
        let file = parts.first().and_then(|path| path.file_name()).map(|name| name.to_string_lossy().into_owned());
        let provenance = Provenance { source, revision, file: file.unwrap_or_default(), bytes, sha256 };
        Ok(LocalModel { path: path.to_owned(), provenance, entry })
    }

    /// Makes sure that a model of the ladder is here, complete and right.
    ///
    /// # Errors
    /// [`HubError`]; what was fetched is kept.
    pub fn pull(&self, id: &str, progress: &mut Progress) -> Result<LocalModel, HubError> {
        let entry = self.entry(id)?;
        let path = self.cache.path(entry);
        match self.cache.check(entry, progress)? {
            Check::Good => return Ok(self.local(entry)),
            Check::Absent if self.offline => {
                return Err(HubError::Offline { id: entry.id.clone(), bytes: entry.bytes, path });
            }
            Check::Wrong(why) if self.offline => return Err(HubError::WrongCached { id: entry.id.clone(), path, why }),
            Check::Wrong(why) => {
                if progress(Event::Replacing { why }).is_break() {
                    return Err(HubError::Interrupted);
                }
            }
            Check::Absent => {}
        }
        let lock = self.cache.lock(entry, progress)?;
        let unfinished = self.cache.unfinished(entry);
        // Whoever held the lock may have brought it.
        if matches!(self.cache.check(entry, progress)?, Check::Good) {
            unfinished.remove()?;
            return Ok(self.local(entry));
        }
        let remote = Arc::new(Remote::new(entry.url(&self.host), entry.bytes, self.options.stall));
        download::fetch(&remote, &entry.sha256, entry.bytes, &unfinished, &lock, &self.options, progress)?;
        self.cache.publish(entry, remote.url(), progress)?;
        drop(lock);
        Ok(self.local(entry))
    }

    fn local(&self, entry: &Entry) -> LocalModel {
        let provenance = Provenance {
            source: entry.repository.clone(),
            revision: Some(entry.revision.clone()),
            file: entry.file.clone(),
            bytes: entry.bytes,
            sha256: entry.sha256.clone(),
        };
        LocalModel { path: self.cache.path(entry), provenance, entry: Some(entry.clone()) }
    }
}

/// `SEMIF_MODELS`, or a folder of ours in the user's cache.
fn default_folder() -> Result<PathBuf, HubError> {
    match std::env::var_os(FOLDER_VARIABLE) {
        Some(folder) if !folder.is_empty() => Ok(PathBuf::from(folder)),
        _ => dirs::cache_dir().map(|cache| cache.join("semif").join("models")).ok_or(HubError::NoFolder),
    }
}
