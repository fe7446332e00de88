//! What an evaluation leaves behind as files: results, a table, charts, and a receipt that says how they came about.

use serde::Serialize;
use serde_json::{Value, json};

use super::set::{Plan, Table};
use crate::decision::result::RefusedRow;
use crate::decision::sha256_hex;
use crate::eval::{Flips, Scores, summary};
use crate::web::protocol::Device;

/// Every result row as the command line writes it, one JSON object a line, model after model.
pub fn results(plan: &Plan) -> String {
    let mut text = String::new();
    for table in &plan.tables {
        for (row, ended) in plan.set.file.rows.iter().zip(&table.results) {
            let line = match ended {
                None => continue,
                Some(Ok(result)) => serde_json::to_string(result),
                Some(Err(error)) => serde_json::to_string(&RefusedRow { id: Some(row.row.id().into()), error: error.clone() }),
            };
            text.push_str(&line.unwrap_or_default());
            text.push('\n');
        }
    }
    text
}

/// One line a row and model.
pub fn csv(plan: &Plan) -> String {
    let models: Vec<_> = plan.tables.iter().map(|table| (table.rung.title.as_str(), table.answered(&plan.set))).collect();
    crate::eval::csv(&models)
}

/// Everything that somebody needs who wants to know where the numbers come from, or to get them again.
pub fn receipt(plan: &Plan, device: Option<&Device>) -> String {
    let set = &plan.set;
    let first = plan.tables.iter().flat_map(|table| &table.results).find_map(|ended| ended.as_ref()?.as_ref().ok());
    let config = first.map(|result| &result.serving_config);
    let receipt = json!({
        "program": concat!("semif ", env!("CARGO_PKG_VERSION")),
        "started": plan.started,
        "written": String::from(js_sys::Date::new_0().to_iso_string()),
        "browser": web_sys::window().and_then(|window| window.navigator().user_agent().ok()),
        "adapter": device.map(|device| json!({
            "name": device.name,
            "detail": device.detail,
            "software": device.software,
            "max_binding_bytes": device.max_binding,
            "max_buffer_bytes": device.max_buffer,
        })),
        "backend": config.map(|config| &config.backend),
        // Browsers keep the driver's version to themselves.
        "driver": config.map(|config| &config.driver).filter(|driver| !driver.is_empty()),
        "rows": {
            "file": set.name,
            "bytes": set.text.len(),
            "sha256": set.sha256,
            "labelled": set.file.rows.len(),
            "refused": set.file.bad.len(),
        },
        "prompt_version": first.map(|result| &result.prompt_version),
        "orders": if plan.orders { "every rotation of the options" } else { "as given" },
        "results_sha256": sha256_hex(results(plan).as_bytes()),
        "models": plan.tables.iter().map(|table| model(plan, table)).collect::<Vec<Value>>(),
    });
    serde_json::to_string_pretty(&receipt).unwrap_or_default() + "\n"
}

fn model(plan: &Plan, table: &Table) -> Value {
    let result = table.results.iter().find_map(|ended| ended.as_ref()?.as_ref().ok());
    let summary = summary(&table.answered(&plan.set));
    json!({
        "title": table.rung.title,
        "file": result.map(|result| &result.model),
        "tier": result.map(|result| &result.serving_config.precision),
        "max_tokens": result.map(|result| result.serving_config.max_tokens),
        "fallbacks": result.map(|result| &result.serving_config.fallbacks),
        "upload_seconds": table.model.as_ref().map(|model| model.upload_seconds),
        "first_run_seconds": table.model.as_ref().and_then(|model| model.warm_up_seconds),
        "rows_done": table.done(),
        "prompts": summary.prompts,
        "seconds": summary.seconds,
        "prompts_a_second": summary.pace(),
        "scores": Numbers::from(&summary.scores),
        "scores_over_all_orders": summary.combined.as_ref().map(Numbers::from),
        "flips": summary.flips.map(|flips| {
            let Flips { rows, flipped, orders, flipped_orders } = flips;
            json!({ "rows": rows, "flipped": flipped, "orders": orders, "flipped_orders": flipped_orders })
        }),
    })
}

#[derive(Serialize)]
struct Numbers {
    rows: usize,
    answered: usize,
    accuracy: f64,
    balanced_accuracy: f64,
    macro_f1: f64,
    nll: f64,
    brier: f64,
    ece: f64,
    aurc: f64,
}

impl From<&Scores> for Numbers {
    fn from(s: &Scores) -> Self {
        let Scores { rows, answered, accuracy, balanced_accuracy, macro_f1, nll, brier, ece, aurc, .. } = *s;
        Self { rows, answered, accuracy, balanced_accuracy, macro_f1, nll, brier, ece, aurc }
    }
}
