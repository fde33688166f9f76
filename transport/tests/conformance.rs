//! What every link must do, whatever moves its bytes: one suite, run on each driver.
//!
//! # Safety
//! The vandal writes single words inside of an arena that it keeps mapped, as a peer gone mad could; the span of
//! nowhere is only ever read by the kernel, which refuses.

use rustix::fd::{AsFd, OwnedFd};
use std::{
    collections::VecDeque,
    io::{Read, Write},
    os::unix::net::UnixStream,
    process::{Command, Stdio},
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Release, SeqCst},
    },
    thread,
    time::{Duration, Instant},
};
use transport::{
    Counters, Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, Sink, TransportError,
    driver::{local, shm},
    memory::{Arena, ArenaLayout, Mapping, Registered, Slab, Span, SpanMut},
    ring::RingLayout,
};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
const PIECE: usize = 4096;
const CELLS: usize = 16;
const INLINE: usize = 48;
/// Where the rings begin in an arena.
const BOARD_BYTES: usize = 64 * 1024;

/// Small rings, so that every test laps them.
const LAYOUT: ArenaLayout = ArenaLayout {
    ranks: 2,
    lanes: 2,
    ring: RingLayout { cells: CELLS, staging_bytes: 4 * PIECE, piece_bytes: PIECE },
    slab_bytes: 32 << 20,
};

/// One rank's end of a pair.
struct Side {
    /// By lane.
    links: Vec<Box<dyn Link>>,
    slab: Slab,
    /// The rank's shared object, to be written to behind its back.
    object: Option<OwnedFd>,
}

/// Two ranks with a link on each lane.
struct Pair([Side; 2]);

impl Pair {
    fn local() -> Pair {
        let arenas = local::arenas(LAYOUT).expect("memory for a test");
        Pair([0, 1].map(|rank| Side {
            links: (0..LAYOUT.lanes).map(|lane| local::link(&arenas, rank, 1 - rank, lane)).collect(),
            slab: Slab::new(&arenas[rank as usize], None),
            object: None,
        }))
    }

    /// Two shared objects, each mapped twice.
    fn shm() -> Pair {
        let ours = [0, 1].map(|_| Arena::shared(LAYOUT).expect("memory for a test"));
        let theirs =
            [0, 1].map(|rank| Arena::of_peer(LAYOUT, &ours[rank].1).expect("it can be mapped twice"));
        let probe = Box::new(77u64);
        let target = pull_target(&probe);
        let pull = shm::probe_pull(&target).is_ok().then_some(target.pid);
        Pair([0usize, 1].map(|rank| {
            let ends = ((rank as u32, &ours[rank].0), (1 - rank as u32, &theirs[1 - rank]));
            let object = || ours[rank].1.try_clone().expect("a descriptor");
            Side {
                links: (0..LAYOUT.lanes).map(|lane| shm::link(ends.0, ends.1, lane, pull)).collect(),
                slab: Slab::new(&ours[rank].0, Some(object())),
                object: Some(object()),
            }
        }))
    }

    fn ends(&mut self, lane: usize) -> (&mut dyn Link, &mut dyn Link) {
        let [a, b] = &mut self.0;
        (&mut *a.links[lane], &mut *b.links[lane])
    }

    /// As `ends`, the sender first.
    fn from(&mut self, rank: usize, lane: usize) -> (&mut dyn Link, &mut dyn Link) {
        let (a, b) = self.ends(lane);
        if rank == 0 { (a, b) } else { (b, a) }
    }

    /// The ways this link can send.
    fn protocols(&self) -> Vec<Protocol> {
        let can = self.0[0].links[0].capabilities();
        let mut all = vec![Protocol::Copy];
        all.extend(can.direct.then_some(Protocol::Direct));
        all.extend(can.pull.then_some(Protocol::Pull));
        all
    }
}

fn pull_target(word: &u64) -> shm::PullTarget {
    shm::PullTarget {
        pid: std::process::id(),
        probe_address: std::ptr::from_ref(word) as u64,
        probe_value: *word,
    }
}

/// Copies a message to where it belongs.
struct Landing<'a>(&'a mut [u8]);

