//! Time for which the kernel at the other end of a TCP connection has not acknowledged anything.
//!
//! The kernel answers for its host, whether the process computes, waits or is stopped. A missing answer
//! therefore means that the host or the path to it is gone.
//!
//! # Safety
//! The kernel fills a structure of integers and a number, and reads an option, whose sizes it is given.

use rustix::fd::AsFd;
use std::time::{Duration, Instant};

/// Default time without an acknowledgement after which a host counts as gone.
///
/// A cable that is plugged in again within 10 s, as long as RDMA waits for one, costs no job. Kernels double
/// the pause between retransmissions, so they may repeat a lost packet only 12.6 s after the first time.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(15);

/// The shortest peer timeout that a user can set.
///
/// Kernels probe after a second at the earliest and retransmit after 0.2 s, so a shorter time would take a
/// lost packet for a lost host.
pub const PEER_TIMEOUT_MIN: Duration = Duration::from_millis(1400);

/// The longest peer timeout that a user can set.
pub const PEER_TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Time without a packet after which an idle connection with probes is silent. The first probe goes after a
/// second. A live peer answers it within the next one.
#[cfg(target_os = "linux")]
const IDLE_LIMIT: Duration = Duration::from_secs(2);

/// Returns for how long the peer's kernel has owed an answer to retransmitted bytes or to a probe.
///
/// `None` if nothing is overdue, or if the system does not report it. A live kernel answers each probe, even
/// with a closed window or on an idle connection, which resets the count of probes. Keep-alive probes, if the
/// connection has them, must begin after a second: Linux does not count those that this host's own queue
/// drops, so such a connection with nothing to send is also silent when its last packet has come long ago.
#[must_use]
pub fn unanswered_for(socket: impl AsFd) -> Option<Duration> {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        /// TCP_ESTABLISHED of <netinet/tcp.h>.
        const ESTABLISHED: u8 = 1;
        let fd = socket.as_fd().as_raw_fd();
        // SAFETY: zeros are a valid value of a structure of integers.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: the descriptor is open while it is borrowed. The kernel writes at most `len` bytes to
        // `info`, which has that size, and writes the count to `len`. Both outlive the call.
        let done = unsafe {
            libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut len)
        };
        let answered = Duration::from_millis(info.tcpi_last_ack_recv.into());
        let has_nothing_to_send = || {
            let mut unsent: libc::c_int = 0;
            // SAFETY: the request writes one number to a local variable.
            let asked = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut unsent) };
            asked == 0 && unsent == 0
        };
        let has_probes = || rustix::net::sockopt::socket_keepalive(&socket) == Ok(true);
        let overdue = info.tcpi_unacked > 0 && info.tcpi_retransmits > 0
            || info.tcpi_probes > 0
            || info.tcpi_state == ESTABLISHED
                && answered >= IDLE_LIMIT
                && has_probes()
                && has_nothing_to_send();
        (done == 0 && overdue).then_some(answered)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = socket;
        None
    }
}

/// Time since which an answer of one peer has been overdue at every look.
#[derive(Debug, Default)]
pub struct Overdue {
    since: Option<Instant>,
}

impl Overdue {
    /// Takes in for how long an answer is overdue, as [`unanswered_for`] returns it. Returns for how long it
    /// has been overdue at every look; `None` if it is not, or if an answer has come between two looks.
    pub fn look(&mut self, overdue: Option<Duration>, now: Instant) -> Option<Duration> {
        let Some(overdue) = overdue else {
            self.since = None;
            return None;
        };
        let seen = now.saturating_duration_since(*self.since.get_or_insert(now));
        if overdue < seen {
            self.since = Some(now);
            return None;
        }
        Some(seen)
    }
}

/// Makes the kernel end a connection whose retransmissions stay unanswered for `peer_timeout`.
///
/// The time is rounded up to seconds. The time of a closed window does not count.
#[cfg(target_vendor = "apple")]
pub fn limit_retransmission(socket: impl AsFd, peer_timeout: Duration) {
    use std::os::fd::AsRawFd;
    /// TCP_RXT_CONNDROPTIME of <netinet/tcp.h>, in seconds.
    const DROP_TIME: libc::c_int = 0x80;
    let seconds = peer_timeout.as_secs_f64().ceil() as libc::c_int;
    // SAFETY: the descriptor is open while it is borrowed. The option is one number, read from a local
    // variable of that size.
    let _ = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            DROP_TIME,
            std::ptr::from_ref(&seconds).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Read, io::Write, net::TcpListener, net::TcpStream};

    #[test]
    fn a_peer_that_has_answered_owes_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut ours = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (mut theirs, _) = listener.accept().expect("ours");
        assert_eq!(unanswered_for(&ours), None);
        ours.write_all(b"x").expect("sent");
        theirs.read_exact(&mut [0]).expect("received");
        theirs.write_all(b"y").expect("sent");
        ours.read_exact(&mut [0]).expect("received with the acknowledgement");
        assert_eq!(unanswered_for(&ours), None);
    }
}
