//! An eager message that is longer than a frame, while it arrives.

use super::books::Receiving;
use crate::executor::CopySink;
use topology::Rank;
use transport::{
    Link, RecvProgress, RecvState, Sink, TransportError,
    memory::{Span, SpanMut},
};

/// The message, and where it goes.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) context: u32,
    pub(super) from: Rank,
    pub(super) tag: i32,
    state: RecvState,
    len: usize,
    pub(super) place: Place,
}

/// Where a message goes.
#[derive(Debug)]
pub(super) enum Place {
    /// To the memory of a receive, which has room for it.
    Letter(Receiving),
    /// Nowhere: the receive has no room for it.
    Nowhere(Receiving),
    /// To the heap, since no receive matches it so far.
    Heap(Box<[u8]>),
}

impl Inbox {
    pub(super) fn new(
        (context, from, tag): (u32, Rank, i32),
        len: usize,
        digest: u64,
        letter: Option<Receiving>,
    ) -> Inbox {
        let place = match letter {
            None => Place::Heap(vec![0; len].into()),
            Some(letter) if letter.dst.len() < len => Place::Nowhere(letter),
            Some(letter) => Place::Letter(letter),
        };
        Inbox { context, from, tag, state: RecvState::new(digest, len), len, place }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Does a letter wait for it?
    pub(super) fn is_letter(&self) -> bool {
        !matches!(self.place, Place::Heap(_))
    }

    /// Takes what has come of it.
    pub(super) fn poll(&mut self, link: &mut dyn Link) -> Result<RecvProgress, TransportError> {
        match &mut self.place {
            Place::Letter(letter) => {
                link.poll_recv(&mut self.state, &mut CopySink(letter.dst.sub(0, self.len)))
            }
            Place::Heap(bytes) => link.poll_recv(&mut self.state, &mut CopySink(SpanMut::from(&mut **bytes))),
            Place::Nowhere(_) => link.poll_recv(&mut self.state, &mut Nowhere),
        }
    }
}

/// Takes a message that nobody wants.
struct Nowhere;

impl Sink for Nowhere {
    fn take(&mut self, _offset: usize, _data: Span<'_>) {}

    fn landing(&mut self) -> Option<SpanMut<'_>> {
        None
    }
}
