//! `semif score`: rows in, result rows out.

use std::path::Path;
use std::time::Instant;

use crate::decision::{ModelRef, RowFile, ServingConfig, Wording, read_rows};

use super::args::ScoreArgs;
use super::batch::{self, Expected, Facts, Planned, Prompted, Reading, Scorer, Tally};
use super::fail::{Exit, Failure, safe};
use super::input;
use super::interrupt;
use super::load::ModelFile;
use super::output::{self, Output};
use super::prepare::Preparer;
use super::runner::{self, Runner, progress_bar};

const ROWS: &str = "{msg} {bar:24} {pos} of {len} rows, {rate}, {eta} left";

pub fn run(args: &ScoreArgs) -> Result<Exit, Failure> {
    runner::precision(&args.model)?;
    check_paths(args)?;
    let wording = input::wording(args.prompt.as_deref())?;
    let rows = rows(args)?;
    let file = ModelFile::open(&args.model.choice.path()?)?;
    interrupt::graceful();
    let planned = plan(args, &file, &rows, &wording)?;
    let model = runner::model_ref(&file)?;

    let begin = begin(args, &planned, &model, &wording)?;
    let (mut output, done) = (begin.output, begin.done);
    if done > 0 {
        eprintln!("{done} of {} rows are in {} already", planned.len(), args.output.display());
    }
    let rest = &planned[done..];
    let mut runner = match rest.iter().any(|row| matches!(row, Planned::Ready(_))) {
        true => Some(Runner::load(&file, &args.model)?),
        false => None,
    };
    let config = runner.as_ref().map(|runner| runner.config.clone()).unwrap_or_default();
    if let Some(before) = begin.config.filter(|_| runner.is_some()) {
        check_method(&before, &config, &args.output)?;
    }
    if let Some(runner) = &mut runner {
        runner.mass = args.mass;
    }

    let facts = Facts { prompt_version: wording.version.clone(), model, config };
    let bar = progress_bar(rest.len() as u64, ROWS);
    bar.set_message("deciding");
    let start = Instant::now();
    let mut scorer: &mut dyn Scorer = &mut NoModel;
    if let Some(runner) = &mut runner {
        scorer = runner;
    }
    let mut written = done;
    let ended = batch::run(rest, &facts, scorer, &mut output, &interrupt::STOP, &mut || {
        written += 1;
        bar.inc(1);
    });
    bar.finish_and_clear();
    let kept = || match written {
        0 => String::new(),
        n => format!("{n} of {} rows are in {}; the same command with --resume goes on", planned.len(), args.output.display()),
    };
    let tally = ended.map_err(|failure| match written {
        0 => failure,
        _ => Failure { message: format!("{}\n{}", failure.message, kept()), ..failure },
    })?;
    if tally.interrupted {
        return Err(Failure::interrupted(format!("interrupted; {}", if written > 0 { kept() } else { "nothing was written".to_owned() })));
    }
    eprintln!("{}", summary(&tally, start.elapsed().as_secs_f64(), &args.output));
    Ok(if begin.refused + tally.refused > 0 { Exit::SomeRefused } else { Exit::Done })
}

/// Everything about the paths that can be wrong before anything is read.
fn check_paths(args: &ScoreArgs) -> Result<(), Failure> {
    let out = &args.output;
    if out == Path::new("-") {
        return Err(Failure::input("--output needs the name of a file: only a file can be gone on with after an interruption"));
    }
    if let (Ok(a), Ok(b)) = (out.canonicalize(), args.input.canonicalize())
        && a == b
    {
        return Err(Failure::input("--input and --output are the same file"));
    }
    if out.is_dir() {
        return Err(Failure::input(format!("the output {} is a folder", out.display())));
    }
    // A dangling link exists too, for a create-only file.
    if !args.resume && out.symlink_metadata().is_ok() {
        return Err(output::exists(out));
    }
    let folder = out.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(folder) = folder
        && !folder.is_dir()
    {
        return Err(Failure::input(format!("the output's folder {} does not exist", folder.display())));
    }
    Ok(())
}

/// Reads all rows; bad ones end the command here unless they are to be skipped.
fn rows(args: &ScoreArgs) -> Result<RowFile, Failure> {
    let rows = read_rows(&input::read_bytes(&args.input, "--input")?);
    if rows.entries.is_empty() {
        return Err(Failure::input(format!("the input {} has no rows", args.input.display())));
    }
    let bad: Vec<String> = rows.bad().map(|bad| bad.to_string()).collect();
    report(args, &bad, rows.entries.len())?;
    Ok(rows)
}