impl Sink for Landing<'_> {
    fn take(&mut self, offset: usize, data: Span<'_>) {
        SpanMut::from(&mut self.0[offset..offset + data.len()]).copy_from(data);
    }

    fn landing(&mut self) -> Option<SpanMut<'_>> {
        Some(SpanMut::from(&mut *self.0))
    }
}

/// Takes a message as a reduction does: there is nowhere for the link to put it.
struct Folding<'a>(&'a mut [u8]);

impl Sink for Folding<'_> {
    fn take(&mut self, offset: usize, data: Span<'_>) {
        assert!(offset.is_multiple_of(64), "a cut at {offset}, within an element");
        SpanMut::from(&mut self.0[offset..offset + data.len()]).copy_from(data);
    }

    fn landing(&mut self) -> Option<SpanMut<'_>> {
        None
    }
}

/// Numbers that look random, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut numbers = Numbers(seed * 2 + 1);
    (0..len).map(|_| (numbers.next() >> 8) as u8).collect()
}

/// Registered memory with these bytes.
fn registered(slab: &Slab, bytes: &[u8]) -> Registered {
    let mut memory = slab.allocate(bytes.len()).expect("room in the slab");
    memory.as_mut_slice().copy_from_slice(bytes);
    memory
}

/// One message, from start to end, by turns.
fn transfer(
    (from, to): (&mut dyn Link, &mut dyn Link),
    protocol: Protocol,
    src: Span<'_>,
    sink: &mut dyn Sink,
) {
    let digest = src.len() as u64 + 1;
    let (mut send, mut recv) = (SendState::new(digest, protocol), RecvState::new(digest, src.len()));
    let (mut sent, mut received) = (false, false);
    let until = Instant::now() + PATIENCE;
    while !(sent && received) {
        assert!(Instant::now() < until, "stuck");
        sent = sent || from.poll_send(&mut send, src).expect("send") == SendProgress::Complete;
        received = received || to.poll_recv(&mut recv, sink).expect("recv") == RecvProgress::Complete;
    }
    assert_eq!(recv.taken(), src.len());
}

fn sizes() -> Vec<usize> {
    vec![0, 1, 47, INLINE, 49, 64, 65, PIECE - 1, PIECE, PIECE + 1, 4 * PIECE, 4 * PIECE + 1, (3 << 20) + 5]
}

fn every_size_arrives_whole_by_every_protocol(mut pair: Pair) {
    for protocol in pair.protocols() {
        for len in sizes() {
            for from in [0, 1] {
                let bytes = noise(len, len as u64 * 3 + from as u64);
                let memory = registered(&pair.0[from].slab, &bytes);
                let src = if protocol == Protocol::Direct { memory.span() } else { Span::from(&*bytes) };
                let (mut landing, mut folding) = (vec![0xee; len], vec![0xee; len]);
                transfer(pair.from(from, 1), protocol, src, &mut Landing(&mut landing));
                transfer(pair.from(from, 1), protocol, src, &mut Folding(&mut folding));
                assert!(landing == bytes && folding == bytes, "{len} bytes by {protocol:?}");
            }
        }
    }
}

fn bytes_moved_and_copied_are_counted_exactly(mut pair: Pair) {
    for protocol in pair.protocols() {
        for len in sizes() {
            let bytes = noise(len, 5);
            let memory = registered(&pair.0[0].slab, &bytes);
            let src = if protocol == Protocol::Direct { memory.span() } else { Span::from(&*bytes) };
            for fold in [false, true] {
                let mut to = vec![0; len];
                let (a, b) = pair.ends(0);
                let before = (a.counters(), b.counters());
                match fold {
                    true => transfer((&mut *a, &mut *b), protocol, src, &mut Folding(&mut to)),
                    false => transfer((&mut *a, &mut *b), protocol, src, &mut Landing(&mut to)),
                }
                let len = len as u64;
                let (out, into) = match protocol {
                    Protocol::Copy => (len, if fold { 0 } else { len }),
                    Protocol::Direct => (0, 0),
                    // What is to be reduced goes through a buffer.
                    Protocol::Pull => (0, if fold { len } else { 0 }),
                };
                let sent = Counters { sent_messages: 1, copied_bytes: out, ..Counters::default() };
                assert_eq!(a.counters() - before.0, sent, "{len} bytes by {protocol:?}");
                let received =
                    Counters { received_messages: 1, moved_bytes: len, copied_bytes: into, sent_messages: 0 };
                assert_eq!(b.counters() - before.1, received, "{len} bytes by {protocol:?}, fold {fold}");
            }
        }
    }
}

