//! Child processes: this program again, as one test that plays a role.
//!
//! # Safety
//! A fork happens only in such a process, whose single test runs in its only thread; the child calls the
//! device and exits without unwinding.

use crate::{
    rig::{ALL, DataPath, End, FabricLocation, Options, PeerInfo, Rig, init_attr},
    verbs::{Domain, Node, QueuePair, Queues, Region, TIMEOUT, Work, wait_for},
};
use std::{
    env, fs,
    io::Read,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child as Process, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};
use verbs_sys::{Gid, QpType, SendFlags, WcStatus, WrOpcode};

const ROLE: &str = "CONFORMANCE_ROLE";

/// A process on node `b`. It is killed on drop.
#[derive(Debug)]
pub(crate) struct Child {
    process: Process,
    exchange_dir: PathBuf,
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Child {
    pub(crate) fn start(rig: &Rig, kind: QpType, role: &str) -> Child {
        let location = rig.location();
        let exchange_dir = location.home.join(format!("exchange_dir-{}", NUMBER.fetch_add(1, Relaxed)));
        fs::create_dir(&exchange_dir).expect("a folder");
        let shared = location.path == DataPath::Shared;
        let process = Command::new(env::current_exe().expect("this program"))
            .args(["--exact", "children::plays_a_role", "--test-threads=1", "--nocapture"])
            .env(ROLE, format!("{role} {} {shared}", kind.0))
            .env("CONFORMANCE_HOME", &location.home)
            .env("CONFORMANCE_NOTES", &exchange_dir)
            .stdout(Stdio::null())
            .stderr(if matches!(role, "hazard" | "post-sends" | "post-receives") {
                Stdio::piped()
            } else {
                Stdio::inherit()
            })
            .spawn()
            .expect("a process");
        Child { process, exchange_dir }
    }

    /// Exchanges the information to connect with the child.
    pub(crate) fn exchange(&self, ours: &PeerInfo) -> PeerInfo {
        write(&self.exchange_dir.join("parent"), ours);
        read(&self.exchange_dir.join("child"))
    }

    /// Lets the child run its role, and waits until it is connected.
    pub(crate) fn begin(&self) {
        fs::write(self.exchange_dir.join("go"), "").expect("room for a file");
        wait_for("the other process", || self.exchange_dir.join("ready").exists().then_some(()));
    }

    /// Kills the child.
    pub(crate) fn kill(mut self) {
        self.process.kill().expect("ours to kill");
        self.process.wait().expect("it ends");
    }

    /// Waits until a signal ends the child, and returns the signal.
    pub(crate) fn wait_for_signal(mut self) -> i32 {
        let status = wait_for("the death of a process", || self.process.try_wait().expect("our process"));
        status.signal().unwrap_or_else(|| panic!("{status}"))
    }

    /// Whether the child is still running.
    pub(crate) fn is_running(&mut self) -> bool {
        self.process.try_wait().expect("our process").is_none()
    }

    /// Waits for the child's exit; returns whether it succeeded.
    pub(crate) fn exits_successfully(mut self) -> bool {
        let status = wait_for("the end of a process", || self.process.try_wait().expect("our process"));
        status.success()
    }
}

impl Child {
    /// Returns the child's standard error, and asserts that it succeeds.
    pub(crate) fn stderr(mut self) -> String {
        let mut message = String::new();
        let stderr = self.process.stderr.as_mut().expect("a pipe");
        stderr.read_to_string(&mut message).expect("text");
        assert!(self.exits_successfully(), "{message}");
        message
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the number of open descriptors of this process.
pub(crate) fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("a list").count()
}

fn write(path: &Path, info: &PeerInfo) {
    let gid = u128::from_be_bytes(info.gid.0);
    let text = format!("{} {gid} {} {}", info.qpn, info.address, info.rkey);
    fs::write(path.with_extension("new"), text).expect("room for a file");
    fs::rename(path.with_extension("new"), path).expect("a new name");
}

fn read(path: &Path) -> PeerInfo {
    let text = wait_for("a note", || fs::read_to_string(path).ok());
    let words: Vec<u128> = text.split(' ').map(|word| word.parse().expect("a number")).collect();
    PeerInfo {
        qpn: words[0] as u32,
        gid: Gid(words[1].to_be_bytes()),
        address: words[2] as u64,
        rkey: words[3] as u32,
    }
}

/// Does nothing unless another test has started it.
#[test]
fn plays_a_role() {
    let Ok(role) = env::var(ROLE) else { return };
    let [role, kind, shared] = role.split(' ').collect::<Vec<_>>()[..] else { panic!("{role}") };
    let path = if shared == "true" { DataPath::Shared } else { DataPath::Copied };
    let location = FabricLocation { home: env::var_os("CONFORMANCE_HOME").expect("a folder").into(), path };
    let node = location.open("b").expect("a device");
    match role {
        "fork" => fork(&node, &location),
        "hazard" => {
            drop(node);
            crate::cross_4gib_line(&Rig::joined(&location), false);
        }
        _ => peer(role, &End::new(&node, QpType(kind.parse().expect("a number")), Options::default())),
    }
}

fn peer(role: &str, end: &End) {
    let exchange_dir: PathBuf = env::var_os("CONFORMANCE_NOTES").expect("a folder").into();
    let _exhausted = (role == "exhaust").then(|| exhaust(end));
    write(&exchange_dir.join("child"), &end.info());
    end.connect(&read(&exchange_dir.join("parent")), Options::default());
    wait_for("the parent", || exchange_dir.join("go").exists().then_some(()));
    (0..4).for_each(|id| end.receive(id, 0, 64));
    fs::write(exchange_dir.join("ready"), "").expect("room for a file");
    let began = std::time::Instant::now();
    // The time limit ends an orphaned child. One that echoes ends when it receives nothing for that time.
    while began.elapsed() < TIMEOUT || role == "echo" {
        match role {
            "echo" => echo(end, &read(&exchange_dir.join("parent"))),
            "write" => write_words(end, &read(&exchange_dir.join("parent"))),
            "post-sends" => _ = end.qp.post(&Work::send(&[end.sge(0, 64)])),
            "post-receives" => _ = end.qp.receive(9, &[end.sge(0, 64)]),
            "send" => {
                let _ = end.qp.post(&Work::send(&[end.sge(0, 4096)]));
                let _ = end.send.try_poll();
            }
            _ => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    }
}

/// Allocates all queue pairs, registrations and domains of a device that are free.
fn exhaust(end: &End) -> (Vec<QueuePair>, Vec<Region>, Vec<Arc<Domain>>) {
    let queues = Queues { send: Arc::clone(&end.send), recv: Arc::clone(&end.recv), srq: None };
    let qp = || end.domain.qp(init_attr(end.kind, Options::default()), queues.clone()).ok();
    let region = || end.domain.register(&end.memory, ALL).ok();
    let domain = || end.node.pd().ok();
    use std::iter::from_fn;
    (from_fn(qp).collect(), from_fn(region).collect(), from_fn(domain).collect())
}

/// Messages that [`write_words`] writes.
pub(crate) const WRITES: u64 = 100_000;

/// Returns the size of a write in bytes.
pub(crate) fn length(number: u64) -> usize {
    [512, 520, 1024, 1032, 2048, 4096, 1000, 3000][number as usize % 8]
}

/// Writes messages, each filled with its number, into the memory of a peer that polls the last word. The peer
/// answers each by a word that it writes here.
fn write_words(end: &End, peer: &PeerInfo) {
    let answer = 8192;
    for number in 1..=WRITES {
        let len = length(number);
        (0..len / 8).for_each(|word| end.memory.set_word(word * 8, number));
        let write = Work::new(WrOpcode::RDMA_WRITE, &[end.sge(0, len)]).at(peer.address, peer.rkey);
        let is_last = number % 8 == 0;
        end.post(&if is_last { write } else { write.flags(SendFlags::NONE) });
        if is_last {
            assert_eq!(end.sent().1, WcStatus::SUCCESS);
        }
        wait_for("an answer", || (end.memory.aligned_word(answer) == number).then_some(()));
    }
    std::process::exit(0);
}

/// Offset in the peer's memory that [`echo`] writes to.
pub(crate) const ECHO_AT: usize = 16 << 10;

/// Answers a message by a write of its number into the peer's memory, and by a message.
fn echo(end: &End, peer: &PeerInfo) {
    let (_, status) = end.received();
    assert_eq!(status, WcStatus::SUCCESS);
    let number = end.memory.word(0);
    end.receive(number, 0, 64);
    end.memory.set_word(1024, number);
    let sge = [end.sge(1024, 8)];
    let write = Work::new(WrOpcode::RDMA_WRITE, &sge).at(peer.address + ECHO_AT as u64, peer.rkey);
    end.post(&write.flags(SendFlags::NONE));
    end.post(&Work::send(&sge));
    assert_eq!(end.sent().1, WcStatus::SUCCESS);
}

/// Returns the first inherited object that does not fail as it should, counted from 1, or 0.
fn failed_check_after_fork(a: &End, b: &End, node: &Arc<Node>, location: &FabricLocation) -> i32 {
    let sge = Work::send(&[verbs_sys::Sge { addr: 0, length: 0, lkey: 0 }]);
    let refused = [
        a.qp.post(&sge) != 0,
        b.qp.receive(1, &[]) != 0,
        a.send.try_poll().is_err(),
        a.qp.become_state(verbs_sys::QpState::ERR) != 0,
        node.pd().is_err(),
        node.cq(4, None).is_err(),
        a.region.destroy() != 0,
        a.qp.destroy() != 0,
        a.send.destroy() != 0,
        // The child can open a device of its own.
        location.open("b").is_ok_and(|own| own.pd().is_ok()),
    ];
    refused.iter().position(|right| !right).map_or(0, |at| at as i32 + 1)
}

fn fork(node: &Arc<Node>, location: &FabricLocation) {
    let (a, b) = (
        End::new(node, QpType::RC, Options::default()),
        End::new(&location.open("a").expect("a device"), QpType::RC, Options::default()),
    );
    a.connect(&b.info(), Options::default());
    b.connect(&a.info(), Options::default());
    b.receive(1, 0, 64);
    // SAFETY: only one thread of this process uses the device, see the module.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            failed_check_after_fork(&a, &b, node, location)
        }));
        let wrong = found.unwrap_or(99);
        // SAFETY: exits at once.
        unsafe { libc::_exit(wrong) };
    }
    let mut status = 0;
    // SAFETY: the process is a child of this one; the pointer is a valid place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "what the child found wrong, as its status times 256; else a signal");
    a.memory.pattern(0, 64, 5);
    a.send(2, 0, 64);
    assert_eq!((a.sent(), b.received()), ((2, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)));
    assert!(b.memory.has_pattern(0, 64, 5));
}
