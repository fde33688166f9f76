//! Descriptors that another process makes readable: datagram sockets with a name in the fabric's folder.
//!
//! Events are recorded in shared memory; a datagram only says that there is one. So a datagram that finds the
//! socket's queue full may be dropped: the reader of earlier datagrams looks at the memory and finds every
//! event.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::{AsFd, AsRawFd, OwnedFd},
    io,
    net::{self, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType},
};
use std::path::PathBuf;

/// Wakes other processes, and creates descriptors by which they wake this one.
#[derive(Debug)]
pub(crate) struct Waker {
    folder: OwnedFd,
    socket: OwnedFd,
}

impl Waker {
    pub(crate) fn new(folder: OwnedFd) -> io::Result<Waker> {
        Ok(Waker { folder, socket: socket(SocketFlags::NONBLOCK)? })
    }

    /// Returns the name of a channel's socket in the fabric's folder.
    pub(super) fn name(slot: u32, channel: u32) -> String {
        format!("w{slot}.{channel}")
    }

    /// Returns the address of a channel's socket. The path goes through a descriptor, because the folder's
    /// own path may be too long for a socket.
    fn address(&self, slot: u32, channel: u32) -> io::Result<SocketAddrUnix> {
        let folder = PathBuf::from(format!("/proc/self/fd/{}", self.folder.as_raw_fd()));
        SocketAddrUnix::new(folder.join(Self::name(slot, channel)))
    }

    /// Creates a descriptor that becomes readable when a process wakes `channel` of the process in `slot`.
    pub(crate) fn listen(&self, slot: u32, channel: u32) -> io::Result<OwnedFd> {
        let fd = socket(SocketFlags::empty())?;
        net::bind(&fd, &self.address(slot, channel)?)?;
        Ok(fd)
    }

    /// Removes the name of a channel.
    pub(crate) fn forget(&self, slot: u32, channel: u32) {
        let _ = rustix::fs::unlinkat(&self.folder, Self::name(slot, channel), rustix::fs::AtFlags::empty());
    }

    /// Makes a channel's descriptor readable. Does nothing if the channel is gone.
    pub(crate) fn wake(&self, slot: u32, channel: u32) {
        if channel != 0
            && let Ok(address) = self.address(slot, channel)
        {
            let _ = net::sendto(&self.socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &address);
        }
    }
}

fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags | SocketFlags::CLOEXEC, None)
}

/// Takes one datagram. Waits for it, unless the descriptor is non-blocking or `wait` is false.
pub(crate) fn take_one(fd: impl AsFd, wait: bool) -> io::Result<()> {
    let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    net::recv(fd, &mut [0u8; 8], flags).map(|_| ())
}

/// Whether there is a datagram.
pub(crate) fn is_readable(fd: impl AsFd) -> bool {
    wait_readable(fd, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap_or(false)
}

/// Waits for a datagram, at most for `timeout`; for ever without one. Returns whether there is one.
pub(crate) fn wait_readable(fd: impl AsFd, timeout: Option<&Timespec>) -> io::Result<bool> {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, timeout).map(|ready| ready > 0)
}
