//! The receiver in a process without a subscriber: log, handler, and messages that nothing receives.
//!
//! One test, since the destinations of events belong to the process.

use events::{
    Filter, Format, LevelFilter, LogOptions, Record, Value, notice, set_handler, set_rank, target,
    tracing::{self, Level, Metadata, Subscriber, info, span, subscriber::with_default},
    warning,
};
use std::{
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

/// A subscriber of the program that counts events.
struct Counting(Arc<AtomicU32>);

impl Subscriber for Counting {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Relaxed);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Returns a handler, and the records that it gets.
fn collector() -> (events::Handler, Arc<Mutex<Vec<Record>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    (Arc::new(move |record: &Record| kept.lock().expect("no panics").push(record.clone())), seen)
}

#[test]
fn events_reach_the_subscriber_of_the_program_or_the_handler_and_the_log() {
    // The program's own subscriber gets all events, and is not replaced.
    let count = Arc::new(AtomicU32::new(0));
    let (handler, seen) = collector();
    with_default(Counting(Arc::clone(&count)), || {
        assert!(!set_handler(Some((LevelFilter::TRACE, Arc::clone(&handler)))));
        warning!(target::INIT, Some(3), "of rank {}", 3);
        info!(target: target::INIT, "more");
    });
    assert_eq!((count.load(Relaxed), seen.lock().expect("no panics").len()), (2, 0));

    // A handler gets events up to its level, with rank and fields.
    assert!(set_handler(Some((LevelFilter::INFO, handler))));
    set_rank(5);
    set_rank(6);
    warning!(target::TCP, Some(3), "of {}", "rank 3");
    info!(target: target::VERBS, device = "en2", port = 1u32, "a device");
    assert!(tracing::enabled!(target: target::VERBS, Level::INFO));
    assert!(!tracing::enabled!(target: target::VERBS, Level::DEBUG));
    tracing::debug!(target: target::VERBS, "too detailed");
    tracing::error!(target: "another_crate", "not ours");
    let found = std::mem::take(&mut *seen.lock().expect("no panics"));
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!((found[0].rank, found[0].level, &*found[0].message), (Some(3), Level::WARN, "of rank 3"));
    assert_eq!((found[1].rank, found[1].target), (Some(5), target::VERBS));
    assert_eq!(found[1].text(), "a device device=en2 port=1");

    // A log has a file per rank, also beside a handler. The first log stays.
    let folder = tempfile::tempdir().expect("a folder");
    let options = |filter: &str, name: &str, format| LogOptions {
        filter: filter.parse::<Filter>().expect("a filter"),
        file: Some(folder.path().join(name)),
        format,
    };
    events::log(options("warn,verbs=debug", "%r.json", Format::Json));
    events::log(options("trace", "other", Format::Text));
    tracing::debug!(target: target::VERBS, device = "en2", "lost\nand \u{1b} found");
    notice!(target::INIT, Some(0), "not in the log, but for the handler");
    warning!(target::INIT, Some(0), "of rank 0");
    let lines = |name: &str| -> Vec<Value> {
        let text = fs::read_to_string(folder.path().join(name)).expect(name);
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let (of_5, of_0) = (lines("5.json"), lines("0.json"));
    assert_eq!((of_5.len(), of_0.len()), (1, 1), "{of_5:?} {of_0:?}");
    assert_eq!(of_5[0]["message"], "lost\nand \u{1b} found");
    assert_eq!((&of_5[0]["level"], &of_5[0]["fields"]["device"]), (&"debug".into(), &"en2".into()));
    assert_eq!((&of_0[0]["rank"], &of_0[0]["target"]), (&0.into(), &target::INIT.into()));
    assert!(!folder.path().join("other").exists());
    assert_eq!(seen.lock().expect("no panics").len(), 2);

    // Without the handler, the log goes on.
    assert!(set_handler(None));
    warning!(target::INIT, Some(0), "again");
    assert_eq!((lines("0.json").len(), seen.lock().expect("no panics").len()), (2, 2));
}
