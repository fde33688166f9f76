//! Files and links below a folder, by patterns.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Reads a file; `None` if it can't be read. Line ends at its end are left out.
pub(crate) fn read(root: &Path, path: &str) -> Option<String> {
    let bytes = fs::read(root.join(path)).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim_end_matches('\n').to_owned())
}

/// Returns the links that match patterns, each with its target.
pub(crate) fn links(root: &Path, patterns: &[&str]) -> Vec<(String, String)> {
    let target = |path: &String| fs::read_link(root.join(path)).ok();
    let link = |path: String| target(&path).map(|target| (path, target.to_string_lossy().into_owned()));
    patterns.iter().flat_map(|pattern| expand(root, pattern)).filter_map(link).collect()
}

/// Returns the paths below a folder that match a pattern, in which `*` stands for any part of a name.
pub(crate) fn expand(root: &Path, pattern: &str) -> Vec<String> {
    let mut found = vec![PathBuf::new()];
    for part in pattern.split('/') {
        found = found.into_iter().flat_map(|path| step(root, &path, part)).collect();
    }
    found.into_iter().filter_map(|path| path.to_str().map(str::to_owned)).collect()
}

fn step(root: &Path, path: &Path, part: &str) -> Vec<PathBuf> {
    let Some((before, after)) = part.split_once('*') else { return vec![path.join(part)] };
    let entries = fs::read_dir(root.join(path)).into_iter().flatten().flatten();
    let matches = |name: &String| name.starts_with(before) && name.ends_with(after);
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(matches)
        .map(|name| path.join(name))
        .collect()
}
