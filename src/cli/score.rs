//! `semif score`: rows in, result rows out.

use std::path::Path;
use std::time::Instant;

use crate::decision::{ModelRef, Orderings, RowFile, ServingConfig, Wording, read_rows};
use crate::text::TextModel;

use super::args::ScoreArgs;
use super::batch::{self, Facts, Planned, Read, Scorer, Tally, Wanted};
use super::fail::{Exit, Failure, safe};
use super::held::{Held, waiting_path};
use super::input;
use super::interrupt;
use super::load::ModelFile;
use super::output::{self, Output};
use super::prepare::Preparer;
use super::profile;
use super::resume::{self, Expected};
use super::runner::{self, Runner, TICK, progress_bar};

const ROWS: &str = "{msg} {bar:24} {pos} of {len} rows, {rows}";

pub fn run(args: &ScoreArgs) -> Result<Exit, Failure> {
    runner::check_tier(&args.model)?;
    let orderings = args.orderings.orderings()?;
    check_paths(args)?;
    let wording = input::wording(args.prompt.as_deref())?;
    let rows = rows(args, &wording, orderings)?;
    let file = ModelFile::open(&args.model.choice.path()?)?;
    interrupt::graceful();
    let planned = plan(args, &file, &rows, &wording, orderings)?;
    let model = runner::model_ref(&file)?;

    let begin = begin(args, &planned, &model, &wording, orderings)?;
    let mut out = begin.out;
    let done = out.written();
    let count = planned.len();
    if done + out.waits() > 0 {
        super::fail::say!("{} of {count} rows are in {} already", done + out.waits(), args.output.display());
    }
    let mut runner = match (0..).zip(&planned).any(|(i, row)| matches!(row, Planned::Ready(_)) && !out.has(i)) {
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

    let facts = Facts { prompt_version: wording.version.clone(), model, config, mode: args.mode, orderings };
    let bar = progress_bar((count - done - out.waits()) as u64, ROWS);
    bar.set_message("deciding");
    bar.enable_steady_tick(TICK);
    let start = Instant::now();
    let mut scorer: &mut dyn Scorer = &mut NoModel;
    if let Some(runner) = &mut runner {
        scorer = runner;
    }
    let ended = batch::run(&planned, &facts, scorer, &mut out, &interrupt::STOP, &mut || bar.inc(1));
    bar.finish_and_clear();
    if let Some(runner) = &mut runner {
        profile::report(&mut runner.engine)?;
    }
    let (written, waits) = (out.written(), out.waits());
    let kept = || match (written, waits) {
        (0, 0) => String::new(),
        (n, 0) => format!("{n} of {count} rows are in {}; the same command with --resume goes on", args.output.display()),
        (n, w) => format!(
            "{n} of {count} rows are in {}, {w} more wait in {}; the same command with --resume goes on",
            args.output.display(),
            waiting_path(&args.output).display()
        ),
    };
    let tally = ended.map_err(|failure| match written + waits {
        0 => failure,
        _ => Failure { message: format!("{}\n{}", failure.message, kept()), ..failure },
    })?;
    if tally.interrupted {
        let kept = if written + waits > 0 { kept() } else { "nothing was written".to_owned() };
        return Err(Failure::interrupted(format!("interrupted; {kept}")));
    }
    super::fail::say!("{}", summary(&tally, start.elapsed().as_secs_f64(), &args.output));
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
    let waiting = waiting_path(out);
    if let Some(there) = [out, &waiting].into_iter().find(|path| !args.resume && path.symlink_metadata().is_ok()) {
        return Err(output::exists(there));
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
fn rows(args: &ScoreArgs, wording: &Wording, orderings: Option<Orderings>) -> Result<RowFile, Failure> {
    let rows = read_rows(&input::read_bytes(&args.input, "--input")?);
    if rows.entries.is_empty() {
        return Err(Failure::input(format!("the input {} has no rows", args.input.display())));
    }
    let mut bad: Vec<String> = rows.bad().map(|bad| bad.to_string()).collect();
    // What only the tokenizer can find belongs into the same list, if the file is at hand: one round of corrections, not two.
    if !bad.is_empty()
        && !args.skip_invalid
        && let Some(path) = &args.model.choice.gguf
        && let Ok(file) = ModelFile::open(path)
        && let Ok(text) = file.text()
        && let Ok(preparer) = preparer(args, &file, &text, &rows, wording)
        && let Some(plan) = preparer.with_orderings(orderings).plan(&rows, &mut || true)
    {
        let refused = |row| match row {
            Planned::Refused(refused) => Some(refused.error),
            Planned::Ready(_) => None,
        };
        bad = plan.rows.into_iter().filter_map(refused).collect();
    }
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
        super::fail::say!("{message}");
        return Ok(());
    }
    message.push_str("\nNothing was written. Correct them, or give --skip-invalid to score the others.");
    Err(Failure::input(message))
}

fn preparer<'a>(
    args: &ScoreArgs,
    file: &ModelFile,
    text: &'a TextModel,
    rows: &RowFile,
    wording: &'a Wording,
) -> Result<Preparer<'a>, Failure> {
    let most = rows.rows().map(|row| row.options().len()).max().unwrap_or(1);
    Preparer::new(text, wording, args.model.max_tokens, file.context(), most)
}

/// Makes and measures all prompts.
fn plan(
    args: &ScoreArgs,
    file: &ModelFile,
    rows: &RowFile,
    wording: &Wording,
    orderings: Option<Orderings>,
) -> Result<Vec<Planned>, Failure> {
    let text = file.text()?;
    let preparer = preparer(args, file, &text, rows, wording)?.with_orderings(orderings);
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
    out: Held,
    refused: usize,
    config: Option<ServingConfig>,
}

/// Creates the output, or opens it again, with what waits beside it.
fn begin(
    args: &ScoreArgs,
    planned: &[Planned],
    model: &ModelRef,
    wording: &Wording,
    orderings: Option<Orderings>,
) -> Result<Begin, Failure> {
    let waiting = waiting_path(&args.output);
    let create = || Output::create(&args.output).map(|output| Held::new(output, 0, Some(waiting.clone())));
    if !args.resume {
        return Ok(Begin { out: create()?, refused: 0, config: None });
    }
    let name = orderings.map(Orderings::name);
    let expected = Expected { planned, model, prompt_version: &wording.version, mass: args.mass, orderings: name.as_deref() };
    let early = resume::waiting(&waiting, expected)?;
    let mut begin = if args.output.exists() {
        let resumed = resume::resume(&args.output, expected)?;
        let out = Held::new(resumed.output, resumed.done, Some(waiting));
        Begin { out, refused: resumed.refused, config: resumed.config }
    } else {
        Begin { out: create()?, refused: 0, config: None }
    };
    if let Some((lines, file)) = early {
        begin.config = begin.config.or_else(|| lines.values().next().and_then(|line| resume::config(line)));
        begin.out.take_over(lines, file)?;
    }
    let asked = args.model.tier().name();
    if let Some(before) = begin.config.as_ref().filter(|c| c.precision != asked && asked != "auto") {
        return Err(other_precision(&args.output, &before.precision, asked));
    }
    Ok(begin)
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
        super::fail::say!(
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
            "{n} {} decided in {} ({})",
            if n == 1 { "row" } else { "rows" },
            super::view::seconds(seconds),
            super::view::pace(n as f64 / seconds.max(1e-9))
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
    fn read(&mut self, _: &Wanted<'_>) -> Result<Read, Failure> {
        Err(Failure::other("no model is loaded"))
    }
}
