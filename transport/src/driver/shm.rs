//! Driver for ranks that are processes of one host.
//!
//! Each rank creates an [`Arena`], an anonymous shared memory object, and sends its descriptor to the others.
//! The bootstrap does so with [`send_descriptor`] and [`receive_descriptor`] over a Unix socket. Each rank
//! maps the others' arenas. Memory outside of the arenas is pulled by system call where the system allows it.

use super::{pull::Puller, ring_link::RingLink};
use crate::{Link, TransportError, memory::Arena};
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    io,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recvmsg, sendmsg,
    },
};
use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
};

/// Information that a rank needs about a peer's process to pull from its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullTarget {
    /// Identifier of the peer's process.
    pub pid: u32,
    /// Address of a word in the peer's memory.
    pub probe_address: u64,
    /// Value of the probe word.
    pub probe_value: u64,
}

/// Checks whether this process may read the target's memory.
///
/// # Errors
/// [`TransportError::Unreadable`] if reading is forbidden or the probe word has another value.
pub fn probe_pull(target: &PullTarget) -> Result<(), TransportError> {
    Puller::new(target.pid).probe(target.probe_address, target.probe_value)
}

/// Returns the link on `lane` from `rank` with arena `ours` to `peer` with arena `theirs`.
///
/// Each end must call this once per (pair, lane). `pull` is the peer's process; pass it only if
/// [`probe_pull`] succeeded on every rank.
#[must_use]
pub fn link(
    (rank, ours): (u32, &Arena),
    (peer, theirs): (u32, &Arena),
    lane: u8,
    pull: Option<u32>,
) -> Box<dyn Link> {
    Box::new(RingLink::new("shm", (rank, ours), (peer, theirs), lane, pull.map(Puller::new)))
}

/// Makes sending to a closed socket an error instead of a SIGPIPE, which most programs do not expect.
///
/// The standard library's streams write with this flag too.
const NO_SIGNAL: SendFlags = SendFlags::from_bits_retain(libc::MSG_NOSIGNAL as u32);

/// Sends one descriptor with one byte of data over a Unix socket.
///
/// # Errors
/// The error of `sendmsg`.
pub fn send_descriptor(socket: impl AsFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    let sent = send_descriptor_with(socket, fd, &[1])?;
    if sent == 1 { Ok(()) } else { Err(io::Errno::IO) }
}

/// Sends one descriptor with the first of these bytes over a Unix socket. Returns the number of bytes sent.
///
/// # Errors
/// The error of `sendmsg`.
pub fn send_descriptor_with(socket: impl AsFd, fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    let pushed = control.push(SendAncillaryMessage::ScmRights(&fds));
    assert!(pushed, "room for one descriptor");
    io::retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, NO_SIGNAL))
}

/// Receives one descriptor that [`send_descriptor`] sent.
///
/// # Errors
/// The error of `recvmsg`; `CONNRESET` if the other end has closed the socket, `PROTO` if the message carries
/// no descriptor.
pub fn receive_descriptor(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    #[cfg(target_os = "linux")]
    let flags = RecvFlags::CMSG_CLOEXEC;
    #[cfg(not(target_os = "linux"))]
    let flags = RecvFlags::empty();
    // Where the socket has a time limit, a process that is stopped and continued meanwhile is interrupted.
    let message =
        io::retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags))?;
    if message.bytes == 0 {
        return Err(io::Errno::CONNRESET);
    }
    let fd = control.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let fd = fd.ok_or(io::Errno::PROTO)?;
    #[cfg(not(target_os = "linux"))]
    io::fcntl_setfd(&fd, io::FdFlags::CLOEXEC)?;
    Ok(fd)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::{receive_descriptor, send_descriptor};
    use rustix::{
        fd::{AsFd, OwnedFd},
        process::{Pid, Signal, kill_process},
    };
    use std::{
        fs::File,
        os::unix::net::UnixStream,
        process::{Command, Stdio},
        thread::sleep,
        time::Duration,
    };

    const ROLE: &str = "TBCCL_TEST_RECEIVES_DESCRIPTOR";

    /// Plays the role of the process that is stopped, if it has it; not a test.
    #[test]
    fn receives_a_descriptor_from_stdin() {
        if std::env::var_os(ROLE).is_some() {
            receive_descriptor(std::io::stdin()).expect("it is sent after all stops");
        }
    }

    /// The system interrupts a receive with a time limit then, although no signal is handled.
    #[test]
    fn a_process_that_is_stopped_and_continued_meanwhile_receives_a_descriptor() {
        let (ours, theirs) = UnixStream::pair().expect("two sockets");
        theirs.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "driver::shm::tests::receives_a_descriptor_from_stdin"])
            .env(ROLE, "1")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        for _ in 0..30 {
            sleep(Duration::from_millis(50));
            for signal in [Signal::STOP, Signal::CONT] {
                kill_process(Pid::from_child(&child), signal).expect("it waits");
                sleep(Duration::from_millis(5));
            }
        }
        let file = File::open("/dev/null").expect("it is there");
        // An error means that it has ended, which its status shows.
        let _ = send_descriptor(&ours, file.as_fd());
        assert!(child.wait().expect("our child").success());
    }
}
