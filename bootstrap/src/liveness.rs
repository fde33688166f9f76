//! How soon a peer that vanished without a word is noticed over TCP.
//!
//! The kernel at the other end answers for its host: whether the process computes, waits or is stopped makes no
//! difference, and nothing piles up for one that does not read. Each second without traffic our kernel probes, and
//! whoever waits for news looks each [`PROBING`] for how long an answer has been owed ([`is_silent`]). After as
//! long as the option `TBCCL_SILENCE` says the other end is taken for gone.
//!
//! The kernel's own timeouts stand behind that, for ranks that don't look, and for systems that don't tell. They alone
//! would be late by as much as it takes until something is sent.
//!
//! Over Unix sockets there is nothing to do: a process that ends closes them.

use rustix::{fd::AsFd, io, net::sockopt};
use std::time::Duration;

/// How often those who wait call [`probe`].
pub(super) const PROBE_INTERVAL: Duration = Duration::from_millis(250);

/// The shortest time that kernels know here.
const SECOND: Duration = Duration::from_secs(1);

/// Has the kernel watch over the connection of a TCP socket whose peer may be silent for so long.
pub(super) fn enable_keepalive(socket: impl AsFd, silence: Duration) -> io::Result<()> {
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, SECOND)?;
    sockopt::set_tcp_keepintvl(&socket, SECOND)?;
    // Where there is a time limit it decides, and not the number of probes.
    sockopt::set_tcp_keepcnt(&socket, silence.as_secs().max(1) as u32)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(&socket, silence.as_millis() as u32)?;
    Ok(())
}

/// Has the peer of a TCP socket owed an answer for so long? Sees to it that it owes one: setting the time of the first
/// probe anew has the kernel probe at once if nothing was heard for a second.
pub(super) fn is_peer_silent(socket: impl AsFd, timeout: Duration) -> bool {
    #[cfg(target_os = "linux")]
    // A socket that can't be asked is broken, which reading from it says.
    let _ = sockopt::set_tcp_keepidle(&socket, SECOND);
    transport::driver::silence(socket).is_some_and(|silence| silence >= timeout)
}
