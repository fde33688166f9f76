//! How long the kernel at the other end of a TCP connection has owed us an answer.
//!
//! It answers for its host, whether the process there computes, waits or is stopped. So silence means that the host is
//! gone, or the way to it.
//!
//! # Safety
//! The kernel fills a structure of plain numbers of the size that it is told.

use rustix::fd::AsFd;
use std::time::Duration;

/// A host that has owed an answer for so long is taken for gone, if nothing else is said. It can't be less: systems probe
/// after a second at the earliest, and repeat what was lost after 0.2 s, so that less would take a lost packet for a lost
/// host.
pub const SILENCE: Duration = Duration::from_millis(1400);

/// The longest silence that can be asked for.
pub const SILENCE_MOST: Duration = Duration::from_secs(60);

/// For how long nothing has been heard, where something of ours is overdue: bytes that were repeated, or a probe. A kernel
/// that is there answers each probe, whether its window is closed or the connection idle, and their count is zero again.
/// None where nothing is overdue, or the system doesn't tell.
#[must_use]
pub fn silence(socket: impl AsFd) -> Option<Duration> {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        // SAFETY: zeros are a valid value of a structure of integers.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: the descriptor is open while it is borrowed; the kernel writes `len` bytes at most to `info`, which is as
        // long, and the number of them to `len`. Both live until it returns.
        let done = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut len,
            )
        };
        let overdue = info.tcpi_unacked > 0 && info.tcpi_retransmits > 0 || info.tcpi_probes > 0;
        (done == 0 && overdue).then(|| Duration::from_millis(info.tcpi_last_ack_recv.into()))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = socket;
        None
    }
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
        assert_eq!(silence(&ours), None);
        ours.write_all(b"x").expect("sent");
        theirs.read_exact(&mut [0]).expect("received");
        theirs.write_all(b"y").expect("sent");
        ours.read_exact(&mut [0]).expect("received with the acknowledgement");
        assert_eq!(silence(&ours), None);
    }
}