/// A message under way: what it is, and where in the source.
struct Flight {
    state: SendState,
    at: usize,
    len: usize,
    registered: bool,
    posted: bool,
    complete: bool,
}

/// One direction of a link with much going on.
struct Traffic {
    numbers: Numbers,
    foreign: Vec<u8>,
    registered: Registered,
    protocols: Vec<Protocol>,
    flying: VecDeque<Flight>,
    /// What the receiver is to get: place, length, digest.
    due: VecDeque<(usize, usize, u64)>,
    begun: u64,
    arrived: u64,
    receiving: Option<(RecvState, Vec<u8>)>,
}

impl Traffic {
    const SOURCE: usize = 64 * 1024;

    fn new(seed: u64, slab: &Slab, protocols: Vec<Protocol>) -> Traffic {
        let foreign = noise(Traffic::SOURCE, seed);
        Traffic {
            numbers: Numbers(seed | 1),
            registered: registered(slab, &foreign),
            foreign,
            protocols,
            flying: VecDeque::new(),
            due: VecDeque::new(),
            begun: 0,
            arrived: 0,
            receiving: None,
        }
    }

    /// A message of any size, by any protocol, from registered memory or not.
    fn invent(&mut self) {
        let len = match self.numbers.below(10) {
            0..5 => self.numbers.below(64),
            5..8 => self.numbers.below(PIECE + 200),
            _ => self.numbers.below(6 * PIECE),
        };
        let at = self.numbers.below(Traffic::SOURCE - len);
        let protocol = self.protocols[self.numbers.below(self.protocols.len())];
        let registered = self.numbers.below(4) != 0;
        let state = SendState::new(self.begun, protocol);
        self.flying.push_back(Flight { state, at, len, registered, posted: false, complete: false });
        self.due.push_back((at, len, self.begun));
        self.begun += 1;
    }

    /// Polls all messages under way, and begins one more if the last one is posted.
    fn send(&mut self, link: &mut dyn Link) {
        if self.flying.iter().all(|f| f.posted) {
            self.invent();
        }
        self.poll_flying(link);
    }

    fn poll_flying(&mut self, link: &mut dyn Link) {
        for flight in &mut self.flying {
            let from = if flight.registered { self.registered.span() } else { Span::from(&*self.foreign) };
            match link.poll_send(&mut flight.state, from.sub(flight.at, flight.len)).expect("send") {
                SendProgress::Idle | SendProgress::Advanced => break,
                SendProgress::Posted => flight.posted = true,
                SendProgress::Complete => (flight.posted, flight.complete) = (true, true),
            }
        }
        self.flying.retain(|f| !f.complete);
    }

    fn receive(&mut self, link: &mut dyn Link) {
        let Some(&(at, len, digest)) = self.due.front() else {
            assert_eq!(link.peek_digest(), None, "a message that nobody sent");
            return;
        };
        let (state, got) = self.receiving.get_or_insert_with(|| (RecvState::new(digest, len), vec![0; len]));
        let progress = match digest % 3 {
            0 => link.poll_recv(state, &mut Folding(got)),
            _ => link.poll_recv(state, &mut Landing(got)),
        };
        if progress.expect("recv") == RecvProgress::Complete {
            assert!(
                self.foreign[at..at + len] == *got,
                "message {digest} of {len} bytes is not what was sent"
            );
            self.receiving = None;
            self.due.pop_front();
            self.arrived += 1;
        }
    }
}

fn messages_arrive_in_order_however_the_ends_are_polled(mut pair: Pair) {
    for seed in 1..=4 {
        let mut numbers = Numbers(seed * 0x9e37_79b9);
        // Both directions of both lanes at once.
        let mut traffic: Vec<Traffic> = (0..4)
            .map(|i| Traffic::new(seed * 10 + i, &pair.0[i as usize % 2].slab, pair.protocols()))
            .collect();
        let until = Instant::now() + PATIENCE;
        while traffic.iter().any(|t| t.arrived < 2000) {
            assert!(Instant::now() < until, "stuck");
            let at = numbers.below(4);
            let (sender, receiver) = pair.from(at % 2, at / 2);
            let sends = numbers.below(2) == 0;
            for _ in 0..numbers.below(2 * CELLS) {
                if sends { traffic[at].send(sender) } else { traffic[at].receive(receiver) }
            }
        }
        for (at, traffic) in traffic.iter_mut().enumerate() {
            let (sender, receiver) = pair.from(at % 2, at / 2);
            while !traffic.due.is_empty() {
                assert!(Instant::now() < until, "stuck");
                traffic.poll_flying(sender);
                traffic.receive(receiver);
            }
        }
    }
}

