//! Nonblocking system calls on a connected socket.
//!
//! # Safety
//! The kernel reads and writes within spans whose owners provide them for the duration of the call. It checks
//! addresses itself.

use super::{traffic::Traffic, wire::MAX_HEAD_BYTES};
use crate::memory::{Span, SpanMut};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::{AsFd, AsRawFd, BorrowedFd},
    net::sockopt,
};
use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Shutdown, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// Maximum bytes of header and payload that are copied into one buffer: up to here, a copy is cheaper than a
/// gather list.
pub(super) const MAX_COALESCED_BYTES: usize = 1024;

/// Maximum unread bytes that are discarded when a connection is closed.
const MAX_DISCARDED_BYTES: usize = 64 << 20;

/// Time before the first keep-alive probe of an idle connection, and between two probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Unanswered probes after which the system ends a connection, in addition to the seconds of the peer
/// timeout.
const PROBES: u32 = 2;

#[cfg(any(target_os = "linux", target_vendor = "apple"))]
const FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// Added to the flags of a write that others follow at once: the system holds the end of the bytes back until
/// it fills a packet. A record of 64 KiB would otherwise leave as a packet and a small remainder, on Linux
/// within a host, where packets hold 65,483 bytes. Sending it took 9.3 us there, and 5.2 us with this flag.
#[cfg(any(target_os = "linux", target_os = "android"))]
const MORE: libc::c_int = libc::MSG_MORE;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const MORE: libc::c_int = 0;

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadResult {
    /// Number of bytes read, at least one.
    Bytes(usize),
    /// Nothing has arrived.
    WouldBlock,
    /// The other end has shut down sending.
    Eof,
}

