//! The ladder: the models this project recommends, each pinned to one file of one revision.
//!
//! `assets/ladder.json` is compiled in, so that a page and a command line of one version mean the same bytes by an id.
//! Nothing here touches a disk or a network, and it compiles for the browser.

use std::collections::HashSet;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

/// Where the repositories of the ladder are published. `--mirror` replaces it.
pub const DEFAULT_HOST: &str = "https://huggingface.co";

/// The layout of the manifest that this program reads.
const VERSION: u32 = 1;

/// The built-in manifest.
const BUILT_IN: &str = include_str!("../../assets/ladder.json");

/// A manifest that cannot be used: what is wrong, and in which entry.
#[derive(Debug, thiserror::Error)]
pub enum LadderError {
    /// Not JSON, or a field is missing, unknown or of the wrong type.
    #[error("the ladder manifest cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// Written for another program version.
    #[error("the ladder manifest has version {found}, this program reads version {VERSION}")]
    Version {
        /// The version in the manifest.
        found: u32,
    },
    /// Two entries cannot be told apart.
    #[error("the ladder manifest names {what} twice")]
    Twice {
        /// The repeated id or file.
        what: String,
    },
    /// A field's value is not allowed.
    #[error("ladder entry {id:?}: {field} {problem}")]
    Field {
        /// The entry.
        id: String,
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// Published accuracy (0 to 1) of the unquantised model on the three public sets of decisions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// 144 authored cases.
    pub authored144: f64,
    /// 108 perturbed cases: reordered, reworded, with noise.
    pub perturbed108: f64,
    /// 102 cases of TypeSafe.
    pub typesafe102: f64,
}

/// One model: what it is, which bytes it is made of, whom it suits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The short name used by `--model`.
    pub id: String,
    /// The name shown to people.
    pub title: String,
    /// One or two words that tell it from its neighbours.
    pub label: String,
    /// `owner/name` on the hub.
    pub repository: String,
    /// The commit of the repository, 40 hex digits: a pin, so that a file never changes under an id.
    pub revision: String,
    /// The file's name in the repository, and in the cache.
    pub file: String,
    /// Its exact size.
    pub bytes: u64,
    /// GPU bytes of keys and values for each token of a prompt.
    pub token_bytes: u64,
    /// SHA-256 of the file, 64 lower-case hex digits.
    pub sha256: String,
    /// `general.architecture` of the file.
    pub architecture: String,
    /// Blocks that no decision needs (multi-token prediction): never uploaded to the GPU.
    pub skip_layers: Vec<u32>,
    /// SPDX name of the weights' licence.
    pub licence: String,
    /// Published quality.
    pub quality: Quality,
    /// Who it is for, in a sentence.
    pub audience: String,
}

/// GPU bytes allowed beside weights, keys and values: activations of a chunk, states, tables.
const BESIDE: u64 = 200 << 20;

impl Entry {
    /// GPU bytes that the model takes at most for prompts of `max_tokens`, as far as it can be told without its file.
    pub fn gpu_bytes(&self, max_tokens: u32) -> u64 {
        // Weights are stored on the GPU in at most 1.05 times their size.
        (self.bytes + self.bytes / 20 + BESIDE).saturating_add(self.token_bytes.saturating_mul(u64::from(max_tokens)))
    }

    /// The address of the file on `host` (for example [`DEFAULT_HOST`], with or without a final slash).
    pub fn url(&self, host: &str) -> String {
        let host = host.trim_end_matches('/');
        format!("{host}/{}/resolve/{}/{}", self.repository, self.revision, self.file)
    }

