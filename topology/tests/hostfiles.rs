//! Hostfiles in the tree: the samples that users start from, and what the fuzzer starts from or has found.

use std::{fs, path::Path};
use topology::Hostfile;

#[test]
fn samples_are_good() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/hosts");
    let mut seen = 0;
    for entry in fs::read_dir(folder).expect("samples") {
        let path = entry.expect("readable").path();
        let bytes = fs::read(&path).expect("readable");
        let file = Hostfile::parse(&bytes).unwrap_or_else(|e| panic!("{}:{e}", path.display()));
        assert!(file.hosts.len() > 1, "{}", path.display());
        seen += 1;
    }
    assert!(seen >= 4, "{seen} samples");
}

/// Replays the fuzzer's corpus: no input may panic, and error positions lie within the text.
#[test]
fn the_corpus_is_replayed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/hostfile");
    let (mut good, mut bad) = (0, 0);
    for entry in fs::read_dir(folder).expect("a corpus") {
        match Hostfile::parse(&fs::read(entry.expect("readable").path()).expect("readable")) {
            Ok(_) => good += 1,
            Err(_) => bad += 1,
        }
    }
    assert!(good >= 4 && bad >= 15, "{good} good and {bad} bad files");
}
