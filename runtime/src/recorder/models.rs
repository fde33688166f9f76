//! A model of the ring of entries under a model checker: `make model-deep`.

use super::*;
use transport::sync::model::{Arc, explore_with, thread};

fn record(seq: u64) -> CallRecord {
    CallRecord { count: seq, plan: seq, ..CallRecord::nothing(seq) }
}

/// The third call takes the entry of the first.
#[test]
fn loom_an_entry_is_read_whole_or_not_at_all() {
    explore_with("an entry of the recorder that is written while it is read", 2, || {
        let recorder = Arc::new(Recorder::new(None));
        let reader = Arc::clone(&recorder);
        recorder.begin(&record(1).encode(), 0);
        let other = thread::spawn(move || {
            if let Some(kept) = reader.read(1) {
                assert_eq!(kept.record, record(1), "a torn record");
                assert!(kept.outcome == Outcome::UnderWay || kept.ended.is_some(), "an end without a time");
            }
        });
        recorder.end(1, Outcome::Done, true, || {});
        for seq in 2..=3 {
            recorder.begin(&record(seq).encode(), 0);
            recorder.end(1, Outcome::Done, true, || {});
        }
        other.join().expect("a reader");
        assert_eq!(recorder.read(3).map(|kept| kept.record), Some(record(3)));
    });
}