fn a_full_ring_is_idle_and_never_overwritten(mut pair: Pair) {
    for (len, room) in [(8, CELLS as u64), (PIECE, 4), (100, CELLS as u64), (3000, 5)] {
        let (a, b) = pair.ends(0);
        let message = |i: u64| noise(len, i);
        let receive = |b: &mut dyn Link, i: u64| {
            let mut got = vec![0; len];
            let progress = b.poll_recv(&mut RecvState::new(i, len), &mut Landing(&mut got)).expect("recv");
            assert_eq!(progress, RecvProgress::Complete);
            assert!(got == message(i), "message {i} was overwritten");
        };
        let (mut sent, mut received) = (0, 0);
        while received < 5 * room {
            loop {
                let bytes = message(sent);
                let mut state = SendState::new(sent, Protocol::Copy);
                match a.poll_send(&mut state, Span::from(&*bytes)).expect("send") {
                    SendProgress::Complete => sent += 1,
                    SendProgress::Idle => break,
                    other => panic!("{other:?} of a single piece"),
                }
            }
            assert!(sent - received <= room, "{sent} sent, {received} received");
            // Until the ring is empty, or one more fits.
            for _ in 0..=sent % (sent - received) {
                receive(b, received);
                received += 1;
            }
        }
        while received < sent {
            receive(b, received);
            received += 1;
        }
    }
}

fn a_lane_that_is_full_does_not_stop_another(mut pair: Pair) {
    let bytes = [1u8; 8];
    let (a, _) = pair.ends(0);
    let mut sent = 0;
    while a.poll_send(&mut SendState::new(3, Protocol::Copy), Span::from(&bytes[..])).expect("send")
        == SendProgress::Complete
    {
        sent += 1;
    }
    assert_eq!(sent, CELLS);
    assert_eq!(pair.ends(1).1.peek_digest(), None);
    let mut got = [0; 8];
    for _ in 0..3 * CELLS {
        transfer(pair.from(0, 1), Protocol::Copy, Span::from(&bytes[..]), &mut Landing(&mut got));
        // Nor does a direction that is full stop the other one.
        transfer(pair.from(1, 0), Protocol::Copy, Span::from(&bytes[..]), &mut Landing(&mut got));
    }
}

fn a_message_that_is_not_expected_stays_where_it_is(mut pair: Pair) {
    for protocol in pair.protocols() {
        for len in [8, 100, PIECE] {
            let bytes = noise(len, 9);
            let memory = registered(&pair.0[0].slab, &bytes);
            let (a, b) = pair.ends(0);
            a.poll_send(&mut SendState::new(0xabc, protocol), memory.span()).expect("send");
            let mut got = vec![0; len + 1];
            for _ in 0..2 {
                let error = b
                    .poll_recv(&mut RecvState::new(0xdef, len), &mut Landing(&mut got))
                    .expect_err("another digest");
                assert!(
                    matches!(error, TransportError::Mismatch { expected: 0xdef, found: 0xabc }),
                    "{error}"
                );
                let text = error.to_string();
                assert!(text.contains("def") && text.contains("abc"), "{text}");
                let error = b
                    .poll_recv(&mut RecvState::new(0xabc, len + 1), &mut Landing(&mut got))
                    .expect_err("another length");
                let text = format!("has {len} bytes where {} were expected", len + 1);
                assert!(error.to_string().contains(&text), "{error}");
                assert_eq!(b.peek_digest(), Some(0xabc));
            }
            got.truncate(len);
            let progress = b.poll_recv(&mut RecvState::new(0xabc, len), &mut Landing(&mut got));
            assert_eq!(progress.expect("the message"), RecvProgress::Complete);
            assert_eq!(got, bytes);
        }
    }
}

