//! Evaluating models on this device: labelled rows in, metrics, charts and a receipt out.

mod journal;
mod receipt;
mod run;
mod set;
mod view;

pub use run::Evaluation;
pub use view::EvaluateStep;
