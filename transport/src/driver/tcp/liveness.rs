//! Detection of dead connections.
//!
//! A process that ends closes its sockets, which notifies the other end. A pulled cable notifies nobody: the
//! kernel retransmits and gets no acknowledgement. Linux's TCP_USER_TIMEOUT also counts the time of a closed
//! window, so it would end connections to live peers that are slow to read. Instead a waiting link regularly
//! asks the kernel ([`unanswered_for`]) for how long an acknowledgement has been overdue.
//!
//! The system probes an idle connection after a second (`SO_KEEPALIVE`).

use super::super::{Overdue, unanswered_for};
use rustix::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Number of empty polls in a row after which every poll reads the clock.
const EAGER_POLLS: u32 = 4096;

/// Decides when a waiting link must check its peer, and whether the peer counts as dead.
#[derive(Debug, Default)]
pub(super) struct LivenessCheck {
    empty_polls: u32,
    /// Time of the last check, or the first clock reading of this wait.
    last_check: Option<Instant>,
    overdue: Overdue,
}

impl LivenessCheck {
    /// Ends the wait, after a poll that made progress.
    #[inline]
    pub(super) fn reset(&mut self) {
        if self.empty_polls != 0 {
            *self = LivenessCheck::default();
        }
    }

    /// Counts an empty poll. Returns whether a [check](LivenessCheck::check) is due.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        self.empty_polls = self.empty_polls.saturating_add(1);
        if self.empty_polls < EAGER_POLLS && !self.empty_polls.is_multiple_of(64) {
            return false;
        }
        let now = Instant::now();
        let last_check = *self.last_check.get_or_insert(now);
        let is_due = now.saturating_duration_since(last_check) >= CHECK_INTERVAL;
        if is_due {
            self.last_check = Some(now);
        }
        is_due
    }

    /// Returns why the peer counts as dead, if its kernel has not answered retransmitted bytes for `timeout`.
    #[cold]
    pub(super) fn check(&mut self, socket: BorrowedFd<'_>, timeout: Duration) -> Option<String> {
        let time = overdue_for(socket, &mut self.overdue, timeout)?;
        let time = time.as_secs_f64();
        Some(format!("no answer from its host for {time:.1} s; check the cable and the host"))
    }
}

/// Returns for how long the peer's kernel has not answered retransmitted bytes, if that is `timeout` or more.
pub(super) fn overdue_for(
    socket: BorrowedFd<'_>,
    overdue: &mut Overdue,
    timeout: Duration,
) -> Option<Duration> {
    let unanswered = unanswered_for(socket);
    let seen = overdue.look(unanswered, Instant::now())?;
    (seen >= timeout).then(|| unanswered.unwrap_or(seen))
}
