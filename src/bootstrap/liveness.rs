//! How soon a peer that vanished without a word is noticed over TCP.
//!
//! The kernel at the other end answers for its host: whether the process computes, waits or is stopped makes no
//! difference, and nothing piles up for one that does not read. When a host vanishes, or the way to it, its kernel
//! stops answering, and ours breaks the connection [`SILENCE`] after it was last heard: by itself where bytes are
//! under way, and by probes where none are. Probes come each second; [`probe`] looks in between.
//!
//! Over Unix sockets there is nothing to do: a process that ends closes them.

use rustix::{fd::AsFd, io, net::sockopt};
use std::time::Duration;

/// A peer whose kernel has not answered for so long is taken for gone.
pub(super) const SILENCE: Duration = Duration::from_millis(1500);

/// How often those who wait call [`probe`].
pub(super) const PROBING: Duration = Duration::from_millis(250);

/// The shortest time that kernels know here.
const SECOND: Duration = Duration::from_secs(1);

/// Has the kernel watch over the connection of a TCP socket.
pub(super) fn watch(socket: impl AsFd) -> io::Result<()> {
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, SECOND)?;
    sockopt::set_tcp_keepintvl(&socket, SECOND)?;
    sockopt::set_tcp_keepcnt(&socket, 1)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(&socket, SILENCE.as_millis() as u32)?;
    Ok(())
}

/// Has the kernel look now whether the peer of a TCP socket is silent, and not only at the next full second: setting
/// the time of the first probe anew lets the timer run out at once if that time is over.
pub(super) fn probe(socket: impl AsFd) {
    #[cfg(target_os = "linux")]
    // A socket that can't be asked is broken, which reading from it says.
    let _ = sockopt::set_tcp_keepidle(&socket, SECOND);
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}
