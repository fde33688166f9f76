//! Strict driver for tests: ranks of one host that behave as if they shared no memory.
//!
//! Messages travel through rings in arenas. Otherwise the driver behaves like one whose device places
//! messages directly: ranks find arenas by the messages of set-up, registered memory is a slab that no peer
//! has mapped, sends can wait for a match, and announcements are accepted. The driver panics where the
//! runtime breaks a rule of [`Link`]. It overwrites memory as soon as it may, so that a caller that still
//! needs the old bytes computes wrong results.
//!
//! # Safety
//! The driver overwrites only announced destinations, which the caller owns and has left to the link.

use super::{endpoint::Endpoint, ring_link::RingLink};
use crate::{
    Board, Capabilities, Counters, Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, Sink,
    SizeClass, TransportError,
    memory::{Arena, ArenaLayout, Mapping, Slab, Span, SpanMut},
};
use rustix::{
    fd::{AsRawFd, OwnedFd},
    fs::{Mode, OFlags, open},
};
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::Ordering::{Acquire, Release},
    },
    time::Duration,
};

/// Maximum number of announcements held at a time: odd, and fewer than the runtime offers.
const MAX_ANNOUNCED: usize = 5;

/// Boundary that no buffer crosses, as for devices that can't map across 4 GiB.
const BOUNDARY: u64 = 4 << 30;

/// Bytes overwritten at each end of an announced destination.
const POISONED_BYTES: usize = 4096;

/// One rank's endpoint.
#[derive(Debug)]
pub struct StrictEndpoint {
    rank: u32,
    ours: Arena,
    /// Descriptor of this rank's arena, which peers open during set-up.
    object: OwnedFd,
    /// Arenas by rank; empty before set-up has finished.
    arenas: Vec<Arena>,
    slab: Slab,
}

impl StrictEndpoint {
    /// Opens the endpoint of a rank. The slab of `layout` is not part of the arena.
    ///
    /// # Errors
    /// [`TransportError::Memory`] if the memory can't be allocated.
    pub fn open(layout: ArenaLayout, rank: u32) -> Result<StrictEndpoint, TransportError> {
        assert!(layout.ranks as usize * usize::from(layout.lanes) <= Board::WORDS, "a board word per ring");
        let (ours, object) = Arena::shared(ArenaLayout { slab_bytes: 0, ..layout })?;
        let memory = Mapping::private_for_device(layout.slab_bytes, BOUNDARY)?;
        let slab = Slab::over(Arc::new(memory), 0..layout.slab_bytes, Some(BOUNDARY));
        Ok(StrictEndpoint { rank, ours, object, arenas: Vec::new(), slab })
    }

    fn arena_of(&self, peer: usize, introduction: &[u8]) -> Result<Arena, TransportError> {
        if peer as u32 == self.rank {
            return Ok(self.ours.clone());
        }
        let path = std::str::from_utf8(introduction).map_err(|_| TransportError::Corrupt("introduction"))?;
        let object = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| {
            TransportError::Memory {
                what: format!("opening {path}"),
                source: errno.into(),
                remedy: "the strict test driver needs processes of one user on one Linux host".into(),
            }
        })?;
        Arena::of_peer(*self.ours.layout(), object)
    }
}

impl Endpoint for StrictEndpoint {
    fn name(&self) -> &'static str {
        "rehearsal"
    }

    fn exchange(&mut self, messages: &[Vec<u8>]) -> Result<Option<Vec<u8>>, TransportError> {
        if messages.is_empty() {
            let path = format!("/proc/{}/fd/{}", std::process::id(), self.object.as_raw_fd());
            return Ok(Some(path.into_bytes()));
        }
        if !self.arenas.is_empty() {
            return Ok(None);
        }
        let arenas = messages.iter().enumerate().map(|(peer, text)| self.arena_of(peer, text));
        self.arenas = arenas.collect::<Result<_, _>>()?;
        Ok(Some(Vec::new()))
    }

    fn connects(&self, _: u32, _: u32) -> bool {
        true
    }

    fn link(&mut self, peer: u32, lane: u8) -> Box<dyn Link> {
        let theirs = &self.arenas[peer as usize];
        let word = |sender: u32| sender as usize * usize::from(self.ours.layout().lanes) + usize::from(lane);
        let inner = RingLink::new("rehearsal", (self.rank, &self.ours), (peer, theirs), lane, None);
        Box::new(StrictLink {
            capabilities: Capabilities {
                direct: false,
                announced_bytes: Some(0),
                eager_bytes: inner.capabilities().inline_bytes,
                packed_bytes: 0,
                ..inner.capabilities().clone()
            },
            inner,
            announced: VecDeque::with_capacity(MAX_ANNOUNCED),
            sent: 0,
            received: 0,
            received_word: (self.ours.board(), word(peer)),
            matched_word: (theirs.board(), word(self.rank)),
            aborted: false,
        })
    }

    fn slab(&self) -> &Slab {
        &self.slab
    }

    fn close(&mut self, _patience: Duration) {}
}

/// An announced message.
#[derive(Debug, PartialEq, Eq)]
struct Announced {
    number: u64,
    digest: u64,
    len: usize,
    size: SizeClass,
    /// Address of the destination.
    destination: Option<usize>,
}