    /// Everything that a later stage relies on: above all that no field can lead out of the cache folder or change the
    /// meaning of an address.
    fn validate(&self) -> Result<(), LadderError> {
        let fail = |field, problem| Err(LadderError::Field { id: self.id.clone(), field, problem });
        if !plain_name(&self.id) {
            return fail("id", "must be letters, digits, '.', '-' and '_', not starting with '.' or '-'");
        }
        match self.repository.split_once('/') {
            Some((owner, name)) if plain_name(owner) && plain_name(name) => {}
            _ => return fail("repository", "must be owner/name in letters, digits, '.', '-' and '_'"),
        }
        if !hex(&self.revision, 40) {
            return fail("revision", "must be a commit of 40 lower-case hex digits, never a branch");
        }
        if !plain_name(&self.file) || !self.file.ends_with(".gguf") {
            return fail("file", "must be a plain file name that ends in .gguf");
        }
        if self.bytes == 0 || self.bytes > 1 << 50 {
            return fail("bytes", "must be the size of the file");
        }
        if self.token_bytes == 0 {
            return fail("token_bytes", "must be the cache bytes of a token");
        }
        if !hex(&self.sha256, 64) {
            return fail("sha256", "must be 64 lower-case hex digits");
        }
        let texts = [
            ("title", &self.title),
            ("label", &self.label),
            ("architecture", &self.architecture),
            ("licence", &self.licence),
            ("audience", &self.audience),
        ];
        for (field, text) in texts {
            if text.trim().is_empty() || text.chars().any(char::is_control) {
                return fail(field, "must be one line of text");
            }
        }
        let Quality { authored144, perturbed108, typesafe102 } = self.quality;
        if ![authored144, perturbed108, typesafe102].iter().all(|q| (0.0..=1.0).contains(q)) {
            return fail("quality", "must be fractions between 0 and 1");
        }
        Ok(())
    }
}

/// The models in ascending order of size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ladder {
    version: u32,
    models: Vec<Entry>,
}

impl Ladder {
    /// Reads a manifest and checks every field of it.
    ///
    /// # Errors
    /// [`LadderError`] says which entry and field cannot be used.
    pub fn parse(json: &str) -> Result<Self, LadderError> {
        let ladder: Self = serde_json::from_str(json)?;
        if ladder.version != VERSION {
            return Err(LadderError::Version { found: ladder.version });
        }
        let mut seen = HashSet::new();
        for entry in &ladder.models {
            entry.validate()?;
            let place = format!("{}/{}", entry.repository, entry.file);
            for name in [entry.id.clone(), place] {
                if !seen.insert(name.to_ascii_lowercase()) {
                    return Err(LadderError::Twice { what: name });
                }
            }
        }
        Ok(ladder)
    }

    /// The manifest this program was built with. A test parses it, so an unusable one never ships.
    pub fn built_in() -> &'static Self {
        static LADDER: OnceLock<Ladder> = OnceLock::new();
        LADDER.get_or_init(|| Self::parse(BUILT_IN).unwrap_or(Self { version: VERSION, models: Vec::new() }))
    }

    /// All models, smallest first.
    pub fn models(&self) -> &[Entry] {
        &self.models
    }

    /// The model with this id; upper and lower case are the same.
    pub fn get(&self, id: &str) -> Option<&Entry> {
        self.models.iter().find(|entry| entry.id.eq_ignore_ascii_case(id))
    }

    /// The largest model that fits into so many bytes of GPU memory with prompts of `max_tokens`.
    pub fn fitting(&self, gpu_bytes: u64, max_tokens: u32) -> Option<&Entry> {
        self.models.iter().filter(|entry| entry.gpu_bytes(max_tokens) <= gpu_bytes).max_by_key(|entry| entry.bytes)
    }

    /// The model made of exactly these bytes, whatever its file is called.
    pub fn by_sha256(&self, sha256: &str) -> Option<&Entry> {
        self.models.iter().find(|entry| entry.sha256 == sha256)
    }

    /// All ids, for messages: `a, b and c`.
    pub fn ids(&self) -> String {
        let ids: Vec<&str> = self.models.iter().map(|entry| entry.id.as_str()).collect();
        match ids.split_last() {
            None => "none".to_owned(),
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} and {last}", others.join(", ")),
        }
    }
}

/// A name that is one path segment everywhere and needs no escaping in a URL.
fn plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 128
        && !name.starts_with(['.', '-'])
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

