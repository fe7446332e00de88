//! `semif ask`: one decision.

use std::time::Instant;

use crate::decision::{ResultRow, Row, Wording};

use super::args::{AskArgs, ModelArgs};
use super::batch::{Facts, Prompted, Scorer as _, result_row};
use super::fail::{Exit, Failure, print, print_json, safe};
use super::input;
use super::load::ModelFile;
use super::prepare::Preparer;
use super::runner::{self, Runner};
use super::view::{self, Canvas};

/// One row, checked and made into a prompt before the model is loaded, and the loaded model.
pub struct Case {
    pub row: Row,
    pub wording: Wording,
    pub prompted: Prompted,
    pub facts: Facts,
    pub runner: Runner,
}

impl Case {
    /// # Errors
    /// Exit codes 2, 3, 4.
    pub fn load(model: &ModelArgs, case: &super::args::CaseArgs, with_hash: bool) -> Result<Case, Failure> {
        runner::precision(model)?;
        let row = input::case(case)?;
        let wording = input::wording(case.prompt.as_deref())?;
        let file = ModelFile::open(&model.choice.path()?)?;
        let prompted = {
            let text = file.text()?;
            let preparer = Preparer::new(&text, &wording, model.max_tokens, file.context(), row.options().len())?;
            preparer.prompt(&row).map_err(Failure::input)?
        };
        let reference = if with_hash { runner::model_ref(&file)? } else { file.reference() };
        let runner = Runner::load(&file, model)?;
        let facts = Facts { prompt_version: wording.version.clone(), model: reference, config: runner.config.clone() };
        Ok(Case { row, wording, prompted, facts, runner })
    }

    /// Decides the row by one forward pass.
    pub fn decide(&mut self) -> Result<ResultRow, Failure> {
        let start = Instant::now();
        let reading = self.runner.read(&self.prompted)?;
        let seconds = self.prompted.prepare_seconds + start.elapsed().as_secs_f64();
        result_row(&self.prompted, &reading, &self.facts, seconds)
    }
}

pub fn run(args: &AskArgs) -> Result<Exit, Failure> {
    let mut case = Case::load(&args.model, &args.case, args.json)?;
    case.runner.mass = args.mass;
    let result = case.decide()?;
    if args.json {
        print_json(&result)?;
        return Ok(Exit::Done);
    }
    let canvas = Canvas::of_stdout();
    print(&format!(
        "{}\n\n{}\n{}",
        safe(case.row.question()),
        view::bars(&view::labels(&case.row), &result.probabilities, canvas),
        view::footer(&result, canvas)
    ))?;
    Ok(Exit::Done)
}
