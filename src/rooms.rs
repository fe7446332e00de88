//! The table of `docs/architecture.md` is true: a room imports what it may, and all of that.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

type Rooms = BTreeMap<String, BTreeSet<String>>;

fn quoted(cell: &str) -> BTreeSet<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Room and what it may import, as the table has it.
fn table() -> Rooms {
    let text = include_str!("../docs/architecture.md");
    let rows: Vec<Vec<&str>> = text.lines().filter(|l| l.starts_with("| `")).map(|l| l.split(" | ").collect()).collect();
    let name = |row: &[&str]| quoted(row[0]).into_iter().next().unwrap();
    let all: BTreeSet<String> =
        rows.iter().filter(|row| row.len() == 3).map(|row| name(row)).filter(|n| Path::new("src").join(n).is_dir()).collect();
    let allowed = |row: &[&str]| match row[2].trim_end_matches(" |") {
        "nothing of ours" => BTreeSet::new(),
        "everything native" => all.iter().filter(|n| *n != "web").cloned().collect(),
        "everything but `cli`" => all.iter().filter(|n| *n != "cli").cloned().collect(),
        names => quoted(names),
    };
    rows.iter().filter(|row| row.len() == 3 && all.contains(&name(row))).map(|row| (name(row), allowed(row))).collect()
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        match name {
            // Tests may use whatever helps them.
            "tests" | "tests.rs" | "faults.rs" | "fuzz.rs" => {}
            name if name.ends_with("_tests.rs") => {}
            _ if path.is_dir() => files(&path, found),
            _ => found.push(path),
        }
    }
}

/// Rooms that the code of a file names, its tests and comments left out.
fn imported(source: &str) -> BTreeSet<String> {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or(source);
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let names = |line: &str| -> Vec<String> {
        assert!(!line.contains("crate::{"), "one room a line: {line}");
        line.split("crate::").skip(1).map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()).collect()
    };
    lines.flat_map(names).collect()
}

#[test]
fn the_table_is_true() {
    let table = table();
    let rooms: BTreeSet<&str> = include_str!("lib.rs").lines().filter_map(|l| l.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    assert_eq!(table.keys().map(String::as_str).collect::<BTreeSet<_>>(), rooms, "the rooms of lib.rs");
    for (room, allowed) in &table {
        let mut sources = Vec::new();
        files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(room), &mut sources);
        let mut found: BTreeSet<String> = sources.iter().flat_map(|path| imported(&std::fs::read_to_string(path).unwrap())).collect();
        found.retain(|name| name != room && table.contains_key(name));
        let open = matches!(&room[..], "cli" | "web");
        assert!(found.is_subset(allowed) && (open || found == *allowed), "{room} imports {found:?}, the table has {allowed:?}");
    }
}

#[test]
fn comments_and_tests_are_left_out() {
    let source =
        "//! [`crate::hub`]\nuse crate::gpu::Gpu;\nfn f() { crate::text::g() }\n#[cfg(test)]\nmod tests {\n    use crate::cli::x;\n}\n";
    assert_eq!(imported(source), ["gpu", "text"].map(str::to_owned).into());
}
