//! `pull`: fetches a model, and shows how far it is.

use std::io::IsTerminal as _;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::hub::{Event, PullOptions};

use super::fail::{Exit, Failure, print};
use super::interrupt;
use super::models::{HubArgs, size};

/// Lines about failed connections come at most this often.
const QUIET: Duration = Duration::from_secs(2);

/// Fetch a model and verify it; what is here already is kept.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  semif pull qwen3-0.6b
  SEMIF_MODELS=/data/models semif pull qwen3.5-4b --connections 8
  semif pull minicpm5-2b --mirror https://mirror.example

Prints the path of the file. After Ctrl-C, a lost connection or a crash the same command goes on
where it was. A file is used only if its size and SHA-256 are those of the ladder.")]
pub struct PullArgs {
    /// Its id in `semif models`
    #[arg(value_name = "ID")]
    pub id: String,

    /// Connections at the same time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub connections: u8,

    #[command(flatten)]
    pub hub: HubArgs,
}

/// # Errors
/// Exit code 2: no such id. Exit code 3: it cannot be had. Exit code 130: interrupted, what was fetched is kept.
pub fn run(args: &PullArgs) -> Result<Exit, Failure> {
    let hub = args.hub.hub(PullOptions { connections: args.connections.into(), ..PullOptions::default() })?;
    let mut reporter = Reporter::new(&args.id);
    let model = interrupt::graceful_while(|| hub.pull(&args.id, &mut |event| reporter.event(event)));
    reporter.end();
    print(&format!("{}\n", model?.path.display()))?;
    Ok(Exit::Done)
}

/// Shows a download on stderr: a bar in a terminal, a line now and then elsewhere.
pub struct Reporter {
    name: String,
    bar: Option<ProgressBar>,
    terminal: bool,
    phase: &'static str,
    /// The last tenth that was told where there is no terminal.
    tenth: u64,
    quiet_until: Option<Instant>,
}

impl Reporter {
    /// Shows nothing until something happens that takes time.
    pub fn new(name: &str) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { name: name.to_owned(), bar: None, terminal, phase: "", tenth: 0, quiet_until: None }
    }

    /// Takes an event; breaks once Ctrl-C was pressed.
    pub fn event(&mut self, event: Event) -> ControlFlow<()> {
        match event {
            Event::Waiting => {
                if self.phase != "waiting" {
                    self.phase = "waiting";
                    self.line("another semif is fetching this model; waiting for it");
                }
            }
            Event::Replacing { why } => self.line(&format!("the file in its place is another one ({why}); fetching the right one")),
            Event::Checking { done, total } => self.show("checking what is here", done, total),
            Event::Started { kept: 0, total } => self.line(&format!("fetching {}", size(total))),
            Event::Started { kept, total } => self.line(&format!("fetching {}, {} of it are here", size(total), size(kept))),
            Event::Fetching { done, total } => self.show("fetching", done, total),
            Event::Retrying { why, wait } => self.trouble(&why, wait),
            Event::Whole => self.line("the server sends whole files only: one connection, and a lost one costs more"),
            Event::Restarted => self.line("the file changed on the server; beginning anew"),
            Event::Hashing { done, total } => self.show("verifying", done, total),
        }
        interrupt::go_on()
    }

    /// Takes the bar away.
    pub fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn line(&self, text: &str) {
        let text = format!("{}: {text}", self.name);
        match &self.bar {
            Some(bar) => bar.suspend(|| super::fail::say!("{text}")),
            None => super::fail::say!("{text}"),
        }
    }

    fn trouble(&mut self, why: &str, wait: Duration) {
        let now = Instant::now();
        // A long wait is always said: silence would look like a program that hangs.
        if wait >= QUIET || self.quiet_until.is_none_or(|until| now >= until) {
            self.quiet_until = Some(now + QUIET);
            self.line(&format!("{why}; trying again in {:.1} s", wait.as_secs_f64()));
        }
    }

    fn show(&mut self, phase: &'static str, done: u64, total: u64) {
        if self.phase != phase {
            self.phase = phase;
            self.tenth = 0;
            self.end();
        }
        if !self.terminal {
            let tenth = (done * 10).checked_div(total).unwrap_or(10);
            // Small files are over before a line could be read.
            if tenth > self.tenth && total >= 100_000_000 {
                self.tenth = tenth;
                self.line(&format!("{phase}: {}0 % ({} of {})", tenth, size(done), size(total)));
            }
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::new(total);
            let template = "{prefix}: {msg} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";
            // The template is a constant; the default style is a fine fallback.
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_prefix(self.name.clone());
            bar.set_message(phase);
            // Speed and remaining time count from here, not from what an earlier run brought.
            bar.set_position(done);
            bar.reset_eta();
            bar
        });
        bar.set_position(done);
    }
}
