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
const LINES: u32 = 5;

/// In which time.
const WHILE: Duration = Duration::from_secs(10);

/// Who was turned away since the rendezvous was opened.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Connections that did not prove in time that they belong to the job.
    pub(super) strangers: AtomicU64,
    /// Ranks that could not be let in, or that said what no rank says.
    pub(super) ranks: AtomicU64,
}

/// The lines of a rendezvous about those it turned away.
#[derive(Debug)]
pub(super) struct Refusals {
    /// When the present while began, and how many lines and refusals there were in it.
    began: Instant,
    lines: u32,
    silent: u64,
}

impl Refusals {
    pub(super) fn new(now: Instant) -> Refusals {
        Refusals { began: now, lines: 0, silent: 0 }
    }

    /// Says that someone was turned away, and why.
    pub(super) fn say(&mut self, counter: &AtomicU64, who: &dyn Display, why: &dyn Display, now: Instant) {
        counter.fetch_add(1, Relaxed);
        self.tick(now);
        if self.lines == LINES {
            self.silent += 1;
            return;
        }
        self.lines += 1;
        write(&format!("refused {who}: {why}"));
    }

    /// Sums up the while that is over.
    pub(super) fn tick(&mut self, now: Instant) {
        if now.saturating_duration_since(self.began) < WHILE {
            return;
        }
        self.sum_up();
        (self.began, self.lines) = (now, 0);
    }

    /// Says how many there were beyond those that were written of.
    pub(super) fn sum_up(&mut self) {
        if self.silent > 0 {
            write(&format!("refused {} more in {WHILE:?}", self.silent));
        }
        self.silent = 0;
    }

    /// When there is something to sum up.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        (self.silent > 0).then(|| self.began + WHILE)
    }
}

/// In one piece, since others write there as well.
fn write(line: &str) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("tbccl: warning: rendezvous: {line}\n").as_bytes());
}
