//! A connected nonblocking socket: Unix or TCP.
//!
//! Descriptors arrive over Unix sockets only, with the byte they were sent with.

use super::liveness::{self, SilenceCheck};
use mio::{Interest, Registry, Token, event::Source, unix::SourceFd};
use rustix::{
    fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
        recvmsg, socket_with,
    },
};
use std::{
    collections::VecDeque,
    fmt,
    io::{self, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    time::Duration,
};
use transport::driver::{PEER_TIMEOUT, PEER_TIMEOUT_MAX, PEER_TIMEOUT_MIN};

/// A connected nonblocking socket.
#[derive(Debug)]
pub(super) enum Socket {
    /// Connection to a process of the same host and user.
    Unix(UnixStream),
    /// Connection to any host, and how long that host may be silent.
    Tcp(TcpStream, PeerHost),
}

/// Detection of the loss of a peer's host.
#[derive(Debug)]
pub(super) struct PeerHost {
    /// Time without an answer after which the host counts as gone.
    timeout: Duration,
    check: SilenceCheck,
}

impl Socket {
    /// Wraps a Unix socket.
    pub(super) fn unix(stream: UnixStream) -> io::Result<Socket> {
        stream.set_nonblocking(true)?;
        Ok(Socket::Unix(stream))
    }

    /// Wraps a TCP socket. Disables Nagle's algorithm and enables keep-alive probes.
    pub(super) fn tcp(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        liveness::enable_keepalive(&stream, PEER_TIMEOUT)?;
        Ok(Socket::Tcp(stream, PeerHost { timeout: PEER_TIMEOUT, check: SilenceCheck::default() }))
    }

    /// Sets the time without an answer after which the peer's host counts as gone, clamped to the supported
    /// range.
    pub(super) fn set_peer_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        match self {
            Socket::Unix(_) => Ok(()),
            Socket::Tcp(stream, host) => {
                host.timeout = timeout.clamp(PEER_TIMEOUT_MIN, PEER_TIMEOUT_MAX);
                Ok(liveness::enable_keepalive(stream, host.timeout)?)
            }
        }
    }

    /// Returns the peer timeout; zero for a Unix socket, which needs none.
    pub(super) fn peer_timeout(&self) -> Duration {
        match self {
            Socket::Unix(_) => Duration::ZERO,
            Socket::Tcp(_, host) => host.timeout,
        }
    }

    /// Reads available bytes and the descriptors that arrive with them.
    pub(super) fn read(&mut self, into: &mut [u8], fds: &mut VecDeque<OwnedFd>) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => receive(stream.as_fd(), into, fds),
            Socket::Tcp(stream, _) => stream.read(into),
        }
    }

    /// Writes as many bytes as the socket takes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => stream.write(bytes),
            Socket::Tcp(stream, _) => stream.write(bytes),
        }
    }

    /// Sends one descriptor with the first of these bytes. Returns the number of bytes sent.
    pub(super) fn send_descriptor(&mut self, fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => {
                Ok(transport::driver::shm::send_descriptor_with(stream.as_fd(), fd, bytes)?)
            }
            Socket::Tcp(..) => Err(io::Error::other("descriptors don't travel over TCP")),
        }
    }

    /// Whether the socket is a TCP socket, whose peer may be on another host.
    pub(super) fn is_tcp(&self) -> bool {
        matches!(self, Socket::Tcp(..))
    }

    /// Whether the peer's host has been silent for longer than the peer timeout.
    pub(super) fn is_peer_silent(&mut self) -> bool {
        match self {
            Socket::Unix(_) => false,
            Socket::Tcp(stream, host) => host.check.is_silent(stream, host.timeout),
        }
    }

    /// Shuts down the write side.
    pub(super) fn finish(&mut self) {
        // If this fails, the connection is broken already.
        let _ = match self {
            Socket::Unix(stream) => stream.shutdown(std::net::Shutdown::Write),
            Socket::Tcp(stream, _) => stream.shutdown(std::net::Shutdown::Write),
        };
    }
}

fn receive(socket: BorrowedFd<'_>, into: &mut [u8], fds: &mut VecDeque<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    #[cfg(target_os = "linux")]
    let flags = RecvFlags::CMSG_CLOEXEC;
    #[cfg(not(target_os = "linux"))]
    let flags = RecvFlags::empty();
    let message = match recvmsg(socket, &mut [IoSliceMut::new(into)], &mut control, flags) {
        Err(Errno::CONNRESET) => return Ok(0),
        other => other?,
    };
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            for fd in received {
                #[cfg(not(target_os = "linux"))]
                rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
                fds.push_back(fd);
            }
        }
    }
    Ok(message.bytes)
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Unix(stream) => stream.as_fd(),
            Socket::Tcp(stream, _) => stream.as_fd(),
        }
    }
}

impl Source for Socket {
    fn register(&mut self, registry: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        SourceFd(&self.as_fd().as_raw_fd()).register(registry, token, interest)
    }

    fn reregister(&mut self, registry: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        SourceFd(&self.as_fd().as_raw_fd()).reregister(registry, token, interest)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        SourceFd(&self.as_fd().as_raw_fd()).deregister(registry)
    }
}

/// Describes the peer for log messages.
impl fmt::Display for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Socket::Unix(_) => f.write_str("a process of this host"),
            Socket::Tcp(stream, _) => match stream.peer_addr() {
                Ok(address) => address.fmt(f),
                Err(_) => f.write_str("a disconnected address"),
            },
        }
    }
}

/// Creates a nonblocking TCP socket of the address's family, with close-on-exec set.
pub(super) fn tcp_socket_for(address: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    #[cfg(target_os = "linux")]
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    #[cfg(not(target_os = "linux"))]
    let socket = {
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::empty(), None)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        socket
    };
    Ok(socket)
}
