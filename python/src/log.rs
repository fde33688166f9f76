//! The queue of events for Python's `logging`.
//!
//! Any thread of the library may raise an event, also one that holds a lock which a thread with the GIL waits
//! for. So the handler takes no GIL: it puts events into a queue, which a thread of Python empties
//! (`tbccl._log`). The queue is bounded; the oldest events are dropped, and counted.

use pyo3::prelude::*;
use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tbccl::events::{LevelFilter, Record, set_handler, tracing::Level};

/// Maximum number of queued events.
const CAPACITY: usize = 10_000;

struct Queue {
    records: VecDeque<Record>,
    dropped: u64,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { records: VecDeque::new(), dropped: 0 });
static ADDED: Condvar = Condvar::new();

fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An event for Python: level of `logging`, target, rank, message.
type Event = (u8, &'static str, Option<u32>, String);

/// Levels of Python's `logging`; `trace` is half of its `DEBUG`.
fn number(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

/// Queues all events from a level of Python's `logging` on. Returns whether the library allows it.
#[pyfunction]
pub(crate) fn queue_events(level: u32) -> bool {
    let filter = match level {
        0..=5 => LevelFilter::TRACE,
        6..=10 => LevelFilter::DEBUG,
        11..=20 => LevelFilter::INFO,
        21..=30 => LevelFilter::WARN,
        31..=40 => LevelFilter::ERROR,
        _ => LevelFilter::OFF,
    };
    let add = |record: &Record| {
        let mut queue = queue();
        if queue.records.len() == CAPACITY {
            queue.records.pop_front();
            queue.dropped += 1;
        }
        queue.records.push_back(record.clone());
        drop(queue);
        ADDED.notify_one();
    };
    set_handler(Some((filter, Arc::new(add))))
}

/// Takes all queued events. Waits up to `timeout` seconds for one, without the GIL.
#[pyfunction]
pub(crate) fn take_events(py: Python<'_>, timeout: f64) -> Vec<Event> {
    let limit = Duration::try_from_secs_f64(timeout).unwrap_or_default();
    let (records, dropped) = py.detach(|| {
        let waited = ADDED.wait_timeout_while(queue(), limit, |queue| queue.records.is_empty());
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut queue.records), std::mem::take(&mut queue.dropped))
    });
    let lost = (dropped > 0).then(|| (30, "tbccl", None, format!("{dropped} events were dropped")));
    let event = |record: Record| (number(record.level), record.target, record.rank, record.text());
    lost.into_iter().chain(records.into_iter().map(event)).collect()
}
