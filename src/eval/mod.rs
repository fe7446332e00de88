//! How good decisions are, held against known answers: metrics, calibration, risk against coverage, flips under rotation, charts and
//! tables. Pure arithmetic in f64, the same natively and in the page.

pub mod chart;
mod labelled;
mod metrics;
mod report;

pub use labelled::{Labelled, LabelledFile, read_labelled};
pub use metrics::{BINS, Bin, Case, Flips, Point, Scores, coverage, flips, reliability, scores};
pub use report::{Answered, Summary, csv, summary};

/// Index of the largest value; the first one wins a tie.
pub fn top(values: &[f64]) -> usize {
    let mut best = 0;
    for (i, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = i;
        }
    }
    best
}
