//! Pauses of this process: times in which it did not run.
//!
//! The status thread wakes twice a second. A wake-up that comes much later tells that a signal had stopped
//! the process, that its host was asleep, or that it got no core. The report of a hang names the latest
//! pause: by then the process may run again, and look like any other one that waits.
//!
//! A pause is measured half a second too short where it begins right after a wake-up. A forked child has no
//! status thread: it knows of no pause, unless it makes a communicator of its own.

use crate::clock::monotonic_nanos;
use std::{
    process,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// The longest sleep of the status thread.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// Length from which a late wake-up counts. On a busy machine threads wait for tenths of a second for a core.
const SHORTEST: Duration = Duration::from_secs(1);

/// A time in which the process did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Its length.
    pub lasted: Duration,
    /// Time since its end.
    pub ended: Duration,
}

/// Returns the latest pause of this process that lasted a second or more.
#[must_use]
pub fn latest_pause() -> Option<Pause> {
    PAUSES.latest(process::id(), monotonic_nanos())
}

/// The sleeps of the status thread.
pub(super) static PAUSES: Pauses = Pauses::new();

/// Sleeps of one thread, and the latest one that ended late. Times are nanoseconds of the monotonic clock.
#[derive(Debug)]
pub(super) struct Pauses {
    /// The process whose thread sleeps.
    pid: AtomicU32,
    /// Beginning of the sleep under way.
    asleep_since: AtomicU64,
    /// Length and end of the latest pause; both are 0 if there was none.
    lasted: AtomicU64,
    ended: AtomicU64,
}

impl Pauses {
    const fn new() -> Pauses {
        let [asleep_since, lasted, ended] = [const { AtomicU64::new(0) }; 3];
        Pauses { pid: AtomicU32::new(0), asleep_since, lasted, ended }
    }

    /// Begins a sleep of this process's thread.
    pub(super) fn sleep(&self, pid: u32, now: u64) {
        self.asleep_since.store(now, Relaxed);
        self.pid.store(pid, Relaxed);
    }

    /// Ends the sleep.
    pub(super) fn wake(&self, now: u64) {
        if let Some(lasted) = self.excess(now) {
            self.lasted.store(lasted, Relaxed);
            self.ended.store(now, Relaxed);
        }
    }

    /// Ends the thread.
    pub(super) fn end(&self) {
        self.pid.store(0, Relaxed);
    }

    /// Returns the time by which the sleep under way has been too long, if it is a pause.
    fn excess(&self, now: u64) -> Option<u64> {
        let asleep = now.saturating_sub(self.asleep_since.load(Relaxed));
        let excess = asleep.saturating_sub(LONGEST_SLEEP.as_nanos() as u64);
        (excess >= SHORTEST.as_nanos() as u64).then_some(excess)
    }

    /// Returns the latest pause. One that has just ended counts before the thread has woken.
    fn latest(&self, pid: u32, now: u64) -> Option<Pause> {
        if self.pid.load(Relaxed) != pid {
            return None;
        }
        let (lasted, ended) = match self.excess(now) {
            Some(excess) => (excess, now),
            None => (self.lasted.load(Relaxed), self.ended.load(Relaxed)),
        };
        let pause = Pause {
            lasted: Duration::from_nanos(lasted),
            ended: Duration::from_nanos(now.saturating_sub(ended)),
        };
        (lasted > 0).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_sleep_that_ends_a_second_late_is_a_pause() {
        let pauses = Pauses::new();
        pauses.sleep(7, 100 * SECOND);
        pauses.wake(101 * SECOND);
        assert_eq!(pauses.latest(7, 101 * SECOND), None, "on a busy machine half a second is nothing");
        pauses.sleep(7, 102 * SECOND);
        pauses.wake(107 * SECOND);
        pauses.sleep(7, 107 * SECOND);
        let pause = Pause { lasted: Duration::from_millis(4500), ended: Duration::from_millis(500) };
        assert_eq!(pauses.latest(7, 107 * SECOND + SECOND / 2), Some(pause));
    }

    /// The thread that makes the calls may run first when a stopped process goes on.
    #[test]
    fn a_pause_is_known_before_the_thread_has_woken() {
        let pauses = Pauses::new();
        pauses.sleep(7, 100 * SECOND);
        let pause = Pause { lasted: Duration::from_millis(2500), ended: Duration::ZERO };
        assert_eq!(pauses.latest(7, 103 * SECOND), Some(pause));
    }

    #[test]
    fn a_forked_child_has_no_pause_of_its_parent() {
        let pauses = Pauses::new();
        pauses.sleep(7, 100 * SECOND);
        assert_eq!(pauses.latest(8, 200 * SECOND), None);
        pauses.end();
        assert_eq!(pauses.latest(7, 200 * SECOND), None, "the thread has ended");
    }
}
