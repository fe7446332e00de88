//! One decision through the library: `cargo run --release --example decide -- MODEL.gguf`.

use semif::decision::{Choice, Json, Row, Wording, readout};
use semif::engine::{Ask, Engine, LoadOptions, prepare};
use semif::gpu::{Gpu, GpuOptions};
use semif::hub::FileSource;
use std::error::Error;
use std::ops::ControlFlow;

async fn decide(model: &str) -> Result<(), Box<dyn Error>> {
    let gpu = Gpu::open(&GpuOptions::default()).await?;
    let file = FileSource::open(model)?;
    let mut engine = Engine::load(&gpu, &file, &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).await?;

    let options = [("billing", "Billing: charges, refunds, invoices"), ("tech", "Technical support: errors and outages")];
    let options = options.map(|(id, description)| Choice { id: id.into(), description: description.into() });
    let state = Json::String("I was charged twice for March.".into());
    let row = Row::new("r1", state, "Which team should handle this?", options.into()).map_err(|problems| problems.join("; "))?;

    // The prompt's tokens and the token of each answer letter, then their logits after one forward pass.
    let prepared = prepare(engine.text()?, &Wording::default(), row, None)?;
    let ask = Ask { labels: prepared.slots.clone(), ..Ask::default() };
    let logits = engine.logits(&prepared.prompts[0].prompt.tokens, &ask).await?;
    for (option, probability) in prepared.row.options().iter().zip(readout(&logits.labels)?.probabilities) {
        println!("{:8} {:.1} %", option.id, 100.0 * probability);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args().nth(1).ok_or("which model? decide MODEL.gguf")?;
    pollster::block_on(decide(&model))
}
