//! Who was turned away, in numbers and in words.
//!
//! Each is counted; of each the owner of the rendezvous gets a line on stderr, but no more than a few in a while, since
//! whoever can connect could otherwise fill a disk with them.

use std::{
    fmt::Display,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// How many lines are written in a [`WHILE`].
const MAX_LINES: u32 = 5;

/// In which time.
const INTERVAL: Duration = Duration::from_secs(10);

/// Who was turned away since the rendezvous was opened.
#[derive(Debug, Default)]
pub(super) struct RejectionCounters {
    /// Connections that did not prove in time that they belong to the job.
    pub(super) strangers: AtomicU64,
    /// Ranks that could not be let in, or that said what no rank says.
    pub(super) ranks: AtomicU64,
}

/// The lines of a rendezvous about those it turned away.
#[derive(Debug)]
pub(super) struct RejectionLog {
    /// When the present while began, and how many lines and refusals there were in it.
    interval_start: Instant,
    lines: u32,
    suppressed: u64,
}

impl RejectionLog {
    pub(super) fn new(now: Instant) -> RejectionLog {
        RejectionLog { interval_start: now, lines: 0, suppressed: 0 }
    }

    /// Says that someone was turned away, and why.
    pub(super) fn record(&mut self, counter: &AtomicU64, who: &dyn Display, why: &dyn Display, now: Instant) {
        counter.fetch_add(1, Relaxed);
        self.tick(now);
        if self.lines == MAX_LINES {
            self.suppressed += 1;
            return;
        }
        self.lines += 1;
        print(&format!("refused {who}: {why}"));
    }

    /// Sums up the while that is over.
    pub(super) fn tick(&mut self, now: Instant) {
        if now.saturating_duration_since(self.interval_start) < INTERVAL {
            return;
        }
        self.summarize();
        (self.interval_start, self.lines) = (now, 0);
    }

    /// Says how many there were beyond those that were written of.
    pub(super) fn summarize(&mut self) {
        if self.suppressed > 0 {
            print(&format!("refused {} more in {INTERVAL:?}", self.suppressed));
        }
        self.suppressed = 0;
    }

    /// When there is something to sum up.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        (self.suppressed > 0).then(|| self.interval_start + INTERVAL)
    }
}

/// In one piece, since others write there as well.
fn print(line: &str) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("tbccl: warning: rendezvous: {line}\n").as_bytes());
}
