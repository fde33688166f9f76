//! Counters, audit and log lines of rejected connections.
//!
//! Every rejection is counted, written to the audit, and raises a warning. The number of warnings in an
//! interval is limited, since any program that can connect could otherwise fill a disk with them.

use events::{Occurrence, audit, flush_audit, target, warning};
use std::{
    fmt::Display,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Maximum number of lines in an [`INTERVAL`].
const MAX_LINES: u32 = 5;

/// Interval of the limit.
const INTERVAL: Duration = Duration::from_secs(10);

/// Counters of rejected connections since the rendezvous was opened.
#[derive(Debug, Default)]
pub(super) struct RejectionCounters {
    /// Connections that did not prove in time that they belong to the job.
    pub(super) strangers: AtomicU64,
    /// Ranks that were refused or violated the protocol.
    pub(super) ranks: AtomicU64,
}

/// Log of rejected connections.
#[derive(Debug)]
pub(super) struct RejectionLog {
    /// Start of the current interval, and the numbers of logged and suppressed lines in it.
    interval_start: Instant,
    lines: u32,
    suppressed: u64,
}

impl RejectionLog {
    pub(super) fn new(now: Instant) -> RejectionLog {
        RejectionLog { interval_start: now, lines: 0, suppressed: 0 }
    }

    /// Counts, audits and logs a rejection.
    pub(super) fn record(
        &mut self,
        (what, counter): (Occurrence, &AtomicU64),
        who: &dyn Display,
        why: &dyn Display,
        now: Instant,
    ) {
        counter.fetch_add(1, Relaxed);
        audit(what, &who.to_string(), &[("why", why.to_string().into())]);
        self.tick(now);
        if self.lines == MAX_LINES {
            self.suppressed += 1;
            return;
        }
        self.lines += 1;
        warning!(target::BOOTSTRAP, None, "rendezvous: refused {who}: {why}");
    }

    /// Ends the interval if it has expired.
    pub(super) fn tick(&mut self, now: Instant) {
        if now.saturating_duration_since(self.interval_start) < INTERVAL {
            return;
        }
        self.summarize();
        (self.interval_start, self.lines) = (now, 0);
    }

    /// Logs the number of suppressed lines.
    pub(super) fn summarize(&mut self) {
        if self.suppressed > 0 {
            warning!(target::BOOTSTRAP, None, "rendezvous: refused {} more in {INTERVAL:?}", self.suppressed);
        }
        self.suppressed = 0;
        flush_audit();
    }

    /// Returns the time of the next summary, if there is one.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        (self.suppressed > 0).then(|| self.interval_start + INTERVAL)
    }
}
