//! The benches of a loaded model one after the other, as the page runs them: how it was loaded, prompts, generation, a shared state.

use super::shared::{self, Workload};
use super::speed::{self, GenerateReport, PromptReport};
use crate::engine::{Engine, EngineError, LoadTimes};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Prompt lengths in tokens.
    pub prompts: Vec<usize>,
    /// Runs of each that count.
    pub repeat: usize,
    /// Prompt lengths before generation.
    pub generate: Vec<usize>,
    /// Tokens generated.
    pub new: usize,
    /// Runs of each generation that count.
    pub generate_repeat: usize,
    /// Questions on states.
    pub shared: Workload,
}

impl Sizes {
    /// The sizes of `semif bench`, with one state of 21 questions; seconds of work on a GPU.
    pub fn full() -> Self {
        Self {
            prompts: vec![64, 150, 512, 2048, 8000],
            repeat: 5,
            generate: vec![64, 1800],
            new: 128,
            generate_repeat: 3,
            shared: Workload { states: 1, ..Workload::default() },
        }
    }

    /// A little of everything, for software adapters and for a first look.
    pub fn quick() -> Self {
        Self {
            prompts: vec![16, 64],
            repeat: 1,
            generate: vec![16],
            new: 4,
            generate_repeat: 1,
            shared: Workload { states: 1, questions: 3, state_tokens: 64, suffix_tokens: 40, options: 4, rows: None },
        }
    }

    /// Without what a budget of so many tokens has no room for.
    pub fn within(mut self, max_tokens: usize) -> Self {
        self.prompts.retain(|tokens| *tokens <= max_tokens);
        self.generate.retain(|tokens| tokens + self.new <= max_tokens);
        // The texts of a workload come out a little longer than was asked for.
        let room = max_tokens.saturating_sub(self.shared.suffix_tokens + 64).max(1);
        self.shared.state_tokens = self.shared.state_tokens.min(room);
        self
    }

    /// Measurements in all.
    pub fn count(&self) -> usize {
        2 + self.prompts.len() + self.generate.len()
    }
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// How the model came to the GPU when it was loaded.
    Load(LoadTimes),
    /// A prompt length.
    Prompt(PromptReport),
    /// Generation after a prompt length.
    Generate(GenerateReport),
    /// Questions on a state, three ways.
    Shared(shared::Report),
}

/// One measurement, and what else was seen meanwhile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// What was measured.
    #[serde(flatten)]
    pub part: Part,
    /// Seconds of the longest submit: what the drawing of a page waited for at most. 0 where all were too short to tell.
    pub longest_submit: f64,
}

