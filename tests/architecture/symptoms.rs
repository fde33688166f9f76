//! The tests that `docs/symptoms.md` names.

use crate::sources::{files, root};
use std::collections::BTreeSet;

/// Names of the functions of a source.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    let starts = text.match_indices("fn ").map(|(at, _)| at + 3);
    let starts = starts.chain(text.match_indices("def ").map(|(at, _)| at + 4));
    starts.map(|at| text[at..].split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default())
}

#[test]
fn every_symptom_has_a_test_that_exists() {
    let page = std::fs::read_to_string(root().join("docs/symptoms.md")).expect("the page");
    let sources = files(root(), &["rs", "py"]);
    let known: BTreeSet<&str> = sources.iter().flat_map(|(_, text)| functions(text)).collect();
    let rows: Vec<&str> =
        page.lines().filter(|line| line.starts_with("| ") && !line.contains("---")).collect();
    assert_eq!(rows.len(), 41, "a head and forty symptoms");
    for row in &rows[1..] {
        let tests = row.rsplit('|').nth(1).expect("a last column");
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test: {row}");
        for name in names {
            assert!(known.contains(name), "there is no test {name}: {row}");
        }
    }
}
