//! Decisions: read by forward passes, or written as JSON.

use super::job::{Job, cancelled, now};
use super::session::{Loaded, fault, sentence};
use crate::decision::baseline::{distribution_prompt, parse_distribution};
use crate::decision::orderings::{OrderReading, combine, log_probabilities};
use crate::decision::result::READOUT_DIRECT;
use crate::decision::{
    Json, Orderings, PROBABILITY_STATUS, ReadoutError, ResultRow, Row, ServingConfig, Wording, allowed_token_mass, read_rows, readout,
    sha256_hex,
};
use crate::engine::{Decided, OrderedPrompt, Prepared, Reading, prepare};
use crate::text::{StreamDecoder, TextError};
use crate::web::protocol::{Completion, Decision, Event, Fault, FaultKind, Generation};

pub fn input(message: impl std::fmt::Display) -> Fault {
    Fault::new(FaultKind::Input, sentence(&message.to_string()))
}

fn text_fault(error: &TextError) -> Fault {
    input(error)
}

fn read_row(row: &str) -> Result<Row, Fault> {
    let file = read_rows(row.as_bytes());
    if let Some(bad) = file.bad().next() {
        return Err(input(bad.problems.join("; ")));
    }
    file.rows().next().cloned().ok_or_else(|| input("the row is empty"))
}

/// A row of a question on a state that is open.
pub fn on_state(question: &str, state: &Json) -> Result<String, Fault> {
    let Json::Object(mut members) = Json::parse(question).map_err(|error| input(format!("the question is no JSON: {error}")))? else {
        return Err(input("a question is an object with `question` and `options`"));
    };
    if members.iter().any(|(key, _)| key == "state") {
        return Err(input("the question brings a state of its own; the open one is used"));
    }
    if !members.iter().any(|(key, _)| key == "id") {
        members.push(("id".into(), Json::String("question".into())));
    }
    members.push(("state".into(), state.clone()));
    Ok(Json::Object(members).to_string())
}

/// Which orders a request names.
pub fn orderings(name: Option<&str>) -> Result<Option<Orderings>, Fault> {
    Ok(match name {
        None => None,
        Some("rotations") => Some(Orderings::Rotations),
        Some("all") => Some(Orderings::All),
        Some("reverse") => Some(Orderings::Reverse),
        Some(other) => return Err(input(format!("{other:?} is no kind of orderings: there are rotations, all and reverse"))),
    })
}

/// Renders and encodes a row's prompts and checks its answer letters.
pub fn prepared(loaded: &Loaded, row: &str, orderings: Option<Orderings>) -> Result<Prepared, Fault> {
    let text = loaded.engine.text().map_err(|error| fault(&error))?;
    prepare(text, &Wording::default(), read_row(row)?, orderings).map_err(input)
}

fn nonsense(error: &ReadoutError) -> Fault {
    Fault::new(FaultKind::Gpu, sentence(&error.to_string()))
}

/// A row's decision as the page shows it and as the contract has it.
pub fn decision(
    loaded: &Loaded,
    row: &Prepared,
    decided: &Decided,
    orderings: Option<Orderings>,
    total_seconds: f64,
) -> Result<Decision, Fault> {
    let pairs = || row.prompts.iter().zip(&decided.readings);
    let (first, reading) = pairs().next().ok_or_else(|| Fault::new(FaultKind::Crash, "The engine gave no reading."))?;
    let read = readout(&reading.labels).map_err(|error| nonsense(&error))?;
    let option_ids: Vec<String> = row.row.options().iter().map(|option| option.id.clone()).collect();
    let adapter = &loaded.engine.gpu().info().adapter;
    let mut result = ResultRow {
        id: row.row.id().into(),
        probabilities: read.probabilities.clone(),
        option_logits: reading.labels.clone(),
        answer_token_ids: row.slots.clone(),
        input_tokens: first.prompt.tokens.len(),
        allowed_token_mass: reading.lse.map(|all| allowed_token_mass(read.lse, all)),
        full_vocab_argmax_id: reading.argmax,
        prompt_sha256: sha256_hex(first.prompt.text.as_bytes()),
        prompt_version: Wording::default().version,
        model: loaded.file.clone(),
        serving_config: ServingConfig {
            engine: concat!("semif ", env!("CARGO_PKG_VERSION"), " in a browser").into(),
            precision: loaded.engine.tier().to_string(),
            mode: if decided.prefix.tokens > 0 { "shared" } else { "direct" }.into(),
            orderings: orderings.map(Orderings::name),
            adapter: adapter.name.clone(),
            backend: adapter.backend.clone(),
            driver: adapter.driver.clone(),
            max_tokens: loaded.engine.max_tokens(),
            system_text: if first.prompt.system_folded { "in front of the user text" } else { "own turn" }.into(),
            ..ServingConfig::default()
        },
        readout: READOUT_DIRECT.into(),
        probability_status: PROBABILITY_STATUS.into(),
        forward_seconds: decided.forward_seconds,
        total_seconds,
        option_ids,
        ..ResultRow::default()
    };
    if orderings.is_some() {
        let native = |(ordered, reading): (&OrderedPrompt, &Reading)| {
            Ok(OrderReading {
                order: ordered.order.iter().filter_map(|i| result.option_ids.get(*i).cloned()).collect(),
                probabilities: readout(&reading.labels)?.probabilities,
                option_logits: reading.labels.clone(),
                input_tokens: ordered.prompt.tokens.len(),
                prompt_sha256: sha256_hex(ordered.prompt.text.as_bytes()),
                ..OrderReading::default()
            })
        };
        let natives = pairs().map(native).collect::<Result<_, _>>().map_err(|error| nonsense(&error))?;
        let by_option = pairs().map(|(ordered, reading)| log_probabilities(&ordered.order, &reading.labels));
        let by_option: Vec<Vec<f64>> = by_option.collect::<Result<_, _>>().map_err(|error| nonsense(&error))?;
        result.combined = Some(combine(&result.option_ids, &by_option, row.prompts.len()));
        result.orderings = Some(natives);
    }
    Ok(Decision {
        probabilities: read.probabilities,
        input_tokens: result.input_tokens as u32,
        reused_tokens: decided.prefix.reused,
        forward_seconds: result.forward_seconds,
        total_seconds,
        entropy: read.entropy,
        margin: read.margin,
        mass: result.allowed_token_mass,
        combined: result.combined.clone(),
        row: lines(&result).map_err(|error| Fault::new(FaultKind::Crash, error.to_string()))?,
    })
}

