//! Detection of peers that vanish without closing their TCP connection.
//!
//! The kernel at the other end answers for its host. A process that computes, waits or is stopped therefore
//! counts as alive, and no messages queue up for a process that does not read. After each second without
//! traffic the local kernel sends a keep-alive probe. A rank that waits for messages checks every
//! [`PROBE_INTERVAL`] how long an answer has been owed ([`SilenceCheck`]). After the time set by
//! `TBCCL_SILENCE` the peer counts as gone.
//!
//! `TCP_USER_TIMEOUT` is not used: Linux would also end connections to live peers that do not read, and whose
//! receive window is full. The kernel's keep-alive remains as a fallback, for ranks that do not check and
//! systems that do not report the time.
//!
//! Unix sockets need no detection: the kernel closes them when a process ends.

use rustix::{fd::AsFd, io, net::sockopt};
use std::time::{Duration, Instant};
use transport::driver::{Overdue, unanswered_for};

/// Interval of [`SilenceCheck::is_silent`] checks while waiting.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_millis(250);

/// Shortest time between the first check that finds an answer overdue and the one that gives the peer up.
///
/// The kernel probes a full window at growing intervals, and this process may have been stopped. The last
/// answer may then be old although the next one is on its way.
const CONFIRMATION: Duration = Duration::from_millis(400);

/// Shortest keep-alive interval that kernels support.
const SECOND: Duration = Duration::from_secs(1);

/// Enables keep-alive probes on a TCP socket whose peer may be silent for at most `peer_timeout`.
pub(super) fn enable_keepalive(socket: impl AsFd, peer_timeout: Duration) -> io::Result<()> {
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, SECOND)?;
    sockopt::set_tcp_keepintvl(&socket, SECOND)?;
    // The kernel gives up about a second after a check would.
    sockopt::set_tcp_keepcnt(&socket, peer_timeout.as_secs_f64().ceil() as u32)?;
    #[cfg(target_vendor = "apple")]
    transport::driver::limit_retransmission(&socket, peer_timeout);
    Ok(())
}

/// State of the checks of one TCP connection.
#[derive(Debug, Default)]
pub(super) struct SilenceCheck {
    overdue: Overdue,
}

impl SilenceCheck {
    /// Whether the peer has owed an answer for `timeout` or longer, at two checks in a row.
    ///
    /// Also makes the kernel request an answer, if none is overdue: setting the time of the first probe again
    /// sends a probe at once if nothing was received for a second.
    pub(super) fn is_silent(&mut self, socket: impl AsFd, timeout: Duration) -> bool {
        let overdue = unanswered_for(&socket);
        #[cfg(target_os = "linux")]
        if overdue.is_none() {
            // An error means that the socket is broken, which the next read reports.
            let _ = sockopt::set_tcp_keepidle(&socket, SECOND);
        }
        self.judge(overdue, timeout, Instant::now())
    }

    /// Judges the time for which an answer is overdue, if one is.
    fn judge(&mut self, overdue: Option<Duration>, timeout: Duration, now: Instant) -> bool {
        let seen = self.overdue.look(overdue, now);
        overdue >= Some(timeout) && seen >= Some(CONFIRMATION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{ErrorKind, Read, Write},
        net::{TcpListener, TcpStream},
        thread,
    };
    use transport::driver::PEER_TIMEOUT_MIN;

    #[test]
    fn a_peer_that_computes_with_a_full_window_is_alive() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        sockopt::set_socket_recv_buffer_size(&listener, 4096).expect("a small buffer");
        let mut ours = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (mut theirs, _) = listener.accept().expect("ours");
        ours.set_nonblocking(true).expect("a socket");
        enable_keepalive(&ours, PEER_TIMEOUT_MIN).expect("a socket");
        let (mut check, mut sent) = (SilenceCheck::default(), 0);
        let until = Instant::now() + 4 * PEER_TIMEOUT_MIN;
        while Instant::now() < until {
            match ours.write(&[7; 4096]) {
                Ok(len) => sent += len,
                Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock, "the connection is alive"),
            }
            assert!(!check.is_silent(&ours, PEER_TIMEOUT_MIN), "its host answers");
            thread::sleep(PROBE_INTERVAL / 25);
        }
        drop(ours);
        let mut received = Vec::new();
        theirs.read_to_end(&mut received).expect("the connection has not broken");
        assert_eq!(received.len(), sent);
    }

    #[test]
    fn an_old_answer_is_no_reason_before_the_next_one_had_time_to_come() {
        let (start, long) = (Instant::now(), Duration::from_secs(100));
        let after = |ms| start + Duration::from_millis(ms);
        let mut check = SilenceCheck::default();
        // As after a pause of this process, or between two probes of a full window.
        assert!(!check.judge(Some(long), SECOND, after(0)));
        assert!(!check.judge(None, SECOND, after(1)));
        assert!(!check.judge(Some(long), SECOND, after(1000)));
        assert!(!check.judge(Some(Duration::from_millis(100)), SECOND, after(1250)), "answered since");
        assert!(!check.judge(Some(Duration::from_millis(850)), SECOND, after(2000)));
        assert!(check.judge(Some(Duration::from_millis(1100)), SECOND, after(2250)));
    }
}
