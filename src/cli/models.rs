//! `models`: what the ladder offers and what of it is here. And `--model`, which every command that reads a model takes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::hub::{Cached, FOLDER_VARIABLE, Hub, Ladder, Listed, Other, PullOptions, Quality};

use super::fail::{Exit, Failure, print, print_json, safe};
use super::interrupt;
use super::pull::Reporter;

/// How models are fetched.
#[derive(Clone, Debug, Default, Args)]
pub struct HubArgs {
    /// Never touch the network: a model that is not here is an error
    #[arg(long)]
    pub offline: bool,

    /// Fetch from this host instead of the hub, in the layout MIRROR/OWNER/NAME/resolve/REVISION/FILE
    #[arg(long, value_name = "URL", conflicts_with = "offline")]
    pub mirror: Option<String>,
}

impl HubArgs {
    /// The hub of these arguments.
    ///
    /// # Errors
    /// Exit code 2: a mirror that is no address, no folder for models.
    pub fn hub(&self, options: PullOptions) -> Result<Hub, Failure> {
        Ok(Hub::new(self.offline, self.mirror.as_deref(), options)?)
    }
}

/// Which model a command uses.
#[derive(Clone, Debug, Args)]
pub struct ModelChoice {
    /// Model by its id in `semif models`, fetched where it is not here yet; or the path of a GGUF
    #[arg(long, value_name = "ID", required_unless_present = "gguf", conflicts_with = "gguf")]
    pub model: Option<String>,

    /// Model file, a GGUF as published
    #[arg(long, value_name = "FILE")]
    pub gguf: Option<PathBuf>,

    #[command(flatten)]
    pub hub: HubArgs,
}

impl ModelChoice {
    /// Where the model lies; a model of the ladder is fetched first where it is not here.
    ///
    /// # Errors
    /// Exit code 2: no such id. Exit code 3: it cannot be had.
    pub fn path(&self) -> Result<PathBuf, Failure> {
        match (&self.gguf, &self.model) {
            (Some(path), _) => Ok(path.clone()),
            (None, Some(name)) => locate(name, &self.hub),
            (None, None) => Err(Failure::input("which model? --gguf FILE is a file of yours, --model ID one that `semif models` lists")),
        }
    }
}

/// A file of the user's, or a model by its id.
///
/// # Errors
/// As [`ModelChoice::path`].
pub fn path(file: &Path, hub: &HubArgs) -> Result<PathBuf, Failure> {
    match file.to_str() {
        Some(name) if Ladder::built_in().get(name).is_some() => locate(name, hub),
        _ => Ok(file.to_owned()),
    }
}

fn locate(name: &str, hub: &HubArgs) -> Result<PathBuf, Failure> {
    let hub = hub.hub(PullOptions::default())?;
    let mut reporter = Reporter::new(name);
    let path = interrupt::graceful_while(|| hub.locate(name, &mut |event| reporter.event(event)));
    reporter.end();
    Ok(path?)
}

/// List the models this program recommends, which of them are here, and other model files in their folder.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  semif models
  semif models --json | jq -r '.models[] | select(.cached.state == \"present\") | .path'

Models are kept in the user's cache folder, or in the folder that SEMIF_MODELS names. No network is needed.")]
pub struct ModelsArgs {
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    folder: &'a Path,
    models: Vec<Listed>,
    others: Vec<Other>,
}

/// # Errors
/// No folder for models.
pub fn run(args: &ModelsArgs) -> Result<Exit, Failure> {
    let hub = Hub::new(true, None, PullOptions::default())?;
    let report = Report { folder: hub.folder(), models: hub.list(), others: hub.others() };
    if args.json {
        print_json(&report)?;
    } else {
        print(&table(&report))?;
    }
    Ok(Exit::Done)
}

fn table(report: &Report) -> String {
    let width = report.models.iter().map(|listed| listed.entry.id.len()).max().unwrap_or(0) + 2;
    let mut text = String::new();
    for Listed { entry, cached, path } in &report.models {
        let Quality { authored144, perturbed108, typesafe102 } = entry.quality;
        let here = match cached {
            Cached::Absent => format!("not here: semif pull {}", entry.id),
            Cached::Partial { bytes } => format!("{} of it here: semif pull {} goes on", size(*bytes), entry.id),
            Cached::Present { verified: true } => format!("here, verified: {}", path.display()),
            Cached::Present { verified: false } => format!("here, to be verified at first use: {}", path.display()),
            Cached::Wrong { .. } => format!("another file is in its place: semif pull {} replaces {}", entry.id, path.display()),
        };
        let lines = [
            format!("{} ({}), {}, {}", entry.title, entry.label, size(entry.bytes), entry.licence),
            format!("published accuracy: authored {authored144:.3}, perturbed {perturbed108:.3}, TypeSafe {typesafe102:.3}"),
            entry.audience.clone(),
            here,
        ];
        for (number, line) in lines.iter().enumerate() {
            let left = if number == 0 { entry.id.as_str() } else { "" };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{left:width$}{line}");
        }
        text.push('\n');
    }
    if !report.others.is_empty() {
        text.push_str("Other files here; use one by --gguf PATH\n");
        for Other { path, bytes } in &report.others {
            let _ = writeln!(text, "  {:>8}  {}", size(*bytes), safe(&path.to_string_lossy()));
        }
        text.push('\n');
    }
    let _ = writeln!(text, "Folder: {} (set {FOLDER_VARIABLE} for another one)", report.folder.display());
    text
}

/// Bytes for people: `639 MB`, `3.01 GB`.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} bytes"),
        1_000..1_000_000 => format!("{} kB", bytes / 1_000),
        1_000_000..1_000_000_000 => format!("{} MB", bytes / 1_000_000),
        // Whole megabytes first: a size is never shown larger than it is.
        _ => format!("{:.2} GB", (bytes / 10_000_000) as f64 / 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (bytes, text) in [(0, "0 bytes"), (999, "999 bytes"), (1_999, "1 kB"), (639_446_688, "639 MB"), (3_013_027_808, "3.01 GB")] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn the_table_says_what_to_do() {
        let states = [
            (Cached::Absent, "not here: semif pull qwen3-0.6b"),
            (Cached::Partial { bytes: 40_000_000 }, "40 MB of it here: semif pull qwen3-0.6b goes on"),
            (Cached::Present { verified: true }, "here, verified: /m/file"),
            (Cached::Present { verified: false }, "to be verified at first use: /m/file"),
            (Cached::Wrong { bytes: 3 }, "semif pull qwen3-0.6b replaces /m/file"),
        ];
        for (cached, words) in states {
            let entry = Ladder::built_in().models()[0].clone();
            let listed = Listed { entry, cached, path: PathBuf::from("/m/file") };
            let text = table(&Report { folder: Path::new("/m"), models: vec![listed], others: Vec::new() });
            assert!(text.starts_with("qwen3-0.6b  Qwen3 0.6B (smallest), 639 MB, Apache-2.0\n"), "{text}");
            assert!(text.contains(words), "{text}");
            assert!(text.ends_with("Folder: /m (set SEMIF_MODELS for another one)\n"), "{text}");
        }
        let other = Other { path: PathBuf::from("/m/own.gguf"), bytes: 491_400_064 };
        let text = table(&Report { folder: Path::new("/m"), models: Vec::new(), others: vec![other] });
        assert!(text.starts_with("Other files here; use one by --gguf PATH\n    491 MB  /m/own.gguf\n\nFolder: /m"), "{text}");
    }
}