/// JSON with one member a line: readable, and short.
fn lines(result: &ResultRow) -> serde_json::Result<String> {
    let serde_json::Value::Object(members) = serde_json::to_value(result)? else { return serde_json::to_string(result) };
    let member = |(key, value): (&String, &serde_json::Value)| format!("  \"{key}\": {value}");
    Ok(format!("{{\n{}\n}}", members.iter().map(member).collect::<Vec<_>>().join(",\n")))
}

/// Greedy decoding behind a token list; it ends at the limit alone.
pub async fn complete(loaded: &mut Loaded, tokens: &[u32], limit: usize, job: &Job) -> Result<Completion, Fault> {
    // The logits are those of the last token.
    if limit == 0 {
        return Err(input("the limit is 0 tokens, and the logits are those of the last one: ask for 1 at least"));
    }
    let engine = &mut loaded.engine;
    let generation =
        engine.generate_with(tokens, limit, &[], &mut || job.flow(), &mut |_| job.flow()).await.map_err(|error| fault(&error))?;
    if generation.cancelled {
        return Err(cancelled());
    }
    let logits = engine.last_logits().await.map_err(|error| fault(&error))?;
    let (first_token_seconds, total_seconds) = (generation.first_token_seconds, generation.total_seconds);
    Ok(Completion { tokens: generation.tokens, logits, first_token_seconds, total_seconds })
}

/// Lets the model write the same distribution as JSON, telling the page every token.
pub async fn generate(loaded: &mut Loaded, row: &str, limit: usize, job: &Job) -> Result<Generation, Fault> {
    let start = now();
    let row = read_row(row)?;
    let baseline = distribution_prompt(&row, &Wording::default());
    let max_tokens = loaded.engine.max_tokens() as usize;
    let text = loaded.engine.shared_text().map_err(|error| fault(&error))?;
    let prompt = text.chat_prompt(&baseline.system, &baseline.user).map_err(|error| text_fault(&error))?;
    let ends = text.eos_ids().to_vec();
    let input_tokens = prompt.tokens.len();
    let room = limit.min(max_tokens.saturating_sub(input_tokens));
    if room == 0 {
        return Err(input(format!("the prompt has {input_tokens} tokens, which leaves no room for an answer within {max_tokens}")));
    }
    let (mut decoder, mut written, mut count) = (StreamDecoder::new(), String::new(), 0);
    let mut on_token = |id: u32| {
        count += 1;
        written.push_str(&decoder.push(&text.tokenizer, id));
        job.post(Event::Written { text: written.clone(), tokens: count, seconds: (now() - start) / 1e3 });
        job.flow()
    };
    let generation = loaded.engine.generate_with(&prompt.tokens, room, &ends, &mut || job.flow(), &mut on_token).await;
    let generation = generation.map_err(|error| fault(&error))?;
    if generation.cancelled {
        return Err(cancelled());
    }
    written.push_str(&decoder.finish());
    let finished = generation.stopped.is_some();
    let (probabilities, problem) = match parse_distribution(&written, &baseline.keys, finished) {
        Ok(probabilities) => (Some(probabilities), None),
        Err(problems) => (None, Some(problems.join("; "))),
    };
    Ok(Generation {
        text: written,
        probabilities,
        problem,
        input_tokens: input_tokens as u32,
        output_tokens: generation.tokens.len() as u32,
        first_token_seconds: generation.first_token_seconds,
        total_seconds: (now() - start) / 1e3,
        finished,
    })
}
