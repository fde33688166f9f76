//! Other processes: this program once more, as one test that plays a role.
//!
//! # Safety
//! A fork happens only in such a process, whose one test runs in its only thread; the child calls the device, and
//! leaves without unwinding.

use crate::{
    rig::{ALL, Card, DataPath, End, Options, Rig, Way, init_attr},
    verbs::{Domain, Node, PATIENCE, Parts, QueuePair, Region, Work, until},
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

/// A process on the node `b`. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Child {
    process: Process,
    notes: PathBuf,
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Child {
    pub(crate) fn start(rig: &Rig, kind: QpType, role: &str) -> Child {
        let way = rig.way();
        let notes = way.home.join(format!("notes-{}", NUMBER.fetch_add(1, Relaxed)));
        fs::create_dir(&notes).expect("a folder");
        let shared = way.path == DataPath::Shared;
        let process = Command::new(env::current_exe().expect("this program"))
            .args(["--exact", "children::plays_a_role", "--test-threads=1", "--nocapture"])
            .env(ROLE, format!("{role} {} {shared}", kind.0))
            .env("CONFORMANCE_HOME", &way.home)
            .env("CONFORMANCE_NOTES", &notes)
            .stdout(Stdio::null())
            .stderr(if matches!(role, "hazard" | "post-sends" | "post-receives") {
                Stdio::piped()
            } else {
                Stdio::inherit()
            })
            .spawn()
            .expect("a process");
        Child { process, notes }
    }

    /// Tells it whom to connect to, and learns the same.
    pub(crate) fn meet(&self, ours: &Card) -> Card {
        write(&self.notes.join("parent"), ours);
        read(&self.notes.join("child"))
    }

    /// Waits until it is connected, which it is not before we are.
    pub(crate) fn go(&self) {
        fs::write(self.notes.join("go"), "").expect("room for a file");
        until("the other process", || self.notes.join("ready").exists().then_some(()));
    }

    /// Kills it on the spot.
    pub(crate) fn kill(mut self) {
        self.process.kill().expect("ours to kill");
        self.process.wait().expect("it ends");
    }

    /// Waits for its end by a signal.
    pub(crate) fn dies(mut self) -> i32 {
        let status = until("the death of a process", || self.process.try_wait().expect("our process"));
        status.signal().unwrap_or_else(|| panic!("{status}"))
    }

    /// Has it not ended?
    pub(crate) fn lives(mut self) -> bool {
        self.process.try_wait().expect("our process").is_none()
    }

    /// Waits for its end.
    pub(crate) fn ends_well(mut self) -> bool {
        let status = until("the end of a process", || self.process.try_wait().expect("our process"));
        status.success()
    }
}

impl Child {
    /// What it says on its way to a good end.
    pub(crate) fn says(mut self) -> String {
        let mut said = String::new();
        let stderr = self.process.stderr.as_mut().expect("a pipe");
        stderr.read_to_string(&mut said).expect("text");
        assert!(self.ends_well(), "{said}");
        said
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Descriptors of this process.
pub(crate) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("a list").count()
}

fn write(path: &Path, card: &Card) {
    let gid = u128::from_be_bytes(card.gid.0);
    let text = format!("{} {gid} {} {}", card.qpn, card.address, card.rkey);
    fs::write(path.with_extension("new"), text).expect("room for a file");
    fs::rename(path.with_extension("new"), path).expect("a new name");
}

fn read(path: &Path) -> Card {
    let text = until("a note", || fs::read_to_string(path).ok());
    let words: Vec<u128> = text.split(' ').map(|word| word.parse().expect("a number")).collect();
    Card {
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
    let way = Way { home: env::var_os("CONFORMANCE_HOME").expect("a folder").into(), path };
    let node = way.open("b").expect("a device");
    match role {
        "fork" => fork(&node, &way),
        "hazard" => {
            drop(node);
            crate::cross_a_line(&Rig::joined(&way), false);
        }
        _ => peer(role, &End::new(&node, QpType(kind.parse().expect("a number")), Options::default())),
    }
}

fn peer(role: &str, end: &End) {
    let notes: PathBuf = env::var_os("CONFORMANCE_NOTES").expect("a folder").into();
    let _hoard = (role == "hoard").then(|| hoard(end));
    write(&notes.join("child"), &end.card());
    end.connect(&read(&notes.join("parent")), Options::default());
    until("the parent", || notes.join("go").exists().then_some(()));
    (0..4).for_each(|id| end.receive(id, 0, 64));
    fs::write(notes.join("ready"), "").expect("room for a file");
    let began = std::time::Instant::now();
    // Should nobody be left to end it; one that echoes ends when it hears nothing for so long.
    while began.elapsed() < PATIENCE || role == "echo" {
        match role {
            "echo" => echo(end, &read(&notes.join("parent"))),
            "write" => write_words(end, &read(&notes.join("parent"))),
            "post-sends" => _ = end.qp.post(&Work::send(&[end.piece(0, 64)])),
            "post-receives" => _ = end.qp.receive(9, &[end.piece(0, 64)]),
            "send" => {
                let _ = end.qp.post(&Work::send(&[end.piece(0, 4096)]));
                let _ = end.send.try_poll();
            }
            _ => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    }
}

/// All queue pairs, registrations and domains of a device that can still be had.
fn hoard(end: &End) -> (Vec<QueuePair>, Vec<Region>, Vec<Arc<Domain>>) {
    let parts = Parts { send: Arc::clone(&end.send), recv: Arc::clone(&end.recv), srq: None };
    let qp = || end.domain.qp(init_attr(end.kind, Options::default()), parts.clone()).ok();
    let region = || end.domain.register(&end.memory, ALL).ok();
    let domain = || end.node.pd().ok();
    use std::iter::from_fn;
    (from_fn(qp).collect(), from_fn(region).collect(), from_fn(domain).collect())
}

/// How many messages [`write_words`] writes.
pub(crate) const WRITES: u64 = 100_000;

/// Bytes of the n-th write.
pub(crate) fn length(number: u64) -> usize {
    [512, 520, 1024, 1032, 2048, 4096, 1000, 3000][number as usize % 8]
}

/// Writes messages, each full of its number, into the memory of a peer that polls the last word.
/// The peer answers each by a word that it writes here.
fn write_words(end: &End, peer: &Card) {
    let answer = 8192;
    for number in 1..=WRITES {
        let len = length(number);
        (0..len / 8).for_each(|word| end.memory.set_word(word * 8, number));
        let write = Work::new(WrOpcode::RDMA_WRITE, &[end.piece(0, len)]).at(peer.address, peer.rkey);
        let is_last = number % 8 == 0;
        end.post(&if is_last { write } else { write.flags(SendFlags::NONE) });
        if is_last {
            assert_eq!(end.sent().1, WcStatus::SUCCESS);
        }
        until("an answer", || (end.memory.aligned_word(answer) == number).then_some(()));
    }
    std::process::exit(0);
}

/// Where [`echo`] writes in its peer's memory.
pub(crate) const ECHO_AT: usize = 16 << 10;

/// Answers each message by a write of its number into the peer's memory, and a message.
fn echo(end: &End, peer: &Card) {
    let (_, status) = end.received();
    assert_eq!(status, WcStatus::SUCCESS);
    let number = end.memory.word(0);
    end.receive(number, 0, 64);
    end.memory.set_word(1024, number);
    let piece = [end.piece(1024, 8)];
    let write = Work::new(WrOpcode::RDMA_WRITE, &piece).at(peer.address + ECHO_AT as u64, peer.rkey);
    end.post(&write.flags(SendFlags::NONE));
    end.post(&Work::send(&piece));
    assert_eq!(end.sent().1, WcStatus::SUCCESS);
}

/// The first of these that does not answer as it should, counted from 1.
fn wrong_in_a_fork(a: &End, b: &End, node: &Arc<Node>, way: &Way) -> i32 {
    let piece = Work::send(&[verbs_sys::Sge { addr: 0, length: 0, lkey: 0 }]);
    let refused = [
        a.qp.post(&piece) != 0,
        b.qp.receive(1, &[]) != 0,
        a.send.try_poll().is_err(),
        a.qp.become_state(verbs_sys::QpState::ERR) != 0,
        node.pd().is_err(),
        node.cq(4, None).is_err(),
        a.region.end() != 0,
        a.qp.end() != 0,
        a.send.end() != 0,
        // A device of its own.
        way.open("b").is_ok_and(|own| own.pd().is_ok()),
    ];
    refused.iter().position(|right| !right).map_or(0, |at| at as i32 + 1)
}

fn fork(node: &Arc<Node>, way: &Way) {
    let (a, b) = (
        End::new(node, QpType::RC, Options::default()),
        End::new(&way.open("a").expect("a device"), QpType::RC, Options::default()),
    );
    a.connect(&b.card(), Options::default());
    b.connect(&a.card(), Options::default());
    b.receive(1, 0, 64);
    // SAFETY: this process has one thread that uses the device, see the module.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let found =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wrong_in_a_fork(&a, &b, node, way)));
        let wrong = found.unwrap_or(99);
        // SAFETY: leaves at once.
        unsafe { libc::_exit(wrong) };
    }
    let mut status = 0;
    // SAFETY: a child of ours and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "what the child found wrong, as its status times 256; else a signal");
    a.memory.pattern(0, 64, 5);
    a.send(2, 0, 64);
    assert_eq!((a.sent(), b.received()), ((2, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)));
    assert!(b.memory.has_pattern(0, 64, 5));
}
