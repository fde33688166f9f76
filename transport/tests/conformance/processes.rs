//! Links between two processes.

use crate::delivery::sizes;
use crate::fixture::*;

const ROLE: &str = "CONFORMANCE_ROLE";
use rustix::fd::{AsFd, OwnedFd};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    process::{Command, Stdio},
    thread,
    time::Instant,
};
use transport::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState,
    driver::shm,
    memory::{Arena, Slab, Span},
};

/// Exchanges arena descriptors between two processes and makes the link.
fn open_link(rank: u32, socket: &mut UnixStream) -> (Box<dyn Link>, Slab) {
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let (ours, object) = Arena::shared(LAYOUT).expect("memory");
    shm::send_descriptor(&*socket, object.as_fd()).expect("send");
    let theirs = shm::receive_descriptor(&*socket).expect("receive");
    let theirs = Arena::of_peer(LAYOUT, theirs).expect("it can be mapped");
    let word = Box::new(0x1234_5678_u64 + u64::from(rank));
    let me = pull_target(&word);
    for value in [u64::from(me.pid), me.probe_address, me.probe_value] {
        socket.write_all(&value.to_le_bytes()).expect("write");
    }
    let mut get = || {
        let mut bytes = [0; 8];
        socket.read_exact(&mut bytes).expect("read");
        u64::from_le_bytes(bytes)
    };
    let them = shm::PullTarget { pid: get() as u32, probe_address: get(), probe_value: get() };
    let can = shm::probe_pull(&them).is_ok();
    socket.write_all(&[u8::from(can)]).expect("write");
    let mut theirs_can = [0];
    socket.read_exact(&mut theirs_can).expect("read");
    let pull = (can && theirs_can[0] == 1).then_some(them.pid);
    (shm::link((rank, &ours), (1 - rank, &theirs), 0, pull), Slab::new(&ours, Some(object)))
}

/// Sends messages of every size by every protocol, and receives them back. Returns the number received.
fn exchange(rank: u32, link: &mut dyn Link, slab: &Slab) -> u8 {
    let mut protocols = vec![Protocol::Copy, Protocol::Direct];
    if link.capabilities().pull {
        protocols.extend([Protocol::Pull, Protocol::PullUnchanged]);
    }
    let until = Instant::now() + PATIENCE;
    let idle = || {
        assert!(Instant::now() < until, "stuck");
        thread::yield_now();
    };
    let mut came = 0;
    for protocol in protocols {
        for (i, len) in sizes().into_iter().enumerate() {
            let bytes = noise(len, i as u64 + 100);
            let memory = registered(slab, &bytes);
            let src = if protocol == Protocol::Direct { memory.span() } else { Span::from(&*bytes) };
            for turn in [0, 1] {
                if turn == rank {
                    let mut state = SendState::new(i as u64, protocol);
                    while link.poll_send(&mut state, src).expect("send") != SendProgress::Complete {
                        idle();
                    }
                } else {
                    let (mut state, mut received) = (RecvState::new(i as u64, len), vec![0; len]);
                    while link.poll_recv(&mut state, &mut CopySink(&mut received)).expect("recv")
                        != RecvProgress::Complete
                    {
                        idle();
                    }
                    assert!(received == bytes, "{len} bytes by {protocol:?}");
                    came += 1;
                }
            }
        }
    }
    came
}

/// The second process of the test below; does nothing when it is run as a test.
#[test]
fn the_other_process() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().expect("a descriptor"));
    let (mut link, slab) = open_link(1, &mut socket);
    let came = exchange(1, &mut *link, &slab);
    socket.write_all(&[came]).expect("write");
}

#[test]
fn two_processes_exchange_every_size_by_every_protocol() {
    let (mut ours, theirs) = UnixStream::pair().expect("sockets");
    let mut other = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "processes::the_other_process", "--nocapture"])
        .env(ROLE, "1")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn()
        .expect("a process");
    let (mut link, slab) = open_link(0, &mut ours);
    let came = exchange(0, &mut *link, &slab);
    let mut theirs = [0];
    ours.read_exact(&mut theirs).expect("the other one's count");
    assert_eq!(theirs[0], came);
    assert!(other.wait().expect("our child").success());
}
