//! Connections of another process over TCP: their reset, and the size of their buffers.

use rustix::{fd::OwnedFd, io, net::sockopt, process::Pid};
use std::{collections::BTreeSet, fs};

/// State of an established connection in the tables of the system.
const ESTABLISHED: &str = "01";

/// Resets one of the connections of a process; `choice` is a random number. Returns whether it had any.
///
/// The peer gets a reset. In the process itself the socket is no longer connected.
pub(super) fn reset(pid: u32, choice: u64) -> bool {
    let connections = connections(pid);
    let Some(descriptor) = connections.get(choice as usize % connections.len().max(1)) else { return false };
    let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    reset_socket(process, *descriptor).is_ok()
}

/// Bytes of a small receive buffer: two segments of the loopback interface. With less, a connection whose
/// window was larger carries a few kilobytes per second: TCP waits for a timer before it sends less than a
/// segment.
const RECEIVE_BYTES: usize = 128 << 10;

/// Makes the buffers of all connections of a process small: those for sending as small as the system permits.
/// A message that is longer fills them, and waits for the reader.
pub(super) fn squeeze(pid: u32) {
    let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    for descriptor in connections(pid) {
        // A connection may have been closed meanwhile.
        let _ = squeeze_socket(process, descriptor);
    }
}

/// Resets the connection that a process has under a descriptor.
fn reset_socket(process: Pid, descriptor: i32) -> io::Result<()> {
    rustix::net::connect_unspec(taken(process, descriptor)?)
}

fn squeeze_socket(process: Pid, descriptor: i32) -> io::Result<()> {
    let socket = taken(process, descriptor)?;
    sockopt::set_socket_send_buffer_size(&socket, 1)?;
    sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BYTES)
}

/// Returns a duplicate of a descriptor of another process.
#[cfg(target_os = "linux")]
fn taken(process: Pid, descriptor: i32) -> io::Result<OwnedFd> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    pidfd_getfd(pidfd_open(process, PidfdFlags::empty())?, descriptor, PidfdGetfdFlags::empty())
}

/// Fails: elsewhere no call takes the descriptors of other processes, and the command refuses to start.
#[cfg(not(target_os = "linux"))]
fn taken(_: Pid, _: i32) -> io::Result<OwnedFd> {
    Err(io::Errno::NOSYS)
}

/// Returns the descriptors of a process that are established connections over TCP.
fn connections(pid: u32) -> Vec<i32> {
    let tables = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/{pid}/net/{name}")));
    let sockets: BTreeSet<String> =
        tables.into_iter().flatten().flat_map(|table| established(&table)).collect();
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let descriptor = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned();
        let socket = target.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned();
        let number = entry.file_name().to_str()?.parse().ok()?;
        sockets.contains(&socket).then_some(number)
    };
    let mut found: Vec<i32> = entries.filter_map(descriptor).collect();
    found.sort_unstable();
    found
}

/// Returns the inodes of the established connections of a table.
fn established(table: &str) -> Vec<String> {
    let inode = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_established = fields.get(3) == Some(&ESTABLISHED);
        fields.get(9).filter(|_| is_established).map(|inode| (*inode).to_owned())
    };
    table.lines().skip(1).filter_map(inode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{ErrorKind, Read, Write},
        net::{TcpListener, TcpStream},
        os::fd::AsRawFd,
    };

    #[test]
    fn a_connection_with_small_buffers_holds_little() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let ours = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (theirs, _) = listener.accept().expect("ours");
        for socket in [&ours, &theirs] {
            squeeze_socket(rustix::process::getpid(), socket.as_raw_fd()).expect("a socket of ours");
        }
        ours.set_nonblocking(true).expect("a socket");
        let held: usize = std::iter::from_fn(|| (&ours).write(&[0; 4096]).ok()).take(1000).sum();
        assert!((1..1 << 20).contains(&held), "{held} bytes");
    }

    #[test]
    fn a_reset_reaches_the_peer() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let ours = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (theirs, _) = listener.accept().expect("ours");
        // Other tests of this process may have connections, which are not to be reset.
        let descriptor = ours.as_raw_fd();
        assert!(connections(std::process::id()).contains(&descriptor));
        reset_socket(rustix::process::getpid(), descriptor).expect("a socket of ours");
        let error = (&theirs).read(&mut [0]).expect_err("it is reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert!(!connections(std::process::id()).contains(&descriptor));
    }
}
