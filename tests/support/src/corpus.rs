//! The inputs that fuzzing has found, replayed by plain tests.

use std::{fs, path::Path};

/// Calls the entry point of a fuzz target with each input of its corpus; returns the number of inputs.
///
/// # Panics
/// If there is no corpus, or as the entry point does.
pub fn replay(target: &str, mut entry: impl FnMut(&[u8])) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} has no inputs", folder.display());
    for path in &paths {
        // Shown if the entry point panics.
        eprintln!("{}", path.display());
        entry(&fs::read(path).expect("readable"));
    }
    paths.len()
}
