//! The native command line.

pub mod args;
mod ask;
mod batch;
mod bench;
mod bench_kernels;
mod compare;
mod compare_many;
mod doctor;
mod fail;
mod generate;
mod held;
mod input;
mod inspect;
mod interrupt;
mod load;
mod logits;
mod models;
mod output;
mod prepare;
mod profile;
mod pull;
mod resume;
mod runner;
mod schedule;
mod score;
mod tokenize;
mod view;

#[cfg(test)]
mod batch_tests;
#[cfg(test)]
mod modes_tests;

use std::process::ExitCode;

use clap::Parser as _;

use args::{Cli, Command};
use fail::{Exit, Failure};

/// Runs the command line and returns the exit code, see [`args::Cli`].
pub fn main() -> ExitCode {
    interrupt::install();
    // Bad arguments end here with a message and exit code 2, --help and --version with 0.
    let cli = Cli::parse();
    match dispatch(&cli.command) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            if !failure.message.is_empty() {
                // Parts of it may be from the model's file, such as what its template says.
                let lines: Vec<String> = failure.message.lines().map(fail::safe).collect();
                fail::say!("semif: {}", lines.join("\n"));
            }
            failure.exit.into()
        }
    }
}

fn dispatch(command: &Command) -> Result<Exit, Failure> {
    match command {
        Command::Ask(args) => ask::run(args),
        Command::Score(args) => score::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Logits(args) => logits::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Tokenize(args) => tokenize::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Models(args) => models::run(args),
        Command::Pull(args) => pull::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Bench(args) => bench::run(args),
    }
}
