//! An eager message that is longer than a frame, while it arrives.

use super::state::RecvRequest;
use crate::executor::CopySink;
use topology::Rank;
use transport::{
    Link, RecvProgress, RecvState, Sink, TransportError,
    memory::{Span, SpanMut},
};

/// The message, and where it goes.
#[derive(Debug)]
pub(super) struct EagerReceive {
    pub(super) context: u32,
    pub(super) from: Rank,
    pub(super) tag: i32,
    state: RecvState,
    len: usize,
    pub(super) destination: Destination,
}

/// Where a message goes.
#[derive(Debug)]
pub(super) enum Destination {
    /// To the memory of a receive, which has room for it.
    Posted(RecvRequest),
    /// Nowhere: the receive has no room for it.
    TooShort(RecvRequest),
    /// To the heap, since no receive matches it so far.
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

    /// Does a letter wait for it?
    pub(super) fn is_matched(&self) -> bool {
        !matches!(self.destination, Destination::Heap(_))
    }

    /// Takes what has come of it.
    pub(super) fn poll(&mut self, link: &mut dyn Link) -> Result<RecvProgress, TransportError> {
        match &mut self.destination {
            Destination::Posted(request) => {
                link.poll_recv(&mut self.state, &mut CopySink(request.dst.sub(0, self.len)))
            }
            Destination::Heap(bytes) => {
                link.poll_recv(&mut self.state, &mut CopySink(SpanMut::from(&mut **bytes)))
            }
            Destination::TooShort(_) => link.poll_recv(&mut self.state, &mut Discard),
        }
    }
}

/// Takes a message that nobody wants.
struct Discard;

impl Sink for Discard {
    fn take(&mut self, _offset: usize, _data: Span<'_>) {}

    fn landing(&mut self) -> Option<SpanMut<'_>> {
        None
    }
}
