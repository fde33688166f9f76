//! Nonblocking system calls on a connected socket.
//!
//! # Safety
//! The kernel reads and writes within spans whose owners lend them for the duration of the call. It checks
//! addresses itself.

use super::wire::HEAD_BYTES;
use crate::memory::{Span, SpanMut};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::{AsFd, AsRawFd, BorrowedFd},
    net::sockopt,
};
use std::{
    io::{self, ErrorKind},
    net::{Shutdown, TcpStream},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

/// Maximum bytes of head and payload that are copied side by side: up to here, a copy is cheaper than a
/// gather list.
pub(super) const GATHERED_MOST: usize = 1024;

/// The most that is thrown away of what lies unread in a connection that is closed.
const THROWN_AWAY_MOST: usize = 64 << 20;

/// The probing of connections on which nothing is sent: after a second, and every second.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Unanswered probes after which the system ends a connection, in addition to the seconds of the peer
/// timeout.
const PROBES: u32 = 2;

#[cfg(any(target_os = "linux", target_vendor = "apple"))]
const FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// Number of bytes read, at least one.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// The other end sends no more.
    End,
}

/// Source of received bytes: a socket, or the harness of tests and fuzzing.
pub(super) trait Source {
    /// Reads what has come into `parts`, one after the other; at least one of them has room.
    fn recv<const N: usize>(&self, parts: [SpanMut<'_>; N]) -> io::Result<Came>;
}

/// A connected socket, and what its link is waiting for on it.
#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    /// The link's latest read has found nothing.
    pub(super) reads: AtomicBool,
    /// The link's latest write has found no room.
    pub(super) writes: AtomicBool,
}

impl Socket {
    pub(super) fn new(stream: TcpStream) -> Socket {
        Socket { stream, reads: AtomicBool::new(false), writes: AtomicBool::new(false) }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Writes what there is room for of `head` and `body`, in this order; 0 when there is none.
    #[inline]
    pub(super) fn send(&self, head: &[u8], body: Span<'_>) -> io::Result<usize> {
        debug_assert!(head.len() <= HEAD_BYTES, "a head is short");
        if head.is_empty() {
            return self.send_span(body);
        }
        if head.len() + body.len() <= GATHERED_MOST {
            let mut bytes = [0; GATHERED_MOST];
            bytes[..head.len()].copy_from_slice(head);
            let (_, rest) = bytes.split_at_mut(head.len());
            SpanMut::from(&mut rest[..body.len()]).copy_from(body);
            return self.send_span(Span::from(&bytes[..head.len() + body.len()]));
        }
        let mut parts = [io_vector(head.as_ptr(), head.len()), io_vector(body.as_ptr(), body.len())];
        let message = message_of(&mut parts);
        // SAFETY: `message` names two parts of memory that are readable during the call: a slice, and a span.
        self.sent(unsafe { libc::sendmsg(self.stream.as_raw_fd(), &message, FLAGS) })
    }

    #[inline]
    fn send_span(&self, bytes: Span<'_>) -> io::Result<usize> {
        // SAFETY: the span's bytes are readable during the call, and the system checks the address.
        self.sent(unsafe { libc::send(self.stream.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), FLAGS) })
    }

    #[inline]
    fn sent(&self, result: isize) -> io::Result<usize> {
        match usize::try_from(result) {
            Ok(sent) => {
                if self.writes.load(Relaxed) {
                    self.writes.store(false, Relaxed);
                }
                Ok(sent)
            }
            Err(_) => {
                let error = io::Error::last_os_error();
                if !is_patience(&error) {
                    return Err(error);
                }
                self.writes.store(true, Relaxed);
                Ok(0)
            }
        }
    }

