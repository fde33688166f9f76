//! Identity of the running system, of the process at the other end of a Unix socket, and states of processes.
//!
//! # Safety
//! The kernel fills variables whose addresses and sizes it is given.

use rustix::fd::AsFd;

/// Returns the boot ID of the running system, which is read once.
#[cfg(target_os = "linux")]
#[must_use]
pub fn boot_id() -> String {
    static BOOT_ID: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let read = || std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    BOOT_ID.get_or_init(|| read().trim().to_owned()).clone()
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

/// Returns the process at the other end of a connected Unix socket: the one that connected, or that began to
/// listen. `None` if the system does not tell, or if this process cannot see that one.
#[must_use]
pub fn peer_process(socket: impl AsFd) -> Option<u32> {
    peer_process_id(socket).and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0)
}

/// Returns the state of a process as the letter of `ps`: `T` for a stopped one, `X` if there is none. `None`
/// if the system does not tell.
#[cfg(target_os = "linux")]
#[must_use]
pub fn process_state(pid: u32) -> Option<char> {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        // The name of the program, in parentheses, may contain anything.
        Ok(stat) => stat.rsplit_once(')')?.1.trim_start().chars().next(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some('X'),
        Err(_) => None,
    }
}

/// Returns the state of a process as the letter of `ps`: `T` for a stopped one, `X` if there is none. `None`
/// if the system does not tell.
#[cfg(target_vendor = "apple")]
#[must_use]
pub fn process_state(pid: u32) -> Option<char> {
    // SAFETY: all fields are numbers or arrays of them, for which zero is valid.
    let mut info: libc::proc_bsdinfo = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::proc_bsdinfo>() as libc::c_int;
    // SAFETY: the kernel writes at most `size` bytes to `info`, which has that size and outlives the call.
    let written = unsafe {
        libc::proc_pidinfo(pid as libc::c_int, libc::PROC_PIDTBSDINFO, 0, (&raw mut info).cast(), size)
    };
    if written != size {
        let is_missing = std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
        return is_missing.then_some('X');
    }
    // The numbers of sys/proc.h: SIDL, SRUN, SSLEEP, SSTOP, SZOMB.
    [None, Some('I'), Some('R'), Some('S'), Some('T'), Some('Z')].get(info.pbi_status as usize).copied()?
}

/// Returns the state of a process: unknown.
#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
#[must_use]
pub fn process_state(_pid: u32) -> Option<char> {
    None
}

#[cfg(target_os = "linux")]
fn peer_credentials(socket: impl AsFd) -> Option<libc::ucred> {
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
    (done == 0).then_some(peer)
}

#[cfg(target_os = "linux")]
fn peer_user(socket: impl AsFd) -> Option<u32> {
    peer_credentials(socket).map(|peer| peer.uid)
}

#[cfg(target_os = "linux")]
fn peer_process_id(socket: impl AsFd) -> Option<libc::pid_t> {
    peer_credentials(socket).map(|peer| peer.pid)
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

#[cfg(target_vendor = "apple")]
fn peer_process_id(socket: impl AsFd) -> Option<libc::pid_t> {
    use std::os::fd::AsRawFd;
    let mut pid: libc::pid_t = 0;
    let mut len = size_of::<libc::pid_t>() as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed. The kernel writes at most `len` bytes to `pid`,
    // which has that size, and writes the count to `len`. Both outlive the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_LOCAL,
            libc::LOCAL_PEERPID,
            (&raw mut pid).cast(),
            &raw mut len,
        )
    };
    (done == 0).then_some(pid)
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn peer_process_id(_socket: impl AsFd) -> Option<libc::pid_t> {
    None
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

    #[test]
    fn this_process_is_at_both_ends_and_in_a_known_state() {
        let (ours, _theirs) = UnixStream::pair().expect("descriptors");
        assert_eq!(peer_process(&ours), Some(std::process::id()));
        assert!(matches!(process_state(std::process::id()), Some('R' | 'S' | 'D')));
        assert_eq!(process_state(u32::MAX >> 1), Some('X'), "no system has so large a number");
    }
}
