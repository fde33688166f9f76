//! Processes are killed at random for a while: survivors continue, and nothing of the dead remains.
//!
//! This process is the survivor. On each of two fabrics, one for each data path, over a cable with latency,
//! it keeps connections to processes that live, and to others that are killed at random and replaced. All
//! data are checked.
//!
//! `SOAK_SECONDS` sets the duration (20). `SOAK_SEED` repeats the random choices of a run, though not its
//! timing.

#![allow(dead_code, reason = "the suite's tools are borrowed, not all are needed")]

#[path = "../conformance/children.rs"]
mod children;
#[path = "../conformance/memory.rs"]
mod memory;
#[path = "../conformance/rig.rs"]
mod rig;
#[path = "../conformance/verbs.rs"]
mod verbs;

use children::{Child, ECHO_AT, open_descriptors};
use rig::{DataPath, End, Options, PeerInfo, Rig};
use softrdma::profile::Profile;
use std::{
    env, fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use verbs::{Channel, CompletionQueue, TIMEOUT, Work, is_readable};
use verbs_sys::{QpType, Wc, WcStatus, WrOpcode};

/// A role that children play only in the conformance suite.
fn cross_4gib_line(_rig: &Rig, _is_below_registered: bool) {
    unreachable!("no child of this test crosses a line");
}

/// A random number generator: SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % limit
    }
}

/// This process's end of a connection to a process that echoes.
struct Session {
    end: End,
    peer: PeerInfo,
    /// The channel to sleep on; `None` polls instead.
    channel: Option<(Arc<Channel>, Arc<CompletionQueue>)>,
    /// Whether the peer has been killed.
    is_killed: Arc<AtomicBool>,
    rounds: u64,
}

/// Times that a channel was readable without an event.
static SPURIOUS: AtomicU64 = AtomicU64::new(0);
/// Offsets in the peer's memory: of writes, and of a counter.
const WRITE_AT: usize = 8 << 10;
const COUNT_AT: usize = 40 << 10;
/// Offsets in this process's memory: of data read, and of the results of additions.
const READ_AT: usize = 24 << 10;
const BEFORE_AT: usize = 32 << 10;
/// The `wr_id` of the receive; requests have smaller ones.
const RECEIVE: u64 = 9;

impl Session {
    fn open(rig: &Rig, child: &Child, kind: QpType, sleeps: bool) -> Session {
        let options = Options { timeout: 14, retry: 7, ..Options::default() };
        let mut end = End::new(&rig.open("a"), kind, options);
        let mut channel = None;
        if sleeps {
            let (with, known, queue) = end.with_channel(options);
            known.set_nonblocking();
            (end, channel) = (with, Some((known, queue)));
        }
        let peer = child.exchange(&end.info());
        end.connect(&peer, options);
        child.begin();
        Session { end, peer, channel, is_killed: Arc::default(), rounds: 0 }
    }

    fn poll(&self) -> Option<Wc> {
        [&self.end.send, &self.end.recv].into_iter().find_map(|queue| queue.try_poll().expect("in order"))
    }

    /// Returns the next completion, or `None` if the peer was killed and none arrives for a while.
    fn next(&self) -> Option<Wc> {
        let deadline = Instant::now() + TIMEOUT;
        let mut killed_since = None;
        loop {
            if let Some((_, queue)) = &self.channel {
                assert_eq!(queue.arm(false), 0);
            }
            if let Some(wc) = self.poll() {
                return Some(wc);
            }
            if let Some((channel, queue)) = &self.channel
                && is_readable(channel.fd(), Duration::from_millis(100))
            {
                if channel.take_event_if_any(queue) {
                    queue.acknowledge(1);
                } else {
                    SPURIOUS.fetch_add(1, SeqCst);
                }
            }
            if self.is_killed.load(SeqCst) {
                let since = *killed_since.get_or_insert_with(Instant::now);
                if since.elapsed() > Duration::from_millis(50) {
                    return None;
                }
            }
            assert!(Instant::now() < deadline, "round {}: a living peer is silent", self.rounds);
        }
    }

    /// Runs all operations once and checks the results. Returns false if the peer is dead.
    fn run_round(&mut self, len: usize) -> bool {
        let number = self.rounds + 1;
        let end = &self.end;
        let is_reliable = end.kind == QpType::RC;
        end.receive(RECEIVE, 0, 64);
        end.memory.pattern(WRITE_AT, len, number as u8);
        end.memory.set_word(64, number);
        let at = |offset: usize| self.peer.address + offset as u64;
        let key = self.peer.rkey;
        let mut works =
            vec![Work::new(WrOpcode::RDMA_WRITE, &[end.sge(WRITE_AT, len)]).at(at(WRITE_AT), key).id(1)];
        if is_reliable {
            works.push(Work::new(WrOpcode::RDMA_READ, &[end.sge(READ_AT, len)]).at(at(WRITE_AT), key).id(2));
            let add = Work::new(WrOpcode::ATOMIC_FETCH_AND_ADD, &[end.sge(BEFORE_AT, 8)]).operands(1, 0);
            works.push(add.at(at(COUNT_AT), key).id(3));
        }
        works.push(Work::send(&[end.sge(64, 8)]).id(4));
        let wanted = works.len() + 1;
        works.iter().for_each(|work| _ = end.qp.post(work));
        for _ in 0..wanted {
            match self.next() {
                None => return false,
                Some(wc) if wc.status == WcStatus::SUCCESS => {}
                Some(wc) => {
                    // The completion may arrive before the killing thread has set the flag.
                    assert!(self.is_killed_soon(), "round {number}: {wc:?} from a living peer");
                    return false;
                }
            }
        }
        assert_eq!((end.memory.word(0), end.memory.word(ECHO_AT)), (number, number));
        if is_reliable {
            assert!(end.memory.has_pattern(READ_AT, len, number as u8), "round {number}");
            assert_eq!(end.memory.word(BEFORE_AT), number - 1);
        }
        self.rounds = number;
        true
    }