    /// Discards received bytes and shuts down sending. Closing a socket with unread bytes would reset the
    /// connection and drop bytes that were sent.
    pub(super) fn finish(&self) {
        let mut bytes = [0; 16 << 10];
        // A bound, since the peer may keep sending.
        for _ in 0..THROWN_AWAY_MOST / bytes.len() {
            if !matches!(self.recv([SpanMut::from(&mut bytes[..])]), Ok(Came::Bytes(_))) {
                break;
            }
        }
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Whether the peer's kernel has acknowledged all sent bytes, or never will.
    pub(super) fn is_drained(&self) -> bool {
        unacknowledged(self.stream.as_fd()).is_none_or(|bytes| bytes == 0) || self.is_over()
    }

    /// Whether the connection is closed in both directions or broken. Kernels keep counting bytes that they
    /// will never send.
    fn is_over(&self) -> bool {
        let mut news = [PollFd::from_borrowed_fd(self.fd(), PollFlags::empty())];
        let asked = poll(&mut news, Some(&Timespec::default()));
        asked.is_ok() && news[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

impl Source for Socket {
    #[inline]
    fn recv<const N: usize>(&self, parts: [SpanMut<'_>; N]) -> io::Result<Came> {
        let fd = self.stream.as_raw_fd();
        let result = if N == 1 {
            // SAFETY: the span's bytes are writable during the call, and the system checks the address.
            unsafe { libc::recv(fd, parts[0].as_mut_ptr().cast(), parts[0].len(), libc::MSG_DONTWAIT) }
        } else {
            let mut vectors = parts.map(|part| io_vector(part.as_mut_ptr(), part.len()));
            let mut message = message_of(&mut vectors);
            // SAFETY: `message` refers to spans whose bytes are writable during the call.
            unsafe { libc::recvmsg(fd, &mut message, libc::MSG_DONTWAIT) }
        };
        match usize::try_from(result) {
            Ok(0) => Ok(Came::End),
            Ok(came) => {
                if self.reads.load(Relaxed) {
                    self.reads.store(false, Relaxed);
                }
                Ok(Came::Bytes(came))
            }
            Err(_) => {
                let error = io::Error::last_os_error();
                if !is_patience(&error) {
                    return Err(error);
                }
                if !self.reads.load(Relaxed) {
                    self.reads.store(true, Relaxed);
                }
                Ok(Came::Nothing)
            }
        }
    }
}

fn is_patience(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn io_vector(start: *const u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: start.cast_mut().cast(), iov_len: len }
}

fn message_of(parts: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: a message header is numbers and addresses, for which zero means none.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message
}

/// Bytes that were sent and not acknowledged, where the system tells.
fn unacknowledged(fd: BorrowedFd<'_>) -> Option<u64> {
    let mut bytes: libc::c_int = 0;
    #[cfg(target_os = "linux")]
    // SAFETY: the request writes one number, to a variable of ours.
    let asked = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
    #[cfg(not(target_os = "linux"))]
    let asked = {
        let mut size = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the option is one number, written to a variable of ours of that size.
        unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_NWRITE,
                std::ptr::from_mut(&mut bytes).cast(),
                &mut size,
            )
        }
    };
    (asked == 0).then_some(bytes.max(0) as u64)
}

/// Sets the options of a connection: nonblocking, no delay, keep-alive probes.
///
/// Options that the system refuses are skipped. `within_host`: both ends are on this host, where pacing gains
/// nothing.
pub(super) fn tune(
    stream: &TcpStream,
    buffer_bytes: Option<usize>,
    peer_timeout: Duration,
    within_host: bool,
) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let _ = sockopt::set_tcp_keepidle(stream, PROBE_EVERY);
    let _ = sockopt::set_tcp_keepintvl(stream, PROBE_EVERY);
    let _ = sockopt::set_tcp_keepcnt(stream, PROBES + peer_timeout.as_secs() as u32);
    let _ = sockopt::set_socket_keepalive(stream, true);
    // Not TCP_USER_TIMEOUT: Linux would also end connections to live peers that are slow to read. See
    // `vital`.
    #[cfg(target_vendor = "apple")]
    super::vital::limit_retransmission(stream, peer_timeout);
    #[cfg(target_os = "linux")]
    if within_host {
        let _ = sockopt::set_tcp_congestion(stream, "reno");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = within_host;
    size(stream.as_fd(), buffer_bytes);
    Ok(())
}

/// Sets the socket's buffer sizes. They take full effect only if set before the socket connects.
pub(super) fn size(fd: BorrowedFd<'_>, buffer_bytes: Option<usize>) {
    if let Some(bytes) = buffer_bytes {
        let _ = sockopt::set_socket_recv_buffer_size(fd, bytes);
        let _ = sockopt::set_socket_send_buffer_size(fd, bytes);
    }
}
