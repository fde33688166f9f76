//! Detection of dead connections.
//!
//! A process that ends closes its sockets, which notifies the other end. A pulled cable notifies nobody: the
//! kernel retransmits and gets no acknowledgement. Linux's TCP_USER_TIMEOUT also counts the time of a closed
//! window, so it would end connections to live peers that are slow to read. Instead a waiting link asks the
//! kernel now and then ([`unanswered_for`]) for how long an acknowledgement has been overdue.
//!
//! The system probes an idle connection after a second (`SO_KEEPALIVE`).
//!
//! # Safety
//! The kernel reads an option from a local variable whose size it is given.

use super::super::unanswered_for;
use rustix::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Between looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Polls in a row that have found nothing, before the clock is looked at each time.
const EAGER_POLLS: u32 = 4096;

/// A link's patience with the other end of a connection: for how long it has waited for nothing.
#[derive(Debug, Default)]
pub(super) struct Patience {
    fruitless: u32,
    /// When the system was last asked, or the wait began to be long.
    asked: Option<Instant>,
    /// Since when bytes have been repeated without an answer.
    silent: Option<Instant>,
}

impl Patience {
    /// After a fruitful poll.
    #[inline]
    pub(super) fn reset(&mut self) {
        if self.fruitless != 0 {
            *self = Patience::default();
        }
    }

    /// After a fruitless poll. True when it is time to [look](Patience::look) whether the other end is there.
    #[inline]
    pub(super) fn is_over(&mut self) -> bool {
        self.fruitless = self.fruitless.saturating_add(1);
        if self.fruitless < EAGER_POLLS && !self.fruitless.is_multiple_of(64) {
            return false;
        }
        let now = Instant::now();
        let asked = *self.asked.get_or_insert(now);
        let is_over = now.saturating_duration_since(asked) >= LOOK_EVERY;
        if is_over {
            self.asked = Some(now);
        }
        is_over
    }

    /// Returns why the peer counts as dead, if its kernel has left retransmitted bytes unanswered for `most`.
    #[cold]
    pub(super) fn look(&mut self, socket: BorrowedFd<'_>, most: Duration) -> Option<String> {
        let now = Instant::now();
        let Some(heard) = unanswered_for(socket) else {
            self.silent = None;
            return None;
        };
        let silent = now.saturating_duration_since(*self.silent.get_or_insert(now));
        if heard < silent {
            self.silent = Some(now);
            return None;
        }
        (silent >= most).then(|| {
            format!("no answer from its host for {:.1} s; check the cable and the host", heard.as_secs_f64())
        })
    }
}

/// Makes the kernel end a connection whose retransmissions stay unanswered for `silence`, rounded up to
/// seconds. The time of a closed window does not count.
#[cfg(target_vendor = "apple")]
pub(super) fn limit_retransmission(stream: &std::net::TcpStream, peer_timeout: Duration) {
    use std::os::fd::AsRawFd;
    /// TCP_RXT_CONNDROPTIME of <netinet/tcp.h>, in seconds.
    const DROP_TIME: libc::c_int = 0x80;
    let seconds = peer_timeout.as_secs_f64().ceil() as libc::c_int;
    // SAFETY: the option is one number, read from a variable of ours of that size.
    let _ = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            DROP_TIME,
            std::ptr::from_ref(&seconds).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
}