/// What the caller of [`run`] hears.
#[derive(Debug, Clone)]
pub enum News<'a> {
    /// Measurement number so many (from 0) goes on.
    Doing(usize, &'a str),
    /// One more is done.
    Done(&'a Measured),
}

/// Runs everything. `hear` may stop it at any time.
///
/// # Errors
/// GPU faults, lengths over the engine's budget ([`Sizes::within`] leaves them out), [`EngineError::Cancelled`].
pub async fn run(
    engine: &mut Engine,
    sizes: &Sizes,
    hear: &mut dyn FnMut(News<'_>) -> ControlFlow<()>,
) -> Result<Vec<Measured>, EngineError> {
    let mut all = vec![Measured { part: Part::Load(*engine.load_times()), longest_submit: 0.0 }];
    let go = |flow: ControlFlow<()>| if flow.is_break() { Err(EngineError::Cancelled) } else { Ok(()) };
    go(hear(News::Done(&all[0])))?;
    engine.longest_submit();
    for &tokens in &sizes.prompts {
        let at = all.len();
        let what = format!("a prompt of {tokens} tokens");
        go(hear(News::Doing(at, &what)))?;
        let go_on: speed::Go<'_> = &mut || hear(News::Doing(at, &what));
        let mut report = speed::prompt(engine, &[tokens], sizes.repeat, Some(go_on)).await?;
        if let Some(report) = report.pop() {
            all.push(Measured { part: Part::Prompt(report), longest_submit: engine.longest_submit() });
            go(hear(News::Done(&all[at])))?;
        }
    }
    for &tokens in &sizes.generate {
        let at = all.len();
        let what = format!("{} tokens after {tokens}", sizes.new);
        go(hear(News::Doing(at, &what)))?;
        let go_on: speed::Go<'_> = &mut || hear(News::Doing(at, &what));
        let mut report = speed::generate(engine, &[tokens], sizes.new, sizes.generate_repeat, Some(go_on)).await?;
        if let Some(report) = report.pop() {
            all.push(Measured { part: Part::Generate(report), longest_submit: engine.longest_submit() });
            go(hear(News::Done(&all[at])))?;
        }
    }
    let told = |path: &str, read: usize, all: usize| {
        let how = match path {
            "fresh" => "afresh",
            "serial" => "one after the other",
            _ => "together",
        };
        format!("questions on one state, {how}: {read} of {all}")
    };
    let at = all.len();
    let report = shared::run(engine, &sizes.shared, &mut |path, read, all| hear(News::Doing(at, &told(path, read, all)))).await?;
    all.push(Measured { part: Part::Shared(report), longest_submit: engine.longest_submit() });
    go(hear(News::Done(&all[at])))?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::Synthetic;
    use super::*;
    use crate::engine::LoadOptions;
    use crate::gpu::{Gpu, GpuOptions};
    use pollster::block_on;

    #[test]
    fn nothing_is_measured_that_has_no_room() {
        let sizes = Sizes::full().within(2048);
        assert_eq!((sizes.prompts.as_slice(), sizes.generate.as_slice()), (&[64, 150, 512, 2048][..], &[64, 1800][..]));
        let sizes = Sizes::full().within(512);
        assert_eq!((sizes.prompts.len(), sizes.generate.len(), sizes.shared.state_tokens, sizes.count()), (3, 1, 368, 6));
    }

    /// Every part is told of and given, in order; a stop is heard in the middle.
    #[test]
    fn all_parts_in_order_and_a_stop() {
        let gpu = block_on(Gpu::open(&GpuOptions::default())).unwrap();
        let source = Synthetic::new("qwen3-0.6b", Some(1), Some(512)).unwrap();
        let options = LoadOptions { max_tokens: 64, ..LoadOptions::default() };
        let mut engine = block_on(Engine::load(&gpu, &source, &options, &mut |_| ControlFlow::Continue(()))).unwrap();
        let shared = Workload { states: 1, questions: 2, state_tokens: 20, suffix_tokens: 4, options: 4, rows: None };
        let sizes = Sizes { prompts: vec![8, 100], repeat: 1, generate: vec![8], new: 2, generate_repeat: 1, shared }.within(64);
        let mut told = Vec::new();
        let all = block_on(run(&mut engine, &sizes, &mut |news| {
            if let News::Done(measured) = news {
                told.push(measured.clone());
            }
            ControlFlow::Continue(())
        }))
        .unwrap();
        assert_eq!((told.as_slice(), all.len()), (all.as_slice(), sizes.count()));
        let [Part::Load(_), Part::Prompt(prompt), Part::Generate(generated), Part::Shared(report)] =
            [0, 1, 2, 3].map(|i| all[i].part.clone())
        else {
            panic!("{all:#?}")
        };
        assert_eq!((prompt.tokens, generated.prompt, generated.tokens, report.paths.len()), (8, 8, 2, 3));
        assert!(prompt.seconds > 0.0 && generated.tokens_per_second > 0.0 && report.agrees());
        // As the page writes it.
        let json = serde_json::to_value(&all).unwrap();
        assert_eq!((json[1]["prompt"]["tokens"].as_u64(), json[3]["shared"]["paths"][2]["same_bits"].as_bool()), (Some(8), Some(true)));
        let mut steps = 0;
        let stopped = block_on(run(&mut engine, &sizes, &mut |news| {
            steps += usize::from(matches!(news, News::Doing(2, _)));
            if steps > 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }));
        assert!(matches!(stopped, Err(EngineError::Cancelled)), "stopped while it writes");
    }
}