fn a_source_that_is_read_in_place_is_in_use_until_it_was_received(mut pair: Pair) {
    const LEN: usize = 600_000;
    for protocol in pair.protocols().into_iter().filter(|p| *p != Protocol::Copy) {
        let memory = registered(&pair.0[0].slab, &noise(LEN, 4));
        let (a, b) = pair.ends(0);
        let mut send = SendState::new(1, protocol);
        let (mut got, mut recv) = (vec![0; LEN], RecvState::new(1, LEN));
        let mut polls = 0;
        loop {
            assert_eq!(a.poll_send(&mut send, memory.span()).expect("send"), SendProgress::Posted);
            polls += 1;
            if b.poll_recv(&mut recv, &mut Landing(&mut got)).expect("recv") == RecvProgress::Complete {
                break;
            }
        }
        assert!(polls > 1, "a long message keeps others waiting");
        assert_eq!(a.poll_send(&mut send, memory.span()).expect("send"), SendProgress::Complete);
        assert!(got == memory.as_slice());
    }
}

fn posted_messages_do_not_hold_up_later_ones(mut pair: Pair) {
    for protocol in pair.protocols().into_iter().filter(|p| *p != Protocol::Copy) {
        let memory = registered(&pair.0[0].slab, &noise(CELLS * 100, 4));
        let part = |i: usize| memory.span().sub(i * 100, 100);
        let (a, b) = pair.ends(0);
        let mut states: Vec<SendState> = (0..CELLS as u64).map(|i| SendState::new(i, protocol)).collect();
        for (i, state) in states.iter_mut().enumerate() {
            assert_eq!(a.poll_send(state, part(i)).expect("send"), SendProgress::Posted);
        }
        let mut more = SendState::new(99, protocol);
        assert_eq!(a.poll_send(&mut more, part(0)).expect("send"), SendProgress::Idle);
        for i in 0..CELLS {
            let mut got = vec![0; 100];
            b.poll_recv(&mut RecvState::new(i as u64, 100), &mut Landing(&mut got)).expect("recv");
            assert_eq!(got, memory.as_slice()[i * 100..][..100]);
            for (j, state) in states.iter_mut().enumerate() {
                let expected = if j <= i { SendProgress::Complete } else { SendProgress::Posted };
                let progress = a.poll_send(state, part(j)).expect("send");
                assert_eq!(progress, expected, "message {j} after {i} was received");
            }
        }
    }
}

fn unregistered_memory_is_copied_when_asked_to_be_read_in_place(mut pair: Pair) {
    let bytes = noise(10_000, 8);
    let mut got = vec![0; 10_000];
    transfer(pair.ends(0), Protocol::Direct, Span::from(&*bytes), &mut Landing(&mut got));
    assert_eq!(got, bytes);
    assert_eq!(pair.ends(0).0.counters().copied_bytes, 10_000);
}

fn many_messages_between_two_threads_keep_their_order(mut pair: Pair) {
    const FOR: Duration = Duration::from_millis(1500);
    /// Mostly within a cell, sometimes staged.
    fn message(i: u64) -> ([u8; 160], usize) {
        let mut bytes = [i as u8; 160];
        bytes[..8].copy_from_slice(&i.to_ne_bytes());
        (bytes, if i.is_multiple_of(7) { 8 + (i % 150) as usize } else { 8 + (i % 41) as usize })
    }
    let [a, b] = &mut pair.0;
    let (sender, receiver) = (&mut a.links[0], &mut b.links[0]);
    let start = Instant::now();
    let idle = |polls: &mut u32| {
        *polls += 1;
        if *polls > 100 {
            thread::yield_now();
            assert!(start.elapsed() < PATIENCE, "stuck");
        }
    };
    let total = AtomicU64::new(u64::MAX);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut i = 0;
            while i % 1024 != 0 || start.elapsed() < FOR {
                let (bytes, len) = message(i);
                let (mut state, mut polls) = (SendState::new(i, Protocol::Copy), 0);
                while sender.poll_send(&mut state, Span::from(&bytes[..len])).expect("send")
                    != SendProgress::Complete
                {
                    idle(&mut polls);
                }
                i += 1;
            }
            total.store(i, Release);
        });
        let (mut i, mut polls) = (0, 0);
        while i < total.load(Acquire) {
            let (bytes, len) = message(i);
            let mut got = [0; 160];
            // Of a single piece: all of it or nothing.
            match receiver.poll_recv(&mut RecvState::new(i, len), &mut Landing(&mut got[..len])) {
                Ok(RecvProgress::Complete) => {
                    assert_eq!(got[..len], bytes[..len], "message {i}");
                    (i, polls) = (i + 1, 0);
                }
                Ok(_) => idle(&mut polls),
                Err(e) => panic!("message {i}: {e}"),
            }
        }
        assert!(i > 10_000, "only {i} messages");
    });
}

