//! Work that runs in steps, so that clicks are answered in between.

use super::ask::{decision, input, on_state, orderings, prepared};
use super::job::{Job, cancelled, now};
use super::session::{Loaded, Session, fault};
use crate::decision::Orderings;
use crate::engine::{Decisions, EngineError, RunGroup, SharedAsk, SharedRun};
use crate::web::protocol::{Answer, Command, Decision, Event, Fault, FaultKind, TokenReading};
use std::ops::ControlFlow;

/// Work that has begun.
pub struct Steps {
    work: Work,
    /// Seconds of work that no decision has been charged with yet.
    spent: f64,
    /// The load that it belongs to.
    pub load: u32,
}

enum Work {
    Decisions { decisions: Box<Decisions>, orderings: Option<Orderings>, out: Vec<Option<Decision>> },
    Tokens(Box<SharedRun>),
}

impl Steps {
    /// Checks a command and makes its prompts; nothing is computed yet.
    pub fn new(loaded: &Loaded, command: Command, load: u32) -> Result<Self, Fault> {
        let start = now();
        let work = match command {
            Command::Decide { rows, orderings: named, mass, keep } => {
                let kept = if keep { Some(state_of(loaded, &rows)?) } else { None };
                decisions(loaded, &rows, named.as_deref(), kept.as_deref(), mass)?
            }
            Command::Ask { id, questions, orderings: named } => {
                let (state, tokens) = loaded.state(id)?;
                let rows: Vec<String> = questions.iter().map(|question| on_state(question, state)).collect::<Result<_, _>>()?;
                decisions(loaded, &rows, named.as_deref(), Some(tokens), false)?
            }
            Command::Read { groups, labels } => {
                let groups = groups.into_iter().map(|g| RunGroup { prompts: g.prompts, prefix: g.prefix as usize }).collect();
                Work::Tokens(Box::new(SharedRun::of_groups(groups, SharedAsk { labels, stats: false, prefix: 0 })))
            }
            _ => return Err(Fault::new(FaultKind::Crash, "this request does not run in steps")),
        };
        Ok(Self { work, spent: (now() - start) / 1e3, load })
    }

    fn progress(&self) -> (usize, usize) {
        match &self.work {
            Work::Decisions { decisions, .. } => decisions.progress(),
            Work::Tokens(run) => (run.done(), run.total()),
        }
    }
}

/// The tokens that every prompt on the first row's state begins with.
fn state_of(loaded: &Loaded, rows: &[String]) -> Result<Vec<u32>, Fault> {
    let row = rows.first().ok_or_else(|| input("there is nothing to decide"))?;
    loaded.tokens(prepared(loaded, row, None)?.row.state())
}

fn decisions(loaded: &Loaded, rows: &[String], named: Option<&str>, held: Option<&[u32]>, mass: bool) -> Result<Work, Fault> {
    let orderings = orderings(named)?;
    if rows.is_empty() {
        return Err(input("there is nothing to decide"));
    }
    let rows = rows.iter().map(|row| prepared(loaded, row, orderings)).collect::<Result<Vec<_>, _>>()?;
    let out = vec![None; rows.len()];
    Ok(Work::Decisions { decisions: Box::new(Decisions::new(rows, held, mass)), orderings, out })
}

impl Session {
    /// Begins work of the batch class.
    pub fn begin(&mut self, command: Command) -> Result<Steps, Fault> {
        let load = self.load;
        Steps::new(self.loaded()?, command, load)
    }

    /// Runs the next step; the answer when it was the last one. `urgent` tells whether somebody waits: the step is then given up where
    /// that loses nothing but a little time, and can be tried again.
    pub async fn step(&mut self, job: &Job, steps: &mut Steps, urgent: &dyn Fn() -> bool) -> Result<Option<Answer>, Fault> {
        let result = self.try_step(job, steps, urgent).await;
        self.settle(result)
    }

    async fn try_step(&mut self, job: &Job, steps: &mut Steps, urgent: &dyn Fn() -> bool) -> Result<Option<Answer>, Fault> {
        job.check()?;
        if steps.load != self.load {
            return Err(Fault::new(FaultKind::NoModel, "The model was replaced before the batch was done."));
        }
        let loaded = self.loaded()?;
        let mut hear = || if job.is_cancelled() || urgent() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let start = now();
        let spent = steps.spent;
        let mut charged = false;
        let stepped = match &mut steps.work {
            Work::Tokens(run) => run.step(&mut loaded.engine, &mut hear).await.map(|_| ()),
            Work::Decisions { decisions, orderings, out } => match decisions.step(&mut loaded.engine, &mut hear).await {
                Ok(decided) => {
                    // What has been done since the last ones, in equal parts: together, decisions take what the clock says.
                    let total = (spent + (now() - start) / 1e3) / decided.len().max(1) as f64;
                    charged = !decided.is_empty();
                    for (i, decided) in decided {
                        let decision = decision(loaded, &decisions.rows()[i], &decided, *orderings, total)?;
                        job.post(Event::Decided { index: i as u32, decision: Box::new(decision.clone()) });
                        out[i] = Some(decision);
                    }
                    Ok(())
                }
                Err(error) => Err(error),
            },
        };
        let worked = (now() - start) / 1e3;
        steps.spent = if charged { 0.0 } else { spent + worked };
        match stepped {
            Err(EngineError::Cancelled) if !job.is_cancelled() => return Ok(None),
            Err(EngineError::Cancelled) => return Err(cancelled()),
            Err(error) => return Err(fault(&error)),
            Ok(()) => {}
        }
        let (done, total) = steps.progress();
        if done < total {
            job.post(Event::Stepped { done: done as u32, total: total as u32 });
            return Ok(None);
        }
        Ok(Some(match &mut steps.work {
            Work::Tokens(run) => {
                let read = run.read();
                let logits = read.readings.iter().map(|group| group.iter().map(|reading| reading.labels.clone()).collect()).collect();
                let prefixes = read.prefixes.iter().map(|prefix| (prefix.tokens, prefix.reused)).collect();
                Answer::Read(TokenReading { logits, prefixes, seconds: steps.spent })
            }
            Work::Decisions { out, .. } => Answer::Decided(std::mem::take(out).into_iter().flatten().collect()),
        }))
    }
}