fn hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// The built-in manifest with one field of its first entry replaced.
    fn with(field: &str, value: Value) -> String {
        let mut json: Value = serde_json::from_str(BUILT_IN).unwrap();
        json["models"][0][field] = value;
        json.to_string()
    }

    #[test]
    fn the_built_in_ladder_has_the_three_pinned_files() {
        let ladder = Ladder::parse(BUILT_IN).unwrap();
        assert_eq!(Ladder::built_in(), &ladder);
        assert_eq!(ladder.ids(), "qwen3-0.6b, minicpm5-2b and qwen3.5-4b");
        let sizes: Vec<u64> = ladder.models().iter().map(|e| e.bytes).collect();
        assert_eq!(sizes, [639_446_688, 1_561_318_368, 3_013_027_808]);
        assert!(ladder.models().is_sorted_by_key(|e| e.bytes));
        let large = ladder.get("Qwen3.5-4B").unwrap();
        assert_eq!(large.skip_layers, [32], "the prediction block of this file is block 32");
        assert_eq!(ladder.by_sha256(&large.sha256), Some(large));
        assert_eq!(
            large.url("https://hub.example/"),
            "https://hub.example/bartowski/Qwen_Qwen3.5-4B-GGUF/resolve/4168f45a16a1290d65a4ec0fa312ae917a4c15d6/Qwen_Qwen3.5-4B-Q4_K_M.gguf"
        );
        let again = Ladder::parse(&serde_json::to_string(&ladder).unwrap()).unwrap();
        assert_eq!(again, ladder, "what is written can be read");
    }

    #[test]
    fn a_model_that_fits_is_found() {
        let fits = |gigabytes: f64, tokens| Ladder::built_in().fitting((gigabytes * 1e9) as u64, tokens).map(|e| e.id.as_str());
        assert_eq!(fits(0.5, 4096), None);
        assert_eq!(fits(1.9, 4096), Some("qwen3-0.6b"));
        assert_eq!(fits(3.0, 4096), Some("minicpm5-2b"));
        assert_eq!(fits(8.0, 4096), Some("qwen3.5-4b"));
        assert_eq!(fits(1.0, 256), Some("qwen3-0.6b"), "a shorter budget helps");
        assert_eq!(fits(1e9, u32::MAX), Some("qwen3.5-4b"));
        assert_eq!(fits(100.0, u32::MAX), None);
    }

    #[test]
    fn every_field_is_checked() {
        let bad = [
            ("id", json!("../x")),
            ("id", json!("")),
            ("id", json!("-x")),
            ("title", json!(" ")),
            ("label", json!("a\nb")),
            ("repository", json!("owner")),
            ("repository", json!("owner/../name")),
            ("repository", json!("owner/name/more")),
            ("revision", json!("main")),
            ("revision", json!("23749FEFCC72300e3a2ad315e1317431b06b590a")),
            ("file", json!("sub/model.gguf")),
            ("file", json!("..gguf")),
            ("file", json!("model.bin")),
            ("file", json!("mod%65l.gguf")),
            ("bytes", json!(0)),
            ("bytes", json!(u64::MAX)),
            ("token_bytes", json!(0)),
            ("sha256", json!("9465e63a")),
            ("architecture", json!("")),
            ("licence", json!("")),
            ("audience", json!("")),
            ("quality", json!({"authored144": 44.0, "perturbed108": 0.5, "typesafe102": 0.4})),
        ];
        for (field, value) in bad {
            let error = Ladder::parse(&with(field, value.clone())).unwrap_err();
            assert!(matches!(error, LadderError::Field { field: f, .. } if f == field), "{field} {value}: {error}");
        }
        for (field, value) in [("bytes", json!(-1)), ("bytes", json!("1")), ("surprise", json!(1)), ("skip_layers", json!([-1]))] {
            let error = Ladder::parse(&with(field, value)).unwrap_err();
            assert!(matches!(error, LadderError::Json(_)), "{field}: {error}");
        }
    }

    #[test]
    fn a_manifest_of_another_version_or_with_repeats_is_refused() {
        let mut json: Value = serde_json::from_str(BUILT_IN).unwrap();
        json["models"][1]["id"] = json!("QWEN3-0.6B");
        let error = Ladder::parse(&json.to_string()).unwrap_err();
        assert!(matches!(&error, LadderError::Twice { what } if what == "QWEN3-0.6B"), "{error}");
        json["version"] = json!(2);
        assert!(matches!(Ladder::parse(&json.to_string()), Err(LadderError::Version { found: 2 })));
        assert!(matches!(Ladder::parse("{}"), Err(LadderError::Json(_))));
    }
}