#[derive(Debug)]
struct StrictLink {
    capabilities: Capabilities,
    inner: RingLink,
    /// Announced messages in order; the first is the next one to be received.
    announced: VecDeque<Announced>,
    sent: u64,
    received: u64,
    /// Word of this rank's board in which the peer reads how many of its messages were received.
    received_word: (Board, usize),
    /// Word of the peer's board in which this rank reads how many of its messages were received.
    matched_word: (Board, usize),
    aborted: bool,
}

/// Adds the size class to a digest, so that ends that disagree on it notice. Digests of operations are even.
fn digest_of(digest: u64, size: SizeClass) -> u64 {
    assert!(digest.is_multiple_of(2), "digests of operations are even");
    digest | u64::from(size == SizeClass::Bulk)
}

impl StrictLink {
    fn forward_send(
        &mut self,
        state: &mut SendState,
        src: Span<'_>,
        ready: usize,
    ) -> Result<SendProgress, TransportError> {
        let mut sending = SendState { digest: digest_of(state.digest, state.size), ..*state };
        let progress = self.inner.poll_send_prefix(&mut sending, src, ready)?;
        state.staged = sending.staged;
        Ok(progress)
    }

    fn check_announced(&self, state: &RecvState, destination: Option<SpanMut<'_>>) {
        let Some(first) = self.announced.front() else {
            assert_eq!(state.announced, None, "the state is not announced to this link");
            return;
        };
        let polled = Announced {
            number: state.announced.expect("the announced state is the one that is polled"),
            digest: state.digest,
            len: state.len,
            size: state.size,
            destination: first
                .destination
                .and(destination.map(|destination| destination.as_mut_ptr() as usize)),
        };
        assert_eq!(&polled, first, "the polled message is not the announced one");
    }

    fn poison(destination: SpanMut<'_>) {
        let len = destination.len().min(POISONED_BYTES);
        for part in [destination.sub(0, len), destination.sub(destination.len() - len, len)] {
            // SAFETY: the span's bytes are writable, and the caller has left them to the link.
            unsafe { part.as_mut_ptr().write_bytes(0x5a, part.len()) };
        }
    }
}

impl Link for StrictLink {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn poll_send(&mut self, state: &mut SendState, src: Span<'_>) -> Result<SendProgress, TransportError> {
        assert!(!self.aborted, "a link was used after it was aborted");
        assert_eq!(state.protocol, Protocol::Copy, "the link supports Protocol::Copy only");
        if let Some(number) = state.awaits {
            let received = self.matched_word.0.words()[self.matched_word.1].load(Acquire);
            return Ok(if received > number { SendProgress::Complete } else { SendProgress::Posted });
        }
        let progress = self.forward_send(state, src, src.len())?;
        if progress != SendProgress::Complete {
            return Ok(progress);
        }
        self.sent += 1;
        if !state.match_ack {
            return Ok(SendProgress::Complete);
        }
        state.awaits = Some(self.sent - 1);
        Ok(SendProgress::Posted)
    }

    fn poll_send_prefix(
        &mut self,
        state: &mut SendState,
        src: Span<'_>,
        ready: usize,
    ) -> Result<SendProgress, TransportError> {
        if ready >= src.len() {
            return self.poll_send(state, src);
        }
        assert!(!self.aborted, "a link was used after it was aborted");
        assert!(ready > 0, "a send starts before any byte is ready");
        assert!(ready >= state.staged && state.awaits.is_none(), "the ready prefix has shrunk");
        self.forward_send(state, src, ready)
    }

    fn poll_recv(
        &mut self,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError> {
        assert!(!self.aborted, "a link was used after it was aborted");
        self.check_announced(state, sink.destination());
        let mut receiving = RecvState { digest: digest_of(state.digest, state.size), ..*state };
        let progress = self.inner.poll_recv(&mut receiving, sink).map_err(|error| match error {
            TransportError::Mismatch { found, .. } => {
                assert_ne!(found & !1, state.digest, "the two ends disagree on the size class");
                TransportError::Mismatch { expected: state.digest, found: found & !1 }
            }
            other => other,
        })?;
        state.received = receiving.received;
        if progress == RecvProgress::Complete {
            self.announced.pop_front();
            self.received += 1;
            self.received_word.0.words()[self.received_word.1].store(self.received, Release);
        }
        Ok(progress)
    }

    fn await_reply(&mut self, len: usize) {
        self.inner.await_reply(len);
    }

    fn prepare_send(&mut self, len: usize) {
        self.inner.prepare_send(len);
    }

    fn peek_digest(&self) -> Option<u64> {
        self.inner.peek_digest().map(|digest| digest & !1)
    }

    fn announce(
        &mut self,
        state: &mut RecvState,
        destination: Option<SpanMut<'_>>,
    ) -> Result<bool, TransportError> {
        assert!(!self.aborted, "a link was used after it was aborted");
        assert_eq!(
            (state.announced, state.received),
            (None, 0),
            "a message is announced once, before it is begun"
        );
        if self.announced.len() == MAX_ANNOUNCED {
            return Ok(false);
        }
        if let Some(destination) = destination {
            assert_eq!(destination.len(), state.len);
            assert!(!destination.is_empty(), "an empty message has no destination");
            StrictLink::poison(destination);
        }
        let number = self.received + self.announced.len() as u64;
        state.announced = Some(number);
        self.announced.push_back(Announced {
            number,
            digest: state.digest,
            len: state.len,
            size: state.size,
            destination: destination.map(|destination| destination.as_mut_ptr() as usize),
        });
        Ok(true)
    }

    fn abort(&mut self) {
        self.aborted = true;
    }
}
