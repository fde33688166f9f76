//! Detection of peers that vanish without closing their TCP connection.
//!
//! The kernel at the other end answers for its host. A process that computes, waits or is stopped therefore
//! counts as alive, and no messages queue up for a process that does not read. After each second without
//! traffic the local kernel sends a keep-alive probe. A rank that waits for messages checks every
//! [`PROBE_INTERVAL`] how long an answer has been owed ([`is_peer_silent`]). After the time set by
//! `TBCCL_SILENCE` the peer counts as gone.
//!
//! The kernel's own timeouts remain as a fallback, for ranks that do not check and systems that do not report
//! the time. On their own they would detect the loss only after something is sent.
//!
//! Unix sockets need no detection: the kernel closes them when a process ends.

use rustix::{fd::AsFd, io, net::sockopt};
use std::time::Duration;

/// Interval of [`is_peer_silent`] checks while waiting.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_millis(250);

/// Shortest keep-alive interval that kernels support.
const SECOND: Duration = Duration::from_secs(1);

/// Enables keep-alive probes on a TCP socket whose peer may be silent for at most `peer_timeout`.
pub(super) fn enable_keepalive(socket: impl AsFd, silence: Duration) -> io::Result<()> {
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, SECOND)?;
    sockopt::set_tcp_keepintvl(&socket, SECOND)?;
    // `TCP_USER_TIMEOUT`, where it exists, takes precedence over the number of probes.
    sockopt::set_tcp_keepcnt(&socket, silence.as_secs().max(1) as u32)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(&socket, silence.as_millis() as u32)?;
    Ok(())
}

/// Whether the peer of a TCP socket has owed an answer for `timeout` or longer.
///
/// Also makes the kernel request an answer: setting the time of the first probe again sends a probe at once
/// if nothing was received for a second.
pub(super) fn is_peer_silent(socket: impl AsFd, timeout: Duration) -> bool {
    #[cfg(target_os = "linux")]
    // An error means that the socket is broken, which the next read reports.
    let _ = sockopt::set_tcp_keepidle(&socket, SECOND);
    transport::driver::unanswered_for(socket).is_some_and(|silence| silence >= timeout)
}