macro_rules! on_every_driver {
    ($($case:ident),* $(,)?) => {
        mod over_local {
            $(#[test]
            fn $case() {
                super::$case(super::Pair::local());
            })*
        }
        mod over_shm {
            $(#[test]
            fn $case() {
                super::$case(super::Pair::shm());
            })*
        }
    };
}

on_every_driver! {
    every_size_arrives_whole_by_every_protocol,
    bytes_moved_and_copied_are_counted_exactly,
    messages_arrive_in_order_however_the_ends_are_polled,
    a_full_ring_is_idle_and_never_overwritten,
    a_lane_that_is_full_does_not_stop_another,
    a_message_that_is_not_expected_stays_where_it_is,
    a_source_that_is_read_in_place_is_in_use_until_it_was_received,
    posted_messages_do_not_hold_up_later_ones,
    unregistered_memory_is_copied_when_asked_to_be_read_in_place,
    many_messages_between_two_threads_keep_their_order,
}

/// The words of the ring on which rank 0 sends to rank 1 on lane 0, seen by someone who has no business there.
struct Vandal(Mapping);

impl Vandal {
    fn of(pair: &Pair) -> Vandal {
        let object = pair.0[1].object.as_ref().expect("shared memory");
        Vandal(Mapping::of_descriptor(object, LAYOUT.bytes()).expect("one more mapping"))
    }

    /// Word 0 is the first of the consumer line, word 8 the first of cell 0.
    fn write(&self, word: usize, value: u64) {
        assert!(word < 8 * (1 + CELLS));
        // SAFETY: the word is within the ring, which is within the mapping; all ends access it as an atomic.
        unsafe {
            let words = self.0.as_ptr().add(BOARD_BYTES).cast::<AtomicU64>();
            (*words.add(word)).store(value, SeqCst);
        }
    }
}

#[test]
fn a_corrupt_header_is_an_error_and_not_a_fault() {
    const LEN: usize = 5000;
    let (slab, len, piece) = (LAYOUT.slab_bytes as u64, LEN as u64, PIECE as u64);
    let far = [1 << 32, 1 << 47, 1 << 63, u64::MAX - 4095, u64::MAX];
    let near = [0, 1, 48, 64, piece, len, 4 * piece, slab - 1, slab - len + 1, slab];
    let wild = [&near[..], &far[..]].concat();
    let mut pair = Pair::shm();
    for kind in 0..=6u64 {
        for (i, total) in wild.iter().enumerate() {
            for (j, place) in wild.iter().enumerate() {
                let vandal = Vandal::of(&pair);
                let size = wild[(i * 7 + j * 3) % wild.len()];
                let inline = [0, 48, 49, 255][(i + j) % 4];
                let words = [1 | kind << 32 | inline << 40, 5, *total, *place, size];
                for (word, value) in words.into_iter().enumerate().rev() {
                    vandal.write(8 + word, value);
                }
                let mut got = vec![0; LEN];
                let taken = pair.ends(0).1.poll_recv(&mut RecvState::new(5, LEN), &mut Landing(&mut got));
                let in_place = kind == 3 && *total == len && *place <= slab - len;
                let staged = kind == 2 && *total == len && *place == 0 && (1..=piece).contains(&size);
                assert_eq!(taken.is_ok(), in_place || staged, "{words:x?}: {taken:?}");
                if taken.is_ok() {
                    pair = Pair::shm();
                }
            }
        }
    }
}

