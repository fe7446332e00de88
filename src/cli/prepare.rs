//! Rows into prompts: everything about a row that can be checked without the GPU.

use std::time::Instant;

use crate::decision::result::RefusedRow;
use crate::decision::{Entry, Orderings, Row, RowFile, Wording, sha256_hex};
use crate::text::{TextError, TextModel};

use super::batch::{Planned, Prompt, Prompted};
use super::fail::Failure;

/// Makes prompts from rows.
pub struct Preparer<'a> {
    text: &'a TextModel,
    wording: &'a Wording,
    max_tokens: u32,
    /// Tokens that the model was made for.
    context: Option<u32>,
    orderings: Option<Orderings>,
}

impl<'a> Preparer<'a> {
    /// Checks what concerns the model as a whole: that it has a chat template, and a token for each answer letter up to
    /// the one of `most_options`.
    ///
    /// # Errors
    /// Exit code 3.
    pub fn new(
        text: &'a TextModel,
        wording: &'a Wording,
        max_tokens: u32,
        context: Option<u32>,
        most_options: usize,
    ) -> Result<Preparer<'a>, Failure> {
        text.template().map_err(Failure::model_file)?;
        text.letter_slots(most_options.max(1)).map_err(Failure::model_file)?;
        // A template that fails whatever it is given is the file's fault, not the rows'.
        if let Err(e) = text.chat_prompt(&wording.system, "{}")
            && let TextError::TemplateRefused(_) | TextError::TemplateFailed(_) | TextError::TemplateLimit(_) | TextError::MessageText(_) =
                e
        {
            return Err(Failure::model_file(e));
        }
        Ok(Preparer { text, wording, max_tokens, context, orderings: None })
    }

    /// Prompts in other orders of the options too.
    pub fn with_orderings(self, orderings: Option<Orderings>) -> Preparer<'a> {
        Preparer { orderings, ..self }
    }

    /// The prompts of a row.
    ///
    /// # Errors
    /// Why the row cannot be asked: the template, an answer letter, the budget, too many options for the orderings.
    pub fn prompt(&self, row: &Row) -> Result<Prompted, String> {
        let start = Instant::now();
        let options = row.options().len();
        let slots = self.text.letter_slots(options).map_err(|e| e.to_string())?;
        let orders = match self.orderings {
            Some(orderings) => orderings.orders(options)?,
            None => vec![(0..options).collect()],
        };
        let (mut prompts, mut system_folded) = (Vec::with_capacity(orders.len()), false);
        for order in orders {
            let payload = self.wording.payload(&row.reordered(&order));
            let prompt = self.text.chat_prompt(&self.wording.system, &payload).map_err(|e| e.to_string())?;
            check_budget(prompt.tokens.len(), self.max_tokens)?;
            check_context(prompt.tokens.len(), self.context)?;
            self.text.check_boundary(&prompt, &slots).map_err(|e| e.to_string())?;
            system_folded = prompt.system_folded;
            prompts.push(Prompt { order, tokens: prompt.tokens, sha256: sha256_hex(prompt.text.as_bytes()) });
        }
        Ok(Prompted {
            id: row.id().to_owned(),
            place: row.place(),
            option_ids: row.options().iter().map(|option| option.id.clone()).collect(),
            state_key: sha256_hex(row.state().to_string().as_bytes()),
            prompts,
            slots,
            prepare_seconds: start.elapsed().as_secs_f64(),
            system_folded,
        })
    }

    /// The prompts of all rows, in order; `go_on` is called after each, and `None` comes back when it says no.
    pub fn plan(&self, rows: &RowFile, go_on: &mut dyn FnMut() -> bool) -> Option<Plan> {
        let mut plan = Plan::default();
        for entry in &rows.entries {
            let planned = match entry {
                Entry::Bad(bad) => Planned::Refused(RefusedRow { id: bad.id.clone(), error: bad.to_string() }),
                Entry::Row(row) => match self.prompt(row) {
                    Ok(prompted) => Planned::Ready(prompted),
                    Err(problem) => {
                        let error = format!("{}: {problem}", row.place());
                        plan.refusals.push(error.clone());
                        Planned::Refused(RefusedRow { id: Some(row.id().to_owned()), error })
                    }
                },
            };
            plan.rows.push(planned);
            if !go_on() {
                return None;
            }
        }
        Some(plan)
    }
}

/// What becomes of each row.
#[derive(Debug, Default)]
pub struct Plan {
    pub rows: Vec<Planned>,
    /// Rows in order that still cannot be asked, each with its reason.
    pub refusals: Vec<String>,
}

/// Refuses a prompt that is longer than anything the model was trained on: it would answer, and mean nothing by it.
pub fn check_context(tokens: usize, context: Option<u32>) -> Result<(), String> {
    match context {
        Some(most) if tokens > most as usize => {
            Err(format!("the prompt has {tokens} tokens, but the model was made for at most {most}: shorten the state"))
        }
        _ => Ok(()),
    }
}

/// Refuses a prompt above the budget.
pub fn check_budget(tokens: usize, max_tokens: u32) -> Result<(), String> {
    if tokens > max_tokens as usize {
        return Err(format!(
            "the prompt has {tokens} tokens, {} more than the budget of {max_tokens}: shorten the state, or raise --max-tokens",
            tokens - max_tokens as usize
        ));
    }
    Ok(())
}
