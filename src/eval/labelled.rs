//! Rows whose right answer is known.

use std::collections::HashSet;

use crate::decision::{BadRow, Entry, Json, Row, read_rows};

/// A valid row with the index of its right option.
#[derive(Clone, Debug, PartialEq)]
pub struct Labelled {
    pub row: Row,
    /// Index into the row's options.
    pub label: usize,
    /// What kind of case it is; empty where the row does not say. Balanced accuracy is averaged over families.
    pub family: String,
}

/// A labelled file: what can be evaluated and what cannot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabelledFile {
    pub rows: Vec<Labelled>,
    pub bad: Vec<BadRow>,
}

impl LabelledFile {
    /// Names of the families, in their order of first appearance.
    pub fn families(&self) -> Vec<&str> {
        let mut seen = HashSet::new();
        self.rows.iter().map(|row| row.family.as_str()).filter(|family| seen.insert(*family)).collect()
    }
}

/// Reads JSON Lines of rows with a `label` (the id of the right option) and perhaps a `family`. A row without a label, or with one
/// that none of its options has, is refused like any other bad row.
pub fn read_labelled(bytes: &[u8]) -> LabelledFile {
    let mut file = LabelledFile::default();
    for entry in read_rows(bytes).entries {
        match entry {
            Entry::Bad(bad) => file.bad.push(bad),
            Entry::Row(row) => match label_of(&row) {
                Ok((label, family)) => file.rows.push(Labelled { row, label, family }),
                Err(problem) => file.bad.push(BadRow { line: row.line(), id: Some(row.id().to_owned()), problems: vec![problem] }),
            },
        }
    }
    file
}

fn label_of(row: &Row) -> Result<(usize, String), String> {
    let member = |key: &str| row.extra().iter().find(|(name, _)| name == key).map(|(_, value)| value);
    let label = match member("label") {
        Some(Json::String(label)) => label,
        Some(other) => return Err(format!("`label` must be the id of an option, this is {}", other.kind())),
        None => return Err("`label` is missing: the id of the right option".to_owned()),
    };
    let Some(index) = row.options().iter().position(|option| option.id == *label) else {
        return Err(format!("`label` is {}, which none of the options is called", Json::from(label.as_str())));
    };
    let family = match member("family") {
        Some(Json::String(family)) => family.clone(),
        _ => String::new(),
    };
    Ok((index, family))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_families_and_what_is_refused() {
        let options = r#""options": [{"id": "a", "description": "x"}, {"id": "b", "description": "y"}]"#;
        let row = |id: &str, rest: &str| format!(r#"{{"id": "{id}", "question": "q", "state": "s", {options}{rest}}}"#);
        let text = [
            row("1", r#", "label": "b", "family": "f""#),
            row("2", r#", "label": "a""#),
            row("3", r#", "label": "c""#),
            row("4", ""),
            row("5", r#", "label": 1"#),
            "{".to_owned(),
        ]
        .join("\n");
        let file = read_labelled(text.as_bytes());
        let found: Vec<_> = file.rows.iter().map(|row| (row.row.id(), row.label, row.family.as_str())).collect();
        assert_eq!(found, [("1", 1, "f"), ("2", 0, "")]);
        assert_eq!(file.families(), ["f", ""]);
        let bad: Vec<_> = file.bad.iter().map(|bad| bad.line).collect();
        assert_eq!(bad, [3, 4, 5, 6]);
        assert!(file.bad[0].to_string().contains("none of the options is called"), "{}", file.bad[0]);
        assert!(file.bad[1].to_string().contains("`label` is missing"));
    }

    #[test]
    fn the_examples_are_labelled() {
        let file = read_labelled(include_bytes!("../../assets/evaluation-rows.jsonl"));
        assert!(file.bad.is_empty() && file.families().len() == 6 && file.rows.len() == 24);
    }
}