/// Lists refused rows: as the reason to stop, or as a notice where they are to be skipped.
fn report(args: &ScoreArgs, problems: &[String], of: usize) -> Result<(), Failure> {
    if problems.is_empty() {
        return Ok(());
    }
    let mut message = format!("{} of {of} rows cannot be used:", problems.len());
    for problem in problems {
        message.push_str("\n  ");
        message.push_str(&safe(problem));
    }
    if args.skip_invalid {
        eprintln!("{message}");
        return Ok(());
    }
    message.push_str("\nNothing was written. Correct them, or give --skip-invalid to score the others.");
    Err(Failure::input(message))
}

/// Makes and measures all prompts.
fn plan(args: &ScoreArgs, file: &ModelFile, rows: &RowFile, wording: &Wording) -> Result<Vec<Planned>, Failure> {
    let text = file.text()?;
    let most = rows.rows().map(|row| row.options().len()).max().unwrap_or(1);
    let preparer = Preparer::new(&text, wording, args.model.max_tokens, file.context(), most)?;
    let bar = progress_bar(rows.entries.len() as u64, ROWS);
    bar.set_message("checking");
    let plan = preparer.plan(rows, &mut || {
        bar.inc(1);
        !interrupt::asked()
    });
    bar.finish_and_clear();
    let Some(plan) = plan else {
        return Err(Failure::interrupted("interrupted; nothing was written"));
    };
    report(args, &plan.refusals, rows.entries.len())?;
    Ok(plan.rows)
}

struct Begin {
    output: Output,
    done: usize,
    refused: usize,
    config: Option<ServingConfig>,
}

/// Creates the output, or opens it again.
fn begin(args: &ScoreArgs, planned: &[Planned], model: &ModelRef, wording: &Wording) -> Result<Begin, Failure> {
    if !args.resume || !args.output.exists() {
        return Ok(Begin { output: Output::create(&args.output)?, done: 0, refused: 0, config: None });
    }
    let expected = Expected { planned, model, prompt_version: &wording.version, mass: args.mass };
    let resumed = batch::resume(&args.output, expected)?;
    if let Some(before) =
        resumed.config.as_ref().filter(|c| c.precision != args.model.precision.name() && args.model.precision.name() != "auto")
    {
        return Err(other_precision(&args.output, &before.precision, args.model.precision.name()));
    }
    Ok(Begin { output: resumed.output, done: resumed.done, refused: resumed.refused, config: resumed.config })
}

fn other_precision(path: &Path, before: &str, now: &str) -> Failure {
    Failure::input(format!(
        "--resume: the rows in {} were computed in {before} precision, this run would be {now}; they do not belong into one file",
        path.display()
    ))
}

/// The rows of one file are computed by one method. Another adapter changes last bits only, and each row names its own.
fn check_method(before: &ServingConfig, now: &ServingConfig, path: &Path) -> Result<(), Failure> {
    if before.precision != now.precision {
        return Err(other_precision(path, &before.precision, &now.precision));
    }
    if (&before.adapter, &before.driver) != (&now.adapter, &now.driver) {
        eprintln!(
            "note: the rows in {} were computed on {} ({}), the rest will be on {} ({}): logits may differ in their last digits",
            path.display(),
            safe(&before.adapter),
            safe(&before.driver),
            safe(&now.adapter),
            safe(&now.driver)
        );
    }
    Ok(())
}

fn summary(tally: &Tally, seconds: f64, output: &Path) -> String {
    let mut text = match tally.decided {
        0 => "nothing was left to decide".to_owned(),
        n => format!(
            "{n} {} decided in {} ({:.1} a second)",
            if n == 1 { "row" } else { "rows" },
            super::view::seconds(seconds),
            n as f64 / seconds.max(1e-9)
        ),
    };
    if tally.refused > 0 {
        text.push_str(&format!(", {} refused", tally.refused));
    }
    text.push_str(&format!("; {}", output.display()));
    text
}

/// Stands in for the model where no row needs one.
struct NoModel;

impl Scorer for NoModel {
    fn read(&mut self, row: &Prompted) -> Result<Reading, Failure> {
        Err(Failure::other(format!("{}: no model is loaded", row.place)))
    }
}
