//! From result rows to numbers and tables.

use std::fmt::Write as _;

use super::metrics::{Case, Flips, Scores, flips, scores};
use super::{Labelled, top};
use crate::decision::ResultRow;

/// A labelled row and what became of it; `result` is none where it was refused.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    pub row: &'a Labelled,
    pub result: Option<&'a ResultRow>,
}

impl Answered<'_> {
    /// The row as the metrics see it; with `combined`, what all orders of its options say together.
    pub fn case(&self, combined: bool) -> Case {
        let probabilities = self.result.map(|result| match &result.combined {
            Some(all) if combined => all.probabilities.clone(),
            _ => result.probabilities.clone(),
        });
        Case {
            family: self.row.family.clone(),
            options: self.row.row.options().iter().map(|option| option.id.clone()).collect(),
            label: self.row.label,
            // A result of another row's shape is no answer to this one.
            probabilities: probabilities.filter(|p| p.len() == self.row.row.options().len()),
        }
    }

    /// Probabilities of every order that was read, the given one first, in the row's order of options.
    pub fn orders(&self) -> Vec<Vec<f64>> {
        let Some(result) = self.result else { return Vec::new() };
        let Some(orders) = &result.orderings else { return vec![result.probabilities.clone()] };
        let in_row_order = |order: &crate::decision::OrderReading| {
            let at = |id: &String| order.order.iter().position(|other| other == id).map(|i| order.probabilities[i]);
            result.option_ids.iter().map(at).collect::<Option<Vec<f64>>>()
        };
        orders.iter().filter_map(in_row_order).collect()
    }
}

/// One model on one file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Of the options as given.
    pub scores: Scores,
    /// Of all orders together, where several were read.
    pub combined: Option<Scores>,
    pub flips: Option<Flips>,
    /// Prompts read, and the seconds they took together.
    pub prompts: usize,
    pub seconds: f64,
}

impl Summary {
    /// Prompts read a second; 0 before anything was read.
    pub fn pace(&self) -> f64 {
        if self.seconds > 0.0 { self.prompts as f64 / self.seconds } else { 0.0 }
    }
}

/// Everything the table shows of one model.
pub fn summary(rows: &[Answered<'_>]) -> Summary {
    let cases = |combined: bool| rows.iter().map(|row| row.case(combined)).collect::<Vec<_>>();
    let orders: Vec<Vec<Vec<f64>>> = rows.iter().map(Answered::orders).collect();
    let flips = flips(orders.iter().map(Vec::as_slice));
    let several = flips.rows > 0;
    Summary {
        scores: scores(&cases(false)),
        combined: several.then(|| scores(&cases(true))),
        flips: several.then_some(flips),
        prompts: orders.iter().map(Vec::len).sum(),
        seconds: rows.iter().filter_map(|row| row.result).map(|result| result.total_seconds).sum(),
    }
}

/// One line a row and model, for a spreadsheet. `models` are names with their rows.
pub fn csv(models: &[(&str, Vec<Answered<'_>>)]) -> String {
    let mut text = String::from(
        "model,id,family,label,choice,right,confidence,label_probability,margin,input_tokens,seconds,orders,flipped_orders,probabilities\r\n",
    );
    for (model, rows) in models {
        for answered in rows {
            let case = answered.case(false);
            let label = &case.options[case.label];
            let mut cells = vec![(*model).to_owned(), answered.row.row.id().to_owned(), case.family.clone(), label.clone()];
            match (&case.probabilities, answered.result) {
                (Some(p), Some(result)) => {
                    let choice = top(p);
                    let second = p.iter().enumerate().filter(|(i, _)| *i != choice).map(|(_, p)| *p).fold(0.0, f64::max);
                    let orders = answered.orders();
                    let flipped = orders.iter().filter(|order| top(order) != choice).count();
                    let pairs: Vec<String> = case.options.iter().zip(p).map(|(id, p)| format!("{id}={p}")).collect();
                    cells.extend([
                        case.options[choice].clone(),
                        u8::from(choice == case.label).to_string(),
                        p[choice].to_string(),
                        p[case.label].to_string(),
                        (p[choice] - second).to_string(),
                        result.input_tokens.to_string(),
                        result.total_seconds.to_string(),
                        orders.len().to_string(),
                        flipped.to_string(),
                        pairs.join(" "),
                    ]);
                }
                _ => cells.extend(["", "0", "", "", "", "", "", "", "", ""].map(String::from)),
            }
            let cells: Vec<String> = cells.iter().map(|cell| quoted(cell)).collect();
            let _ = write!(text, "{}\r\n", cells.join(","));
        }
    }
    text
}

/// A cell as RFC 4180 has it.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::read_labelled;
    use super::*;
    use crate::decision::{Combined, OrderReading};

    fn file() -> super::super::LabelledFile {
        let text = r#"{"id": "r,1", "question": "q", "state": "s", "options": [{"id": "a", "description": "x"}, {"id": "b", "description": "y"}], "label": "a", "family": "f \"g\""}
{"id": "r2", "question": "q", "state": "s", "options": [{"id": "a", "description": "x"}, {"id": "b", "description": "y"}], "label": "a"}"#;
        read_labelled(text.as_bytes())
    }

    fn result() -> ResultRow {
        let order = |order: [&str; 2], probabilities: [f64; 2]| OrderReading {
            order: order.map(String::from).to_vec(),
            probabilities: probabilities.to_vec(),
            ..OrderReading::default()
        };
        ResultRow {
            option_ids: vec!["a".into(), "b".into()],
            probabilities: vec![0.25, 0.75],
            input_tokens: 90,
            total_seconds: 0.5,
            orderings: Some(vec![order(["a", "b"], [0.25, 0.75]), order(["b", "a"], [0.125, 0.875])]),
            combined: Some(Combined { probabilities: vec![0.625, 0.375], ..Combined::default() }),
            ..ResultRow::default()
        }
    }

    #[test]
    fn orders_are_put_back_and_counted() {
        let (file, result) = (file(), result());
        let rows = [Answered { row: &file.rows[0], result: Some(&result) }, Answered { row: &file.rows[1], result: None }];
        assert_eq!(rows[0].orders(), [[0.25, 0.75], [0.875, 0.125]]);
        let summary = summary(&rows);
        assert_eq!(summary.flips, Some(Flips { rows: 1, flipped: 1, orders: 1, flipped_orders: 1 }));
        assert_eq!((summary.scores.accuracy, summary.combined.unwrap().accuracy), (0.0, 0.5));
        assert_eq!((summary.prompts, summary.pace()), (2, 4.0));
    }

    #[test]
    fn table_for_a_spreadsheet() {
        let (file, result) = (file(), result());
        let rows = vec![Answered { row: &file.rows[0], result: Some(&result) }, Answered { row: &file.rows[1], result: None }];
        let text = csv(&[("m", rows)]);
        let lines: Vec<&str> = text.split("\r\n").collect();
        assert_eq!(lines[1], r#"m,"r,1","f ""g""",a,b,0,0.75,0.25,0.5,90,0.5,2,1,a=0.25 b=0.75"#);
        assert_eq!(lines[2], "m,r2,,a,,0,,,,,,,,");
        assert_eq!(lines[0].split(',').count(), lines[2].split(',').count());
    }

    #[test]
    fn a_result_of_another_shape_is_no_answer() {
        let (file, mut result) = (file(), result());
        result.probabilities.push(0.0);
        assert_eq!(Answered { row: &file.rows[0], result: Some(&result) }.case(false).probabilities, None);
    }
}
