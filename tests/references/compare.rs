//! How far the engine may be from the reference, and saying where it is not.

use crate::program::LogitsLine;
use crate::reference::{Reference, Row};

/// float32 against float64: rounding alone stays below 1e-4 on every reference here.
pub const TOLERANCE: f64 = 1e-3;

/// Everything that one line gets wrong, empty when it is right.
pub fn faults(row: &Row, line: &LogitsLine, tolerance: f64) -> Vec<String> {
    let mut faults = Vec::new();
    let got = if row.labels.is_some() { Some(&line.labels) } else { line.full.as_ref() };
    match got {
        None => faults.push("no logits".to_owned()),
        Some(got) if got.len() != row.expected.len() => {
            faults.push(format!("{} logits, {} expected", got.len(), row.expected.len()));
        }
        Some(got) => {
            let (at, worst) = greatest_difference(got, &row.expected);
            if !within(worst, tolerance) {
                faults.push(format!("logit {at} is {} and not {} (off by {worst:.2e})", got[at], row.expected[at]));
            }
            if row.labels.is_none() {
                let expected = log_sum_exp(&row.expected);
                if line.lse.is_some_and(|lse| !within(lse - expected, tolerance)) {
                    faults.push(format!("log-sum-exp is {:?} and not {expected}", line.lse));
                }
            }
        }
    }
    if line.argmax != Some(row.argmax) {
        faults.push(format!("argmax is {:?} and not {}", line.argmax, row.argmax));
    }
    for (rank, (&(id, logit), &(got_id, got))) in row.top.iter().zip(&line.top).enumerate() {
        // Neighbours in the ranking may change places when they are closer than the tolerance.
        let near = row.top.iter().any(|&(other, value)| other == got_id && within(value - logit, tolerance));
        if !within(got - logit, tolerance) || (id != got_id && !near) {
            faults.push(format!("top {rank} is {got_id} at {got} and not {id} at {logit}"));
        }
    }
    faults
}

/// Compares all rows of a reference with the program's lines and fails with every fault found.
pub fn check(name: &str, reference: &Reference, lines: &[LogitsLine], tolerance: f64) {
    let mut report = Vec::new();
    let mut worst = 0f64;
    for (row, line) in reference.rows.iter().zip(lines) {
        for fault in faults(row, line, tolerance) {
            report.push(format!("{name}, row {} ({} tokens): {fault}", row.id, row.tokens.len()));
        }
        if let Some(got) = if row.labels.is_some() { Some(&line.labels) } else { line.full.as_ref() } {
            worst = worst.max(greatest_difference(got, &row.expected).1);
        }
    }
    assert!(report.is_empty(), "\n{}\n", report.join("\n"));
    println!("{name}: {} rows, greatest difference {worst:.2e}", lines.len());
}

/// A NaN is within no tolerance.
fn within(difference: f64, tolerance: f64) -> bool {
    difference.abs() <= tolerance
}

/// Where two lists differ most, and by how much; a value that is not finite differs infinitely.
fn greatest_difference(got: &[f64], expected: &[f64]) -> (usize, f64) {
    let difference = |(a, b): (&f64, &f64)| if a.is_finite() { (a - b).abs() } else { f64::INFINITY };
    let differences = got.iter().zip(expected).map(difference).enumerate();
    differences.fold((0, 0.0), |most, next| if next.1 > most.1 { next } else { most })
}

fn log_sum_exp(logits: &[f64]) -> f64 {
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    most + logits.iter().map(|l| (l - most).exp()).sum::<f64>().ln()
}

mod tests {
    use super::*;

    fn row(labels: bool) -> Row {
        Row {
            id: "x".into(),
            tokens: vec![1, 2],
            labels: labels.then(|| vec![7, 9]),
            expected: vec![1.0, 2.5],
            argmax: 9,
            top: if labels { vec![(9, 2.5), (7, 1.0)] } else { Vec::new() },
            text: None,
        }
    }

    fn line(text: &str) -> LogitsLine {
        LogitsLine::read(text)
    }

    #[test]
    fn accepts_what_is_right() {
        let lse = log_sum_exp(&[1.0, 2.5]);
        let full = line(&format!(r#"{{"n":2,"labels":[],"top":[],"lse":{lse},"argmax":9,"logits":[1.0,2.4999]}}"#));
        assert_eq!(faults(&row(false), &full, TOLERANCE), Vec::<String>::new());
        let labels = line(r#"{"n":2,"labels":[1.0,2.5],"top":[[9,2.5],[7,1.0]],"lse":null,"argmax":9}"#);
        assert_eq!(faults(&row(true), &labels, TOLERANCE), Vec::<String>::new());
    }

    #[test]
    fn sees_what_is_wrong() {
        let wrong = [
            (false, r#"{"n":2,"argmax":9,"logits":[1.0,2.502]}"#, "off by"),
            (false, r#"{"n":2,"argmax":9,"logits":[1.0]}"#, "1 logits"),
            (false, r#"{"n":2,"argmax":9}"#, "no logits"),
            (false, r#"{"n":2,"argmax":8,"logits":[1.0,2.5]}"#, "argmax"),
            (false, r#"{"n":2,"argmax":9,"lse":3.0,"logits":[1.0,2.5]}"#, "log-sum-exp"),
            (true, r#"{"n":2,"argmax":9,"labels":[2.5,1.0]}"#, "logit 0"),
            (true, r#"{"n":2,"argmax":9,"labels":[1.0,2.5],"top":[[7,2.5],[9,1.0]]}"#, "top 0"),
        ];
        for (labels, text, expected) in wrong {
            let found = faults(&row(labels), &line(text), TOLERANCE).join("; ");
            assert!(found.contains(expected), "{text}: {found:?}");
        }
    }

    #[test]
    fn not_a_number_is_beyond_every_tolerance() {
        let mut bad = line(r#"{"n":2,"argmax":9,"logits":[1.0,2.5]}"#);
        bad.full = Some(vec![1.0, f64::NAN]);
        assert!(!faults(&row(false), &bad, TOLERANCE).is_empty());
    }
}