    fn is_killed_soon(&self) -> bool {
        let deadline = Instant::now() + TIMEOUT;
        while !self.is_killed.load(SeqCst) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        self.is_killed.load(SeqCst)
    }

    /// Asserts that a reliable connection to a dead peer fails.
    fn expect_failure(&self) {
        let deadline = Instant::now() + TIMEOUT;
        let write = Work::new(WrOpcode::RDMA_WRITE, &[self.end.sge(WRITE_AT, 8)]);
        let write = write.at(self.peer.address, self.peer.rkey);
        loop {
            let posted = self.end.qp.post(&write);
            let failed = std::iter::from_fn(|| self.poll()).any(|wc| wc.status != WcStatus::SUCCESS);
            if failed || self.end.qp.state() == verbs_sys::QpState::ERR {
                return;
            }
            assert!(Instant::now() < deadline, "writes to a dead peer go on, posted with {posted}");
            thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Talks to a process that is never killed.
fn run_with_living_peer(rig: &Rig, kind: QpType, deadline: Instant, mut random: Random, rounds: &AtomicU64) {
    let child = Child::start(rig, kind, "echo");
    let mut session = Session::open(rig, &child, kind, random.below(2) == 0);
    while Instant::now() < deadline {
        assert!(session.run_round(8 + 8 * random.below(500) as usize));
        rounds.fetch_add(1, SeqCst);
    }
    assert!(session.rounds > 10, "{} rounds in all that time", session.rounds);
}

/// Talks to processes that are killed, one after the other.
fn run_with_killed_peers(rig: &Rig, deadline: Instant, mut random: Random, deaths: &AtomicU64) {
    while Instant::now() < deadline {
        let kind = [QpType::RC, QpType::UC][random.below(2) as usize];
        let child = Child::start(rig, kind, "echo");
        let mut session = Session::open(rig, &child, kind, random.below(3) == 0);
        let moment = Duration::from_micros(random.below(150_000));
        let is_killed = Arc::clone(&session.is_killed);
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(moment);
                child.kill();
                is_killed.store(true, SeqCst);
            });
            while session.run_round(8 + 8 * random.below(500) as usize) {}
        });
        if kind == QpType::RC {
            session.expect_failure();
        }
        deaths.fetch_add(1, SeqCst);
    }
}

/// Returns the resident memory of this process, in KiB.
fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("our status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
    line.split_ascii_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}: {text} is no number")))
}

#[test]
#[allow(clippy::print_stdout, reason = "a failure needs the seed to be repeated")]
fn survivors_work_on_and_nothing_leaks() {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    let seed = number("SOAK_SEED").unwrap_or(time);
    println!("SOAK_SEED={seed}");
    let mut random = Random(seed);
    let rigs = [DataPath::Copied, DataPath::Shared]
        .map(|path| Rig::new(&Profile::IB, path).another("", "latency_us = 20.0"));
    let anchors = rigs.each_ref().map(|rig| rig.open("a"));
    let before = (open_descriptors(), resident_kib());
    let deadline = Instant::now() + Duration::from_secs(number("SOAK_SECONDS").unwrap_or(20));
    let (rounds, deaths) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for rig in &rigs {
            let mut another = || Random(random.below(u64::MAX));
            let (steady, lost) = ([another(), another()], [another(), another()]);
            for (kind, random) in [QpType::RC, QpType::UC].into_iter().zip(steady) {
                let rounds = &rounds;
                scope.spawn(move || run_with_living_peer(rig, kind, deadline, random, rounds));
            }
            for random in lost {
                let deaths = &deaths;
                scope.spawn(move || run_with_killed_peers(rig, deadline, random, deaths));
            }
        }
    });
    let (rounds, deaths) = (rounds.into_inner(), deaths.into_inner());
    let spurious = SPURIOUS.load(SeqCst);
    println!("{rounds} rounds with the living, {deaths} deaths, {spurious} times readable without an event");
    assert!(deaths > 3, "{deaths} deaths");
    let after = (open_descriptors(), resident_kib());
    // One descriptor for the last user of a slot whose death no process has checked yet; four slots on each
    // fabric.
    assert!(after.0 <= before.0 + 8, "descriptors: {before:?} before, {after:?} after {deaths} deaths");
    assert!(after.1 < before.1 + (64 << 10), "memory: {before:?} before, {after:?} after {deaths} deaths");
    for (rig, anchor) in rigs.iter().zip(anchors) {
        // A new process can join, and finds no files of the dead.
        drop(rig.open("b"));
        let places = rig.files().iter().filter(|name| name.starts_with('p')).count();
        assert_eq!(places, 1, "{:?}", rig.files());
        drop(anchor);
        assert!(!rig.location().home.join("run").exists(), "{:?}", rig.files());
    }
}
