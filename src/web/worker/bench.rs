//! The benches on the loaded model, told step by step.

use super::job::{Job, now};
use super::session::{Loaded, fault};
use crate::bench::suite::{self, Measured, News, Sizes};
use crate::web::protocol::{Event, Fault};

/// Words about one measurement are at least so many milliseconds apart: more often nobody reads them, and the page would be busy.
const WORDS_MS: f64 = 200.0;

/// Measures everything that the model's token budget has room for.
pub async fn run(loaded: &mut Loaded, sizes: Sizes, job: &Job) -> Result<Vec<Measured>, Fault> {
    let sizes = sizes.within(loaded.engine.max_tokens() as usize);
    let total = sizes.count() as u32;
    let mut last = (usize::MAX, 0.0);
    let mut hear = |news: News<'_>| {
        match news {
            News::Doing(index, what) if index != last.0 || now() - last.1 > WORDS_MS => {
                last = (index, now());
                job.post(Event::Measuring { index: index as u32, total, what: what.into() });
            }
            News::Doing(..) => {}
            News::Done(measured) => job.post(Event::Measured(Box::new(measured.clone()))),
        }
        job.flow()
    };
    suite::run(&mut loaded.engine, &sizes, &mut hear).await.map_err(|error| fault(&error))
}
