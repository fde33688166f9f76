//! An eager message that is longer than a frame, while it arrives.

use super::state::RecvRequest;
use crate::executor::{CopySink, Writes};
use topology::Rank;
use transport::{
    Link, RecvProgress, RecvState, Sink, TransportError,
    memory::{Span, SpanMut},
};

/// An arriving message and its destination.
#[derive(Debug)]
pub(super) struct EagerReceive {
    pub(super) context: u32,
    pub(super) from: Rank,
    pub(super) tag: i32,
    state: RecvState,
    len: usize,
    pub(super) destination: Destination,
}

/// The destination of an arriving message.
#[derive(Debug)]
pub(super) enum Destination {
    /// The memory of a posted receive that has room for it.
    Posted(RecvRequest),
    /// A posted receive without room for it: the bytes are discarded.
    TooShort(RecvRequest),
    /// The heap, since no posted receive matches it yet.
    Heap(Box<[u8]>),
}

impl EagerReceive {
    pub(super) fn new(
        (context, from, tag): (u32, Rank, i32),
        len: usize,
        digest: u64,
        request: Option<RecvRequest>,
    ) -> EagerReceive {
        let destination = match request {
            None => Destination::Heap(vec![0; len].into()),
            Some(request) if request.dst.len() < len => Destination::TooShort(request),
            Some(request) => Destination::Posted(request),
        };
        EagerReceive { context, from, tag, state: RecvState::new(digest, len), len, destination }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether a posted receive has matched it.
    pub(super) fn is_matched(&self) -> bool {
        !matches!(self.destination, Destination::Heap(_))
    }

    /// Takes the bytes that have arrived.
    pub(super) fn poll(&mut self, link: &mut dyn Link) -> Result<RecvProgress, TransportError> {
        match &mut self.destination {
            Destination::Posted(request) => link
                .poll_recv(&mut self.state, &mut CopySink::new(request.dst.sub(0, self.len), Writes::Cached)),
            Destination::Heap(bytes) => link
                .poll_recv(&mut self.state, &mut CopySink::new(SpanMut::from(&mut **bytes), Writes::Cached)),
            Destination::TooShort(_) => link.poll_recv(&mut self.state, &mut Discard),
        }
    }
}

/// A sink that discards a message.
struct Discard;

impl Sink for Discard {
    fn write(&mut self, _offset: usize, _data: Span<'_>) {}

    fn destination(&mut self) -> Option<SpanMut<'_>> {
        None
    }
}
