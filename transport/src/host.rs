//! Identity of the running system, and of the user at the other end of a Unix socket.
//!
//! # Safety
//! The kernel fills variables whose addresses and sizes it is given.

use rustix::fd::AsFd;

/// Returns the boot ID of the running system.
#[cfg(target_os = "linux")]
#[must_use]
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Returns a substitute for Linux's boot ID: the host name and the time at which `/dev` was created.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn boot_id() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let started = std::fs::metadata("/dev").and_then(|dev| dev.created().or_else(|_| dev.modified()));
    let since = started.ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    since.map_or_else(String::new, |since| format!("{name} {}", since.as_secs()))
}

/// Returns the network namespace of this thread, to which its abstract sockets belong; empty where the system
/// has none.
#[must_use]
pub fn network_namespace() -> String {
    let link = std::fs::read_link("/proc/thread-self/ns/net");
    link.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Whether the other end of a connected Unix socket belongs to this process's user.
///
/// The kernel keeps the user that connected, and the user that began to listen. False if it reports none.
#[must_use]
pub fn is_same_user(socket: impl AsFd) -> bool {
    peer_user(socket) == Some(rustix::process::geteuid().as_raw())
}

#[cfg(target_os = "linux")]
fn peer_user(socket: impl AsFd) -> Option<u32> {
    use std::os::fd::AsRawFd;
    // Not `rustix`: its process id can't be 0, as which the kernel reports processes of another namespace.
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed. The kernel writes at most `len` bytes to `peer`,
    // which has that size, and writes the count to `len`. Both outlive the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    (done == 0).then_some(peer.uid)
}

#[cfg(not(target_os = "linux"))]
fn peer_user(socket: impl AsFd) -> Option<u32> {
    use std::os::fd::AsRawFd;
    let (mut user, mut group) = (0, 0);
    // SAFETY: the descriptor is open while it is borrowed. The kernel writes one number to each address; both
    // variables have that size and outlive the call.
    let done = unsafe { libc::getpeereid(socket.as_fd().as_raw_fd(), &raw mut user, &raw mut group) };
    (done == 0).then_some(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn this_process_has_one_user_at_both_ends_and_tcp_names_none() {
        let (ours, theirs) = UnixStream::pair().expect("descriptors");
        assert!(is_same_user(&ours) && is_same_user(&theirs));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        assert!(!is_same_user(&stream));
    }
}
