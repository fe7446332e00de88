//! `semif ask`: one decision.

use crate::decision::{Orderings, ResultRow, Row, Wording};

use super::args::{AskArgs, ModelArgs};
use super::batch::{Facts, Prompted, Together, decide};
use super::fail::{Exit, Failure, print, print_json, safe};
use super::input;
use super::load::ModelFile;
use super::prepare::Preparer;
use super::profile;
use super::runner::{self, Runner};
use super::schedule::{Mode, how};
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
    pub fn load(model: &ModelArgs, row: Row, wording: Wording, orderings: Option<Orderings>, with_hash: bool) -> Result<Case, Failure> {
        let file = ModelFile::open(&model.choice.path()?)?;
        let prompted = {
            let text = file.text()?;
            let preparer = Preparer::new(&text, &wording, model.max_tokens, file.context(), row.options().len())?.with_orderings(orderings);
            preparer.prompt(&row).map_err(Failure::input)?
        };
        let reference = if with_hash { runner::model_ref(&file)? } else { file.reference() };
        let runner = Runner::load(&file, model)?;
        runner.warn_if_slow();
        let facts =
            Facts { prompt_version: wording.version.clone(), model: reference, config: runner.config.clone(), mode: Mode::Auto, orderings };
        Ok(Case { row, wording, prompted, facts, runner })
    }

    /// Decides the row: one forward pass, or one for each order of the options.
    pub fn decide(&mut self) -> Result<ResultRow, Failure> {
        let rows = vec![&self.prompted];
        let together = Together { how: how(&rows, Mode::Auto), rows };
        let bar = runner::busy(view::reading(self.prompted.prompts.iter().map(|prompt| prompt.tokens.len())));
        let decided = decide(&[together], &self.facts, &mut self.runner);
        bar.finish_and_clear();
        decided.all()?.pop().ok_or_else(|| Failure::other("the model gave no reading"))
    }
}

pub fn run(args: &AskArgs) -> Result<Exit, Failure> {
    runner::check_tier(&args.model)?;
    let row = input::case(&args.case)?;
    let wording = input::wording(args.case.state.prompt.as_deref())?;
    let mut case = Case::load(&args.model, row, wording, args.orderings.orderings()?, args.json)?;
    case.runner.mass = args.mass;
    let result = case.decide()?;
    profile::report(&mut case.runner.engine)?;
    if args.json {
        print_json(&result)?;
        return Ok(Exit::Done);
    }
    let canvas = Canvas::of_stdout();
    print(&format!(
        "{}\n\n{}\n{}",
        safe(case.row.question()),
        view::decision(&view::labels(&case.row), &result, canvas),
        view::footer(&result, canvas)
    ))?;
    Ok(Exit::Done)
}
