//! Pairs of ranks on each driver, sinks and message contents.

use rustix::fd::OwnedFd;
use std::time::{Duration, Instant};
use transport::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, Sink,
    driver::{local, shm},
    memory::{Arena, ArenaLayout, Registered, Slab, Span, SpanMut},
    ring::{RingLayout, Stores},
};

/// Upper bound for every wait of these tests, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const PIECE: usize = 4096;
pub(crate) const CELLS: usize = 16;
/// Messages in cells that a direction has room for: those of the ring, and one that changes hands.
pub(crate) const ROOM: usize = CELLS + 1;
pub(crate) const BUFFERS: usize = 2;
pub(crate) const INLINE: usize = 48;
/// Offset of the rings in an arena.
pub(crate) const BOARD_BYTES: usize = 64 * 1024;

/// Small rings, so that every test laps them.
pub(crate) const LAYOUT: ArenaLayout = ArenaLayout {
    ranks: 2,
    lanes: 2,
    ring: RingLayout {
        cells: CELLS,
        staging_bytes: 4 * PIECE,
        piece_bytes: PIECE,
        buffers: BUFFERS,
        lap_bytes: 4 * PIECE,
        stores: Stores::Auto,
        fetches: false,
    },
    slab_bytes: 32 << 20,
};

/// One rank's end of a pair.
pub(crate) struct Side {
    /// Links by lane.
    pub(crate) links: Vec<Box<dyn Link>>,
    pub(crate) slab: Slab,
    /// The rank's shared object, for tests that corrupt it.
    pub(crate) object: Option<OwnedFd>,
    /// Endpoint that must outlive the links, if the driver has one.
    #[cfg(target_os = "linux")]
    #[allow(dead_code, reason = "kept alive")]
    pub(crate) endpoint: Option<transport::driver::verbs::VerbsEndpoint>,
    #[allow(dead_code, reason = "kept alive")]
    pub(crate) tcp: Option<transport::driver::tcp::TcpEndpoint>,
    /// Whether connections that break are replaced.
    pub(crate) is_resumable: bool,
    /// Endpoints of a mixed job that must outlive the links.
    #[allow(dead_code, reason = "kept alive")]
    pub(crate) kept: Vec<transport::driver::mixed::Mixed>,
}

/// Two ranks with a link on each lane.
pub(crate) struct Pair(pub(crate) [Side; 2]);

impl Pair {
    pub(crate) fn local() -> Pair {
        let arenas = local::arenas(LAYOUT).expect("memory for a test");
        Pair([0, 1].map(|rank| Side {
            links: (0..LAYOUT.lanes).map(|lane| local::link(&arenas, rank, 1 - rank, lane)).collect(),
            slab: Slab::new(&arenas[rank as usize], None),
            object: None,
            #[cfg(target_os = "linux")]
            endpoint: None,
            tcp: None,
            is_resumable: false,
            kept: Vec::new(),
        }))
    }

    /// Returns ranks in two shared memory arenas, each mapped by both.
    pub(crate) fn shm() -> Pair {
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
                #[cfg(target_os = "linux")]
                endpoint: None,
                tcp: None,
                is_resumable: false,
                kept: Vec::new(),
            }
        }))
    }

    pub(crate) fn ends(&mut self, lane: usize) -> (&mut dyn Link, &mut dyn Link) {
        let [a, b] = &mut self.0;
        (&mut *a.links[lane], &mut *b.links[lane])
    }

    /// Returns the same links as `ends`, the sender's first.
    pub(crate) fn from(&mut self, rank: usize, lane: usize) -> (&mut dyn Link, &mut dyn Link) {
        let (a, b) = self.ends(lane);
        if rank == 0 { (a, b) } else { (b, a) }
    }

    /// Expected bytes copied at each end for `len` bytes sent by [`Protocol::Copy`], received in place or
    /// reduced.
    pub(crate) fn copied(&self, len: usize, reduced: bool) -> (u64, u64) {
        let all = len as u64;
        let (out, into) = match &self.0[0].tcp {
            Some(endpoint) => crate::tcp::copied(endpoint, len),
            None => (all, all),
        };
        (out, if reduced { 0 } else { into })
    }

    /// Returns the protocols that the links support.
    pub(crate) fn protocols(&self) -> Vec<Protocol> {
        let can = self.0[0].links[0].capabilities();
        let mut all = vec![Protocol::Copy];
        all.extend(can.direct.then_some(Protocol::Direct));
        all.extend(can.pull.then_some(Protocol::Pull));
        all
    }

    /// Returns the same, and the one that chooses between two of them.
    pub(crate) fn all_protocols(&self) -> Vec<Protocol> {
        let mut all = self.protocols();
        if all.contains(&Protocol::Pull) {
            all.push(Protocol::PullUnchanged);
        }
        all
    }
}

pub(crate) fn pull_target(word: &u64) -> shm::PullTarget {
    shm::PullTarget {
        pid: std::process::id(),
        probe_address: std::ptr::from_ref(word) as u64,
        probe_value: *word,
    }
}

/// Copies a message to its destination.
pub(crate) struct CopySink<'a>(pub(crate) &'a mut [u8]);

impl Sink for CopySink<'_> {
    fn write(&mut self, offset: usize, data: Span<'_>) {
        SpanMut::from(&mut self.0[offset..offset + data.len()]).copy_from(data);
    }

    fn destination(&mut self) -> Option<SpanMut<'_>> {
        Some(SpanMut::from(&mut *self.0))
    }
}

/// Receives a message as a reduction does: without a destination for the link.
pub(crate) struct ReduceSink<'a>(pub(crate) &'a mut [u8]);

impl Sink for ReduceSink<'_> {
    fn write(&mut self, offset: usize, data: Span<'_>) {
        assert!(offset.is_multiple_of(16), "a cut at {offset}, within an element");
        SpanMut::from(&mut self.0[offset..offset + data.len()]).copy_from(data);
    }

    fn destination(&mut self) -> Option<SpanMut<'_>> {
        None
    }
}

/// Random number generator with a fixed sequence.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut numbers = Numbers(seed * 2 + 1);
    (0..len).map(|_| (numbers.next() >> 8) as u8).collect()
}

/// Allocates registered memory with these bytes.
pub(crate) fn registered(slab: &Slab, bytes: &[u8]) -> Registered {
    let mut memory = slab.allocate(bytes.len()).expect("room in the slab");
    memory.as_mut_slice().copy_from_slice(bytes);
    memory
}

/// Transfers one message, polling both ends in turn.
pub(crate) fn transfer(
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
    assert_eq!(recv.received(), src.len());
}
