//! Source files for the other modules.

use std::{fs, path::Path};

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the Rust files of a folder, with their paths relative to the root.
pub(crate) fn rust_files(folder: &Path) -> Vec<(String, String)> {
    let files = files(folder, &["rs"]);
    assert!(!files.is_empty(), "no Rust files in {}", folder.display());
    files
}

/// Returns the files of a folder with one of these extensions, with their paths relative to the root. Hidden
/// folders and build outputs are left out.
pub(crate) fn files(folder: &Path, extensions: &[&str]) -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in
            fs::read_dir(&folder).expect("a folder of ours").map(|entry| entry.expect("readable").path())
        {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() && !["target", "corpus"].contains(&name) && !name.starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extensions.iter().any(|one| extension == *one))
            {
                files.push((from_root(&path), fs::read_to_string(&path).expect("text")));
            }
        }
    }
    files.sort();
    files
}

pub(crate) fn from_root(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).to_string_lossy().into_owned()
}

/// Returns the source without comments and the contents of strings.
pub(crate) fn code_of(source: &str) -> String {
    let mut code = String::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |at| at + 2)
        } else if rest.starts_with("'\"'") {
            3
        } else if rest.starts_with("r#\"") {
            rest.find("\"#").map_or(rest.len(), |at| at + 2)
        } else if first == '"' {
            string_length(rest)
        } else {
            code.push(first);
            first.len_utf8()
        };
        rest = &rest[skipped..];
    }
    code
}

/// Returns the bytes from a quotation mark to the closing one, both included.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            '"' if !escaped => return at + 1,
            _ => escaped = character == '\\' && !escaped,
        }
    }
    text.len()
}

/// Returns the words of the code in order; all other characters are separators.
pub(crate) fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

#[test]
fn functions_of_vector_instructions_have_no_closure_for_each_register() {
    let names_instructions = |text: &str| ["x86_64::*", "aarch64::*"].iter().any(|all| text.contains(all));
    let found: Vec<String> = files(root(), &["rs"])
        .into_iter()
        .filter(|(path, _)| !path.split('/').any(|part| part.starts_with("tests")))
        .filter(|(_, text)| names_instructions(text) && text.contains("from_fn("))
        .map(|(path, _)| path)
        .collect();
    // In AVX2 each instruction of the checksum was a call: 10 GB/s instead of 54.
    assert_eq!(found, Vec::<String>::new(), "a closure is compiled without the instructions of its function");
}

#[test]
fn the_reader_of_sources_sees_code_only() {
    let code = code_of("a /* unsafe */ b // unsafe\nc \"unsafe \\\" unsafe\" d '\"' e r#\"unsafe\"# f");
    assert_eq!(words(&code).collect::<Vec<_>>(), ["a", "b", "c", "d", "e", "f"]);
}
