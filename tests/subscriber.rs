//! A Rust program's own subscriber of `tracing` gets the events of the library.
//!
//! One test, since the subscriber belongs to the process.

use std::{
    fmt::{Debug, Write},
    sync::{Arc, Mutex},
    thread,
};
use tbccl::{
    Communicator, Config, ReduceOp,
    events::{
        set_handler, target,
        tracing::{
            Event, Level, Metadata, Subscriber,
            field::{Field, Visit},
            span,
            subscriber::set_global_default,
        },
        warning,
    },
};

/// A subscriber that keeps events as text.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<String>>>);

/// The fields of an event, as text.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl Subscriber for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= &Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().target().to_owned());
        event.record(&mut text);
        self.0.lock().expect("no panics").push(text.0);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn the_subscriber_of_a_program_gets_the_facts_and_each_algorithm_once() {
    let kept = Kept::default();
    set_global_default(kept.clone()).expect("the first one");
    // The options for a log change nothing.
    let vars = [("TBCCL_LOG", "trace"), ("TBCCL_SLAB_BYTES", "1M")];
    let vars = vars.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let comms = Communicator::local(2, &Config::from_vars(vars).expect("valid")).expect("memory for a test");
    thread::scope(|scope| {
        for mut comm in comms {
            scope.spawn(move || {
                for _ in 0..3 {
                    comm.all_reduce_in_place(&mut [1.0f32; 64], ReduceOp::Sum).expect("done");
                }
            });
        }
    });
    assert!(!set_handler(None), "the subscriber is the program's");
    warning!(target::INIT, Some(7), "a warning");
    let kept = kept.0.lock().expect("no panics");
    for rank in 0..2 {
        let count = |target: &str, fact: &str| {
            let end = format!("rank={rank}");
            let is_meant = |text: &&String| text.starts_with(target) && text.ends_with(&end);
            kept.iter().filter(is_meant).filter(|text| text.contains(fact)).count()
        };
        assert_eq!(count(target::INIT, &format!("rank {rank} of 2 on")), 1, "{kept:#?}");
        assert_eq!(count(target::INIT, "TBCCL_SLAB_BYTES=1048576"), 1, "{kept:#?}");
        assert_eq!(count(target::SELECTION, "all_reduce of 256 B per block"), 1, "{kept:#?}");
        assert_eq!(count(target::INIT, "communicator closed: 3 of 3 calls done"), 1, "{kept:#?}");
    }
    let warnings = kept.iter().filter(|text| text.contains("message=a warning") && text.contains("rank=7"));
    assert_eq!(warnings.count(), 1, "{kept:#?}");
}