/// Source of received bytes: a socket, or the harness of tests and fuzzing.
pub(super) trait Source {
    /// Reads the available bytes into `parts`, one after the other; at least one of them has room.
    fn recv<const N: usize>(&self, parts: [SpanMut<'_>; N]) -> io::Result<ReadResult>;
}

/// A connected socket, and the readiness that its link waits for.
#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    /// Whether the link's latest read found nothing.
    pub(super) wants_read: AtomicBool,
    /// Whether the link's latest write found no room.
    pub(super) wants_write: AtomicBool,
    /// Bytes of the rail that the connection takes, if it is one.
    traffic: Option<Arc<Traffic>>,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, traffic: Option<Arc<Traffic>>) -> Socket {
        Socket { stream, wants_read: AtomicBool::new(false), wants_write: AtomicBool::new(false), traffic }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Writes `head` and then `body`, as far as the socket has room. Returns the number of bytes written.
    #[inline]
    pub(super) fn send(&self, head: &[u8], body: Span<'_>) -> io::Result<usize> {
        debug_assert!(head.len() <= MAX_HEAD_BYTES, "at most one head");
        if head.is_empty() {
            return self.send_span(body, FLAGS);
        }
        if head.len() + body.len() <= MAX_COALESCED_BYTES {
            let mut bytes = [0; MAX_COALESCED_BYTES];
            bytes[..head.len()].copy_from_slice(head);
            let (_, rest) = bytes.split_at_mut(head.len());
            SpanMut::from(&mut rest[..body.len()]).copy_from(body);
            return self.send_span(Span::from(&bytes[..head.len() + body.len()]), FLAGS);
        }
        let mut parts = [io_vector(head.as_ptr(), head.len()), io_vector(body.as_ptr(), body.len())];
        let message = message_of(&mut parts);
        // SAFETY: `message` names two parts of memory that are readable during the call: a slice and a span.
        self.sent(unsafe { libc::sendmsg(self.stream.as_raw_fd(), &message, FLAGS) })
    }

    /// Writes bytes of a record, as far as the socket has room. Returns the number of bytes written.
    ///
    /// `others_follow`: the caller writes the next record at once.
    pub(super) fn send_record(&self, bytes: &[u8], others_follow: bool) -> io::Result<usize> {
        self.send_span(Span::from(bytes), if others_follow { FLAGS | MORE } else { FLAGS })
    }

    #[inline]
    fn send_span(&self, bytes: Span<'_>, flags: libc::c_int) -> io::Result<usize> {
        // SAFETY: the span's bytes are readable during the call, and the system checks the address.
        self.sent(unsafe { libc::send(self.stream.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) })
    }

    #[inline]
    fn sent(&self, result: isize) -> io::Result<usize> {
        match usize::try_from(result) {
            Ok(sent) => {
                if let Some(traffic) = &self.traffic {
                    traffic.add_sent(sent);
                }
                if self.wants_write.load(Relaxed) {
                    self.wants_write.store(false, Relaxed);
                }
                Ok(sent)
            }
            Err(_) => {
                let error = io::Error::last_os_error();
                if !is_would_block(&error) {
                    return Err(error);
                }
                self.wants_write.store(true, Relaxed);
                Ok(0)
            }
        }
    }

    /// Discards received bytes and shuts down sending. Closing a socket with unread bytes would reset the
    /// connection and drop bytes that were sent.
    pub(super) fn discard_and_shutdown(&self) {
        let mut bytes = [0; 16 << 10];
        // Bounded, since the peer may keep sending.
        for _ in 0..MAX_DISCARDED_BYTES / bytes.len() {
            if !matches!(self.recv([SpanMut::from(&mut bytes[..])]), Ok(ReadResult::Bytes(_))) {
                break;
            }
        }
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Whether the peer's kernel has acknowledged all sent bytes, or never will.
    pub(super) fn is_drained(&self) -> bool {
        self.unacknowledged().is_none_or(|bytes| bytes == 0) || self.is_closed()
    }

    /// Returns the number of sent bytes that are not acknowledged, if the system reports it.
    pub(super) fn unacknowledged(&self) -> Option<u64> {
        unacknowledged(self.stream.as_fd())
    }

    /// Returns the addresses of this end and of the peer.
    pub(super) fn addresses(&self) -> io::Result<(IpAddr, IpAddr)> {
        Ok((self.stream.local_addr()?.ip(), self.stream.peer_addr()?.ip()))
    }

    /// Returns the error that the connection has failed with, if the system has not reported it yet.
    pub(super) fn take_error(&self) -> Option<io::Error> {
        self.stream.take_error().ok().flatten()
    }

    /// Whether the connection is closed in both directions or broken. Kernels keep counting bytes that they
    /// will never send.
    pub(super) fn is_closed(&self) -> bool {
        let mut news = [PollFd::from_borrowed_fd(self.fd(), PollFlags::empty())];
        let asked = poll(&mut news, Some(&Timespec::default()));
        asked.is_ok() && news[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

impl Source for Socket {
    #[inline]
    fn recv<const N: usize>(&self, parts: [SpanMut<'_>; N]) -> io::Result<ReadResult> {
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
            Ok(0) => Ok(ReadResult::Eof),
            Ok(came) => {
                if let Some(traffic) = &self.traffic {
                    traffic.add_received(came);
                }
                if self.wants_read.load(Relaxed) {
                    self.wants_read.store(false, Relaxed);
                }
                Ok(ReadResult::Bytes(came))
            }
            Err(_) => {
                let error = io::Error::last_os_error();
                if !is_would_block(&error) {
                    return Err(error);
                }
                if !self.wants_read.load(Relaxed) {
                    self.wants_read.store(true, Relaxed);
                }
                Ok(ReadResult::WouldBlock)
            }
        }
    }
}

fn is_would_block(error: &io::Error) -> bool {
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

/// Returns the number of sent bytes that are not acknowledged, if the system reports it.
fn unacknowledged(fd: BorrowedFd<'_>) -> Option<u64> {
    let mut bytes: libc::c_int = 0;
    #[cfg(target_os = "linux")]
    // SAFETY: the request writes one number to a local variable.
    let asked = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
    #[cfg(not(target_os = "linux"))]
    let asked = {
        let mut size = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the option is one number, written to a local variable of that size.
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

/// Whether an interface is up and its cable is plugged in; `None` if the system does not tell.
pub(super) fn interface_is_running(socket: BorrowedFd<'_>, name: &str) -> Option<bool> {
    /// Bytes of the name in a request, and of a request, with some room.
    const NAME_BYTES: usize = 16;
    const REQUEST_BYTES: usize = 64;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const REQUEST: libc::c_ulong = 0x8913;
    // _IOWR('i', 17, struct ifreq).
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const REQUEST: libc::c_ulong = 0xc020_6911;
    if name.is_empty() || name.len() >= NAME_BYTES {
        return None;
    }
    let mut request = [0u8; REQUEST_BYTES];
    request[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the request is a `struct ifreq`, of at most 40 bytes: the name, closed by a zero, and a union
    // that the system writes the flags to. It is a local variable with room for more.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), REQUEST as _, request.as_mut_ptr()) };
    let flags = i16::from_ne_bytes([request[NAME_BYTES], request[NAME_BYTES + 1]]);
    let needed = libc::IFF_UP | libc::IFF_RUNNING;
    (asked == 0).then_some(libc::c_int::from(flags) & needed == needed)
}

/// Sets the options of a connection: nonblocking, no delay, keep-alive probes.
///
/// Options that the system refuses are skipped. `within_host`: both ends are on this host, where pacing gains
/// nothing.
pub(super) fn configure(
    stream: &TcpStream,
    buffer_bytes: Option<usize>,
    peer_timeout: Duration,
    within_host: bool,
) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let _ = sockopt::set_tcp_keepidle(stream, PROBE_INTERVAL);
    let _ = sockopt::set_tcp_keepintvl(stream, PROBE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(stream, PROBES + peer_timeout.as_secs() as u32);
    let _ = sockopt::set_socket_keepalive(stream, true);
    // Not TCP_USER_TIMEOUT: Linux would also end connections to live peers that are slow to read. See
    // `liveness`.
    #[cfg(target_vendor = "apple")]
    super::super::limit_retransmission(stream, peer_timeout);
    #[cfg(target_os = "linux")]
    if within_host {
        let _ = sockopt::set_tcp_congestion(stream, "reno");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = within_host;
    set_buffer_sizes(stream.as_fd(), buffer_bytes);
    Ok(())
}

/// Sets the socket's buffer sizes. They take full effect only if set before the socket connects.
pub(super) fn set_buffer_sizes(fd: BorrowedFd<'_>, buffer_bytes: Option<usize>) {
    if let Some(bytes) = buffer_bytes {
        let _ = sockopt::set_socket_recv_buffer_size(fd, bytes);
        let _ = sockopt::set_socket_send_buffer_size(fd, bytes);
    }
}
