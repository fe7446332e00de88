//! One decision: read by a forward pass, or written as JSON.

use super::job::{Job, cancelled, now};
use super::session::{Loaded, fault, sentence};
use crate::decision::baseline::{distribution_prompt, parse_distribution};
use crate::decision::result::READOUT_DIRECT;
use crate::decision::{PROBABILITY_STATUS, ResultRow, Row, ServingConfig, Wording, read_rows, readout, sha256_hex};
use crate::engine::Ask;
use crate::text::{ChatPrompt, StreamDecoder, TextError};
use crate::web::protocol::{Decision, Event, Fault, FaultKind, Generation};

/// A row with its prompt, checked up to the answer letters.
pub struct Prepared {
    row: Row,
    version: String,
    prompt: ChatPrompt,
    slots: Vec<u32>,
}

impl Prepared {
    /// Length of the prompt.
    pub fn tokens(&self) -> usize {
        self.prompt.tokens.len()
    }
}

fn input(message: impl std::fmt::Display) -> Fault {
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

/// Renders and encodes a row's prompt and checks its answer letters.
pub fn prepare(loaded: &Loaded, row: &str) -> Result<Prepared, Fault> {
    let row = read_row(row)?;
    let wording = Wording::default();
    let text = loaded.engine.text().map_err(|error| fault(&error))?;
    let prompt = text.chat_prompt(&wording.system, &wording.payload(&row)).map_err(|error| text_fault(&error))?;
    let slots = text.letter_slots(row.options().len()).map_err(|error| text_fault(&error))?;
    text.check_boundary(&prompt, &slots).map_err(|error| text_fault(&error))?;
    Ok(Prepared { row, version: wording.version, prompt, slots })
}

/// Reads a decision off the logits of its answer letters.
pub async fn decide(loaded: &mut Loaded, row: &str) -> Result<Decision, Fault> {
    let start = now();
    let prepared = prepare(loaded, row)?;
    let ask = Ask { labels: prepared.slots.clone(), ..Ask::default() };
    let logits = loaded.engine.logits(&prepared.prompt.tokens, &ask).await.map_err(|error| fault(&error))?;
    let readout = readout(&logits.labels).map_err(|error| Fault::new(FaultKind::Gpu, sentence(&error.to_string())))?;
    let total_seconds = (now() - start) / 1e3;
    let adapter = &loaded.engine.gpu().info().adapter;
    let result = ResultRow {
        id: prepared.row.id().into(),
        option_ids: prepared.row.options().iter().map(|option| option.id.clone()).collect(),
        probabilities: readout.probabilities.clone(),
        option_logits: logits.labels,
        answer_token_ids: prepared.slots,
        input_tokens: prepared.prompt.tokens.len(),
        allowed_token_mass: None,
        full_vocab_argmax_id: None,
        prompt_sha256: sha256_hex(prepared.prompt.text.as_bytes()),
        prompt_version: prepared.version,
        model: loaded.file.clone(),
        serving_config: ServingConfig {
            engine: concat!("semif ", env!("CARGO_PKG_VERSION"), " in a browser").into(),
            precision: loaded.engine.tier().to_string(),
            mode: "direct".into(),
            adapter: adapter.name.clone(),
            backend: adapter.backend.clone(),
            driver: adapter.driver.clone(),
            max_tokens: loaded.engine.max_tokens(),
            system_text: if prepared.prompt.system_folded { "in front of the user text" } else { "own turn" }.into(),
            ..ServingConfig::default()
        },
        readout: READOUT_DIRECT.into(),
        probability_status: PROBABILITY_STATUS.into(),
        forward_seconds: logits.forward_seconds,
        total_seconds,
        ..ResultRow::default()
    };
    Ok(Decision {
        probabilities: readout.probabilities,
        input_tokens: result.input_tokens as u32,
        forward_seconds: result.forward_seconds,
        total_seconds,
        entropy: readout.entropy / std::f64::consts::LN_2,
        margin: readout.margin,
        row: lines(&result).map_err(|error| Fault::new(FaultKind::Crash, error.to_string()))?,
    })
}

/// JSON with one member a line: readable, and short.
fn lines(result: &ResultRow) -> serde_json::Result<String> {
    let serde_json::Value::Object(members) = serde_json::to_value(result)? else { return serde_json::to_string(result) };
    let member = |(key, value): (&String, &serde_json::Value)| format!("  \"{key}\": {value}");
    Ok(format!("{{\n{}\n}}", members.iter().map(member).collect::<Vec<_>>().join(",\n")))
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
    let generation = loaded.engine.generate(&prompt.tokens, room, &ends, &mut on_token).await.map_err(|error| fault(&error))?;
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
