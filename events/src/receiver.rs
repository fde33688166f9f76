//! The receiver: the subscriber of processes that have none of their own, with a log and a handler.
//!
//! Neither exists at first. The receiver is installed as the global subscriber when the first of the two is
//! set, and stays then. Where the program has a subscriber, that one receives the events instead.

use crate::{
    LevelFilter, Record,
    output::{LogOptions, Output},
    target,
};
use std::{
    fmt,
    io::{self, Write},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
};
use tracing::{
    Event, Level, Metadata, Subscriber,
    dispatcher::{self, Dispatch},
    span,
    subscriber::{Interest, NoSubscriber},
};

/// A function that receives events, on the threads that raise them. It must not call the library.
pub type Handler = Arc<dyn Fn(&Record) + Send + Sync>;

/// The destinations of events.
struct Destinations {
    log: Option<Arc<Output>>,
    handler: Option<(LevelFilter, Handler)>,
}

static DESTINATIONS: RwLock<Destinations> = RwLock::new(Destinations { log: None, handler: None });

/// The rank of this process; negative if unknown.
static RANK: AtomicI64 = AtomicI64::new(-1);

impl Destinations {
    fn max_level(&self) -> LevelFilter {
        let log = self.log.as_ref().map(|log| log.options.filter.max_level());
        let handler = self.handler.as_ref().map(|(level, _)| *level);
        log.max(handler).unwrap_or(LevelFilter::OFF)
    }

    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        self.log_of(metadata).is_some() || self.handler_of(metadata).is_some()
    }

    fn log_of(&self, metadata: &Metadata<'_>) -> Option<&Arc<Output>> {
        self.log.as_ref().filter(|log| log.options.filter.passes(metadata.target(), metadata.level()))
    }

    fn handler_of(&self, metadata: &Metadata<'_>) -> Option<&Handler> {
        self.handler.as_ref().filter(|(level, _)| metadata.level() <= level).map(|(_, handler)| handler)
    }

    fn is_empty(&self) -> bool {
        self.log.is_none() && self.handler.is_none()
    }
}

/// Returns a copy of a part of the destinations, so that no lock is held while it is used.
fn copied<T>(part: impl FnOnce(&Destinations) -> T) -> T {
    part(&DESTINATIONS.read().unwrap_or_else(PoisonError::into_inner))
}

fn change(change: impl FnOnce(&mut Destinations)) {
    change(&mut DESTINATIONS.write().unwrap_or_else(PoisonError::into_inner));
    // Fails where the program has a subscriber, which receives the events then.
    let _ = dispatcher::set_global_default(Dispatch::new(Receiver));
    tracing::callsite::rebuild_interest_cache();
}

/// Logs events from now on, unless the process has a log already, or a subscriber of its own.
pub fn log(options: LogOptions) {
    if copied(|to| to.log.is_none()) && (is_unheard() || is_ours()) {
        change(|to| to.log = Some(Arc::new(Output::new(options))));
    }
}

/// Passes all events up to a level to a handler from now on; `None` ends that.
///
/// Returns whether this succeeded: it does not if the program has a subscriber of its own, which receives the
/// events.
pub fn set_handler(handler: Option<(LevelFilter, Handler)>) -> bool {
    let is_possible = is_unheard() || is_ours();
    if is_possible {
        change(|to| to.handler = handler);
    }
    is_possible
}

/// Sets the rank of this process, for events that name none. The first rank stays.
pub fn set_rank(rank: u32) {
    let _ = RANK.compare_exchange(-1, rank.into(), Relaxed, Relaxed);
}

fn is_ours() -> bool {
    dispatcher::get_default(Dispatch::is::<Receiver>)
}

/// Whether nothing receives the events of this thread.
fn is_unheard() -> bool {
    dispatcher::get_default(Dispatch::is::<NoSubscriber>) || (is_ours() && copied(Destinations::is_empty))
}

/// Prints a message on stderr if nothing receives events, in one write, since other processes write as well.
#[doc(hidden)]
pub fn print_if_unheard(level: Level, rank: Option<u32>, message: &str) {
    if !is_unheard() {
        return;
    }
    let severity = match level {
        Level::ERROR => "error: ",
        Level::WARN => "warning: ",
        _ => "",
    };
    let rank = rank.map(|rank| format!("rank {rank}: ")).unwrap_or_default();
    let _ = io::stderr().write_all(format!("tbccl: {severity}{rank}{message}\n").as_bytes());
}

/// The subscriber of processes that have none. It has no spans: the library opens none.
struct Receiver;

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}

impl Subscriber for Receiver {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        let is_ours = !metadata.is_span() && metadata.target().starts_with(target::ROOT);
        if is_ours { Interest::sometimes() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        !metadata.is_span() && metadata.target().starts_with(target::ROOT) && copied(|to| to.wants(metadata))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(copied(Destinations::max_level))
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let (log, handler) = copied(|to| (to.log_of(metadata).cloned(), to.handler_of(metadata).cloned()));
        let rank = u32::try_from(RANK.load(Relaxed)).ok();
        let record = Record::new(event, rank);
        if let Some(log) = log {
            log.write(&record);
        }
        if let Some(handler) = handler {
            handler(&record);
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