#[test]
fn a_header_that_changes_between_pieces_is_an_error() {
    let mut pair = Pair::shm();
    let vandal = Vandal::of(&pair);
    let bytes = noise(3 * PIECE, 3);
    let (a, b) = pair.ends(0);
    a.poll_send(&mut SendState::new(5, Protocol::Copy), Span::from(&*bytes)).expect("send");
    let (mut got, mut state) = (vec![0; 3 * PIECE], RecvState::new(5, 3 * PIECE));
    assert_eq!(b.poll_recv(&mut state, &mut Landing(&mut got)).expect("intact"), RecvProgress::Advanced);
    for (word, value) in [
        (2, 1),
        (2, u64::MAX),
        (3, 0),
        (3, u64::MAX),
        (4, PIECE as u64 + 1),
        (4, 0),
        (0, 2 | 1 << 32 | 48 << 40),
    ] {
        vandal.write(16 + word, value);
        assert!(b.poll_recv(&mut state, &mut Landing(&mut got)).is_err(), "word {word}: {value}");
    }
}

#[test]
fn credits_that_nobody_gave_are_an_error_and_not_an_overwrite() {
    let mut pair = Pair::shm();
    let vandal = Vandal::of(&pair);
    let bytes = [7u8; 8];
    let (a, _) = pair.ends(0);
    let mut send = || a.poll_send(&mut SendState::new(5, Protocol::Copy), Span::from(&bytes[..]));
    for _ in 0..CELLS {
        assert_eq!(send().expect("room"), SendProgress::Complete);
    }
    vandal.write(0, u64::MAX);
    assert!(matches!(send(), Err(TransportError::Corrupt(_))));
}

#[test]
fn memory_that_cannot_be_pulled_is_an_error_that_names_the_process() {
    let mut pair = Pair::shm();
    if !pair.protocols().contains(&Protocol::Pull) {
        eprintln!("skipped: this system forbids reading another process's memory");
        return;
    }
    let (a, b) = pair.ends(0);
    // SAFETY: nobody reads the span but the system, which checks the address.
    let nowhere = unsafe { Span::new(std::ptr::without_provenance(8), 1000) };
    a.poll_send(&mut SendState::new(5, Protocol::Pull), nowhere).expect("send");
    let mut got = vec![0; 1000];
    let error =
        b.poll_recv(&mut RecvState::new(5, 1000), &mut Landing(&mut got)).expect_err("no such memory");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
}

#[test]
fn a_shared_object_that_is_too_short_is_refused() {
    let (_, small) = Mapping::shared(4096).expect("memory");
    assert!(Arena::of_peer(LAYOUT, small).is_err());
}

const ROLE: &str = "CONFORMANCE_ROLE";

/// What two processes tell each other before they have a link.
fn meet(rank: u32, socket: &mut UnixStream) -> (Box<dyn Link>, Slab) {
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

/// Sends every size by every protocol, and gets it back. Returns how many messages came.
fn converse(rank: u32, link: &mut dyn Link, slab: &Slab) -> u8 {
    let mut protocols = vec![Protocol::Copy, Protocol::Direct];
    protocols.extend(link.capabilities().pull.then_some(Protocol::Pull));
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
                    let (mut state, mut got) = (RecvState::new(i as u64, len), vec![0; len]);
                    while link.poll_recv(&mut state, &mut Landing(&mut got)).expect("recv")
                        != RecvProgress::Complete
                    {
                        idle();
                    }
                    assert!(got == bytes, "{len} bytes by {protocol:?}");
                    came += 1;
                }
            }
        }
    }
    came
}

/// The second process of the test below; nothing when it is run as a test.
#[test]
fn the_other_process() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().expect("a descriptor"));
    let (mut link, slab) = meet(1, &mut socket);
    let came = converse(1, &mut *link, &slab);
    socket.write_all(&[came]).expect("write");
}

#[test]
fn two_processes_exchange_every_size_by_every_protocol() {
    let (mut ours, theirs) = UnixStream::pair().expect("sockets");
    let mut other = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "the_other_process", "--nocapture"])
        .env(ROLE, "1")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn()
        .expect("a process");
    let (mut link, slab) = meet(0, &mut ours);
    let came = converse(0, &mut *link, &slab);
    let mut theirs = [0];
    ours.read_exact(&mut theirs).expect("the other one's count");
    assert_eq!(theirs[0], came);
    assert!(other.wait().expect("our child").success());
}
