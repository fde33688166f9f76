//! Rules for comments and lines of all sources.

use crate::sources::{files, root, rust_files};

/// Columns of a line, at most.
const COLUMNS: usize = 110;

/// Extensions of the files with such lines.
const SOURCES: [&str; 7] = ["c", "cc", "h", "py", "pyi", "rs", "toml"];

/// Expressions that stand in the place of a noun.
const RIDDLES: [&str; 3] = ["whoever", "so many", "Whose "];

/// First words of documentation that does not begin with its subject.
const FIRST_WORDS: [&str; 6] = ["What", "Who", "Whoever", "Where", "So", "Of"];

/// Returns the text of a comment line, if it is one.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    ["///", "//!", "//"].iter().find_map(|prefix| line.strip_prefix(prefix)).map(str::trim_start)
}

#[test]
fn lines_have_at_most_110_columns() {
    let mut long = Vec::new();
    for (path, text) in &files(root(), &SOURCES) {
        for (number, line) in text.lines().enumerate().filter(|(_, line)| line.chars().count() > COLUMNS) {
            long.push(format!("{path}:{}: {} columns", number + 1, line.chars().count()));
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// Tables and code may be wider.
#[test]
fn prose_of_pages_has_at_most_110_columns() {
    let mut long = Vec::new();
    for (path, text) in &files(root(), &["md"]) {
        let mut is_code = false;
        for (number, line) in text.lines().enumerate() {
            is_code ^= line.trim_start().starts_with("```");
            let is_free = is_code || line.trim_start().starts_with(['|', '#', '<']);
            if !is_free && line.chars().count() > COLUMNS {
                long.push(format!("{path}:{}: {} columns", number + 1, line.chars().count()));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn comments_name_their_subjects() {
    let this = "tests/architecture/prose.rs";
    let mut found = Vec::new();
    for (path, text) in rust_files(root()).iter().filter(|(path, _)| path != this) {
        let mut before = None;
        for (number, line) in text.lines().enumerate() {
            let now = comment(line);
            let first_word = now.and_then(|text| text.split([' ', ',']).next()).unwrap_or_default();
            let begins_so = before.is_none() && line.contains("///") && FIRST_WORDS.contains(&first_word);
            let is_riddle = now.is_some_and(|text| RIDDLES.iter().any(|riddle| text.contains(riddle)));
            if begins_so || is_riddle {
                found.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
            before = now;
        }
    }
    assert!(found.is_empty(), "begin with the noun or the verb:\n{}", found.join("\n"));
}

#[test]
fn ignored_tests_say_how_they_are_run() {
    let attribute = concat!("#[", "ignore");
    let mut found = Vec::new();
    for (path, text) in &rust_files(root()) {
        let ignored = text.lines().filter(|line| line.trim_start().starts_with(attribute));
        found.extend(
            ignored.filter(|line| !line.contains("`make endurance`")).map(|l| format!("{path}: {l}")),
        );
    }
    assert!(found.is_empty(), "nobody runs:\n{}", found.join("\n"));
}
